"""What the chains with a norm have in common: inputs, costs, tolerances, moves, shapes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from kernels.launch import capability, multiprocessors
from kernels.ops.chains.bias_gelu import strips_over
from kernels.ops.chains.configurations import held_row, rows_configuration
from kernels.ops.norms import common as norms
from kernels.ops.norms.backward import shared_out
from kernels.ops.shared.rows import fill_vectors, stride_unit
from kernels.registry import Case, Cost, Moves, Shape, Tolerance

Tensor = torch.Tensor

SHAPES: tuple[Shape, ...] = ((4096, 4096), (16384, 8192), (65536, 1024))
BEYOND: tuple[Shape, ...] = ((1024, 16384), (33, 1000), (7, 20001))
_CPU = torch.device("cpu")  # where launches are counted


def inputs(
    residual: bool,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    p: float = 0.1,
) -> dict[str, Any]:
    """Fresh random x, weight, bias as LayerNorm's, and with a residual that, p and a seed."""
    names = ("x", "weight", "bias", *(("residual",) if residual else ()))
    made = norms.inputs(names, shape, dtype, device, seed)
    if residual:
        made |= {"p": p, "seed_offset": torch.tensor([seed + 2**40, 3], device=device)}
    return made


def drops(residual: bool, case: Case) -> bool:
    """Whether random numbers are drawn in a case: by the chain with a residual, unless p = 0."""
    return residual and dict(case.options).get("p", 0.1) > 0


def forward_cost(residual: bool, case: Case) -> Cost:
    """What the chain must do at least: LayerNorm's 7 FLOPs an element, GELU's 9, and 4 a row.

    A residual is 1 more, dropout's factor another. Random numbers are integer work, and counted
    nowhere here; where they are drawn, the seed's 16 bytes are read once.
    """
    rows, n_cols = case.shape
    size = case.dtype.itemsize
    drawn = drops(residual, case)
    return Cost(
        flops=rows * ((16 + residual + drawn) * n_cols + 4),
        read_bytes=((1 + residual) * rows + 2) * n_cols * size + 16 * drawn,
        write_bytes=rows * n_cols * size,
    )


def backward_cost(residual: bool, case: Case) -> Cost:
    """What its backward must do at least: dy, x, weight, bias, 8 bytes a row in; gradients out.

    An element costs LayerNorm's 13 FLOPs, 2 for h, 8 for σ, 9 for the slope, 1 for their product,
    and 1 for dropout's factor. The residual's gradient is dy, and no bytes.
    """
    rows, n_cols = case.shape
    size = case.dtype.itemsize
    drawn = drops(residual, case)
    return Cost(
        flops=(33 + drawn) * rows * n_cols,
        read_bytes=2 * (rows + 1) * n_cols * size + 8 * rows + 16 * drawn,
        write_bytes=(rows + 2) * n_cols * size,
    )


def tolerance(case: Case, _name: str) -> Tolerance:
    """The output's rounding, fp32 sums of N terms in a tree, and a handful of roundings behind.

    Nothing on the way is rounded to the dtype.
    """
    unit = torch.finfo(case.dtype).eps / 2
    sums = 4 * 2.0**-24 * (2 + math.log2(max(case.shape[-1], 2))) + 2.0**-20
    return Tolerance(relative_norm=unit + sums, largest=2 * unit + 2 * sums)


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """A gradient's rounding, and fp32 sums over N columns and over all rows.

    dx is a difference of three terms, each with the rounding of inv_std and of a mean.
    """
    bound = tolerance(case, name)
    sums = 8 * 2.0**-24 * (2 + math.log2(max(case.shape[0], 2)))
    return Tolerance(bound.relative_norm + sums, 2 * bound.largest + 2 * sums)


def simple_moves(residual: bool) -> Callable[[Case, str], Moves]:
    """Return what a forward moves that holds a row in one block."""
    return lambda case, _pass: Moves(1, unique=forward_cost(residual, case).bytes_ideal)


def moves(residual: bool) -> Callable[[Case, str], Moves]:
    """Return what the fused chain moves, forward or back."""
    return functools.partial(_moves, residual)


def _moves(residual: bool, case: Case, pass_: str) -> Moves:
    rows, n_cols = case.shape
    size = case.dtype.itemsize
    by_vectors = fill_vectors(stride_unit(n_cols), size)
    drawn = drops(residual, case)
    if pass_ == "fwd":
        ideal = forward_cost(residual, case).bytes_ideal
        block = held_row(n_cols, size, by_vectors, drawn).block
        # Parameters are asked for anew by each row; x again by a row in tiles. What is asked for
        # of the seed depends on the kernel's programs.
        tensors = (4 + residual + (n_cols > block.cols)) * rows * n_cols * size
        return Moves(1, unique=ideal, requested=None if drawn else tensors)
    ideal = backward_cost(residual, case).bytes_ideal
    plan = rows_configuration(n_cols, size, by_vectors, drawn, capability(_CPU))
    if plan is not None:
        programs, _ = shared_out(
            rows, plan.programs_per_sm * multiprocessors(_CPU), plan.block_rows
        )
        return Moves(2, unique=ideal + 2 * programs * 2 * n_cols * 4)
    _, _, chunks, _ = strips_over(torch.empty(case.shape, dtype=case.dtype), None)
    # The means' launch reads what the strips read too, and writes two numbers a row, read again.
    again = 2 * (rows + 1) * n_cols * size + 8 * rows + 16 * drawn + 2 * 8 * rows
    return Moves(3, unique=ideal + again + 2 * chunks * 2 * n_cols * 4)
