"""How the norms that train meet PyTorch: an operator that keeps statistics, and its backward.

A call that needs no gradient goes through an operator of its own name without an autograd formula,
since a formula in Python costs every call some 10 µs on the host. One that needs gradients goes
through `norm_train`, which keeps the mean and inv_std of each row, and back by `norm_backward`.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.norms import common
from kernels.ops.norms.backward import backward
from kernels.ops.norms.forward import forward
from kernels.ops.shared.operators import LIBRARY, define, like, refuse_second_derivative

Tensor = torch.Tensor

# The size of an output that an operator has no use for: of size 0, two would count as aliases.
_NOTHING = 1
_NORMS = ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm")


def _train(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, h, mean, inv_std = forward(x, residual, weight, bias, eps, centred=centred, statistics=True)
    assert inv_std is not None
    # An operator must not return what it was given, so x is not returned as h.
    h = x.new_empty(_NOTHING) if residual is None else h
    return y, h, inv_std.new_empty(_NOTHING) if mean is None else mean, inv_std


def _train_fake(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    h = x.new_empty(_NOTHING) if residual is None else like(x)
    mean, inv_std = (
        torch.empty(size, dtype=torch.float32, device=x.device)
        for size in (rows if centred else _NOTHING, rows)
    )
    return like(x), h, mean, inv_std


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
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dbias = backward(
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
    nothing = inv_std.new_empty(_NOTHING)
    return (
        dx,
        nothing if dweight is None else dweight,
        inv_std.new_empty(_NOTHING) if dbias is None else dbias,
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
) -> tuple[Tensor, Tensor, Tensor]:
    def of(parameter: Tensor | None, wanted: bool) -> Tensor:
        return like(parameter) if parameter is not None and wanted else inv_std.new_empty(_NOTHING)

    return like(x), of(weight, wants_weight), of(bias, wants_bias)


norm_train = define(
    "norm_train(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float eps, bool centred)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _train,
    _train_fake,
    of=_NORMS,
    tensors=common.operator_dims("x", "residual", "weight", "bias"),
    independent="*",
)
norm_backward = define(
    "norm_backward(Tensor dy, Tensor? dh, Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, "
    "Tensor inv_std, bool wants_weight, bool wants_bias) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    of=_NORMS,
    tensors=common.operator_dims("dy", "dh", "x", "weight", "bias", "mean", "inv_std"),
    independent="*",
)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, bias, _eps, centred = inputs
    _, h, mean, inv_std = output
    ctx.set_materialize_grads(False)
    ctx.added = residual is not None
    ctx.save_for_backward(
        x if residual is None else h, weight, bias, mean if centred else None, inv_std
    )


def _formula(ctx: Any, dy: Tensor | None, dh: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, inv_std = ctx.saved_tensors
    for_x, for_residual, for_weight, for_bias, _, _ = ctx.needs_input_grad
    dh = dh if ctx.added else None
    if dy is None:  # only the sum of x and residual is used further on
        return dh, dh, None, None, None, None
    dx, dweight, dbias = norm_backward(dy, dh, x, weight, bias, mean, inv_std, for_weight, for_bias)
    return (
        dx if for_x else None,
        dx if for_residual else None,
        dweight if for_weight else None,
        dbias if for_bias else None,
        None,
        None,
    )


torch.library.register_autograd(
    "fusing_kernels::norm_train", _formula, setup_context=_keep, lib=LIBRARY
)
refuse_second_derivative(
    "norm_backward", "norms have", "torch.nn.functional.layer_norm or rms_norm"
)
