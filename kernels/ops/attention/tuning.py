"""The tilings of attention that `python -m kernels.lab tune attention` compares, either way."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernels.ops.attention.backward import backward
from kernels.ops.attention.backward_configurations import Tilings
from kernels.ops.attention.configurations import Tiling, held_dim
from kernels.ops.attention.formula import Given
from kernels.ops.attention.forward import forward
from kernels.ops.attention.peers import flash, in_16_bits, without_window
from kernels.ops.attention.simple import simple_forward
from kernels.registry import Case

Tensor = torch.Tensor


# Queries and keys of a tile, warps, stages: by the head dimension, in two bytes. On 9.0 each is
# tried with plain loads and by the copy engine, and none spills.
_PLAIN = {
    64: (
        *((128, 64, 4, 2), (128, 64, 4, 3), (128, 64, 4, 4), (128, 64, 8, 3), (128, 32, 4, 4)),
        *((128, 128, 8, 2), (128, 128, 8, 3), (128, 128, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2)),
    ),
    128: (
        *((128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3)),
        *((64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 32, 8, 4), (64, 32, 4, 4)),
    ),
}
_SIMPLE = {
    64: (
        *((128, 64, 4, 2), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3)),
        *((64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (128, 32, 4, 3)),
    ),
    128: (
        *((128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3)),
        *((64, 128, 4, 2), (128, 32, 8, 3), (64, 32, 4, 3)),
    ),
}


def to_try(case: Case) -> dict[str, Tiling]:
    """The tilings of `fused` worth timing in a case, by name."""
    if case.dtype.itemsize == 4:
        found = [Tiling(32, 32, 8, 1), Tiling(64, 32, 8, 1), Tiling(32, 32, 4, 1)]
    else:
        found = [Tiling(*one) for one in _PLAIN[64 if held_dim(case.shape[3]) <= 64 else 128]]
        found += [replace(one, descriptors=True) for one in found]
    return {one.name: one for one in found}


def simple_to_try(case: Case) -> dict[str, Tiling]:
    """The tilings of the kernel of the page worth timing in a case, by name."""
    if case.dtype.itemsize == 4 or case.shape[3] not in _SIMPLE or not without_window(case):
        return {}
    found = [Tiling(*one) for one in _SIMPLE[case.shape[3]]]
    return {f"simple {one.name}": one for one in found}


def candidates(case: Case) -> dict[str, Callable[..., Any]]:
    """The tilings as functions of the inputs, and PyTorch's flash attention."""

    def run(
        tiling: Tiling, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None = None
    ) -> Tensor:
        scale = q.shape[-1] ** -0.5
        return forward(q, k, v, causal=causal, window=window, scale=scale, tiling=tiling)[0]

    def run_simple(tiling: Tiling, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return simple_forward(q, k, v, causal, q.shape[-1] ** -0.5, tiling)[0]

    theirs: dict[str, Callable[..., Any]] = {"sdpa_flash": flash} if in_16_bits(case) else {}
    tried = {name: functools.partial(run, tiling) for name, tiling in to_try(case).items()}
    simple = {
        name: functools.partial(run_simple, tiling) for name, tiling in simple_to_try(case).items()
    }
    return {**theirs, **tried, **simple}


def backward_to_try(case: Case) -> dict[str, Tilings]:
    """The tilings of both passes of a backward worth timing in a case, by name."""
    if case.dtype.itemsize == 4:
        found = [
            Tilings(Tiling(32, 16, 8, 1), Tiling(16, 32, 8, 1)),
            Tilings(Tiling(16, 16, 8, 1), Tiling(16, 16, 8, 1)),
        ]
    elif held_dim(case.shape[3]) <= 64:
        found = [
            Tilings(Tiling(128, 64, 8, 3), Tiling(64, 128, 8, 3)),
            Tilings(Tiling(128, 64, 8, 2), Tiling(64, 128, 8, 2)),
            Tilings(Tiling(128, 128, 8, 2), Tiling(128, 128, 8, 2)),
            Tilings(Tiling(128, 64, 4, 3), Tiling(32, 128, 8, 3)),
            Tilings(Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 3)),
            Tilings(Tiling(64, 128, 4, 2), Tiling(32, 128, 4, 3)),
        ]
    else:
        found = [
            Tilings(Tiling(128, 64, 8, 2), Tiling(32, 128, 8, 3)),
            Tilings(Tiling(128, 64, 8, 3), Tiling(64, 128, 8, 2)),
            Tilings(Tiling(128, 128, 8, 2), Tiling(32, 64, 4, 3)),
            Tilings(Tiling(128, 32, 8, 3), Tiling(64, 64, 8, 2)),
            Tilings(Tiling(64, 64, 4, 2), Tiling(32, 128, 8, 2)),
        ]
    return {one.name: one for one in found}


class _Attention(torch.autograd.Function):
    """Attention whose gradients are computed in tilings of your own."""

    @staticmethod
    def forward(
        ctx: Any,
        tilings: Tilings,
        causal: bool,
        window: int | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        given = Given(q, k, v, causal=causal, window=window, scale=q.shape[-1] ** -0.5)
        out, lse = forward(*given._replace(want_lse=True))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.told = tilings, given[3:]
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        tilings, rest = ctx.told
        found = backward(Given(q, k, v, *rest), out, lse, d_out, None, False, tilings)
        return None, None, None, *found[:3]


def backward_candidates(case: Case) -> dict[str, Callable[..., Any]]:
    """The tilings of the backward, to go back through, and PyTorch's flash attention."""

    def run(
        tilings: Tilings, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None = None
    ) -> Any:
        return _Attention.apply(tilings, causal, window, q, k, v)

    theirs: dict[str, Callable[..., Any]] = {"sdpa_flash": flash} if in_16_bits(case) else {}
    tried = {name: functools.partial(run, one) for name, one in backward_to_try(case).items()}
    return {**theirs, **tried}
