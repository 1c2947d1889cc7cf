"""How y = residual + x · wᵀ + b meets PyTorch: an operator, one for training, the product's back.

The residual's gradient is dy itself, and nothing is kept but x and the weight.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.ops.epilogues.forward import launch, with_residual
from kernels.ops.epilogues.moves import Followed, moved, rows_of
from kernels.ops.products.configurations import HOPPER, TORCH, Ways
from kernels.ops.products.operators import check as check_product
from kernels.ops.products.operators import composed as product
from kernels.ops.products.operators import gradients
from kernels.ops.shared.arguments import check_tensor
from kernels.ops.shared.operators import Gradient, define
from kernels.registry import Moves

Tensor = torch.Tensor

NAME = "linear_bias_residual"


def check(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, *_: str) -> None:
    """Raise TypeError or ValueError with one sentence unless the operation takes these."""
    check_product(x, weight, bias)
    check_tensor("residual", residual, like=x)
    shape = (*x.shape[:-1], weight.shape[0])
    if residual.shape != shape:
        raise ValueError(
            f"residual has the shape {tuple(residual.shape)}; with x of shape {tuple(x.shape)} and "
            f"weight of shape {tuple(weight.shape)} it takes {tuple(shape)}"
        )
    if residual.dtype != x.dtype:
        raise TypeError(
            f"residual has dtype {residual.dtype} and x {x.dtype}; they must have the same"
        )


def composed(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, *_: str) -> Tensor:
    """The same by PyTorch's operators, the product rounded to x's dtype."""
    return residual + product(x, weight, bias)


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    forward_by: str,
    *_: str,
) -> Tensor:
    if forward_by == TORCH:
        return composed(x, weight, bias, residual)
    given, y = with_residual(x, weight, bias, residual)
    launch(given, hopper=forward_by == HOPPER)
    return y


def _fake(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _bias, _residual, _forward_by, *ctx.by = inputs
    ctx.save_for_backward(x, weight)


def _formula(ctx: Any, dy: Tensor) -> Any:
    x, weight = ctx.saved_tensors
    found = gradients(dy, x, weight, ctx.needs_input_grad[:3], *ctx.by)
    return *found, dy if ctx.needs_input_grad[3] else None, None, None, None


def _moves(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, forward: str, **_: str
) -> Moves | None:
    if forward == TORCH:
        return None
    sizes = rows_of(x), x.shape[-1], len(weight)
    return moved(Followed(sizes, x.element_size(), biased=bias is not None, residual=True))


_define = functools.partial(
    define,
    launch=_launch,
    fake=_fake,
    composed=composed,
    of=[NAME],
    tensors={"x": "*K", "weight": "NK", "bias": "N", "residual": "*N"},
    independent="*",
    checks=check,
    moves=_moves,
)
_ARGUMENTS = (
    "(Tensor x, Tensor weight, Tensor? bias, Tensor residual, str forward, str grad_x, "
    "str grad_weight) -> Tensor"
)
_with_grad = _define(f"{NAME}_with_grad{_ARGUMENTS}", gradient=Gradient(_keep, _formula))
operator = _define(f"{NAME}{_ARGUMENTS}", trained=_with_grad)


def launched(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, ways: Ways
) -> Tensor:
    """residual + x · weightᵀ + bias as one operator, forward and back by `ways`; checked."""
    result: Tensor = operator(
        x, weight, bias, residual, ways.forward, ways.grad_x, ways.grad_weight
    )
    return result
