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


class _Kept:
    """How many elements of an output that draws its own random numbers were kept."""

    def __init__(self) -> None:
        self.kept = self.of = 0

    def nearest(self, out: torch.Tensor, kept: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
        """Whichever of the two values each element of `out` lies nearer to."""
        out = out.double()
        is_kept = (out - kept).abs() < (out - dropped).abs()
        apart = (kept - dropped).abs() > 0.05 * (1 + dropped.abs())  # else a rounding decides
        self.kept += int((is_kept & apart).sum())
        self.of += int(apart.sum())
        return torch.where(is_kept, kept, dropped)

    def check(self, p: float) -> None:
        """ValueError if the share that was kept isn't 1 − p, by six standard deviations."""
        allowed = 6 * math.sqrt(p * (1 - p) * self.of) + 1e-4 * self.of
        if abs(self.kept - (1 - p) * self.of) > allowed:
            raise ValueError(
                f"{self.kept / self.of:.2%} of the elements are kept where {1 - p:.2%} should be"
            )


def relative_error(
    op: Op, shape: Shape, inputs: dict[str, Any], out: torch.Tensor, own_random: bool = False
) -> float:
    """Return ‖out − ref‖ / ‖ref‖ against the float64 reference of `op`.

    Where rows are independent the reference is computed a few rows at a time, so that it fits. An
    output that draws its own random numbers (`own_random`) is held against the nearer of the two
    outcomes of each element, and the share that is kept against `p`. NotFiniteError if the output
    is not finite everywhere.
    """
    distance = norm = 0.0
    drawn = _Kept()
    chunks = list(_row_chunks(op, shape))
    for rows in chunks:
        whole = len(chunks) == 1
        given = inputs if whole else _rows_of(inputs, rows, shape[0])
        part = out if whole else out[rows]
        place = {"first_row": rows.start} if op.takes_first_row else {}
        if own_random and op.outcomes is not None and part.shape == given["x"].shape:
            reference = drawn.nearest(part, *op.outcomes(**given))
        else:
            reference = op.reference(**given, **place)
        if part.shape != reference.shape:
            raise ValueError(
                f"the output has shape {tuple(part.shape)}, the reference {tuple(reference.shape)}"
            )
        distance += float((part.double() - reference).square().sum())
        norm += float(reference.square().sum())
    if not math.isfinite(distance):
        raise NotFiniteError("the output holds NaN or infinity, or was not written everywhere")
    if own_random:
        drawn.check(inputs["p"])
    return math.sqrt(distance / norm) if norm else math.sqrt(distance)


def poisoned(call: Callable[[], torch.Tensor], nbytes: int, device: torch.device) -> torch.Tensor:
    """Return `call()` after filling free memory with NaN, so that an unwritten element shows.

    The allocator hands a block that was just freed to the next request of its size: `nbytes`,
    the size of the output.
    """
    blocks = [torch.full((max(1, nbytes // 4),), math.nan, device=device) for _ in range(2)]
    del blocks
    return call()
