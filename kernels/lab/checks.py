"""Is a variant's output right? Its distance from the float64 reference, on fresh random inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernels.registry import Op, Shape

CHUNK_ELEMENTS = 1 << 25  # float64 elements of one chunk of a reference: 256 MiB a tensor


class NotFiniteError(ValueError):
    """An output holds NaN or infinity, or an element that was never written."""


def _row_chunks(op: Op, shape: Shape) -> Iterator[slice]:
    rows = shape[0]
    step = rows
    if op.rows_independent:
        step = max(1, CHUNK_ELEMENTS // max(1, math.prod(shape[1:])))
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))


def _rows_of(inputs: dict[str, Any], rows: slice, total: int) -> dict[str, Any]:
    def part(value: Any) -> Any:
        by_row = isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[0] == total
        return value[rows] if by_row else value

    return {name: part(value) for name, value in inputs.items()}


def relative_error(op: Op, shape: Shape, inputs: dict[str, Any], out: torch.Tensor) -> float:
    """Return ‖out − ref‖ / ‖ref‖ against the float64 reference of `op`.

    Where rows are independent the reference is computed a few rows at a time, so that it fits.
    NotFiniteError if the output is not finite everywhere.
    """
    distance = norm = 0.0
    chunks = list(_row_chunks(op, shape))
    for rows in chunks:
        whole = len(chunks) == 1
        reference = op.reference(**(inputs if whole else _rows_of(inputs, rows, shape[0])))
        part = out if whole else out[rows]
        if part.shape != reference.shape:
            raise ValueError(
                f"the output has shape {tuple(part.shape)}, the reference {tuple(reference.shape)}"
            )
        distance += float((part.double() - reference).square().sum())
        norm += float(reference.square().sum())
    if not math.isfinite(distance):
        raise NotFiniteError("the output holds NaN or infinity, or was not written everywhere")
    return math.sqrt(distance / norm) if norm else math.sqrt(distance)


def poisoned(call: Callable[[], torch.Tensor], nbytes: int, device: torch.device) -> torch.Tensor:
    """Return `call()` after filling free memory with NaN, so that an unwritten element shows.

    The allocator hands a block that was just freed to the next request of its size: `nbytes`,
    the size of the output.
    """
    blocks = [torch.full((max(1, nbytes // 4),), math.nan, device=device) for _ in range(2)]
    del blocks
    return call()
