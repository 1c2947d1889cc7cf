"""The configurations of the chains that `python -m kernels.lab tune` compares, forward and back."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import triton

from kernels.ops.chains import bias_gelu, norm_gelu
from kernels.ops.chains.configurations import NARROWEST, Strips
from kernels.ops.norms.configurations import SharedRows
from kernels.ops.shared.blocks import Block, blocks_to_try
from kernels.registry import Case

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
    """The strips worth timing, by name."""
    found = {}
    for elements, cols, warps, per_sm, stages in itertools.product(
        (2048, 4096, 8192), (512, 1024, 2048), (4, 8, 16), (1, 2, 4), (1, 2, 3, 4)
    ):
        a_thread = elements // (32 * warps)
        under_way = 2 * elements * case.dtype.itemsize * (stages - 1) * per_sm
        if 8 <= a_thread <= 32 and 8 <= per_sm * warps <= 32 and under_way <= 196608:
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


def norm_gelu_candidates(case: Case) -> dict[str, Any]:
    """The blocks of the forward behind a norm, as functions of a chain's inputs."""

    def run(
        block: Block,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None = None,
        p: float = 0.0,
        seed_offset: Tensor | None = None,
    ) -> Tensor:
        return norm_gelu.forward(x, weight, bias, residual, p, seed_offset, _EPS, block=block)[0]

    to_try = blocks_to_try(case.shape[-1], tiles=(4096, 8192))
    fit = {n: b for n, b in to_try.items() if 8 <= b.cols // (32 * b.num_warps) <= 64}
    return {name: functools.partial(run, block) for name, block in fit.items()}


class _NormGelu(torch.autograd.Function):
    """A chain behind a norm, whose backward runs in a configuration of your own."""

    @staticmethod
    def forward(
        ctx: Any,
        chosen: SharedRows | Strips,
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
        chosen: SharedRows | Strips,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None = None,
        p: float = 0.0,
        seed_offset: Tensor | None = None,
    ) -> Any:
        return _NormGelu.apply(chosen, x, weight, bias, residual, p, seed_offset)

    block = max(NARROWEST, triton.next_power_of_2(case.shape[-1]))
    found: dict[str, SharedRows | Strips] = {}
    for tile, warps, per_sm, stages, hold in itertools.product(
        (1024, 2048, 4096, 8192), (4, 8, 16, 32), (1, 2, 4), (1, 2, 3, 4), (True, False)
    ):
        under_way = 2 * tile * case.dtype.itemsize * (stages - 1) * per_sm
        fits = block <= tile and under_way <= 196608 and per_sm * warps <= 32
        if fits and 8 <= tile // (32 * warps) <= 32:
            held = "weight held" if hold else "weight loaded"
            name = f"tiles of {tile}, {warps} warps, {per_sm} an SM, {stages} stages, {held}"
            found[name] = SharedRows(tile // block, warps, per_sm, stages, hold)
    if block >= 4096:
        found |= {f"strips of {name}": one for name, one in strips_to_try(case).items()}
    return {name: functools.partial(run, one) for name, one in found.items()}
