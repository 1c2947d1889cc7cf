"""The tilings of attention that `python -m kernels.lab tune attention` compares, either way."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels.ops.attention.backward import backward
from kernels.ops.attention.backward_configurations import Tilings
from kernels.ops.attention.configurations import Tiling, held_dim
from kernels.ops.attention.formula import Given
from kernels.ops.attention.forward import forward
from kernels.ops.attention.peers import flash, in_16_bits
from kernels.registry import Case

Tensor = torch.Tensor


def to_try(case: Case) -> dict[str, Tiling]:
    """The tilings worth timing in a case, by name."""
    by_copies = functools.partial(Tiling, descriptors=True)
    if case.dtype.itemsize == 4:
        found = [Tiling(32, 32, 8, 1), Tiling(64, 32, 8, 1), Tiling(32, 32, 4, 1)]
    elif held_dim(case.shape[3]) <= 64:
        found = [
            Tiling(128, 64, 4, 3),
            Tiling(128, 64, 8, 3),
            Tiling(128, 128, 8, 2),
            by_copies(128, 64, 4, 3),
            by_copies(128, 64, 8, 3),
            by_copies(128, 128, 8, 2),
            by_copies(128, 128, 8, 3),
            by_copies(256, 64, 8, 3),
            by_copies(64, 64, 4, 4),
        ]
    else:
        found = [
            Tiling(128, 64, 8, 3),
            Tiling(128, 128, 8, 2),
            by_copies(128, 64, 8, 3),
            by_copies(128, 64, 8, 2),
            by_copies(128, 128, 8, 2),
            by_copies(128, 128, 8, 3),
            by_copies(64, 64, 4, 3),
            by_copies(64, 128, 4, 2),
        ]
    return {one.name: one for one in found}


def candidates(case: Case) -> dict[str, Callable[..., Any]]:
    """The tilings as functions of the inputs, and PyTorch's flash attention."""

    def run(
        tiling: Tiling, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None = None
    ) -> Tensor:
        scale = q.shape[-1] ** -0.5
        return forward(q, k, v, causal=causal, window=window, scale=scale, tiling=tiling)[0]

    theirs: dict[str, Callable[..., Any]] = {"sdpa_flash": flash} if in_16_bits(case) else {}
    tried = {name: functools.partial(run, tiling) for name, tiling in to_try(case).items()}
    return {**theirs, **tried}


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
