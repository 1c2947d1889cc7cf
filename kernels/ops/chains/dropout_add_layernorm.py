"""Dropout, residual and LayerNorm, as they stand between the blocks of a transformer in training.

    h = residual + dropout(x),   y = LayerNorm(h) · weight + bias

x, residual, h and y have the shape (..., N). Both outputs are wanted: y goes into the next block, h
past it as the next residual. In one launch x and residual are read, h and y written: 4·R·N·s bytes
for R rows and elements of s bytes, where dropout, sum and norm one after the other move 7 and the
mask twice. Kept for the way back are h, which is an output, and 8 bytes a row; the mask is made
again. Back, the norm's gradient is the residual's, and dropped as x was it is x's.

Sources: those of `add_layernorm`; Srivastava et al., "Dropout" (JMLR 15, 2014).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernels.ops.chains import dropped_common as common
from kernels.ops.chains.dropped import norm_block
from kernels.ops.chains.dropped_norm_operators import NORMED, normed_operator
from kernels.ops.chains.dropped_operators import SEED_BYTES, backward_moves
from kernels.ops.norms import common as norms
from kernels.ops.norms import layernorm
from kernels.ops.norms.add_layernorm import TENSORS
from kernels.ops.norms.moves import moves as norm_moves
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

# Of other numbers of rows the norm's backward keeps 32 bytes in memory on 10.0, of 1024 in fp32.
SHAPES: tuple[Shape, ...] = ((65536, 1024), (4096, 4096))


def reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
    first_row: int = 0,
) -> tuple[Tensor, Tensor]:
    """(y, h) in float64; `first_row` is the place of x's first row in the whole tensor."""
    kept = kept_elements(tuple(x.shape), p, seed_offset, first_row * x.shape[-1])
    h = residual.double() + x.double() * scale(p) * kept
    return layernorm.reference(h, weight, bias, eps), h


def outcomes(x: Tensor, residual: Tensor, p: float, **_: Any) -> tuple[Tensor, Tensor]:
    """What h is where an element is kept, and where it is dropped, in float64."""
    dropped = residual.double()
    return dropped + x.double() / common.kept_share(p), dropped


def of_sum(h: Tensor, weight: Tensor | None, bias: Tensor | None, **_: Any) -> tuple[Tensor, ...]:
    """(y, h) in float64 from h."""
    return layernorm.reference(h, weight, bias), h


def eager(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    p: float,
    seed_offset: Tensor,
) -> tuple[Tensor, Tensor]:
    """The maths, one PyTorch operator after the other; a mask of PyTorch's own."""
    kept = torch.rand(x.shape, device=x.device) >= p
    h = (residual.float() + x.float() * kept / (1 - p)).to(x.dtype)
    return layernorm.eager(h, weight, bias), h


def torch_chain(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    p: float,
    seed_offset: Tensor,
) -> tuple[Tensor, Tensor]:
    """PyTorch's operator for each step; a mask of PyTorch's own."""
    h = residual + F.dropout(x, p)
    return F.layer_norm(h, h.shape[-1:], weight, bias), h


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    p: float,
    seed_offset: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Return (LayerNorm(h), h) of h = residual + dropout(x, p), in one launch.

    x, residual: (..., N) in fp16, bf16 or fp32, of one shape and dtype; weight, bias: (N,) in one
    of these, or None. p: the probability to drop, 0 to 1. seed_offset: int64 (2,), the seed and the
    number of the call, in the memory of x's device; None is for p = 0 alone. The sum is rounded to
    x's dtype, and what is normalised is the rounded sum. Rows of more than 16384 columns (8192 in
    fp32, or where 16 bytes are not loaded at a time) take two launches. Its backward takes three:
    the norm's two, and the dropout's.

    The backward makes the mask again from seed_offset as it stands then: change it between steps,
    not between a forward and its backward. ValueError or TypeError names the argument, what it got
    and what it takes; NotImplementedError if a gradient that backward() made is differentiated
    again. Inside a transform of `torch.func` PyTorch's operators compute it, with the same mask.
    """
    result: tuple[Tensor, Tensor] = normed_operator(x, residual, weight, bias, seed_offset, p, eps)
    return result


def inputs(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    p: float = 0.1,
) -> dict[str, Any]:
    """Fresh random x, residual (rows, N), weight, bias (N,), the probability and a seed."""
    return common.inputs(TENSORS, shape, dtype, device, seed, p)


def forward_cost(case: Case) -> Cost:
    """What it must do at least: add_layernorm's, a factor an element, the seed's 16 bytes."""
    size = case.shape[0] * case.shape[1]
    return norms.forward_cost(TENSORS)(case) + Cost(size, SEED_BYTES * common.drawn(case), 0)


def backward_cost(case: Case) -> Cost:
    """What its backward must do at least: add_layernorm's, a factor an element, one gradient more.

    x's is the residual's where nothing is dropped, and no bytes.
    """
    size, drawn = case.shape[0] * case.shape[1], common.drawn(case)
    more = Cost(size, SEED_BYTES, size * case.dtype.itemsize) if drawn else Cost(0, 0, 0)
    return norms.backward_cost(TENSORS)(case) + more


def moves(case: Case, pass_: str) -> Moves:
    """One launch forward, two where no block holds a row; back the norm's, and the dropout's."""
    rows, n_cols = case.shape
    x = torch.empty(case.shape, dtype=case.dtype, device="meta")
    p = float(dict(case.options).get("p", 0.1))
    if pass_ == "fwd":
        ideal = forward_cost(case).bytes_ideal
        if norm_block(n_cols, case.dtype.itemsize) is not None:
            return Moves(1, unique=ideal)
        return Moves(2, unique=ideal + rows * n_cols * case.dtype.itemsize)  # h is read again
    norm, dropped = norm_moves(TENSORS)(case, "bwd"), backward_moves(x, None, p)
    if dropped is None or not common.drawn(case):
        return norm
    return Moves(
        norm.launches + dropped.launches, unique=(norm.unique or 0) + (dropped.unique or 0)
    )


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=NORMED,
        suite="encoder",
        dims="RN",
        tensors=norms.dims(TENSORS),
        outputs=norms.outputs(TENSORS),
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
            Variant("fused", dropout_add_layer_norm, _BOTH, counted="triton", moves=moves),
        ),
        shapes=SHAPES,
        beyond=common.BEYOND,
        # Rows of 3 numbers are left out: PyTorch's own gradient is off there by more than a bound.
        small=((4, 64), (4, 1000), (1, 17), (5, 9), (3, 1), (2, 17_000), (0, 16)),
        options=((), (("p", 0),)),
        forward=Pass(
            cost=forward_cost,
            tolerance=norms.forward_tolerance(TENSORS),
            cases=cases(SHAPES, "bf16"),
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=norms.backward_tolerance(TENSORS),
            cases=cases(SHAPES, "bf16"),
            differentiates=TENSORS,
        ),
        random=Random(outcomes, place=1, outputs=of_sum),
    )
)
