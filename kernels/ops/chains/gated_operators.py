"""How gated products meet PyTorch: an operator for two tensors, one for two halves, the way back.

Each forward has two: one that keeps its inputs for the backward, and one that keeps nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from kernels.ops.chains.gated import (
    GELU_TANH,
    SILU,
    gated_backward,
    gated_forward,
    halves,
    halves_backward,
    halves_forward,
)
from kernels.ops.shared.arguments import check_same, check_tensor
from kernels.ops.shared.operators import Gradient, define, like, refuse_second_derivative

Tensor = torch.Tensor

_OF = ("swiglu", "geglu")
_TWO = {"gate": "*N", "up": "*N"}


def activate(g: Tensor, activation: str) -> Tensor:
    """SiLU or GELU by PyTorch's operators, in g's dtype."""
    if activation == SILU:
        return g * torch.sigmoid(g)  # F.silu's backward has no forward-mode derivative
    return F.gelu(g, approximate="tanh" if activation == GELU_TANH else "none")


def _composed(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return (activate(gate.float(), activation) * up.float()).to(gate.dtype)


def _backward_composed(
    dy: Tensor, gate: Tensor, up: Tensor, activation: str
) -> tuple[Tensor, Tensor]:
    gate32, up32, dy32 = gate.float(), up.float(), dy.float()
    if activation == SILU:
        share = torch.sigmoid(gate32)
        slope = share + gate32 * share * (1 - share)
    elif activation == GELU_TANH:
        inner, slope_of_inner = gelu_inner(gate32)
        tanh = torch.tanh(inner)
        slope = 0.5 * (1 + tanh) + 0.5 * gate32 * (1 - tanh * tanh) * slope_of_inner
    else:
        density = torch.exp(-0.5 * gate32 * gate32) * (2 * torch.pi) ** -0.5
        slope = 0.5 * (1 + torch.erf(gate32 * 0.5**0.5)) + gate32 * density
    return (
        (dy32 * up32 * slope).to(gate.dtype),
        (dy32 * activate(gate32, activation)).to(up.dtype),
    )


def gelu_inner(h: Tensor) -> tuple[Tensor, Tensor]:
    """u = √(2/π) (h + 0.044715 h³), what GELU's tanh is taken of, and du/dh."""
    root = (2 / torch.pi) ** 0.5
    return root * (h + 0.044715 * h * h * h), root * (1 + 3 * 0.044715 * h * h)


def _check(gate: Tensor, up: Tensor, _activation: str) -> None:
    check_tensor("gate", gate)
    if gate.dim() == 0 or gate.shape[-1] == 0:
        raise ValueError(
            f"gate has the shape {tuple(gate.shape)}; its last dimension must be 1 or more"
        )
    check_same("up", up, "gate", gate)


def _check_halves(x: Tensor, _activation: str) -> None:
    check_tensor("gate", x)
    if x.dim() == 0 or x.shape[-1] == 0 or x.shape[-1] % 2:
        raise ValueError(
            f"gate has the shape {tuple(x.shape)}; without up it is cut in halves, so its last "
            f"dimension must be even, 2 or more"
        )


def _half(x: Tensor, _activation: str) -> Tensor:
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return torch.empty(shape, dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _formula(ctx: Any, dy: Tensor) -> Any:
    dgate, dup = _backward_operator(dy, *ctx.saved_tensors, ctx.activation)
    for_gate, for_up, _ = ctx.needs_input_grad
    return dgate if for_gate else None, dup if for_up else None, None


def _formula_of_halves(ctx: Any, dy: Tensor) -> Any:
    return _halves_backward_operator(dy, *ctx.saved_tensors, ctx.activation), None


_define = functools.partial(
    define,
    launch=gated_forward,
    fake=lambda gate, up, activation: like(gate),
    composed=_composed,
    of=_OF,
    tensors=_TWO,
    independent="*",
    checks=_check,
)
_with_grad = _define(
    "gated_with_grad(Tensor gate, Tensor up, str activation) -> Tensor",
    gradient=Gradient(_keep, _formula),
)
gated_product = _define(
    "gated(Tensor gate, Tensor up, str activation) -> Tensor", trained=_with_grad
)
_backward_operator = define(
    "gated_backward(Tensor dy, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)",
    gated_backward,
    lambda dy, gate, up, activation: (like(gate), like(up)),
    _backward_composed,
    of=_OF,
    tensors={"dy": "*N", **_TWO},
    independent="*",
)

_define_halves = functools.partial(
    define,
    launch=halves_forward,
    fake=_half,
    composed=lambda x, activation: _composed(*halves(x), activation),
    of=_OF,
    tensors={"x": "*M"},
    independent="*",
    checks=_check_halves,
)
_halves_with_grad = _define_halves(
    "gated_halves_with_grad(Tensor x, str activation) -> Tensor",
    gradient=Gradient(_keep, _formula_of_halves),
)
product_of_halves = _define_halves(
    "gated_halves(Tensor x, str activation) -> Tensor", trained=_halves_with_grad
)
_halves_backward_operator = define(
    "gated_halves_backward(Tensor dy, Tensor x, str activation) -> Tensor",
    halves_backward,
    lambda dy, x, activation: like(x),
    lambda dy, x, activation: torch.cat(_backward_composed(dy, *halves(x), activation), -1),
    of=_OF,
    tensors={"dy": "*N", "x": "*M"},
    independent="*",
)
for _name in ("gated_backward", "gated_halves_backward"):
    refuse_second_derivative(
        _name, "gated products have", "torch.nn.functional.silu or gelu and a product"
    )
