"""How LayerNorm, GELU, dropout, residual meet PyTorch: operators with and without a residual.

A call that needs no gradient keeps nothing; one that does keeps the mean and inv_std of each row.
One operator goes back for both chains: the residual's gradient is dy itself.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.chains import norm_gelu
from kernels.ops.chains.bias_gelu import dropped_out, gelu_by_operators, gelu_slope_by_operators
from kernels.ops.shared.arguments import check_norm, check_residual, check_seed_offset
from kernels.ops.shared.operators import Gradient, define, like, refuse_second_derivative
from kernels.philox import threshold

Tensor = torch.Tensor

PLAIN, CHAIN = "layernorm_gelu", "layernorm_gelu_dropout_residual"
_OF = (PLAIN, CHAIN)
_PARAMETERS = {"weight": "N", "bias": "N"}
_STATISTICS = {"mean": "*", "inv_std": "*"}


def check(x: Tensor, weight: Tensor | None, bias: Tensor | None, _eps: float) -> None:
    """Raise TypeError or ValueError with one sentence unless LayerNorm and GELU take these."""
    check_norm(x, weight, bias)


def check_chain(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    _eps: float,
) -> None:
    """Raise TypeError or ValueError with one sentence unless the chain takes these arguments."""
    check_norm(x, weight, bias)
    check_residual(x, residual)
    threshold(p)
    check_seed_offset(seed_offset, x)


def _normed(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(LayerNorm of x in fp32, mean, inv_std), the last two one a row."""
    x32 = x.float()
    mean = x32.mean(-1, keepdim=True)
    off = x32 - mean
    inv_std = torch.rsqrt((off * off).mean(-1, keepdim=True) + eps)
    h = off * inv_std
    h = h if weight is None else h * weight
    return h if bias is None else h + bias, mean.flatten(), inv_std.flatten()


def _train_composed(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    h, mean, inv_std = _normed(x, weight, bias, eps)
    return gelu_by_operators(h).to(x.dtype), mean, inv_std


def _chain_train_composed(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    h, mean, inv_std = _normed(x, weight, bias, eps)
    y = residual.float() + dropped_out(gelu_by_operators(h), p, seed_offset)
    return y.to(x.dtype), mean, inv_std


def _backward_composed(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    p: float,
    seed_offset: Tensor | None,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    rows, n_cols = (*x.shape[:-1], 1), x.shape[-1]
    inv_std = inv_std.reshape(rows)
    x_hat = (x.float() - mean.reshape(rows)) * inv_std
    h = x_hat if weight is None else x_hat * weight
    h = h if bias is None else h + bias
    dh = dy.float()
    if seed_offset is not None:
        dh = dropped_out(dh, p, seed_offset)
    dh = dh * gelu_slope_by_operators(h)
    g = dh if weight is None else dh * weight
    dx = (g - g.mean(-1, keepdim=True) - x_hat * (g * x_hat).mean(-1, keepdim=True)) * inv_std

    def summed(terms: Tensor, parameter: Tensor | None, wanted: bool) -> Tensor | None:
        if parameter is None or not wanted:
            return None
        return terms.reshape(-1, n_cols).sum(0).to(parameter.dtype)

    return (
        dx.to(x.dtype),
        summed(dh * x_hat, weight, wants_weight),
        summed(dh, bias, wants_bias),
    )


def _backward_fake(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    p: float,
    seed_offset: Tensor | None,
    wants_weight: bool,
    wants_bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    def of(parameter: Tensor | None, wanted: bool) -> Tensor | None:
        return like(parameter) if parameter is not None and wanted else None

    return like(x), of(weight, wants_weight), of(bias, wants_bias)


def _train_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    mean = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
    return like(x), mean, like(mean)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias = inputs[:3]
    # Behind them stand eps, or the residual, p, seed_offset and eps.
    ctx.p, seed_offset = (inputs[4], inputs[5]) if len(inputs) > 4 else (0.0, None)
    ctx.n_inputs = len(inputs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, bias, *output[1:], seed_offset)
    ctx.mark_non_differentiable(*output[1:])


def _formula(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
    none = (None,) * ctx.n_inputs
    if dy is None:
        return none
    x, weight, bias, mean, inv_std, seed_offset = ctx.saved_tensors
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    dx, dweight, dbias = None, None, None
    if for_x or for_weight or for_bias:
        dx, dweight, dbias = _backward_operator(
            dy, x, weight, bias, mean, inv_std, ctx.p, seed_offset, for_weight, for_bias
        )
    found = (
        dx if for_x else None,
        dweight if for_weight else None,
        dbias if for_bias else None,
        dy if ctx.n_inputs > 4 and ctx.needs_input_grad[3] else None,
    )
    return found + none[4:]


_backward_operator = define(
    "norm_gelu_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, "
    "Tensor inv_std, float p, Tensor? seed_offset, bool wants_weight, bool wants_bias)"
    " -> (Tensor, Tensor, Tensor)",
    norm_gelu.backward,
    _backward_fake,
    _backward_composed,
    of=_OF,
    tensors={"dy": "*N", "x": "*N", **_PARAMETERS, **_STATISTICS, "seed_offset": "S"},
    independent="*",
)
refuse_second_derivative(
    "norm_gelu_backward", "chains have", "torch.nn.functional.layer_norm, gelu and dropout"
)

_train = define(
    f"{PLAIN}_train(Tensor x, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    lambda x, weight, bias, eps: norm_gelu.forward(
        x, weight, bias, None, 0.0, None, eps, statistics=True
    ),
    _train_fake,
    _train_composed,
    of=[PLAIN],
    tensors={"x": "*N", **_PARAMETERS},
    independent="*",
    checks=check,
    gradient=Gradient(_keep, _formula),
)
plain = define(
    f"{PLAIN}(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    lambda x, weight, bias, eps: norm_gelu.forward(x, weight, bias, None, 0.0, None, eps)[0],
    lambda x, *_: like(x),
    lambda *inputs: _train_composed(*inputs)[0],
    of=[PLAIN],
    tensors={"x": "*N", **_PARAMETERS},
    independent="*",
    checks=check,
    trained=lambda *inputs: _first(_train(*inputs)),
)

_CHAIN_TENSORS = {"x": "*N", **_PARAMETERS, "residual": "*N", "seed_offset": "S"}
_ARGUMENTS = (
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor residual, float p, Tensor seed_offset, "
    "float eps)"
)
_chain_train = define(
    f"{CHAIN}_train{_ARGUMENTS} -> (Tensor, Tensor, Tensor)",
    lambda *inputs: norm_gelu.forward(*inputs, statistics=True),
    _train_fake,
    _chain_train_composed,
    of=[CHAIN],
    tensors=_CHAIN_TENSORS,
    independent="*",
    checks=check_chain,
    gradient=Gradient(_keep, _formula),
)
chain = define(
    f"{CHAIN}{_ARGUMENTS} -> Tensor",
    lambda *inputs: norm_gelu.forward(*inputs)[0],
    lambda x, *_: like(x),
    lambda *inputs: _chain_train_composed(*inputs)[0],
    of=[CHAIN],
    tensors=_CHAIN_TENSORS,
    independent="*",
    checks=check_chain,
    trained=lambda *inputs: _first(_chain_train(*inputs)),
)


def _first(outputs: Any) -> Tensor:
    """y of what a training forward returns."""
    y: Tensor = outputs[0]
    return y
