"""What the chains around a dropout have in common: inputs, costs, tolerances, shapes."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.ops.norms import common as norms
from kernels.registry import Case, Shape, Tolerance

Tensor = torch.Tensor

# Rows of a layer 1024 wide and of its MLP.
SHAPES: tuple[Shape, ...] = ((4096, 1024), (16384, 1024), (16384, 4096))
BEYOND: tuple[Shape, ...] = ((33, 1000), (7, 20_001))
SMALL: tuple[Shape, ...] = ((4, 64), (4, 1000), (1, 17), (5, 3), (3, 1), (2, 17_000), (0, 16))


def inputs(
    names: tuple[str, ...],
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    p: float,
) -> dict[str, Any]:
    """Fresh random tensors by name, as a norm's, with p and a seed."""
    made = norms.inputs(names, shape, dtype, device, seed)
    return made | {"p": p, "seed_offset": torch.tensor([seed + 2**40, 3], device=device)}


def drawn(case: Case) -> bool:
    """Whether random numbers are drawn in a case."""
    return float(dict(case.options).get("p", 0.1)) > 0


def kept_share(p: float) -> float:
    """What a generator of another kind divides by; infinite where nothing is kept."""
    return 1 - p if p < 1 else math.inf


def tolerance(case: Case, _name: str) -> Tolerance:
    """A rounding to the dtype at each of three steps, and fp32's own in between."""
    unit = torch.finfo(case.dtype).eps / 2
    return Tolerance(relative_norm=3 * unit + 2.0**-20, largest=6 * unit + 2.0**-19)
