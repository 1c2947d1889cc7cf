"""How dropout beside an activation or a residual meets PyTorch: operators and formulas.

A mask is never kept: going back it is made again from the seed and the offset as they stand then.
With an activation x is kept, without one nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.chains import dropped
from kernels.ops.chains.bias_gelu import dropped_out, gelu_by_operators, gelu_slope_by_operators
from kernels.ops.chains.dropped import ACTIVATIONS, NOTHING, RELU, tile_for
from kernels.ops.chains.gated import GELU_TANH
from kernels.ops.shared.arguments import (
    check_residual,
    check_seed_offset,
    check_tensor,
)
from kernels.ops.shared.operators import Gradient, define, like, refuse_second_derivative
from kernels.philox import threshold
from kernels.registry import Moved, MovedStep, Moves

Tensor = torch.Tensor

ELEMENTWISE = ("activation_dropout", "dropout_residual")
SEED_BYTES = 16
_CPU = torch.device("cpu")  # where launches are counted


def check(
    x: Tensor, residual: Tensor | None, seed_offset: Tensor | None, p: float, activation: str
) -> None:
    """Raise TypeError or ValueError with one sentence unless the chain takes these arguments."""
    check_tensor("x", x)
    if residual is not None:
        check_residual(x, residual)
    if threshold(p) > 0:
        check_seed_offset(seed_offset, x)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; it takes one of {ACTIVATIONS[1:]}")


# --------------------------------------------------------------------------- PyTorch's operators


def _activated(x: Tensor, activation: str) -> Tensor:
    if activation == NOTHING:
        return x
    if activation == RELU:
        return torch.relu(x)
    if activation == GELU_TANH:
        return gelu_by_operators(x)
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def _slope(x: Tensor, activation: str) -> Tensor:
    if activation == RELU:
        return (~(x <= 0)).to(x.dtype)
    if activation == GELU_TANH:
        return gelu_slope_by_operators(x)
    density = torch.exp(-0.5 * x * x) * (2 * torch.pi) ** -0.5
    return 0.5 * (1 + torch.erf(x * 0.5**0.5)) + x * density


def masked(x: Tensor, p: float, seed_offset: Tensor | None) -> Tensor:
    """`x` where the package's mask keeps it, scaled, else 0; x itself without a seed."""
    return x if seed_offset is None else dropped_out(x, p, seed_offset)


def composed(
    x: Tensor, residual: Tensor | None, seed_offset: Tensor | None, p: float, activation: str
) -> Tensor:
    """residual + dropout(act(x)) by PyTorch's operators, in fp32, rounded once."""
    y = masked(_activated(x.float(), activation), p, seed_offset)
    return (y if residual is None else y + residual.float()).to(x.dtype)


def backward_composed(
    dy: Tensor, x: Tensor | None, seed_offset: Tensor | None, p: float, activation: str
) -> Tensor:
    """dropout(dy) · act'(x) by PyTorch's operators; x is None without an activation."""
    dx = masked(dy.float(), p, seed_offset)
    return (dx if x is None else dx * _slope(x.float(), activation)).to(dy.dtype)


# ------------------------------------------------------------------------------ element by element


def _step(name: str, x: Tensor, read: tuple[str, ...], written: str, p: float) -> Moves | None:
    """What one launch moves: each tensor once, the seed once by each program."""
    if x.numel() == 0:
        return None
    size, programs = x.numel() * x.element_size(), -(-x.numel() // tile_for(_CPU).cols)
    moved = [Moved(one, size, size) for one in read]
    if threshold(p) > 0:
        moved.append(Moved("seed_offset", SEED_BYTES, SEED_BYTES * programs))
    moved.append(Moved(written, write_unique=size, write_requested=size))
    return Moves.of(MovedStep(name, (programs, 1, 1), tuple(moved)))


def forward_moves(x: Tensor, residual: Tensor | None, p: float, **_: Any) -> Moves | None:
    """What the launch of the forward moves; None for a tensor without elements."""
    read = ("x",) if residual is None else ("x", "residual")
    return _step("dropped_tile", x, read, "y", p)


def backward_moves(dy: Tensor, x: Tensor | None, p: float, **_: Any) -> Moves | None:
    """What the launch of the backward moves; None for a tensor without elements."""
    read = ("dy",) if x is None else ("dy", "x")
    return _step("dropped_backward_tile", dy, read, "dx", p)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _residual, seed_offset, ctx.p, ctx.activation = inputs
    ctx.save_for_backward(None if ctx.activation == NOTHING else x, seed_offset)


def _formula(ctx: Any, dy: Tensor) -> Any:
    x, seed_offset = ctx.saved_tensors
    for_x, for_residual, *_ = ctx.needs_input_grad
    dx = backward_operator(dy, x, seed_offset, ctx.p, ctx.activation) if for_x else None
    return dx, dy if for_residual else None, None, None, None


TENSORS = {"x": "*N", "residual": "*N", "seed_offset": "S"}
_ARGUMENTS = "(Tensor x, Tensor? residual, Tensor? seed_offset, float p, str activation) -> Tensor"
_told: dict[str, Any] = {
    "launch": dropped.forward,
    "fake": lambda x, *_: like(x),
    "composed": composed,
    "of": ELEMENTWISE,
    "tensors": TENSORS,
    "independent": "*",
    "checks": check,
    "moves": forward_moves,
}
_with_grad = define(f"dropped_with_grad{_ARGUMENTS}", gradient=Gradient(_keep, _formula), **_told)
operator = define(f"dropped{_ARGUMENTS}", trained=_with_grad, **_told)
backward_operator = define(
    "dropped_backward(Tensor dy, Tensor? x, Tensor? seed_offset, float p, str activation) "
    "-> Tensor",
    dropped.backward,
    lambda dy, *_: like(dy),
    backward_composed,
    of=ELEMENTWISE,
    tensors={"dy": "*N", "x": "*N", "seed_offset": "S"},
    independent="*",
    moves=backward_moves,
)
refuse_second_derivative(
    "dropped_backward", "chains with a dropout have", "torch.nn.functional.dropout and a sum"
)
