"""The tilings of attention that `python -m kernels.lab tune attention` compares."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernels.ops.attention.configurations import Tiling, held_dim
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
