"""What the norms have in common beside their kernels: inputs, costs, tolerances, shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.registry import DTYPES, Cost, Shape, Tolerance

Tensor = torch.Tensor

SHAPES: tuple[Shape, ...] = (
    (512, 1024),
    (2048, 4096),
    (4096, 4096),
    (4096, 8192),
    (8192, 16384),
    (16384, 8192),
    (65536, 1024),
)

# What an operation or a pass is measured at that is not measured at all shapes in all dtypes.
LARGE: tuple[Shape, ...] = (
    (4096, 4096),
    (4096, 8192),
    (16384, 8192),
    (65536, 1024),
    (8192, 16384),
)


def cells(shapes: Sequence[Shape], dtype: str) -> tuple[tuple[Shape, torch.dtype], ...]:
    """Return cells of the suite: these shapes in the dtype of this short name."""
    return tuple((shape, DTYPES[dtype]) for shape in shapes)


def inputs(
    names: Sequence[str],
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    mean: float = 0.5,
    spread: float = 1.5,
) -> dict[str, Any]:
    """Fresh random tensors by name, none centred on 0: x, residual (rows, N), weight, bias (N,)."""
    rows, n_cols = shape
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    made = {
        "x": lambda: mean + spread * normal(rows, n_cols),
        "residual": lambda: normal(rows, n_cols),
        "weight": lambda: 1.0 + 0.5 * normal(n_cols),
        "bias": lambda: normal(n_cols),
    }
    return {name: made[name]().to(dtype) for name in names}


def cost(names: Sequence[str]) -> Callable[[Shape, torch.dtype, str], Cost]:
    """Return the cost of a norm that takes these tensors; with a bias it is a LayerNorm.

    Forward, an element costs LayerNorm 7 FLOPs: 1 into the sum, 1 to centre, 2 into the sum of
    squares, 1 to scale by inv_std, 2 for weight and bias; RMSNorm 4: no sum, nothing to centre, no
    bias. A row costs LayerNorm 4 more (two divisions, one sum, one rsqrt) and RMSNorm 3. Backward
    it costs LayerNorm 13: 2 for x̂, 2 and 1 into dweight and dbias, 1 for g = dy · weight, 1 and 2
    into the means of g and g · x̂, 4 for dx; RMSNorm 9, without x − mean, dbias, the mean of g and
    its place in dx. A residual is 1 more, forward and back. Backward starts from dy, x (or the sum
    of x and residual, and its own gradient), weight, and 4 bytes a row and statistic.
    """
    layer_norm, added = "bias" in names, "residual" in names

    def of(shape: Shape, dtype: torch.dtype, pass_: str) -> Cost:
        rows, n_cols = shape
        size, n_parameters = dtype.itemsize, 2 if layer_norm else 1
        if pass_ == "fwd":
            return Cost(
                flops=rows * ((7 if layer_norm else 4) * n_cols + (4 if layer_norm else 3))
                + added * rows * n_cols,
                read_bytes=((1 + added) * rows + n_parameters) * n_cols * size,
                write_bytes=(1 + added) * rows * n_cols * size,
            )
        if pass_ == "bwd":
            return Cost(
                flops=rows * n_cols * ((13 if layer_norm else 9) + added),
                read_bytes=((2 + added) * rows + 1) * n_cols * size + 4 * rows * n_parameters,
                write_bytes=(rows + n_parameters) * n_cols * size,
            )
        raise ValueError(f"pass {pass_!r} of a norm has no cost; it takes 'fwd' or 'bwd'")

    return of


def tolerance(names: Sequence[str]) -> Callable[[torch.dtype, Shape], Tolerance]:
    """The outputs' rounding, and fp32 sums of N terms in a tree: log2(N) roundings, some twice.

    With a residual the sum is rounded first, and its rounding is magnified where rows lie off 0.
    """

    def of(dtype: torch.dtype, shape: Shape) -> Tolerance:
        unit = torch.finfo(dtype).eps / 2
        sums = 4 * 2.0**-24 * (2 + math.log2(max(shape[-1], 2)))
        roundings = 3 if "residual" in names else 1
        return Tolerance(relative_norm=roundings * unit + sums, largest=2 * roundings * unit + sums)

    return of


def gradient_tolerance(names: Sequence[str]) -> Callable[[str, torch.dtype, Shape], Tolerance]:
    """A gradient's rounding, and fp32 sums over N columns and over all rows.

    dx is a difference of three terms, each with the rounding of inv_std and of a mean.
    """
    forward = tolerance(names)

    def of(_name: str, dtype: torch.dtype, shape: Shape) -> Tolerance:
        bound, rows = forward(dtype, shape), math.log2(max(shape[0], 2))
        sums = 8 * 2.0**-24 * (2 + rows)
        return Tolerance(bound.relative_norm + sums, 2 * bound.largest + 2 * sums)

    return of
