"""How dropout beside an activation, a residual or a norm meets PyTorch: operators and formulas.

A mask is never kept: going back it is made again from the seed and the offset as they stand then.
With an activation x is kept, with a norm the sum h, which is an output, and two numbers a row.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.chains import dropped
from kernels.ops.chains.bias_gelu import dropped_out, gelu_by_operators, gelu_slope_by_operators
from kernels.ops.chains.dropped import ACTIVATIONS, NOTHING, RELU, TILE
from kernels.ops.chains.gated import GELU_TANH
from kernels.ops.norms.operators import norm_backward
from kernels.ops.shared.arguments import (
    check_norm,
    check_residual,
    check_seed_offset,
    check_tensor,
)
from kernels.ops.shared.operators import Gradient, define, like, refuse_second_derivative
from kernels.philox import threshold
from kernels.registry import Moved, MovedStep, Moves

Tensor = torch.Tensor

ELEMENTWISE = ("activation_dropout", "dropout_residual")
NORMED = "dropout_add_layernorm"
SEED_BYTES = 16


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


def check_normed(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    seed_offset: Tensor | None,
    p: float,
    _eps: float,
) -> None:
    """Raise TypeError or ValueError with one sentence unless the norm takes these arguments."""
    check_norm(x, weight, bias)
    check_residual(x, residual)
    if threshold(p) > 0:
        check_seed_offset(seed_offset, x)


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
        return (x > 0).to(x.dtype)
    if activation == GELU_TANH:
        return gelu_slope_by_operators(x)
    density = torch.exp(-0.5 * x * x) * (2 * torch.pi) ** -0.5
    return 0.5 * (1 + torch.erf(x * 0.5**0.5)) + x * density


def _masked(x: Tensor, p: float, seed_offset: Tensor | None) -> Tensor:
    return x if seed_offset is None else dropped_out(x, p, seed_offset)


def composed(
    x: Tensor, residual: Tensor | None, seed_offset: Tensor | None, p: float, activation: str
) -> Tensor:
    """residual + dropout(act(x)) by PyTorch's operators, in fp32, rounded once."""
    y = _masked(_activated(x.float(), activation), p, seed_offset)
    return (y if residual is None else y + residual.float()).to(x.dtype)


def _backward_composed(
    dy: Tensor, x: Tensor | None, seed_offset: Tensor | None, p: float, activation: str
) -> Tensor:
    dx = _masked(dy.float(), p, seed_offset)
    return (dx if x is None else dx * _slope(x.float(), activation)).to(dy.dtype)


def _normed_composed(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    seed_offset: Tensor | None,
    p: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    h = (_masked(x.float(), p, seed_offset) + residual.float()).to(x.dtype)
    h32 = h.float()
    mean = h32.mean(-1, keepdim=True)
    off = h32 - mean
    inv_std = torch.rsqrt((off * off).mean(-1, keepdim=True) + eps)
    y = off * inv_std
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype), h, mean.flatten(), inv_std.flatten()


# ------------------------------------------------------------------------------ element by element


def _step(name: str, x: Tensor, read: tuple[str, ...], written: str, p: float) -> Moves | None:
    """What one launch moves: each tensor once, the seed once by each program."""
    if x.numel() == 0:
        return None
    size, programs = x.numel() * x.element_size(), -(-x.numel() // TILE.cols)
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


_TENSORS = {"x": "*N", "residual": "*N", "seed_offset": "S"}
_ARGUMENTS = "(Tensor x, Tensor? residual, Tensor? seed_offset, float p, str activation) -> Tensor"
_told: dict[str, Any] = {
    "launch": dropped.forward,
    "fake": lambda x, *_: like(x),
    "composed": composed,
    "of": ELEMENTWISE,
    "tensors": _TENSORS,
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
    _backward_composed,
    of=(*ELEMENTWISE, NORMED),
    tensors={"dy": "*N", "x": "*N", "seed_offset": "S"},
    independent="*",
    moves=backward_moves,
)
refuse_second_derivative(
    "dropped_backward", "chains with a dropout have", "torch.nn.functional.dropout and a sum"
)

# ------------------------------------------------------------------------------------ with a norm


def _normed(*args: Any) -> tuple[Tensor, Tensor]:
    return dropped.normed_forward(*args)[:2]


def _normed_train(*args: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    return dropped.normed_forward(*args, statistics=True)


def _normed_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    mean = torch.empty(rows, dtype=torch.float32, device=x.device)
    return like(x), like(x), mean, like(mean)


def _normed_keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _x, _residual, weight, bias, seed_offset, ctx.p, _eps = inputs
    _y, h, mean, inv_std = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, inv_std)
    ctx.save_for_backward(h, weight, bias, mean, inv_std, seed_offset)


def _normed_formula(ctx: Any, dy: Tensor | None, dh: Tensor | None = None, *_: Any) -> Any:
    """Through the norm to h, whose gradient is the residual's; dropped as x was, it is x's."""
    h, weight, bias, mean, inv_std, seed_offset = ctx.saved_tensors
    for_x, for_residual, for_weight, for_bias, *_ = ctx.needs_input_grad
    dx, dweight, dbias = dh, None, None
    if dy is not None:
        dx, dweight, dbias = norm_backward(
            dy, dh, h, weight, bias, mean, inv_std, for_weight, for_bias
        )
    dresidual = dx if for_residual else None
    if dx is not None and threshold(ctx.p) > 0:
        dx = backward_operator(dx, None, seed_offset, ctx.p, NOTHING) if for_x else None
    return (
        dx if for_x else None,
        dresidual,
        dweight if for_weight else None,
        dbias if for_bias else None,
        None,
        None,
        None,
    )


_NORM_ARGUMENTS = (
    "(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, Tensor? seed_offset, float p, "
    "float eps)"
)
_norm_told: dict[str, Any] = {
    "of": (NORMED,),
    "tensors": {**_TENSORS, "weight": "N", "bias": "N"},
    "independent": "*",
    "checks": check_normed,
}
_normed_with_grad = define(
    f"{NORMED}_train{_NORM_ARGUMENTS} -> (Tensor, Tensor, Tensor, Tensor)",
    _normed_train,
    _normed_fake,
    _normed_composed,
    gradient=Gradient(_normed_keep, _normed_formula, n_returned=2),
    **_norm_told,
)
normed_operator = define(
    f"{NORMED}{_NORM_ARGUMENTS} -> (Tensor, Tensor)",
    _normed,
    lambda *args: _normed_fake(*args)[:2],
    lambda *args: _normed_composed(*args)[:2],
    trained=lambda *args: _normed_with_grad(*args)[:2],
    **_norm_told,
)
