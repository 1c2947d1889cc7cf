"""A dropout behind a product whose way back sums the gradient of the product's bias.

Behind y = x · Wᵀ + b the gradients of y and of b are one tensor and its sums over rows. Where y's
is written by a launch of a dropout, that launch has all of it in registers once, and sums it there
(`chains.dropped_sums`); a launch behind it would read it all again. So b is an argument here,
though y has it already: it gets its gradient from here, and the product is told that it needs none.

    dropped              residual + dropout(act(y))
    dropped_and_normed   LayerNorm(h) and h, for h = residual + dropout(y)

Kept are the same tensors as without.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.chains import dropped_sums
from kernels.ops.chains.dropped import NOTHING
from kernels.ops.chains.dropped_norm_operators import NORMED, _back_composed, _normed_with_grad
from kernels.ops.chains.dropped_operators import ELEMENTWISE, backward_composed, operator
from kernels.ops.layers import joined
from kernels.ops.norms.operators import norm_backward
from kernels.ops.shared.operators import define, like, refuse_second_derivative

Tensor = torch.Tensor


def biased(
    x: Tensor, bias: Tensor | None, seed_offset: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The bias of a product of x and the seed of a dropout behind it, if the two go back together.

    They do where the steps of a layer join, and rows have whole calls of the random numbers.
    """
    if bias is None or seed_offset is None or not bias.requires_grad:
        return None
    return (bias, seed_offset) if dropped_sums.takes(len(bias)) and joined.joins(x) else None


def _over_rows(dx: Tensor) -> Tensor:
    return dx.float().reshape(-1, dx.shape[-1]).sum(0).to(dx.dtype)


# ------------------------------------------------------------------------------ element by element


def _back_composed_with_sums(dy: Tensor, *told: Any) -> tuple[Tensor, Tensor]:
    dx = backward_composed(dy, *told)
    return dx, _over_rows(dx)


back_with_sums = define(
    "dropped_backward_with_sums(Tensor dy, Tensor? x, Tensor seed_offset, float p, "
    "str activation) -> (Tensor, Tensor)",
    dropped_sums.backward,
    lambda dy, *_: (like(dy), dy.new_empty(dy.shape[-1])),
    _back_composed_with_sums,
    of=ELEMENTWISE,
    tensors={"dy": "*N", "x": "*N", "seed_offset": "S"},
)


class _Dropped(torch.autograd.Function):
    """residual + dropout(act(y)); y is kept where there is an activation, else nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        seed_offset: Tensor,
        p: float,
        activation: str,
    ) -> Tensor:
        ctx.save_for_backward(None if activation == NOTHING else y, seed_offset)
        ctx.told = p, activation
        result: Tensor = operator(y, residual, seed_offset, p, activation)
        return result

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        y, seed_offset = ctx.saved_tensors
        dy, dbias = back_with_sums(d_out, y, seed_offset, *ctx.told)
        return dy, dbias, d_out if ctx.needs_input_grad[2] else None, None, None, None


def dropped(
    y: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    p: float,
    seed_offset: Tensor,
    activation: str = NOTHING,
) -> Tensor:
    """residual + dropout(act(y)), y (..., N) being a product with this bias, (N,)."""
    result: Tensor = _Dropped.apply(y, bias, residual, seed_offset, p, activation)
    return result


# ------------------------------------------------------------------------------------ with a norm


def _normed_back_composed(
    dy: Tensor,
    dh: Tensor | None,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inv_std: Tensor,
    seed_offset: Tensor,
    p: float,
    _known: Tensor | None,
) -> tuple[Tensor | None, ...]:
    found = _back_composed(dy, dh, h, weight, bias, mean, inv_std, seed_offset, p, True, True)
    through, dx, dweight, dbias = found
    assert dx is not None
    return through, dx, dweight, dbias, _over_rows(dx)


def _normed_back_fake(
    _dy: Tensor, _dh: Any, h: Tensor, weight: Tensor, bias: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return like(h), like(h), like(weight), like(bias), h.new_empty(h.shape[-1])


normed_back_with_sums = define(
    f"{NORMED}_backward_with_sums(Tensor dy, Tensor? dh, Tensor h, Tensor weight, Tensor bias, "
    "Tensor mean, Tensor inv_std, Tensor seed_offset, float p, Tensor? known) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    dropped_sums.norm_backward,
    _normed_back_fake,
    _normed_back_composed,
    of=(NORMED,),
    tensors={
        **{"dy": "*N", "dh": "*N", "h": "*N", "weight": "N", "bias": "N"},
        **{"mean": "*", "inv_std": "*", "seed_offset": "S", "known": "A"},
    },
)
for _name in ("dropped_backward_with_sums", f"{NORMED}_backward_with_sums"):
    refuse_second_derivative(
        _name, "chains with a dropout have", "torch.nn.functional.dropout and a sum"
    )


class _DroppedAndNormed(torch.autograd.Function):
    """LayerNorm(h) and h; h and two numbers a row are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        product_bias: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        seed_offset: Tensor,
        p: float,
        eps: float,
        known: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        told = y, residual, weight, bias, seed_offset, p, eps
        normed, h, mean, inv_std = _normed_with_grad(*told)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, weight, bias, mean, inv_std, seed_offset, known)
        ctx.p = p
        return normed, h

    @staticmethod
    def backward(ctx: Any, d_normed: Tensor | None, dh: Tensor | None) -> Any:
        h, weight, bias, mean, inv_std, seed_offset, known = ctx.saved_tensors
        for_residual, *wants = ctx.needs_input_grad[2:5]
        dweight = dbias = dy = of_product = None
        told: tuple[Any, ...]
        if d_normed is not None and all(wants) and dropped_sums.takes_norm(h.shape[-1]):
            told = d_normed, dh, h, weight, bias, mean, inv_std, seed_offset, ctx.p, known
            dh, dy, dweight, dbias, of_product = normed_back_with_sums(*told)
        else:
            if d_normed is not None:
                told = d_normed, dh, h, weight, bias, mean, inv_std
                dh, dweight, dbias = norm_backward(*told, *wants)
            if dh is not None:
                dy, of_product = back_with_sums(dh, None, seed_offset, ctx.p, NOTHING)
        of_norm = (one if want else None for want, one in zip(wants, (dweight, dbias), strict=True))
        return dy, of_product, dh if for_residual else None, *of_norm, None, None, None, None


def dropped_and_normed(
    y: Tensor,
    product_bias: Tensor,
    residual: Tensor,
    norm: tuple[Tensor | None, Tensor | None, float],
    p: float,
    seed_offset: Tensor,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(LayerNorm(h), h) of h = residual + dropout(y), y (..., N) a product with this bias, (N,).

    With `known`, `stochastic.sums_for` them, its sums are added up by atomics where they can be.
    """
    weight, bias, eps = norm
    told = y, product_bias, residual, weight, bias, seed_offset, p, eps, known
    result: tuple[Tensor, Tensor] = _DroppedAndNormed.apply(*told)
    return result
