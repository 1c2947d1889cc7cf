"""`stochastic_mode` of the encoder layer: norms that go back in one launch instead of two.

Where a LayerNorm's backward takes two launches, one for rows and one that adds up partial sums,
`stochastic_kernels` takes one: two launches fewer a layer and training step, and no partial sums
are written and read. Gradients of the norms' weights and biases are then sums in no fixed order,
whose last bits differ from run to run, and so is that of a product's bias whose sums the same
launch has (`summed`); all else is as before, and the same bits each time. Where the backward takes
one launch anyway, as of few rows (`adds`), it stays what it was.

It needs sums that begin as zeros. A launch to write zeros would cost what is saved, so each launch
leaves them behind: `Sums` are a layer's own, zeroed once, when the layer is made. So a layer in
this mode goes back on one stream at a time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from kernels.launch import capability, multiprocessors
from kernels.ops.chains.dropped import NOTHING
from kernels.ops.chains.dropped_norm_operators import NORMED, _normed_with_grad
from kernels.ops.chains.dropped_operators import backward_operator as dropped_backward
from kernels.ops.layers.stochastic_kernels import norm_backward_adding
from kernels.ops.norms.backward import backward as in_order
from kernels.ops.norms.backward import shared_out
from kernels.ops.norms.configurations import Teams, backward_configuration
from kernels.ops.norms.operators import _backward_composed
from kernels.ops.shared.operators import define, device_guard, like, refuse_second_derivative
from kernels.ops.shared.rows import fill_vectors, stride_unit
from kernels.philox import threshold

Tensor = torch.Tensor

WIDEST = 4096  # columns whose sums registers hold
PROGRAMS_PER_SM = 4  # not timed yet
OF = ("layernorm", "layernorm_linear", NORMED)


def sums_for(n_cols: int, device: torch.device | str | None = None) -> Tensor:
    """What a launch adds to, zeros: three rows of fp32 and a counter, int32 (3·N + 1,).

    As whole numbers, so that `.to(dtype)` of a layer leaves them alone. A launch without a third
    row has its counter there; behind each all are zeros.
    """
    return torch.zeros(3 * n_cols + 1, dtype=torch.int32, device=device)


def adds(x: Tensor) -> bool:
    """Whether x's rows go back by atomics: where the kernels in a fixed order take two launches."""
    n_cols = x.shape[-1]
    rows = x.numel() // n_cols
    if rows == 0 or n_cols > WIDEST:
        return False
    chosen = backward_configuration(
        (rows, n_cols),
        x.element_size(),
        n_read=3,
        n_sums=2,
        centred=True,
        by_vectors=fill_vectors(stride_unit(n_cols), x.element_size()),
        capability=capability(x.device),
        sms=multiprocessors(x.device),
    )
    return not isinstance(chosen, Teams) or rows > chosen.rows_per_team


def _launch(
    dy: Tensor,
    dh: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    if not adds(x):
        told = dy, dh, x, weight, bias, mean, inv_std
        dx, dweight, dbias = in_order(*told, wants_weight=True, wants_bias=bias is not None)
        assert dweight is not None
        return dx, dweight, dbias
    n_cols = x.shape[-1]
    rows, unit = x.numel() // n_cols, stride_unit(n_cols)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    dbias = None if bias is None else torch.empty(bias.shape, dtype=bias.dtype, device=x.device)
    programs, rows_each = shared_out(rows, PROGRAMS_PER_SM * multiprocessors(x.device), 1)
    block = triton.next_power_of_2(n_cols)
    with device_guard(x):
        norm_backward_adding[(programs,)](
            dy.contiguous(),
            None if dh is None else dh.contiguous(),
            x.contiguous(),
            weight.contiguous(),
            mean,
            inv_std,
            dx,
            dweight,
            dbias,
            sums,
            rows,
            rows_each,
            n_cols // unit,
            STRIDE_UNIT=unit,
            BLOCK_COLS=block,
            num_warps=max(4, block // 256),
        )
    return dx, dweight, dbias


def _fake(
    _dy: Tensor, _dh: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *_: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    return like(x), like(weight), None if bias is None else like(bias)


def _composed(
    dy: Tensor,
    dh: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    _sums: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return _backward_composed(dy, dh, x, weight, bias, mean, inv_std, True, bias is not None)


back_adding = define(
    "layernorm_backward_adding(Tensor dy, Tensor? dh, Tensor x, Tensor weight, Tensor? bias, "
    "Tensor mean, Tensor inv_std, Tensor sums) -> (Tensor, Tensor, Tensor)",
    _launch,
    _fake,
    _composed,
    of=OF,
    tensors={
        **{"dy": "*N", "dh": "*N", "x": "*N", "weight": "N", "bias": "N"},
        **{"mean": "*", "inv_std": "*", "sums": "S"},
    },
)
refuse_second_derivative(
    "layernorm_backward_adding", "norms have", "torch.nn.functional.layer_norm"
)


class _Dropped(torch.autograd.Function):
    """Dropout, residual and LayerNorm, going back by atomics; h and two numbers a row are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        seed_offset: Tensor,
        p: float,
        eps: float,
        sums: Tensor,
    ) -> tuple[Tensor, Tensor]:
        y, h, mean, inv_std = _normed_with_grad(x, residual, weight, bias, seed_offset, p, eps)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(h, weight, bias, mean, inv_std, seed_offset, sums)
        ctx.p = p
        return y, h

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dh: Tensor | None) -> Any:
        h, weight, bias, mean, inv_std, seed_offset, sums = ctx.saved_tensors
        dresidual, dweight, dbias = dh, None, None
        if dy is not None:
            dresidual, dweight, dbias = back_adding(dy, dh, h, weight, bias, mean, inv_std, sums)
        dx = dresidual
        if dresidual is not None and threshold(ctx.p):
            dx = dropped_backward(dresidual, None, seed_offset, ctx.p, NOTHING)
        wanted = zip(ctx.needs_input_grad[:4], (dx, dresidual, dweight, dbias), strict=True)
        return *(one if want else None for want, one in wanted), None, None, None, None


def dropped_and_normed(
    y: Tensor,
    residual: Tensor,
    norm: tuple[Tensor | None, Tensor | None, float],
    seed_offset: Tensor,
    p: float,
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """(LayerNorm(h), h) of h = residual + dropout(y), the norm going back by atomics."""
    weight, bias, eps = norm
    found: tuple[Tensor, Tensor]
    found = _Dropped.apply(y, residual, weight, bias, seed_offset, p, eps, sums)
    return found
