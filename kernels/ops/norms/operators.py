"""How the norms that train meet PyTorch: an operator that keeps statistics, and its backward.

A call that needs no gradient goes through an operator of its own name, which keeps nothing. One
that needs gradients goes through `norm_train`, which keeps the mean and inv_std of each row, and
back by `norm_backward`. Inside a transform of `torch.func` PyTorch's operators compute both.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.norms import common
from kernels.ops.norms.backward import backward
from kernels.ops.norms.forward import forward
from kernels.ops.shared.arguments import check_norm, check_residual
from kernels.ops.shared.operators import Gradient, define, like, refuse_second_derivative

Tensor = torch.Tensor

_NORMS = ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm")


def _check(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    _eps: float,
    _centred: bool,
) -> None:
    check_norm(x, weight, bias)
    if residual is not None:
        check_residual(x, residual)


def _train(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    y, h, mean, inv_std = forward(x, residual, weight, bias, eps, centred=centred, statistics=True)
    assert inv_std is not None
    # An operator must not return what it was given, so x is not returned as h.
    return y, None if residual is None else h, mean, inv_std


def _train_fake(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    rows = x.numel() // x.shape[-1]
    inv_std = torch.empty(rows, dtype=torch.float32, device=x.device)
    mean = like(inv_std) if centred else None
    return like(x), None if residual is None else like(x), mean, inv_std


def _train_composed(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    h = x if residual is None else x + residual
    h32 = h.float()
    mean = h32.mean(-1, keepdim=True)
    off = h32 - mean if centred else h32
    inv_std = torch.rsqrt((off * off).mean(-1, keepdim=True) + eps)
    y = off * inv_std
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return (
        y.to(x.dtype),
        None if residual is None else h,
        mean.flatten() if centred else None,
        inv_std.flatten(),
    )


def _backward(
    dy: Tensor,
    dh: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    inv_std: Tensor,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return backward(
        dy=dy,
        dh=dh,
        x=x,
        weight=weight,
        bias=bias,
        mean=mean,
        inv_std=inv_std,
        wants_weight=wants_weight,
        wants_bias=wants_bias,
    )


def _backward_fake(
    dy: Tensor,
    dh: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    inv_std: Tensor,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    def of(parameter: Tensor | None, wanted: bool) -> Tensor | None:
        return like(parameter) if parameter is not None and wanted else None

    return like(x), of(weight, wants_weight), of(bias, wants_bias)


def _backward_composed(
    dy: Tensor,
    dh: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    inv_std: Tensor,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    rows, n_cols = (*x.shape[:-1], 1), x.shape[-1]
    dy32, inv_std = dy.float(), inv_std.reshape(rows)
    normed = (x.float() if mean is None else x.float() - mean.reshape(rows)) * inv_std
    g = dy32 if weight is None else dy32 * weight
    dx = g - normed * (g * normed).mean(-1, keepdim=True)
    dx = (dx if mean is None else dx - g.mean(-1, keepdim=True)) * inv_std
    dx = dx if dh is None else dx + dh

    def summed(terms: Tensor, parameter: Tensor | None, wanted: bool) -> Tensor | None:
        if parameter is None or not wanted:
            return None
        return terms.reshape(-1, n_cols).sum(0).to(parameter.dtype)

    return (
        dx.to(x.dtype),
        summed(dy32 * normed, weight, wants_weight),
        summed(dy32, bias, wants_bias),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, bias, _eps, centred = inputs
    _, h, mean, inv_std = output
    ctx.set_materialize_grads(False)
    ctx.added = residual is not None
    ctx.save_for_backward(
        x if residual is None else h, weight, bias, mean if centred else None, inv_std
    )


def _formula(
    ctx: Any,
    dy: Tensor | None,
    dh: Tensor | None = None,
    dmean: Tensor | None = None,
    dinv_std: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, inv_std = ctx.saved_tensors
    for_x, for_residual, for_weight, for_bias, _, _ = ctx.needs_input_grad
    dx, dweight, dbias = dh if ctx.added else None, None, None
    if dy is not None:  # None where only the sum of x and residual is used further on
        dx, dweight, dbias = norm_backward(
            dy, dx, x, weight, bias, mean, inv_std, for_weight, for_bias
        )
    if dmean is not None or dinv_std is not None:
        dx = _through_statistics(dx, x, mean, inv_std, dmean, dinv_std)
    return (
        dx if for_x else None,
        dx if for_residual else None,
        dweight if for_weight else None,
        dbias if for_bias else None,
        None,
        None,
    )


def _through_statistics(
    dx: Tensor | None,
    x: Tensor,
    mean: Tensor | None,
    inv_std: Tensor,
    dmean: Tensor | None,
    dinv_std: Tensor | None,
) -> Tensor | None:
    """Add to dx what comes back through mean and inv_std, which a caller of the operator may use.

    ∂mean/∂x = 1 / N, ∂inv_std/∂x = −inv_std³ (x − mean) / N.
    """
    rows, more = (*x.shape[:-1], 1), None
    if mean is not None and dmean is not None:
        more = dmean.reshape(rows).expand(x.shape)
    if dinv_std is not None:
        off = x.float() if mean is None else x.float() - mean.reshape(rows)
        scaled = (dinv_std * inv_std**3).reshape(rows) * off
        more = -scaled if more is None else more - scaled
    if more is None:
        return dx
    more = (more / x.shape[-1]).to(x.dtype)
    return more if dx is None else dx + more


norm_train = define(
    "norm_train(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float eps, bool centred)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _train,
    _train_fake,
    _train_composed,
    of=_NORMS,
    tensors=common.operator_dims("x", "residual", "weight", "bias"),
    independent="*",
    checks=_check,
    gradient=Gradient(_keep, _formula, n_returned=2),
)
norm_backward = define(
    "norm_backward(Tensor dy, Tensor? dh, Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, "
    "Tensor inv_std, bool wants_weight, bool wants_bias) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    _backward_composed,
    of=_NORMS,
    tensors=common.operator_dims("dy", "dh", "x", "weight", "bias", "mean", "inv_std"),
    independent="*",
)
refuse_second_derivative(
    "norm_backward", "norms have", "torch.nn.functional.layer_norm or rms_norm"
)
