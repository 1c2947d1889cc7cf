"""The configurations of softmax that `python -m kernels.lab tune` compares, forward and back."""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.ops.shared.blocks import Block, blocks_to_try
from kernels.ops.softmax.backward import softmax_backward
from kernels.ops.softmax.forward import softmax_forward
from kernels.registry import Case

Tensor = torch.Tensor

_TILES = (4096, 8192, 16384)


def candidates(case: Case) -> dict[str, Any]:
    """The configurations of the forward in a case, as functions of `inputs`."""
    to_try = blocks_to_try(case.shape[-1], _TILES)
    return {name: functools.partial(softmax_forward, block=block) for name, block in to_try.items()}


class _Configured(torch.autograd.Function):
    """Softmax that goes back in a configuration of your own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        y = softmax_forward(x)
        ctx.save_for_backward(y)
        ctx.block = block
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return softmax_backward(dy, y, ctx.block), None


def backward_candidates(case: Case) -> dict[str, Any]:
    """The configurations of the backward, as functions of `inputs` to go back through."""

    def configured(block: Block) -> Any:
        return lambda x: _Configured.apply(x, block)

    return {
        name: configured(block) for name, block in blocks_to_try(case.shape[-1], _TILES).items()
    }
