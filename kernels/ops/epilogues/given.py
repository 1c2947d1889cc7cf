"""What a launch of a product with an epilogue is given, whichever kernel computes it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.ops.products.configurations import by_descriptors

Tensor = torch.Tensor


class Given(NamedTuple):
    """A product as its launch takes it: matrices, and what follows the sums; None is not there.

    x (M, K), weight (N, K), of a gate (2, N, K), bias (N,), residual (M, N), y (M, N), contiguous.
    kept is what a backward needs, (M, N), of a gate (M, 2, N), contiguous. `heads` are (positions,
    heads, batches, head size): then y is [part][batch][head][position][number].
    """

    x: Tensor
    weight: Tensor
    y: Tensor
    bias: Tensor | None = None
    activation: str | None = None
    residual: Tensor | None = None
    kept: Tensor | None = None
    heads: tuple[int, int, int, int] | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, K and N."""
        return *self.x.shape, self.weight.shape[-2]

    @property
    def gated(self) -> bool:
        """Whether the weights are two, gate and up."""
        return self.weight.dim() == 3

    @property
    def aligned(self) -> bool:
        """Whether the copy engine takes every matrix."""
        y = None if self.heads else self.y
        weight = self.weight[0] if self.gated else self.weight
        matrices = self.x, weight, self.residual, y
        return by_descriptors(*(one for one in matrices if one is not None))
