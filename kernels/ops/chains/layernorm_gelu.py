"""LayerNorm and GELU (chapters 08, 09).

    h = (x − mean) · inv_std · weight + bias,   y = h · σ(2u) with u = √(2/π) (h + 0.044715 h³)

x and y have the shape (..., N); weight and bias have N elements each, and either may be missing.
In one launch R·N·s bytes are read and as many written for R rows and elements of s bytes; in two,
h is written and read again: twice that. The backward reads dy and x, 8 bytes a row, and writes dx:
x̂, h and GELU's slope are computed again.

Sources: Ba, Kiros, Hinton, "Layer Normalization" (arXiv:1607.06450); Hendrycks, Gimpel, "Gaussian
Error Linear Units" (arXiv:1606.08415).
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from kernels.ops.chains import norm_gelu
from kernels.ops.chains import norm_gelu_common as common
from kernels.ops.chains.bias_gelu import INSTEAD, gelu_by_operators
from kernels.ops.chains.norm_gelu_operators import PLAIN, check, plain
from kernels.ops.chains.tuning import norm_gelu_backward_candidates, norm_gelu_candidates
from kernels.ops.norms import layernorm
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import MAX_AUTOTUNE_CASES, needs_gpu
from kernels.ops.shared.compiled import compiled_each, max_autotuned_each
from kernels.registry import Backward, Op, Pass, Variant, cases, named, register

Tensor = torch.Tensor


def reference(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The chain in float64, straight from the equation; x (..., N), returns float64 (..., N)."""
    return gelu_by_operators(layernorm.reference(x, weight, bias, eps))


def eager(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; returns x's dtype."""
    return gelu_by_operators(layernorm.eager(x.float(), weight, bias, eps)).to(x.dtype)


def torch_chain(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """PyTorch's own operators, the first rounded to the dtype."""
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, eps), approximate="tanh")


compiled = compiled_each(torch_chain)
max_autotuned = max_autotuned_each(torch_chain)


def simple(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """A row in one block, in one launch; arguments as `layernorm_gelu`.

    ValueError for a row that no block holds, of more than 16384 columns.
    """
    check(x, weight, bias, eps)
    refuse_gradients(PLAIN, x, weight, bias, instead=INSTEAD)
    return norm_gelu.simple(x, weight, bias, None, 0.0, None, eps)


def layernorm_gelu(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """gelu(LayerNorm(x)) over the last dimension of `x`, in one launch.

    x: (..., N) in fp16, bf16 or fp32, any strides, N at least 1. weight, bias: (N,) in one of these
    dtypes, or None. GELU in its tanh form; arithmetic in fp32. Returns a new contiguous tensor of
    x's shape and dtype. A row of up to 16384 columns is read once (8192 in fp32, or where rows
    don't start at multiples of 16 bytes), a wider one twice. Tensors with gaps between their
    columns, or with more than one distance between their rows, are copied first. ValueError or
    TypeError names the argument, what it got and what it takes; NotImplementedError if a gradient
    that backward() made is differentiated again. Inside a transform of `torch.func` and in
    forward-mode differentiation PyTorch's operators compute it.
    """
    result: Tensor = plain(x, weight, bias, eps)
    return result


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=PLAIN,
        suite="pointwise",
        dims="RN",
        tensors={"x": "RN", "weight": "N", "bias": "N"},
        outputs={"y": "RN"},
        independent="R",
        inputs=functools.partial(common.inputs, False),
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten"),
            Variant("torch", torch_chain, _BOTH, counted="aten"),
            Variant("compile", compiled, _BOTH, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune",
                max_autotuned,
                unavailable=needs_gpu,
                cases=MAX_AUTOTUNE_CASES,
            ),
            Variant(
                "fused_simple",
                simple,
                counted="triton",
                moves=common.simple_moves(False),
                fits=lambda case: case.shape[-1] <= norm_gelu.WIDEST_SIMPLE,
            ),
            Variant("fused", layernorm_gelu, _BOTH, counted="triton", moves=common.moves(False)),
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        forward=Pass(
            cost=functools.partial(common.forward_cost, False),
            tolerance=common.tolerance,
            cases=cases(common.SHAPES, "bf16"),
            candidates=norm_gelu_candidates(False),
        ),
        backward=Backward(
            cost=functools.partial(common.backward_cost, False),
            tolerance=common.gradient_tolerance,
            cases=cases(common.SHAPES, "bf16"),
            candidates=norm_gelu_backward_candidates,
            differentiates=("x", "weight", "bias"),
        ),
    )
)
