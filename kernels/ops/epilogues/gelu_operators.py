"""How y = gelu(x · wᵀ + b) meets PyTorch: an operator, one for training, the product's going back.

In training the launch writes h = x · wᵀ + b too, rounded to the dtype, and the way back reads it:
2·M·N·s bytes. To make h again would take a second product, 2·M·N·K FLOPs. A card with tensor cores
does 150 to 300 FLOPs while it moves a byte, so that in 16 bits keeping h is the cheaper from a K of
300 to 600 on, which is nearly every layer; it takes M·N·s bytes of memory until then.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.ops.epilogues.forward import launch, with_gelu
from kernels.ops.epilogues.moves import Followed, moved, rows_of
from kernels.ops.epilogues.operators import activated, first, of_activation
from kernels.ops.products.configurations import HOPPER, TORCH, Ways
from kernels.ops.products.operators import check, gradients
from kernels.ops.products.operators import composed as product
from kernels.ops.shared.operators import Gradient, define
from kernels.registry import Moves

Tensor = torch.Tensor

NAME = "linear_bias_gelu"


def composed(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, *_: str) -> Tensor:
    """The same by PyTorch's operators, h rounded to x's dtype."""
    return _train_composed(x, weight, bias, activation)[0]


def _train_composed(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, *_: str
) -> tuple[Tensor, Tensor]:
    h = product(x, weight, bias)
    return activated(h.float(), activation).to(x.dtype), h


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, forward_by: str, *_: str
) -> Tensor:
    if forward_by == TORCH:
        return composed(x, weight, bias, activation)
    given, (y, _kept) = with_gelu(x, weight, bias, activation, keeps=False)
    launch(given, hopper=forward_by == HOPPER)
    return y


def _train(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, forward_by: str, *_: str
) -> tuple[Tensor, Tensor | None]:
    if forward_by == TORCH:
        return _train_composed(x, weight, bias, activation)
    given, outputs = with_gelu(x, weight, bias, activation, keeps=True)
    launch(given)
    return outputs


def _fake(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _bias, ctx.activation, _forward_by, *ctx.by = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _formula(ctx: Any, dy: Tensor | None, *_: Any) -> Any:
    wanted = ctx.needs_input_grad[:3]
    if dy is None or not any(wanted):
        return (None,) * 7
    x, weight, kept = ctx.saved_tensors
    dh = of_activation(dy, kept, ctx.activation)
    return *gradients(dh, x, weight, wanted, *ctx.by), None, None, None, None


def _moves(
    x: Tensor, weight: Tensor, bias: Tensor | None, forward: str, *, keeps: bool, **_: str
) -> Moves | None:
    if forward == TORCH:
        return None
    sizes = rows_of(x), x.shape[-1], len(weight)
    return moved(Followed(sizes, x.element_size(), biased=bias is not None, keeps=keeps))


_ARGUMENTS = (
    "(Tensor x, Tensor weight, Tensor? bias, str activation, str forward, str grad_x, "
    "str grad_weight)"
)
_define = functools.partial(
    define,
    of=[NAME],
    tensors={"x": "*K", "weight": "NK", "bias": "N"},
    independent="*",
    checks=check,
)
_with_grad = _define(
    f"{NAME}_train{_ARGUMENTS} -> (Tensor, Tensor)",
    launch=_train,
    fake=lambda *inputs: (_fake(*inputs), _fake(*inputs)),
    composed=_train_composed,
    moves=functools.partial(_moves, keeps=True),
    gradient=Gradient(_keep, _formula),
)
operator = _define(
    f"{NAME}{_ARGUMENTS} -> Tensor",
    launch=_launch,
    fake=_fake,
    composed=composed,
    moves=functools.partial(_moves, keeps=False),
    trained=lambda *inputs: first(_with_grad(*inputs)),
)


def launched(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, ways: Ways) -> Tensor:
    """gelu(x · weightᵀ + bias) as one operator, forward and back by `ways`; checked."""
    result: Tensor = operator(
        x, weight, bias, activation, ways.forward, ways.grad_x, ways.grad_weight
    )
    return result
