"""A dropout and a residual, as they stand behind a product: y = residual + dropout(x).

    y = residual + x · 65536 / (65536 − T) where the element is kept, else residual
    dx = dropout(dy),   dresidual = dy

x, residual and y have the shape (..., N). Forward reads two tensors and writes one, 3·R·N·s bytes
for R rows and elements of s bytes, where two launches move 5 and the mask; back reads dy and writes
dx, and keeps nothing: the mask is made again.

Source: Srivastava et al., "Dropout" (JMLR 15, 2014).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernels.ops.chains import dropped_common as common
from kernels.ops.chains.dropped import NOTHING
from kernels.ops.chains.dropped_operators import (
    SEED_BYTES,
    backward_moves,
    forward_moves,
    operator,
)
from kernels.ops.shared.arguments import check_residual
from kernels.ops.shared.available import needs_gpu
from kernels.ops.shared.compiled import compiled_each
from kernels.philox import kept_elements, scale
from kernels.registry import (
    Backward,
    Case,
    Cost,
    Moves,
    Op,
    Pass,
    Random,
    Shape,
    Variant,
    cases,
    named,
    register,
)

Tensor = torch.Tensor

NAME = "dropout_residual"


def reference(
    x: Tensor, residual: Tensor, p: float, seed_offset: Tensor, first_row: int = 0
) -> Tensor:
    """The chain in float64; `first_row` is the place of x's first row in the whole tensor."""
    kept = kept_elements(tuple(x.shape), p, seed_offset, first_row * x.shape[-1])
    return residual.double() + x.double() * scale(p) * kept


def outcomes(x: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> tuple[Tensor, Tensor]:
    """What y is where an element is kept, and where it is dropped, in float64."""
    dropped = residual.double()
    return dropped + x.double() / common.kept_share(p), dropped


def eager(x: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; a mask of PyTorch's own."""
    kept = torch.rand(x.shape, device=x.device) >= p
    return (residual.float() + x.float() * kept / (1 - p)).to(x.dtype)


def torch_chain(x: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """PyTorch's operator for each step; a mask of PyTorch's own."""
    return residual + F.dropout(x, p)


def dropout_residual(
    x: Tensor, residual: Tensor, p: float, seed_offset: Tensor | None = None
) -> Tensor:
    """residual + dropout(x, p) in one launch of a kernel in Triton, and back in one.

    x, residual: (..., N) of one shape and dtype, fp16, bf16 or fp32; all else as in
    `activation_dropout.activation_dropout`. The sum is in fp32 and rounded once.
    """
    check_residual(x, residual)
    result: Tensor = operator(x, residual, seed_offset, p, NOTHING)
    return result


def inputs(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    p: float = 0.1,
) -> dict[str, Any]:
    """Fresh random x and residual (rows, N), the probability to drop and a seed."""
    return common.inputs(("x", "residual"), shape, dtype, device, seed, p)


def forward_cost(case: Case) -> Cost:
    """What it must do at least: a factor and a sum an element; the seed's 16 bytes once."""
    size = case.shape[0] * case.shape[1]
    each = size * case.dtype.itemsize
    return Cost(2 * size, 2 * each + SEED_BYTES * common.drawn(case), each)


def backward_cost(case: Case) -> Cost:
    """What its backward must do at least: a factor an element. The residual's gradient is dy."""
    size = case.shape[0] * case.shape[1]
    each = size * case.dtype.itemsize
    return Cost(size, each + SEED_BYTES * common.drawn(case), each)


def moves(case: Case, pass_: str) -> Moves:
    """One launch each way, which asks for each element once."""
    x = torch.empty(case.shape, dtype=case.dtype, device="meta")
    p = float(dict(case.options).get("p", 0.1))
    told = backward_moves(x, None, p) if pass_ == "bwd" else forward_moves(x, x, p)
    return told or Moves(0)


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=NAME,
        suite="encoder",
        dims="RN",
        tensors={"x": "RN", "residual": "RN"},
        outputs={"y": "RN"},
        independent="R",
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten", own_random=True),
            Variant("torch", torch_chain, _BOTH, counted="aten", own_random=True),
            Variant(
                "compile",
                compiled_each(torch_chain),
                _BOTH,
                unavailable=needs_gpu,
                own_random=True,
            ),
            Variant("fused", dropout_residual, _BOTH, counted="triton", moves=moves),
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        small=common.SMALL,
        options=((), (("p", 0.5),)),
        forward=Pass(
            cost=forward_cost,
            tolerance=common.tolerance,
            cases=cases(common.SHAPES, "bf16"),
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=common.tolerance,
            cases=cases(common.SHAPES, "bf16"),
            differentiates=("x", "residual"),
        ),
        random=Random(outcomes),
    )
)
