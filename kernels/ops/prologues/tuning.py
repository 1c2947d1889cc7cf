"""The tilings of a norm and a product that `python -m kernels.lab tune` compares."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels.ops.chains.gated import GELU_TANH
from kernels.ops.epilogues.configurations import Finish
from kernels.ops.products.configurations import Tiling
from kernels.ops.prologues.configurations import finishes_to_try
from kernels.ops.prologues.folding import kept_fold
from kernels.ops.prologues.forward import folded_forward, one_kernel
from kernels.ops.prologues.moves import suits
from kernels.registry import Case

Tensor = torch.Tensor


def folded_to_try() -> dict[str, Tiling]:
    """The tilings of a folded product worth timing, by name."""
    kept = functools.partial(Tiling, persistent=True)
    found = [
        kept(128, 256, 64, num_warps=8, num_stages=3, halves=True),
        kept(128, 128, 64, num_warps=8, num_stages=3),
        kept(128, 128, 64, num_warps=8, num_stages=4),
        kept(128, 128, 64, num_warps=8, num_stages=3, flatten=True),
        kept(128, 128, 64, num_warps=4, num_stages=3),
        Tiling(128, 128, 64, num_warps=8, num_stages=3),
    ]
    return {one.name: one for one in found}


def prologues_to_try() -> dict[str, Tiling]:
    """The tilings of a product with the norm as its prologue worth timing, by name."""
    found = [
        Tiling(128, 128, 64, num_warps=8, num_stages=3),
        Tiling(128, 128, 64, num_warps=8, num_stages=2),
        Tiling(64, 128, 64, num_warps=4, num_stages=3),
        Tiling(64, 256, 64, num_warps=4, num_stages=3),
    ]
    return {one.name: one for one in found}


def candidates(
    by_torch: Callable[..., Tensor], centred: bool, activated: bool = False
) -> Callable[[Case], dict[str, Callable[..., Any]]]:
    """Return what `tune` compares for a norm: PyTorch, and the one-kernel ways in 16 bits.

    With `activated` GELU is behind the product, and how the kernel for Hopper may finish it.
    """
    after = GELU_TANH if activated else None

    def fold(tiling: Tiling, x: Tensor, eps: float = 1e-5, **given: Tensor) -> Tensor:
        known = kept_fold(*_of(given), centred)
        return folded_forward(x, known, eps, tiling=tiling, activation=after)

    def prologue(tiling: Tiling, x: Tensor, eps: float = 1e-5, **given: Tensor) -> Tensor:
        return one_kernel(x, *_of(given), eps, centred, tiling, after)

    def by_hand(finish: Finish, x: Tensor, eps: float = 1e-5, **given: Tensor) -> Tensor:
        known = kept_fold(*_of(given), centred)
        return folded_forward(x, known, eps, hopper=True, activation=after, finish=finish)

    def of(case: Case) -> dict[str, Callable[..., Any]]:
        tried: dict[str, Callable[..., Any]] = {"PyTorch": by_torch}
        if case.dtype.itemsize == 2:
            for name, tiling in folded_to_try().items():
                tried[f"folded, {name}"] = functools.partial(fold, tiling)
            for name, tiling in prologues_to_try().items():
                tried[f"prologue, {name}"] = functools.partial(prologue, tiling)
        if suits(case):
            ways = finishes_to_try(after)
            tried |= {one.name: functools.partial(by_hand, one) for one in ways}
        return tried

    return of


def _of(given: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    return given["norm_weight"], given.get("norm_bias"), given["weight"], given["bias"]
