"""How a product meets PyTorch: an operator forward, one that keeps its inputs, three going back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels.ops.products.backward import grad_weight, grad_x
from kernels.ops.products.bias import grad_bias
from kernels.ops.products.configurations import HOPPER, TORCH, TRITON, Ways
from kernels.ops.products.forward import forward
from kernels.ops.products.moves import (
    grad_bias_moves,
    grad_weight_moves,
    grad_x_moves,
    operator_moves,
)
from kernels.ops.shared.arguments import check_tensor
from kernels.ops.shared.operators import Gradient, define, refuse_second_derivative

Tensor = torch.Tensor

# The operations that call a product's operators: those behind it with an epilogue go back by them.
OF = (
    "linear",
    *("linear_bias_gelu", "linear_bias_residual", "linear_swiglu", "swiglu_mlp", "geglu_mlp"),
    "qkv",
)


def check(x: Tensor, weight: Tensor, bias: Tensor | None, *_: str) -> None:
    """Raise TypeError or ValueError with one sentence unless `linear` takes these arguments."""
    check_tensor("x", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; its last dimension must be 1 or more")
    check_tensor("weight", weight, like=x)
    if weight.dim() != 2 or weight.shape[1] != x.shape[-1] or weight.shape[0] == 0:
        raise ValueError(
            f"weight has the shape {tuple(weight.shape)}; with x of shape {tuple(x.shape)} it "
            f"takes (N, {x.shape[-1]}), N being 1 or more"
        )
    if bias is not None:
        check_tensor("bias", bias, like=x)
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"bias has the shape {tuple(bias.shape)}; with weight of shape "
                f"{tuple(weight.shape)} it takes ({weight.shape[0]},)"
            )
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and one.dtype != x.dtype:
            raise TypeError(
                f"{name} has dtype {one.dtype} and x {x.dtype}; they must have the same"
            )


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, forward_by: str, _grad_x: str, _grad_weight: str
) -> Tensor:
    return FORWARD_BY[forward_by](x, weight, bias)


def _fake(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)


def composed(x: Tensor, weight: Tensor, bias: Tensor | None, *_: str) -> Tensor:
    """The product by PyTorch's operator, in x's dtype inside autocast too."""
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.linear(x, weight, bias)


# What computes the forward, by the name that `configurations.Ways` has for it.
FORWARD_BY: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    TRITON: forward,
    HOPPER: functools.partial(forward, hopper=True),
    TORCH: composed,
}


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _bias, _forward_by, *ctx.by = inputs
    ctx.save_for_backward(x, weight)


def gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    wanted: tuple[bool, bool, bool],
    grad_x_by: str,
    grad_weight_by: str,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, weight and bias, each where it is wanted, from that of x · weightᵀ + b.

    dy (..., N), x (..., K), weight (N, K). What computes either product is told by `Ways`' names.
    """
    for_x, for_weight, for_bias = wanted
    dx = dweight = dbias = None
    if for_x:
        dx = dy @ weight if grad_x_by == TORCH else _grad_x_operator(dy, weight)
    if for_weight and grad_weight_by == TRITON:
        dweight, dbias = _grad_weight_operator(dy, x, for_bias)
    elif for_weight:
        dweight = _rows(dy).T @ _rows(x)
    if for_bias and (dbias is None or not for_weight):
        dbias = _grad_bias_operator(dy)
    return dx, dweight, dbias if for_bias else None


def _formula(ctx: Any, dy: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    return *gradients(dy, x, weight, ctx.needs_input_grad[:3], *ctx.by), None, None, None


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _grad_weight_composed(dy: Tensor, x: Tensor, wants_bias: bool) -> tuple[Tensor, Tensor | None]:
    return _rows(dy).T @ _rows(x), _rows(dy).sum(0) if wants_bias else None


def _grad_weight_fake(dy: Tensor, x: Tensor, wants_bias: bool) -> tuple[Tensor, Tensor | None]:
    n = dy.shape[-1]
    dweight = torch.empty((n, x.shape[-1]), dtype=x.dtype, device=x.device)
    return dweight, torch.empty(n, dtype=x.dtype, device=x.device) if wants_bias else None


_define = functools.partial(
    define,
    launch=_launch,
    fake=_fake,
    composed=composed,
    of=OF,
    tensors={"x": "*K", "weight": "NK", "bias": "N"},
    independent="*",
    checks=check,
    moves=operator_moves,
)
_ARGUMENTS = (
    "(Tensor x, Tensor weight, Tensor? bias, str forward, str grad_x, str grad_weight) -> Tensor"
)
_with_grad = _define(f"linear_with_grad{_ARGUMENTS}", gradient=Gradient(_keep, _formula))
operator = _define(f"linear{_ARGUMENTS}", trained=_with_grad)
_grad_x_operator = define(
    "linear_grad_x(Tensor dy, Tensor weight) -> Tensor",
    grad_x,
    lambda dy, weight: dy.new_empty((*dy.shape[:-1], weight.shape[1])),
    lambda dy, weight: dy @ weight,
    of=OF,
    tensors={"dy": "*N", "weight": "NK"},
    independent="*",
    moves=grad_x_moves,
)
_grad_weight_operator = define(
    "linear_grad_weight(Tensor dy, Tensor x, bool wants_bias) -> (Tensor, Tensor)",
    grad_weight,
    _grad_weight_fake,
    _grad_weight_composed,
    of=OF,
    tensors={"dy": "*N", "x": "*K"},
    moves=grad_weight_moves,
)
_grad_bias_operator = define(
    "linear_grad_bias(Tensor dy) -> Tensor",
    grad_bias,
    lambda dy: dy.new_empty(dy.shape[-1:]),
    lambda dy: _rows(dy).sum(0),
    of=OF,
    tensors={"dy": "*N"},
    moves=grad_bias_moves,
)
for _name in ("linear_grad_x", "linear_grad_weight", "linear_grad_bias"):
    refuse_second_derivative(_name, "linear has", "torch.nn.functional.linear")


def launched(x: Tensor, weight: Tensor, bias: Tensor | None, ways: Ways) -> Tensor:
    """x · weightᵀ + bias as one operator, forward and back by `ways`; checked."""
    result: Tensor = operator(x, weight, bias, ways.forward, ways.grad_x, ways.grad_weight)
    return result
