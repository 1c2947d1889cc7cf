"""What questions about norms of rows share: the norms in float64, how many programs they take."""

from __future__ import annotations

import torch

from kernels.grading.cases import Case

Tensor = torch.Tensor


def normalised(x: Tensor, eps: float) -> Tensor:
    """Return x (rows, cols) with mean 0 and variance near 1 in each row, in float64."""
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)


def rms_normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x (rows, cols) over the root of its mean square, times weight (cols,), in float64."""
    x = x.double()
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight.double()


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean of squares + eps) of each row of x, in float64."""
    return torch.rsqrt((x.double() ** 2).mean(-1) + eps)


def row_groups(case: Case) -> int:
    """Return how many programs a question takes at least: one for every four rows."""
    return -(-len(case.x) // 4)
