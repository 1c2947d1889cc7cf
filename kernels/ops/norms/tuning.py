"""The configurations of the norms that `python -m kernels.lab tune` compares, forward and back."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import triton

from kernels.ops.norms.backward import backward
from kernels.ops.norms.configurations import WIDEST, SharedRows, Teams
from kernels.ops.norms.forward import forward
from kernels.ops.shared.blocks import Block, blocks_to_try, in_two
from kernels.registry import Candidates, Case

Tensor = torch.Tensor

_SHARED_BYTES = 196608  # what the tiles under way may take of an SM, a little below an H100's
_EPS = 1e-5


def candidates(centred: bool) -> Candidates:
    """Return the function of a case that gives the configurations of the forward.

    They are functions of an operation's inputs.
    """

    def run(
        block: Block,
        x: Tensor,
        residual: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Any:
        y, h, _, _ = forward(x, residual, weight, bias, _EPS, centred=centred, configured=block)
        return y if residual is None else (y, h)

    def of(case: Case) -> dict[str, Any]:
        to_try = blocks_to_try(case.shape[-1], tiles=(16384, 8192))
        for name, block in list(to_try.items()):
            if (parts := in_two(block, case.shape[-1])) != block:
                to_try[name.replace("row", f"{parts.cols} + {parts.rest}")] = parts
        return {name: functools.partial(run, block) for name, block in to_try.items()}

    return of


class _Configured(torch.autograd.Function):
    """A norm whose backward runs in a configuration of your own."""

    @staticmethod
    def forward(
        ctx: Any,
        chosen: SharedRows | Teams,
        centred: bool,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Any:
        y, h, mean, inv_std = forward(
            x, residual, weight, bias, _EPS, centred=centred, statistics=True
        )
        ctx.chosen = chosen
        ctx.save_for_backward(x if residual is None else h, weight, bias, mean, inv_std)
        return y if residual is None else (y, h)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh: Tensor | None = None) -> Any:
        x, weight, bias, mean, inv_std = ctx.saved_tensors
        dx, dweight, dbias = backward(
            dy=dy,
            dh=dh,
            x=x,
            weight=weight,
            bias=bias,
            mean=mean,
            inv_std=inv_std,
            wants_weight=True,
            wants_bias=True,
            configured=ctx.chosen,
        )
        return None, None, dx, None if dh is None else dx, dweight, dbias


def backward_candidates(centred: bool) -> Candidates:
    """Return the function of a case that gives the configurations of the backward.

    They are functions of an operation's inputs that autograd goes back through.
    """

    def run(
        chosen: SharedRows | Teams,
        x: Tensor,
        residual: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Any:
        return _Configured.apply(chosen, centred, x, residual, weight, bias)

    def of(case: Case) -> dict[str, Any]:
        block = triton.next_power_of_2(case.shape[-1])
        to_try = _teams() if block > WIDEST else _shared_rows(block, case.dtype.itemsize)
        return {name: functools.partial(run, chosen) for name, chosen in to_try.items()}

    return of


def _teams() -> dict[str, Teams]:
    """What a row too wide for its sums may take."""
    found = {}
    for tile, warps, (sum_rows, sum_cols), rows in itertools.product(
        (2048, 4096, 8192), (4, 8, 16), ((4, 512), (8, 512), (4, 1024)), (32, 64, 128)
    ):
        if 256 <= tile // warps <= 512:
            name = f"tiles of {tile}, {warps} warps, sums of {sum_rows}x{sum_cols}, {rows} rows"
            found[name] = Teams(tile, warps, sum_rows, sum_cols, rows)
    return found


def _shared_rows(block: int, itemsize: int) -> dict[str, SharedRows]:
    """What rows in blocks of so many columns may take."""
    found = {}
    for tile, warps, per_sm, stages in itertools.product(
        (2048, 4096, 8192, 16384), (4, 8, 16), (1, 2, 4), (1, 2, 3, 4)
    ):
        under_way = 2 * tile * itemsize * per_sm * (stages - 1)
        fits = block <= tile and under_way <= _SHARED_BYTES
        if fits and 512 <= tile // warps <= 1024 and per_sm * warps <= 32:
            name = f"tiles of {tile}, {warps} warps, {per_sm} an SM, {stages} stages"
            found[name] = SharedRows(tile // block, warps, per_sm, stages)
    return found
