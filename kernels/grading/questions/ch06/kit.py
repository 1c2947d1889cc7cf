"""What the norms of set 06 share: RMSNorms with one known fault each, and their tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import triton

from kernels.registry import Tolerance

Tensor = torch.Tensor
OUTSIDE = "Columns beyond the row need a mask in the loads and in the stores: cols < n_cols."


def rms_near(dtype: torch.dtype, cols: int) -> Tolerance:
    """Rounding to the output's dtype, and an fp32 sum in a tree."""
    unit = torch.finfo(dtype).eps / 2
    sums = 4 * 2.0**-24 * (2 + math.log2(cols + 1))
    return Tolerance(unit + sums, 2 * unit + sums)


def faulty_rms(h: Tensor, weight: Tensor, eps: float) -> Iterator[tuple[str, Tensor]]:
    """Yield what an RMSNorm of h (rows, cols) in float64 gives with one fault, and the fault."""
    n = h.shape[-1]
    block = triton.next_power_of_2(n)
    squares = (h * h).sum(-1, keepdim=True)
    right = torch.sqrt(squares / n + eps)
    centred = h - h.mean(-1, keepdim=True)
    yield (
        "The sum of squares is divided by the width of the block, and not by that of the row.",
        h / torch.sqrt(squares / block + eps) * weight,
    )
    yield (
        "A sum is multiplied by the number of columns; a mean is divided by it.",
        h / torch.sqrt(squares * n + eps) * weight,
    )
    taken = h / torch.sqrt(squares / n - eps) * weight
    yield "eps is taken away from the mean square; it is added.", taken
    yield "It is divided by weight; weight multiplies.", h / right / weight
    yield "It is multiplied by the root; it is divided by it.", h * right * weight
    spread = torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    yield "That is a LayerNorm: RMSNorm subtracts no mean.", centred / spread * weight
    yield "The squares are not divided by their number.", h / torch.sqrt(squares + eps) * weight
    yield "It is divided by the mean square, not by its root.", h / (squares / n + eps) * weight
    unused = "eps is not added to the mean square, or it is not the one given."
    yield unused, h / torch.sqrt(squares / n) * weight
    yield unused, h / torch.sqrt(squares / n + 1e-5) * weight
    outside = "eps is added to the root; it belongs under it."
    yield outside, h / (torch.sqrt(squares / n) + eps) * weight
    yield (
        "eps is added to the reciprocal of the root; it belongs under the root.",
        h * (1 / torch.sqrt(squares / n) + eps) * weight,
    )
    yield "Weight is not applied.", h / right
    yield "Weight is added; it multiplies.", h / right + weight
