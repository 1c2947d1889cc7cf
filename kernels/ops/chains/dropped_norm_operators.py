"""How dropout, residual and LayerNorm meet PyTorch: an operator, one that trains, the way back.

Kept for the way back are the sum h, which is an output, and two numbers a row. One operator goes
back: through the norm to the residual's gradient, which dropped as x was is x's.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.chains import dropped
from kernels.ops.chains.bias_gelu import dropped_out
from kernels.ops.chains.dropped import NOTHING
from kernels.ops.chains.dropped_operators import TENSORS, masked
from kernels.ops.chains.dropped_operators import backward_operator as dropped_backward
from kernels.ops.norms.backward import backward as norm_backward
from kernels.ops.norms.common import operator_dims
from kernels.ops.norms.operators import _backward_composed as norm_backward_composed
from kernels.ops.shared.arguments import check_norm, check_residual, check_seed_offset
from kernels.ops.shared.operators import Gradient, define, like, refuse_second_derivative
from kernels.philox import threshold

Tensor = torch.Tensor

NORMED = "dropout_add_layernorm"


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


def _normed_composed(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    seed_offset: Tensor | None,
    p: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    h = (masked(x.float(), p, seed_offset) + residual.float()).to(x.dtype)
    h32 = h.float()
    mean = h32.mean(-1, keepdim=True)
    off = h32 - mean
    inv_std = torch.rsqrt((off * off).mean(-1, keepdim=True) + eps)
    y = off * inv_std
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype), h, mean.flatten(), inv_std.flatten()


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
    for_x, for_residual, *wants = ctx.needs_input_grad[:4]
    drops = threshold(ctx.p) > 0 and for_x
    if dy is None:  # the sum alone is used further on
        dresidual, dweight, dbias = dh, None, None
        dx = dh
        if drops and dh is not None:
            dx = dropped_backward(dh, None, seed_offset, ctx.p, NOTHING)
    else:
        given = dy, dh, h, weight, bias, mean, inv_std, seed_offset if drops else None, ctx.p
        dresidual, dx, dweight, dbias = _normed_backward(*given, *wants)
        dx = dx if drops else dresidual
    return (
        dx if for_x else None,
        dresidual if for_residual else None,
        dweight if wants[0] else None,
        dbias if wants[1] else None,
        None,
        None,
        None,
    )


def _back(
    dy: Tensor,
    dh: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    seed_offset: Tensor | None,
    p: float,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Launch the norm's backward and the dropout's: (dresidual, dx, dweight, dbias); unchecked.

    dx is None without a seed: then it is dresidual.
    """
    dresidual, dweight, dbias = norm_backward(
        dy=dy,
        dh=dh,
        x=h,
        weight=weight,
        bias=bias,
        mean=mean,
        inv_std=inv_std,
        wants_weight=wants_weight,
        wants_bias=wants_bias,
    )
    dx = None
    if seed_offset is not None:
        dx = dropped.backward(dresidual, None, seed_offset, p, NOTHING)
    return dresidual, dx, dweight, dbias


def _back_fake(
    _dy: Tensor, _dh: Any, h: Tensor, weight: Any, bias: Any, _mean: Any, _inv_std: Any, *args: Any
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    seed_offset, _p, *wants = args
    dweight, dbias = (
        like(one) if one is not None and wanted else None
        for one, wanted in zip((weight, bias), wants, strict=True)
    )
    return like(h), None if seed_offset is None else like(h), dweight, dbias


def _back_composed(
    dy: Tensor,
    dh: Tensor | None,
    h: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    seed_offset: Tensor | None,
    p: float,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    found = norm_backward_composed(dy, dh, h, weight, bias, mean, inv_std, wants_weight, wants_bias)
    dx = None
    if seed_offset is not None:
        dx = dropped_out(found[0].float(), p, seed_offset).to(dy.dtype)
    return found[0], dx, found[1], found[2]


_NORM_ARGUMENTS = (
    "(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, Tensor? seed_offset, float p, "
    "float eps)"
)
_norm_told: dict[str, Any] = {
    "of": (NORMED,),
    "tensors": {**TENSORS, "weight": "N", "bias": "N"},
    "independent": "*",
    "checks": check_normed,
}
_normed_backward = define(
    f"{NORMED}_backward(Tensor dy, Tensor? dh, Tensor h, Tensor? weight, Tensor? bias, "
    "Tensor mean, Tensor inv_std, Tensor? seed_offset, float p, bool wants_weight, "
    "bool wants_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    _back,
    _back_fake,
    _back_composed,
    of=(NORMED,),
    tensors={
        **operator_dims("dy", "dh", "h", "weight", "bias", "mean", "inv_std"),
        "seed_offset": "S",
    },
    independent="*",
)
refuse_second_derivative(
    f"{NORMED}_backward", "chains with a dropout have", "torch.nn.functional.layer_norm and dropout"
)
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
