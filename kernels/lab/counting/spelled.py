"""The operators that PyTorch's C++ chooses on CUDA, called where a fake tensor would mislead it.

C++ takes our fakes for "meta" tensors (see `fake_cuda`), and a build without CUDA lacks some of its
choices: dropout, batch and RMS norm, attention, the inference path of an encoder layer. A mode
sees every function of PyTorch that is called from Python, and calls what a GPU would be given.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from kernels.lab.counting import fused_attention, inference_path
from kernels.lab.counting.autocast import Autocast
from kernels.lab.counting.fake_cuda import Fakes, replaced
from kernels.launch import capability

Tensor = torch.Tensor
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_UNKNOWN = "what it launches on a GPU is not known here"
_REFUSED = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), f"cuDNN's: {_UNKNOWN}"),
    "_nested_tensor_from_mask_left_aligned": "its path goes by the values of a mask: fake tensors "
    "have none; nn.TransformerEncoder(enable_nested_tensor=False) packs nothing",
}


class Book(Protocol):
    """Where operators are written down."""

    def spelled(self, operator: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Write down an operator that was put in another's place and that did not run."""

    def tell(self, note: str) -> None:
        """Add a note to the next step of an attention."""


class _RmsNorm(torch.autograd.Function):
    """PyTorch's RMSNorm on CUDA: one operator forward, which keeps 1 / rms, and one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, n_dims: int, weight: Tensor | None, book: Book) -> Tensor:
        y = torch.empty_like(x)
        rows = (*x.shape[: x.dim() - n_dims], *[1] * n_dims)
        inverse = torch.empty(rows, dtype=torch.float32, device=x.device)
        given = [x] if weight is None else [x, weight]
        book.spelled("_fused_rms_norm", given, [y, inverse])
        ctx.save_for_backward(*given, inverse)
        ctx.book = book
        return y

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Any:
        *given, inverse = ctx.saved_tensors
        made = [torch.empty_like(tensor) for tensor in given]
        ctx.book.spelled("_fused_rms_norm_backward", [*dy, *given, inverse], made)
        return made[0], None, (made[1] if len(made) > 1 else None), None


class SpelledMode(TorchFunctionMode):
    """Call the operators that PyTorch's C++ chooses on CUDA, on fakes in the place of all tensors.

    A function of PyTorch in Python is opened, so that those it calls are seen too.
    """

    def __init__(self, book: Book, fakes: Fakes) -> None:
        super().__init__()
        self._book = book
        self._fakes = fakes
        self._autocast = Autocast()
        self._opened: dict[Any, Any] = {}
        self._inside: list[Any] = []

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Switch the mode on, and what a module would find on a GPU."""
        # Modules ask this before they take their inference path, which a mode would forbid.
        none_has = replaced(torch.overrides, "has_torch_function", lambda _: False)
        with self._autocast.switched_on(), none_has, self:
            yield

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map(self._fakes.of, (args, kwargs or {}))
        if isinstance(func, types.FunctionType) and func not in self._inside:
            self._inside.append(func)
            try:
                with self:
                    return self._open(func)(*args, **kwargs)
            finally:
                self._inside.pop()
        name = getattr(func, "__name__", "").partition(".")[0]
        if name == "__get__":  # a property, of the class of the fake
            return _property(args[0], func.__self__.__name__)
        if name in _REFUSED:
            raise ValueError(f"{name.strip('_')} is not counted: {_REFUSED[name]}")
        args, kwargs = self._autocast.cast(name, args, kwargs)
        spelling = getattr(self, f"_on_cuda_{name}", None)
        return func(*args, **kwargs) if spelling is None else spelling(func, *args, **kwargs)

    def _open(self, func: types.FunctionType) -> Any:
        """A copy of a Python function that does not ask for modes first, which would lead here."""
        if func not in self._opened:
            there = {name: _no for name in _CHECKS if name in func.__globals__}
            copy = types.FunctionType(
                func.__code__,
                {**func.__globals__, **there},
                func.__name__,
                func.__defaults__,
                func.__closure__,
            )
            copy.__kwdefaults__ = func.__kwdefaults__
            self._opened[func] = copy if there else func
        return self._opened[func]

    def _on_cuda_dropout(self, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
        fused = train and 0 < p < 1 and input.numel() > 0 and _on_gpu(input)
        return torch.native_dropout(input, p, True)[0] if fused else func(input, p, train)

    def _on_cuda_rms_norm(
        self,
        func: Any,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        if weight is not None and weight.dtype != input.dtype:  # PyTorch does it step by step
            return func(input, normalized_shape, weight, eps)
        return _RmsNorm.apply(input, len(normalized_shape), weight, self._book)

    def _on_cuda_batch_norm(
        self,
        func: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool,
    ) -> Tensor:
        given = (weight, bias, running_mean, running_var)
        if _cudnn_normalizes(input, *given, training, cudnn_enabled):
            layout = _memory_format(input)
            straight = [None if one is None else one.contiguous() for one in given]
            return torch.ops.aten.cudnn_batch_norm.default(
                input.contiguous(memory_format=layout), *straight, training, momentum, eps
            )[0]
        return func(input, *given, training, momentum, eps, cudnn_enabled)

    def _on_cuda_instance_norm(
        self,
        func: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        use_input_stats: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool,
    ) -> Tensor:
        batch, channels = input.shape[:2]
        given = (weight, bias, running_mean, running_var)
        w, b, mean, var = (None if one is None else one.repeat(batch) for one in given)
        one_batch = input.contiguous().view(1, batch * channels, *input.shape[2:])
        y = self._on_cuda_batch_norm(
            torch.batch_norm,
            one_batch,
            w,
            b,
            mean,
            var,
            use_input_stats,
            momentum,
            eps,
            cudnn_enabled,
        )
        for kept, made in ((running_mean, mean), (running_var, var)):
            if kept is not None and made is not None:
                kept.copy_(made.view(batch, channels).mean(0))
        return y.view(input.shape)

    def _on_cuda_cross_entropy_loss(
        self,
        func: Any,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = 1,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        # Under autocast the logarithms stay in the input's dtype, which C++ asks for by name; it is
        # the loss of them that gets fp32.
        rest = (reduction, ignore_index)
        if label_smoothing or target.is_floating_point():
            args, _ = self._autocast.cast("nll_loss", (input, target, weight, *rest), {})
            return func(*args, label_smoothing)
        logs = torch.log_softmax(input, min(1, input.dim() - 1), dtype=input.dtype)
        args, _ = self._autocast.cast("nll_loss", (logs, target, weight, *rest), {})
        loss: Tensor = torch._C._nn.nll_loss_nd(*args)
        return loss

    def _on_cuda_softmax(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        return self._widened(torch.ops.aten._softmax.default, func, *args, **kwargs)

    def _on_cuda_log_softmax(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        return self._widened(torch.ops.aten._log_softmax.default, func, *args, **kwargs)

    def _widened(self, operator: Any, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        """A softmax that reads fp16 and writes fp32, in one launch as on a GPU."""
        given = dict(zip(("input", "dim", "dtype"), args, strict=False)) | kwargs
        x = given.get("input")
        half = isinstance(x, Tensor) and x.dtype == torch.float16 and _on_gpu(x)
        if half and given.get("dtype") == torch.float32:
            return operator(x, given["dim"], True)
        return func(*args, **kwargs)

    def _on_cuda_scaled_dot_product_attention(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if not _on_gpu(query):
            return func(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        call = fused_attention.Attention(
            query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, capability(here)
        )
        return fused_attention.attend(call, scale, self._book.tell)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self._on_cuda_scaled_dot_product_attention(None, query, key, value)

    def _on_cuda__transformer_encoder_layer_fwd(self, func: Any, *args: Any) -> Tensor:
        attention = partial(inference_path.multi_head_attention, self._attend)
        return inference_path.encoder_layer(attention, *args)

    def _on_cuda__native_multi_head_attention(
        self, func: Any, query: Tensor, key: Tensor, value: Tensor, width: int, *rest: Any
    ) -> tuple[Tensor, None]:
        num_heads, qkv_w, qkv_b, proj_w, proj_b, mask, need_weights = rest[:7]
        qkv, proj = (qkv_w, qkv_b), (proj_w, proj_b)
        given = (query, num_heads, qkv, proj, mask, need_weights)
        return inference_path.multi_head_attention(self._attend, *given), None

    def _on_cuda___setitem__(self, func: Any, x: Tensor, key: Any, value: Any) -> None:
        if not isinstance(value, Tensor) and _on_gpu(x):
            value = torch.scalar_tensor(value, dtype=x.dtype, device="cpu")  # as PyTorch makes it
        func(x, key, value)

    def _on_cuda_get_device(self, func: Any, x: Tensor) -> int:
        return x.device.index if _on_gpu(x) else -1

    def _on_cuda_cuda(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x if _on_gpu(x) else x.to("cuda")

    def _on_cuda_to(self, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not _on_gpu(x):
            return func(x, *args, **kwargs)
        # A copy to where it is, is none.
        given = [*args, *(kwargs.pop(name, None) for name in ("device", "dtype", "other"))]
        given = [_dtype_of(one) for one in given if one is not None and not _is_cuda(one)]
        wanted = [one for one in given if not isinstance(one, bool)]
        return func(x, *given, **kwargs) if wanted or kwargs else x


def _property(x: Tensor, name: str) -> Any:
    if name in ("is_cuda", "is_meta"):
        return name == "is_cuda" and _on_gpu(x)
    return getattr(x, name)


def _no(*_: Any) -> bool:
    return False


def _on_gpu(x: Tensor) -> bool:
    return x.device.type == "cuda"


def _is_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    if isinstance(value, int) and not isinstance(value, bool):
        return True
    return isinstance(value, torch.device) and value.type == "cuda"


def _dtype_of(value: Any) -> Any:
    """The dtype of a tensor on the GPU, which `to` takes for an example; anything else as it is."""
    return value.dtype if isinstance(value, Tensor) and _on_gpu(value) else value


def _memory_format(x: Tensor) -> torch.memory_format:
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and not x.is_contiguous() and x.is_contiguous(memory_format=layout):
            return layout
    return torch.contiguous_format


def _cudnn_normalizes(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    enabled: bool,
) -> bool:
    """Whether batch norm is cuDNN's on a GPU, as PyTorch decides it."""
    if not (enabled and _on_gpu(x) and x.dim() >= 3):
        return False
    if weight is None or bias is None or (running_mean is None) != (running_var is None):
        return False
    if torch.bfloat16 in (x.dtype, weight.dtype) or (running_mean is None and not training):
        return False
    if x.dtype == torch.float16 and weight.dtype != torch.float32:
        return False
    return x.shape[0] <= (880801 if training else 65535)
