"""A chain behind a norm: y = residual + dropout(gelu(LayerNorm(x))) (chapters 08, 09).

    h = (x − mean) · inv_std · weight + bias,   g = gelu(h) (tanh form)
    d = g · 65536 / (65536 − T) where the element is kept, else 0,   y = residual + d

x, residual and y have the shape (..., N); weight and bias have N elements each, and either may be
missing. In one launch x and residual are read and y is written: 3 times R·N·s bytes for R rows and
elements of s bytes; in four, 9 times. Which elements are kept is Philox's (`kernels/philox.py`).
The backward reads dy and x and writes dx; the mask is made again, never stored.

Sources: those of `layernorm_gelu`; Srivastava et al., "Dropout" (JMLR 15, 2014).
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F

from kernels.ops.chains import layernorm_gelu_dropout_residual_cuda as in_cuda
from kernels.ops.chains import norm_gelu
from kernels.ops.chains import norm_gelu_common as common
from kernels.ops.chains.bias_gelu import INSTEAD, gelu_by_operators
from kernels.ops.chains.norm_gelu_operators import CHAIN, chain, check_chain
from kernels.ops.chains.tuning import norm_gelu_backward_candidates, norm_gelu_candidates
from kernels.ops.norms import layernorm
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import MAX_AUTOTUNE_CASES, needs_gpu
from kernels.ops.shared.compiled import compiled_each, max_autotuned_each
from kernels.philox import kept_elements, scale
from kernels.registry import Backward, Op, Pass, Random, Variant, cases, named, register

Tensor = torch.Tensor


def outcomes(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
) -> tuple[Tensor, Tensor]:
    """What y is where an element is kept, and where it is dropped, in float64.

    A generator of another kind keeps a share of exactly 1 − p, and scales by its inverse.
    """
    dropped = residual.double()
    active = gelu_by_operators(layernorm.reference(x, weight, bias))
    return dropped + active / (1 - p if p < 1 else math.inf), dropped


def reference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
    first_row: int = 0,
) -> Tensor:
    """The chain in float64; `first_row` is the place of x's first row in the whole tensor."""
    kept = kept_elements(tuple(x.shape), p, seed_offset, first_row * x.shape[-1])
    active = gelu_by_operators(layernorm.reference(x, weight, bias, eps))
    return residual.double() + active * scale(p) * kept


def eager(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; a mask of PyTorch's own."""
    g = gelu_by_operators(layernorm.eager(x.float(), weight, bias, eps))
    kept = torch.rand_like(g) >= p
    return (residual.float() + g * kept / (1 - p)).to(x.dtype)


def torch_chain(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """PyTorch's operator for each step, each rounded to the dtype; a mask of PyTorch's own."""
    h = F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return residual + F.dropout(F.gelu(h, approximate="tanh"), p)


compiled = compiled_each(torch_chain)
max_autotuned = max_autotuned_each(torch_chain)


def simple(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """A row in one block and a call of Philox for each element, in one launch.

    Arguments as `layernorm_gelu_dropout_residual`; its mask is another, since a number of 24 bits
    decides over an element. ValueError for a row that no block holds, of more than 16384 columns,
    and for p = 1.
    """
    check_chain(x, weight, bias, residual, p, seed_offset, eps)
    refuse_gradients(CHAIN, x, weight, bias, residual, instead=INSTEAD)
    return norm_gelu.simple(x, weight, bias, residual, p, seed_offset, eps)


def layernorm_gelu_dropout_residual(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """residual + dropout(gelu(LayerNorm(x)), p), in one launch.

    x, weight, bias and all else as in `layernorm_gelu`. residual: of x's shape and dtype. p: the
    probability to drop, 0 to 1; at 0 no random numbers are drawn. seed_offset: int64 (2,), the seed
    and the number of the call, in the memory of x's device: a captured graph draws another mask
    when it is given other numbers there.

    The backward makes the mask again from seed_offset as it stands then: change it between steps,
    not between a forward and its backward (PyTorch raises RuntimeError where it sees that). Rows of
    a width that is no multiple of 8 take a call of Philox for each element.
    """
    result: Tensor = chain(x, weight, bias, residual, p, seed_offset, eps)
    return result


_BOTH = ("fwd", "bwd")
WITHOUT_DROPOUT = (("p", 0),)  # what the random numbers cost shows beside it
OP = register(
    Op(
        name=CHAIN,
        suite="pointwise",
        dims="RN",
        tensors={"x": "RN", "weight": "N", "bias": "N", "residual": "RN"},
        outputs={"y": "RN"},
        independent="R",
        inputs=functools.partial(common.inputs, True),
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten", own_random=True),
            Variant("torch", torch_chain, _BOTH, counted="aten", own_random=True),
            Variant("compile", compiled, _BOTH, unavailable=needs_gpu, own_random=True),
            Variant(
                "compile_max_autotune",
                max_autotuned,
                unavailable=needs_gpu,
                cases=MAX_AUTOTUNE_CASES,
                own_random=True,
            ),
            Variant(
                "fused_simple",
                simple,
                counted="triton",
                moves=common.simple_moves(True),
                fits=lambda case: case.shape[-1] <= norm_gelu.WIDEST_SIMPLE,
                own_random=True,
            ),
            Variant(
                "fused",
                layernorm_gelu_dropout_residual,
                _BOTH,
                counted="triton",
                moves=common.moves(True),
            ),
            *in_cuda.VARIANTS,
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        forward=Pass(
            cost=functools.partial(common.forward_cost, True),
            tolerance=common.tolerance,
            cases=cases(common.SHAPES, "bf16")
            + cases([(16384, 8192)], "fp32")
            + cases([(16384, 8192)], "bf16", options=[WITHOUT_DROPOUT]),
            candidates=norm_gelu_candidates(True),
        ),
        backward=Backward(
            cost=functools.partial(common.backward_cost, True),
            tolerance=common.gradient_tolerance,
            cases=cases(common.SHAPES, "bf16"),
            candidates=norm_gelu_backward_candidates,
            differentiates=("x", "weight", "bias", "residual"),
        ),
        random=Random(outcomes),
    )
)
