"""The second half of an MLP that keeps what its activation read: y = dropout(act(h)) · wᵀ + b.

    a = dropout(act(h)),   y = a · wᵀ + b
    dw = dyᵀ · a,   db = Σ dy,   da = dy · w,   dh = dropout(da) · act'(h)

h has the shape (..., I), w (E, I), y (..., E). h alone is kept. Going back a is made again for dw
and let go; then da is made, and dh written over it, element by element. So at most h and one tensor
of its size live at once, where operators one after the other would have three.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.chains import dropped
from kernels.ops.chains.activation_dropout import NAME, activation_dropout
from kernels.ops.chains.dropped_operators import backward_composed
from kernels.ops.products.backward import grad_x
from kernels.ops.products.configurations import TORCH
from kernels.ops.products.linear import linear, ways
from kernels.ops.products.operators import gradients
from kernels.ops.shared.operators import define, refuse_second_derivative

Tensor = torch.Tensor


def _back(
    dy: Tensor,
    weight: Tensor,
    h: Tensor,
    seed_offset: Tensor | None,
    p: float,
    activation: str,
    by: str,
) -> Tensor:
    da = dy @ weight if by == TORCH else grad_x(dy, weight)
    return dropped.backward(da, h, seed_offset, p, activation, into=da)


def _back_composed(
    dy: Tensor,
    weight: Tensor,
    h: Tensor,
    seed_offset: Tensor | None,
    p: float,
    activation: str,
    _by: str,
) -> Tensor:
    return backward_composed(dy @ weight, h, seed_offset, p, activation)


_back_operator = define(
    "activation_product_backward(Tensor dy, Tensor weight, Tensor h, Tensor? seed_offset, float p, "
    "str activation, str by) -> Tensor",
    _back,
    lambda _dy, _weight, h, *_: torch.empty(h.shape, dtype=h.dtype, device=h.device),
    _back_composed,
    of=(NAME, "linear"),
    tensors={"dy": "*N", "weight": "NK", "h": "*K", "seed_offset": "S"},
    independent="*",
)
refuse_second_derivative(
    "activation_product_backward", "this product has", "torch.nn.functional.linear"
)


class _Checkpointed(torch.autograd.Function):
    """The product of an activation, which keeps what the activation read."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        seed_offset: Tensor | None,
        p: float,
        activation: str,
    ) -> Tensor:
        ctx.save_for_backward(h, weight, seed_offset)
        ctx.told = p, activation
        return linear(activation_dropout(h, activation, p, seed_offset), weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        h, weight, seed_offset = ctx.saved_tensors
        (p, activation), by = ctx.told, ways(h)
        for_h, *for_parameters = ctx.needs_input_grad[:3]
        dweight = dbias = dh = None
        if any(for_parameters):
            a = activation_dropout(h, activation, p, seed_offset)
            wanted = (False, *for_parameters)
            _, dweight, dbias = gradients(dy, a, weight, wanted, by.grad_x, by.grad_weight)
            del a
        if for_h:
            dh = _back_operator(dy, weight, h, seed_offset, p, activation, by.grad_x)
        return dh, dweight, dbias, None, None, None


def activated_product(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    p: float = 0.0,
    seed_offset: Tensor | None = None,
) -> Tensor:
    """dropout(act(h), p) · weightᵀ + bias in two launches, h alone kept for the way back.

    h: (..., I), weight (E, I), bias (E,) or None, of one dtype; activation, p and seed_offset as in
    `activation_dropout`. Returns (..., E).
    """
    result: Tensor = _Checkpointed.apply(h, weight, bias, seed_offset, p, activation)
    return result
