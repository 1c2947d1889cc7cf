"""The configurations of a norm's backward that `python -m kernels.lab tune … --pass bwd` compares.

The configurations of its forward stand in `forward.forward_candidates`.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import triton

from kernels.ops.norms.backward import WIDEST, Configuration, Wide, backward
from kernels.ops.norms.forward import forward
from kernels.registry import Candidates, Case

Tensor = torch.Tensor

_SHARED_BYTES = 196608  # what the tiles under way may take of an SM, a little below an H100's


class _Configured(torch.autograd.Function):
    """A norm whose backward runs in a configuration of your own."""

    @staticmethod
    def forward(
        ctx: Any,
        chosen: Configuration | Wide,
        centred: bool,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Any:
        y, h, mean, inv_std = forward(
            x, residual, weight, bias, 1e-5, centred=centred, statistics=True
        )
        ctx.chosen = chosen
        ctx.save_for_backward(x if residual is None else h, weight, bias, mean, inv_std)
        return y if residual is None else (y, h)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dh: Tensor | None = None) -> Any:
        dx, dweight, dbias = backward(
            *(dy, dh, *ctx.saved_tensors),
            wants_weight=True,
            wants_bias=True,
            configured=ctx.chosen,
        )
        return None, None, dx, None if dh is None else dx, dweight, dbias


def backward_candidates(centred: bool) -> Candidates:
    """Return the function of a case that an operation registers for `tune`."""

    def run(
        chosen: Configuration | Wide,
        x: Tensor,
        residual: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Any:
        return _Configured.apply(chosen, centred, x, residual, weight, bias)

    def of(case: Case) -> dict[str, Any]:
        block = triton.next_power_of_2(case.shape[-1])
        found: dict[str, Any] = {}
        if block > WIDEST:
            for tile, warps, sums, rows in itertools.product(
                (2048, 4096, 8192), (4, 8, 16), ((4, 512), (8, 512), (4, 1024)), (32, 64, 128)
            ):
                if 256 <= tile // warps <= 512:
                    name = (
                        f"tiles of {tile}, {warps} warps, sums of {sums[0]}x{sums[1]}, {rows} rows"
                    )
                    found[name] = functools.partial(run, Wide(tile, warps, *sums, rows))
            return found
        for tile, warps, per_sm, stages in itertools.product(
            (2048, 4096, 8192, 16384), (4, 8, 16), (1, 2, 4), (1, 2, 3, 4)
        ):
            under_way = 2 * tile * case.dtype.itemsize * per_sm * (stages - 1)
            fits = block <= tile and under_way <= _SHARED_BYTES
            if fits and 512 <= tile // warps <= 1024 and per_sm * warps <= 32:
                name = f"tiles of {tile}, {warps} warps, {per_sm} an SM, {stages} stages"
                chosen = Configuration(tile // block, warps, per_sm, stages)
                found[name] = functools.partial(run, chosen)
        return found

    return of
