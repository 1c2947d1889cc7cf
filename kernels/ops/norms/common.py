"""What the norms have in common beside their kernels: inputs, costs, tolerances, shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.registry import Case, Cost, Shape, Tolerance, cases

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

# Shapes of a pass or dtype that is not measured everywhere: a whole recording has to fit the time
# that a card is there for. A bandwidth shows in large shapes.
LARGE: tuple[Shape, ...] = (
    (4096, 4096),
    (4096, 8192),
    (16384, 8192),
    (65536, 1024),
    (8192, 16384),
)
# A step of training, forward and backward as one call, and the backward of so few rows: here the
# cost of a call from Python shows.
STEPS = cases([(512, 1024)], "bf16")
# Beside the suite: rows in tiles, and a few rows. Ragged rows of more than 16384 columns are left
# out: on 8.0, 10.0 and 12.0 some keep 8 to 32 bytes in memory, since the assembler gives their
# threads 80 to 128 registers and no more. Going back, in 16 bits, none does; nor LayerNorm forward.
BEYOND: tuple[Shape, ...] = (
    (4096, 32768),
    (1024, 65536),
    (33, 1000),
    (33, 12_289),
)
# A few rows of 16384 fp16 columns are left out too: AddRMSNorm's keep 8 bytes so on 12.0.
BEYOND_BACK = cases([(4, 20_001)], "fp16", "bf16") + cases([(4, 16384)], "fp32")


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


def dims(names: Sequence[str]) -> dict[str, str]:
    """Return the dimensions of a norm's tensors: rows of N columns, or a parameter of N."""
    return {name: "RN" if name in ("x", "residual") else "N" for name in names}


def operator_dims(*names: str) -> dict[str, str]:
    """Return the dimensions of an operator's tensors: rows, whatever leads them, and parameters.

    Means and inv_stds are one a row.
    """
    by_name = {"weight": "N", "bias": "N", "mean": "*", "inv_std": "*"}
    return {name: by_name.get(name, "*N") for name in names}


def outputs(names: Sequence[str]) -> dict[str, str]:
    """Return the outputs: y, and the sum h where a residual is added."""
    return {"y": "RN", "h": "RN"} if "residual" in names else {"y": "RN"}


def forward_cost(names: Sequence[str]) -> Callable[[Case], Cost]:
    """Return the cost of a norm that takes these tensors; with a bias it is a LayerNorm.

    An element costs LayerNorm 7 FLOPs: 1 into the sum, 1 to centre, 2 into the sum of squares, 1 to
    scale by inv_std, 2 for weight and bias; RMSNorm 4: no sum, nothing to centre, no bias. A row
    costs LayerNorm 4 more (two divisions, one sum, one rsqrt) and RMSNorm 3. A residual is 1 more.
    """
    layer_norm, added = "bias" in names, "residual" in names

    def of(case: Case) -> Cost:
        rows, n_cols = case.shape
        size, n_parameters = case.dtype.itemsize, 2 if layer_norm else 1
        return Cost(
            flops=rows * ((7 if layer_norm else 4) * n_cols + (4 if layer_norm else 3))
            + added * rows * n_cols,
            read_bytes=((1 + added) * rows + n_parameters) * n_cols * size,
            write_bytes=(1 + added) * rows * n_cols * size,
        )

    return of


def backward_cost(names: Sequence[str]) -> Callable[[Case], Cost]:
    """Return the cost of a norm's backward, of all its gradients.

    It starts from dy, x (or the sum of x and residual, and its own gradient), weight, and 4 bytes a
    row and statistic. An element costs LayerNorm 13 FLOPs: 2 for x̂, 2 and 1 into dweight and dbias,
    1 for g = dy · weight, 1 and 2 into the means of g and g · x̂, 4 for dx; RMSNorm 9, without
    x − mean, dbias, the mean of g and its place in dx. A residual is 1 more.
    """
    layer_norm, added = "bias" in names, "residual" in names

    def of(case: Case) -> Cost:
        rows, n_cols = case.shape
        size, n_parameters = case.dtype.itemsize, 2 if layer_norm else 1
        return Cost(
            flops=rows * n_cols * ((13 if layer_norm else 9) + added),
            read_bytes=((2 + added) * rows + 1) * n_cols * size + 4 * rows * n_parameters,
            write_bytes=(rows + n_parameters) * n_cols * size,
        )

    return of


def forward_tolerance(names: Sequence[str]) -> Callable[[Case, str], Tolerance]:
    """The outputs' rounding, and fp32 sums of N terms in a tree: log2(N) roundings, some twice.

    With a residual the sum is rounded first, and its rounding is magnified where rows lie off 0.
    """

    def of(case: Case, _name: str) -> Tolerance:
        unit = torch.finfo(case.dtype).eps / 2
        sums = 4 * 2.0**-24 * (2 + math.log2(max(case.shape[-1], 2)))
        roundings = 3 if "residual" in names else 1
        return Tolerance(relative_norm=roundings * unit + sums, largest=2 * roundings * unit + sums)

    return of


def backward_tolerance(names: Sequence[str]) -> Callable[[Case, str], Tolerance]:
    """A gradient's rounding, and fp32 sums over N columns and over all rows.

    dx is a difference of three terms, each with the rounding of inv_std and of a mean.
    """
    forward = forward_tolerance(names)

    def of(case: Case, name: str) -> Tolerance:
        bound, rows = forward(case, name), math.log2(max(case.shape[0], 2))
        sums = 8 * 2.0**-24 * (2 + rows)
        return Tolerance(bound.relative_norm + sums, 2 * bound.largest + 2 * sums)

    return of
