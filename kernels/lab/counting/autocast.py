"""`torch.autocast("cuda")` on fake CUDA tensors: which operator gets its inputs in which dtype.

PyTorch's C++ casts the inputs of tensors whose device is CUDA, and takes our fakes for "meta"
tensors (see `fake_cuda`). So the casts are made here, in front of the same operators and by the
same rules; they are operators of the ledger, as on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from kernels.lab.counting.fake_cuda import replaced

# Products run in autocast's own dtype, fp16 or bf16.
LOWER = frozenset(
    """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul einsum
    mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    _scaled_dot_product_flash_attention scaled_dot_product_attention""".split()
)
# What would overflow or lose too much runs in fp32.
FP32 = frozenset(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
    layer_norm native_layer_norm group_norm rms_norm frobenius_norm nuclear_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d
    upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa""".split()
)
# Sums take what they get, and are asked to return fp32.
FP32_RESULT = frozenset(
    """prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum
    norm""".split()
)
# Several inputs meet in the widest dtype among them.
WIDEST = frozenset(
    """addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add
    vdot""".split()
)
REFUSED = frozenset(["binary_cross_entropy"])
# Python's names for them, and functions that reach them inside C++.
_SAME_AS = {
    "__matmul__": "matmul",
    "__rmatmul__": "matmul",
    "nll_loss_nd": "nll_loss",
}


class Autocast:
    """Cast the inputs of operators as autocast does, and keep the casts of weights as it does."""

    def __init__(self) -> None:
        self._weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @contextlib.contextmanager
    def switched_on(self) -> Iterator[None]:
        """Let `torch.autocast("cuda")` be entered though there is no GPU."""
        clear = torch.clear_autocast_cache

        def forget() -> None:
            self._weights.clear()
            clear()

        with (
            replaced(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            replaced(torch.cuda, "is_bf16_supported", lambda *_, **__: True),
            replaced(torch, "clear_autocast_cache", forget),
        ):
            yield

    def cast(self, operator: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of an operator as autocast would hand them on; as given if it is off."""
        if not torch.is_autocast_enabled("cuda"):
            return args, kwargs
        operator = _SAME_AS.get(operator, operator)
        lower = torch.get_autocast_dtype("cuda")
        if operator in LOWER:
            return tree_map(lambda v: self._to(v, lower), (args, kwargs))
        if operator in FP32:
            return tree_map(lambda v: self._to(v, torch.float32), (args, kwargs))
        if operator in WIDEST:
            floats = [value.dtype for value in tree_leaves((args, kwargs)) if _takes_part(value)]
            widest = torch.float32 if torch.float32 in floats else lower
            return tree_map(lambda v: self._to(v, widest), (args, kwargs))
        if operator in FP32_RESULT and args and _takes_part(args[0]):
            told = [*args, *kwargs.values()]
            if not any(isinstance(value, torch.dtype) for value in told):
                kwargs = {**kwargs, "dtype": torch.float32}
        if operator in REFUSED:
            raise RuntimeError(
                f"{operator} is unsafe under autocast, and PyTorch refuses it on a GPU too; "
                f"binary_cross_entropy_with_logits is safe"
            )
        return args, kwargs

    def _to(self, value: Any, dtype: torch.dtype) -> Any:
        if not _takes_part(value) or value.dtype == dtype:
            return value
        # A weight is cast once in a region, however often it is used.
        kept = (
            value.dtype == torch.float32
            and dtype == torch.get_autocast_dtype("cuda")
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not kept:
            return value.to(dtype)
        if id(value) not in self._weights:
            self._weights[id(value)] = (value, value.to(dtype))
        return self._weights[id(value)][1]


def _takes_part(value: Any) -> bool:
    """Whether autocast touches it: a tensor on the GPU of floating point, and not fp64."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
        and value.device.type == "cuda"
    )
