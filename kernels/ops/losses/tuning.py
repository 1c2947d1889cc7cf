"""The chunks and tiles of the loss over a vocabulary that `python -m kernels.lab tune` compares."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels.ops.losses.chunks import scaled, walk
from kernels.ops.losses.configurations import chunk_tokens
from kernels.registry import Case

Tensor = torch.Tensor

_CHUNKS = (256, 512, 1024, 2048, 4096)
_TILES = ((2048, 4), (2048, 8), (4096, 8), (8192, 8), (8192, 16))


def to_try(case: Case) -> dict[str, dict[str, int]]:
    """The ways worth timing in a case by name, as keywords of `walk`."""
    tokens, _, n_words = case.shape
    usual = chunk_tokens(tokens, n_words, case.dtype.itemsize)
    found = {f"{one} tokens a chunk": {"chunk": one} for one in _CHUNKS if one <= tokens}
    for words, num_warps in _TILES:
        name = f"{usual} tokens a chunk, {words} words, {num_warps} warps"
        found[name] = {"chunk": usual, "words": words, "num_warps": num_warps}
    return found


def candidates(case: Case) -> dict[str, Callable[..., Any]]:
    """The ways of the forward, as functions of the inputs."""

    def run(how: dict[str, int], x: Tensor, weight: Tensor, targets: Tensor) -> Any:
        return walk(x, weight, targets, -100, 0.0, "mean", **how).loss  # type: ignore[arg-type]

    return {name: functools.partial(run, how) for name, how in to_try(case).items()}


class _Configured(torch.autograd.Function):
    """The loss of a training step in a configuration of your own, three products."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, how: dict[str, Any]
    ) -> Tensor:
        loss, *ctx.kept = walk(
            *(x, weight, targets, -100, 0.0, "mean"), wants_x=True, wants_weight=True, **how
        )
        assert loss is not None
        return loss

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return *(scaled(dy, one) for one in ctx.kept), None, None


def train_candidates(case: Case) -> dict[str, Callable[..., Any]]:
    """The ways of a training step, as functions of the inputs to go back through."""

    def configured(how: dict[str, int]) -> Callable[..., Any]:
        return lambda x, weight, targets: _Configured.apply(x, weight, targets, how)

    return {name: configured(how) for name, how in to_try(case).items()}
