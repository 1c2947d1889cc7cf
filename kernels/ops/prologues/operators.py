"""How a norm and a product meet PyTorch: an operator, one that trains, one of folded weights."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch

from kernels.ops.epilogues.operators import activated
from kernels.ops.norms.operators import norm_backward, norm_train
from kernels.ops.products.configurations import HOPPER, TRITON, Ways
from kernels.ops.products.operators import _formula as back_through_product
from kernels.ops.products.operators import check as check_product
from kernels.ops.products.operators import composed as composed_product
from kernels.ops.prologues.configurations import FOLDING, FOLDING_HOPPER
from kernels.ops.prologues.folding import Folded, launch_fold
from kernels.ops.prologues.forward import folded_by, folded_forward, two_kernels
from kernels.ops.prologues.moves import folded_operator_moves, operator_moves
from kernels.ops.shared.arguments import check_tensor
from kernels.ops.shared.operators import Gradient, define

Tensor = torch.Tensor

OF = ("layernorm_linear", "rmsnorm_linear")


def check(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    *_: Any,
) -> None:
    """Raise TypeError or ValueError with one sentence unless the operations take these."""
    check_product(x, weight, bias)
    for name, one in (("norm_weight", norm_weight), ("norm_bias", norm_bias)):
        if one is None:
            continue
        check_tensor(name, one, like=x)
        if one.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} has the shape {tuple(one.shape)}; with x of shape {tuple(x.shape)} it "
                f"takes ({x.shape[-1]},)"
            )


def composed(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    centred: bool,
    *_: str,
) -> Tensor:
    """The norm in fp32, one operator after the other, rounded to x's dtype, and the product."""
    x32 = x.float()
    off = x32 - x32.mean(-1, keepdim=True) if centred else x32
    h = off * torch.rsqrt((off * off).mean(-1, keepdim=True) + eps)
    h = h if norm_weight is None else h * norm_weight
    h = h if norm_bias is None else h + norm_bias
    return composed_product(h.to(x.dtype), weight, bias)


def _launch(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    centred: bool,
    forward_by: str,
    *_: str,
) -> Tensor:
    if forward_by in (FOLDING, FOLDING_HOPPER):
        folded = launch_fold(norm_weight, norm_bias, weight, bias, centred)
        return folded_forward(x, folded, eps, hopper=forward_by == FOLDING_HOPPER)
    return two_kernels(x, norm_weight, norm_bias, weight, bias, eps, centred, forward_by)


def _fake(x: Tensor, _norm_weight: Any, _norm_bias: Any, weight: Tensor, *_: Any) -> Tensor:
    return torch.empty((*x.shape[:-1], len(weight)), dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, norm_weight, norm_bias, weight, _bias, ctx.eps, ctx.centred, _forward_by, *ctx.by = inputs
    ctx.save_for_backward(x, norm_weight, norm_bias, weight)


def back_through_both(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """Go back: the norm once more, both products, and back through the norm.

    Nothing but x was kept: not what the norm gave, of x's size, nor its statistics, which come with
    computing it again. Gradients of x, of the norm's parameters, weight and bias; dy is the
    product's.
    """
    x, norm_weight, norm_bias, weight = ctx.saved_tensors
    for_x, for_norm_weight, for_norm_bias, for_weight, for_bias = ctx.needs_input_grad[:5]
    through = for_x or for_norm_weight or for_norm_bias
    h = x
    if through or for_weight:
        h, _, mean, inv_std = norm_train(x, None, norm_weight, norm_bias, ctx.eps, ctx.centred)
    product = SimpleNamespace(
        saved_tensors=(h, weight), needs_input_grad=(through, for_weight, for_bias), by=ctx.by
    )
    dh, dweight, dbias, *_ = back_through_product(product, dy)
    dx = dnorm_weight = dnorm_bias = None
    if dh is not None:
        mean = mean if ctx.centred else None
        dx, dnorm_weight, dnorm_bias = norm_backward(
            dh, None, x, norm_weight, norm_bias, mean, inv_std, for_norm_weight, for_norm_bias
        )
    return (
        dx if for_x else None,
        dnorm_weight if for_norm_weight else None,
        dnorm_bias if for_norm_bias else None,
        dweight,
        dbias,
    )


def _formula(ctx: Any, dy: Tensor) -> Any:
    return *back_through_both(ctx, dy), *[None] * 5


_define = functools.partial(
    define,
    launch=_launch,
    fake=_fake,
    composed=composed,
    of=OF,
    tensors={"x": "*K", "norm_weight": "K", "norm_bias": "K", "weight": "NK", "bias": "N"},
    independent="*",
    checks=check,
    moves=operator_moves,
)
_ARGUMENTS = (
    "(Tensor x, Tensor? norm_weight, Tensor? norm_bias, Tensor weight, Tensor? bias, float eps, "
    "bool centred, str forward, str grad_x, str grad_weight) -> Tensor"
)
_with_grad = _define(f"norm_linear_with_grad{_ARGUMENTS}", gradient=Gradient(_keep, _formula))
operator = _define(f"norm_linear{_ARGUMENTS}", trained=_with_grad)


def _composed_folded(
    x: Tensor,
    weight: Tensor,
    sums: Tensor | None,
    bias: Tensor,
    eps: float,
    activation: str | None,
    _by: str,
) -> Tensor:
    n, x32 = len(weight), x.float()
    mean = x32.mean(-1, keepdim=True) if sums is not None else torch.zeros_like(x32[..., :1])
    off = x32 - mean
    inv_std = torch.rsqrt((off * off).mean(-1, keepdim=True) + eps)
    y = composed_product(x32, weight.float(), None)
    y = y if sums is None else y - mean * sums[:n]
    y = y * inv_std + bias[:n]
    return (y if activation is None else activated(y, activation)).to(x.dtype)


def _check_folded(x: Tensor, weight: Tensor, *_: Any) -> None:
    check_product(x, weight, None)


folded_operator = define(
    "norm_linear_folded(Tensor x, Tensor weight, Tensor? sums, Tensor bias, float eps, "
    "str? activation, str by) -> Tensor",
    folded_by,
    lambda x, weight, *_: torch.empty((*x.shape[:-1], len(weight)), dtype=x.dtype, device=x.device),
    _composed_folded,
    of=(*OF, "layernorm_linear_gelu"),
    # P: N up to whole tiles.
    tensors={"x": "*K", "weight": "NK", "sums": "P", "bias": "P"},
    independent="*",
    checks=_check_folded,
    moves=folded_operator_moves,
)


def launched(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    centred: bool,
    ways: Ways,
) -> Tensor:
    """The norm and the product as one operator, forward and back by `ways`.

    Forward in two kernels, or folded at the call where `ways` says FOLDING or FOLDING_HOPPER.
    """
    result: Tensor = operator(x, norm_weight, norm_bias, weight, bias, eps, centred, *ways)
    return result


def folded_launched(
    x: Tensor, folded: Folded, eps: float, hopper: bool, activation: str | None = None
) -> Tensor:
    """The product with folded weights as one operator, in one launch; it has no gradient."""
    by = HOPPER if hopper else TRITON
    result: Tensor = folded_operator(x, *folded, eps, activation, by)
    return result
