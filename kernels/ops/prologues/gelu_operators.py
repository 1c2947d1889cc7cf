"""How y = gelu(LayerNorm(x) · Wᵀ + b) meets PyTorch in two kernels: an operator, and one to train.

In training the product's launch writes h = LayerNorm(x) · Wᵀ + b too (`epilogues.gelu_operators`
says why that is cheaper than to multiply again). What the norm gave is computed again instead.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch

from kernels.ops.epilogues.forward import launch, with_gelu
from kernels.ops.epilogues.gelu_operators import _train_composed as product_composed
from kernels.ops.epilogues.moves import Followed, rows_of
from kernels.ops.epilogues.operators import activated, first, of_activation
from kernels.ops.norms.forward import forward as norm_forward
from kernels.ops.products.configurations import HOPPER, TORCH, Ways
from kernels.ops.prologues.moves import norm_step
from kernels.ops.prologues.operators import back_through_both, check
from kernels.ops.prologues.operators import composed as composed_plain
from kernels.ops.shared.operators import Gradient, define
from kernels.registry import Case, Moves

Tensor = torch.Tensor

NAME = "layernorm_linear_gelu"


def _train(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    activation: str,
    forward_by: str,
    *_: str,
    keeps: bool = True,
) -> tuple[Tensor, Tensor | None]:
    n = norm_forward(x, None, norm_weight, norm_bias, eps, centred=True)[0]
    if forward_by == TORCH:
        return product_composed(n, weight, bias, activation)
    given, outputs = with_gelu(n, weight, bias, activation, keeps)
    launch(given, hopper=forward_by == HOPPER)
    return outputs


def _launch(*inputs: Any) -> Tensor:
    return _train(*inputs, keeps=False)[0]


def _train_composed(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    activation: str,
    *_: str,
) -> tuple[Tensor, Tensor]:
    h = composed_plain(x, norm_weight, norm_bias, weight, bias, eps, True)
    return activated(h.float(), activation).to(x.dtype), h


def _composed(*inputs: Any) -> Tensor:
    return _train_composed(*inputs)[0]


def _fake(x: Tensor, _norm_weight: Any, _norm_bias: Any, weight: Tensor, *_: Any) -> Tensor:
    return torch.empty((*x.shape[:-1], len(weight)), dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, norm_weight, norm_bias, weight, _bias, ctx.eps, ctx.activation, _by, *ctx.by = inputs
    ctx.centred = True
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, norm_weight, norm_bias, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _formula(ctx: Any, dy: Tensor | None, *_: Any) -> Any:
    wanted = ctx.needs_input_grad[:5]
    if dy is None or not any(wanted):
        return (None,) * 10
    *saved, kept = ctx.saved_tensors
    dh = of_activation(dy, kept, ctx.activation)
    both = SimpleNamespace(
        saved_tensors=saved,
        needs_input_grad=wanted,
        eps=ctx.eps,
        centred=True,
        by=ctx.by,
    )
    return *back_through_both(both, dh), *[None] * 5


def _moves(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    forward: str,
    *,
    keeps: bool,
    **_: Any,
) -> Moves | None:
    rows = rows_of(x)
    plain = all(one is not None and one.dtype == x.dtype for one in (norm_weight, norm_bias))
    if forward == TORCH or not rows or not plain:
        return None
    sizes = rows, x.shape[-1], len(weight)
    product = Followed(sizes, x.element_size(), biased=bias is not None, keeps=keeps)
    return Moves.of(norm_step(Case(sizes, x.dtype), True), product.step())


_ARGUMENTS = (
    "(Tensor x, Tensor? norm_weight, Tensor? norm_bias, Tensor weight, Tensor? bias, float eps, "
    "str activation, str forward, str grad_x, str grad_weight)"
)
_define = functools.partial(
    define,
    of=[NAME],
    tensors={"x": "*K", "norm_weight": "K", "norm_bias": "K", "weight": "NK", "bias": "N"},
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
    composed=_composed,
    moves=functools.partial(_moves, keeps=False),
    trained=lambda *inputs: first(_with_grad(*inputs)),
)


def launched(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    activation: str,
    ways: Ways,
) -> Tensor:
    """The norm, and the product with GELU behind it, as one operator in two kernels."""
    result: Tensor = operator(x, norm_weight, norm_bias, weight, bias, eps, activation, *ways)
    return result
