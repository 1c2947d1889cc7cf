"""The configurations of the chains that `python -m kernels.lab tune` compares, forward and back."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import triton

from kernels.ops.chains import bias_gelu, norm_gelu
from kernels.ops.chains.configurations import NARROWEST, Row, Strips, WholeRows
from kernels.ops.shared.blocks import Block, blocks_to_try
from kernels.registry import Candidates, Case

Tensor = torch.Tensor


def bias_gelu_candidates(case: Case) -> dict[str, Any]:
    """The tiles of the forward in a case, as functions of its inputs."""
    widest = max(NARROWEST, triton.next_power_of_2(case.shape[-1]))
    found = {}
    for cols, warps in itertools.product((512, 1024, 2048, 4096, 8192), (2, 4, 8)):
        if cols <= widest and 8 <= cols // (32 * warps) <= 32:
            run = functools.partial(bias_gelu.forward, block=Block(cols, warps))
            found[f"tiles of {cols}, {warps} warps"] = run
    return found


def strips_to_try(case: Case) -> dict[str, Strips]:
    """The strips worth timing, by name: 16 warps an SM of 16 elements a thread, or 8 each."""
    found = {}
    for cols, (elements, warps, per_sm), stages in itertools.product(
        (1024, 2048), ((2048, 4, 4), (4096, 8, 2), (2048, 8, 4)), (2, 3)
    ):
        under_way = 2 * elements * case.dtype.itemsize * (stages - 1) * per_sm
        if cols <= elements and under_way <= 196608:
            name = f"{elements // cols}x{cols}, {warps} warps, {per_sm} an SM, {stages} stages"
            found[name] = Strips(elements // cols, cols, warps, per_sm, stages)
    return found


class _BiasGelu(torch.autograd.Function):
    """The chain, whose backward runs in strips of your own."""

    @staticmethod
    def forward(
        ctx: Any,
        strips: Strips,
        x: Tensor,
        bias: Tensor,
        residual: Tensor,
        p: float,
        seed_offset: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, bias, seed_offset)
        ctx.told = p, strips
        return bias_gelu.forward(x, bias, residual, p, seed_offset)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, bias, seed_offset = ctx.saved_tensors
        p, strips = ctx.told
        dx, dbias = bias_gelu.backward(dy, x, bias, p, seed_offset, True, strips)
        return None, dx, dbias, dy, None, None


def bias_gelu_backward_candidates(case: Case) -> dict[str, Any]:
    """The strips of the backward, as functions of the inputs that autograd goes back through."""

    def run(
        strips: Strips, x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor
    ) -> Any:
        return _BiasGelu.apply(strips, x, bias, residual, p, seed_offset)

    return {name: functools.partial(run, one) for name, one in strips_to_try(case).items()}


_EPS = 1e-5


def norm_gelu_candidates(drops: bool) -> Candidates:
    """Return the function of a case that gives the ways to hold a row in the forward behind a norm.

    They are functions of a chain's inputs. `drops` says that random numbers are drawn.
    """

    def run(
        row: Row,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None = None,
        p: float = 0.0,
        seed_offset: Tensor | None = None,
    ) -> Tensor:
        return norm_gelu.forward(x, weight, bias, residual, p, seed_offset, _EPS, configured=row)[0]

    def of(case: Case) -> dict[str, Any]:
        found = {}
        width = case.shape[-1]
        for name, block in blocks_to_try(width, tiles=(4096, 8192) if width > 8192 else ()).items():
            if not 8 <= block.cols // (32 * block.num_warps) <= (32 if drops else 64):
                continue
            for early, draw in itertools.product((True, False), (True, False)):
                if (early or block.cols >= 4096) and (draw or drops):
                    told = ["weights early" if early else "weights late"]
                    told += ["numbers early" if draw else "numbers late"] if drops else []
                    found[", ".join((name, *told))] = Row(block, early, draw)
        return {name: functools.partial(run, row) for name, row in found.items()}

    return of


class _NormGelu(torch.autograd.Function):
    """A chain behind a norm, whose backward runs in a configuration of your own."""

    @staticmethod
    def forward(
        ctx: Any,
        chosen: WholeRows | Strips,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        p: float,
        seed_offset: Tensor | None,
    ) -> Tensor:
        y, mean, inv_std = norm_gelu.forward(
            x, weight, bias, residual, p, seed_offset, _EPS, statistics=True
        )
        ctx.save_for_backward(x, weight, bias, mean, inv_std, seed_offset)
        ctx.told = p, chosen, residual is not None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        *saved, seed_offset = ctx.saved_tensors
        p, chosen, added = ctx.told
        x, weight, bias, mean, inv_std = saved
        found = norm_gelu.backward(
            dy, x, weight, bias, mean, inv_std, p, seed_offset, True, True, chosen
        )
        return None, *found, dy if added else None, None, None


def norm_gelu_backward_candidates(case: Case) -> dict[str, Any]:
    """Whole rows and strips of the backward, as functions to go back through."""

    def run(
        chosen: WholeRows | Strips,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None = None,
        p: float = 0.0,
        seed_offset: Tensor | None = None,
    ) -> Any:
        return _NormGelu.apply(chosen, x, weight, bias, residual, p, seed_offset)

    found: dict[str, WholeRows | Strips] = dict(rows_to_try(case))
    if case.shape[-1] > 8192:
        found |= {f"strips of {name}": one for name, one in strips_to_try(case).items()}
    return {name: functools.partial(run, one) for name, one in found.items()}


# Elements a thread, warps, programs an SM: what registers hold on 9.0, 16 warps an SM of 16
# elements a thread, 8 of 32.
_ROWS = (
    (8, 16, 1),
    (16, 2, 8), (16, 4, 4), (16, 8, 2), (16, 16, 1),
    (32, 1, 8), (32, 2, 4), (32, 4, 2), (32, 8, 1),
)  # fmt: skip
_ROWS_AT_MOST = 2  # of a tile; with more, addresses take a fifth of all instructions


def rows_to_try(case: Case) -> dict[str, WholeRows]:
    """The tiles of whole rows worth timing, by name."""
    block = max(NARROWEST, triton.next_power_of_2(case.shape[-1]))
    found = {}
    for (a_thread, warps, per_sm), stages in itertools.product(_ROWS, (2, 3, 4)):
        block_rows, left = divmod(a_thread * warps * 32, block)
        if left == 0 and 1 <= block_rows <= _ROWS_AT_MOST:
            name = f"{block_rows}x{block}, {warps} warps, {per_sm} an SM, {stages} stages"
            found[name] = WholeRows(block_rows, warps, per_sm, stages)
    return found
