"""Is a variant right? The distance of its outputs or its gradients from a float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch

from kernels.passes import as_tuple, back, differentiated
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


class _Distance:
    """‖out − ref‖ / ‖ref‖ of something that comes part by part, in float64."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._distance = self._norm = 0.0

    def add(self, part: torch.Tensor, reference: torch.Tensor) -> None:
        """Take a part and its reference; ValueError if their shapes differ."""
        if part.shape != reference.shape:
            raise ValueError(
                f"{self._what} has shape {tuple(part.shape)}, "
                f"the reference {tuple(reference.shape)}"
            )
        self._distance += float((part.double() - reference).square().sum())
        self._norm += float(reference.square().sum())

    def relative(self) -> float:
        """The error of all parts; NotFiniteError if one was not finite."""
        if not math.isfinite(self._distance):
            raise NotFiniteError(
                f"{self._what} holds NaN or infinity, or was not written everywhere"
            )
        return math.sqrt(self._distance / self._norm) if self._norm else math.sqrt(self._distance)


def _parts(
    op: Op, shape: Shape, inputs: dict[str, Any]
) -> Iterator[tuple[Callable[[torch.Tensor], torch.Tensor], dict[str, Any]]]:
    """For each chunk of rows: what takes an output's rows, and the arguments of the reference."""
    for rows in _row_chunks(op, shape):
        place = {"first_row": rows.start} if op.takes_first_row else {}
        if rows == slice(0, shape[0]):
            yield lambda whole: whole, inputs | place
        else:
            yield itemgetter(rows), _rows_of(inputs, rows, shape[0]) | place


def relative_error(
    op: Op, shape: Shape, inputs: dict[str, Any], out: Any, own_random: bool = False
) -> float:
    """Return ‖out − ref‖ / ‖ref‖ against the float64 reference of `op`.

    Of several outputs it is the largest. Where rows are independent the reference is computed a
    few rows at a time, so that it fits. An output that draws its own random numbers (`own_random`)
    is held against the nearer of the two outcomes of each element, and the share that is kept
    against `p`. NotFiniteError if an output is not finite everywhere.
    """
    outs = as_tuple(out)
    told = [
        _Distance("the output" if len(outs) == 1 else f"output {number}")
        for number in range(1, len(outs) + 1)
    ]
    drawn = _Kept()
    for take, given in _parts(op, shape, inputs):
        parts = [take(one) for one in outs]
        if own_random and op.outcomes is not None and parts[0].shape == given["x"].shape:
            given = {name: value for name, value in given.items() if name != "first_row"}
            references: tuple[torch.Tensor, ...] = (drawn.nearest(parts[0], *op.outcomes(**given)),)
        else:
            references = as_tuple(op.reference(**given))
        if len(references) != len(parts):
            raise ValueError(f"there are {len(parts)} outputs, the reference has {len(references)}")
        for distance, part, reference in zip(told, parts, references, strict=True):
            distance.add(part, reference)
    error = max(distance.relative() for distance in told)
    if own_random:
        drawn.check(inputs["p"])
    return error


def gradient_errors(
    op: Op,
    shape: Shape,
    inputs: dict[str, Any],
    upstream: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
) -> dict[str, float]:
    """Return the relative error of each gradient, against autograd through the reference.

    `upstream` are the gradients of the outputs, `gradients` those of `op.differentiates`. A
    gradient that has rows, like x's, is compared a few rows at a time; one that every row adds to,
    like a weight's, is added up over them in float64. NotFiniteError if one is not finite.
    """
    names = differentiated(op, inputs)
    got = dict(zip(names, gradients, strict=True))
    told = {name: _Distance(f"the gradient of {name!r}") for name in names}
    sums: dict[str, torch.Tensor] = {}
    for take, given in _parts(op, shape, inputs):
        wide = {name: _widened(value) for name, value in given.items()}
        above = [take(one).double() for one in upstream]
        call = back(op, op.reference, wide, lambda _, above=above: above)  # type: ignore[misc]
        for name, reference in zip(names, call(), strict=True):
            if wide[name].shape == inputs[name].shape:
                sums[name] = sums[name] + reference if name in sums else reference
            else:
                told[name].add(take(got[name]), reference)
    for name, total in sums.items():
        told[name].add(got[name], total)
    return {name: distance.relative() for name, distance in told.items()}


def _widened(value: Any) -> Any:
    real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if real else value


def poisoned(call: Callable[[], Any], sizes: Iterable[int], device: torch.device) -> Any:
    """Return `call()` after filling free memory with NaN, so that an unwritten element shows.

    The allocator hands a block that was just freed to the next request of its size: `sizes` are
    the bytes of the outputs.
    """
    blocks = [
        torch.full((max(1, nbytes // 4),), math.nan, device=device)
        for nbytes in sizes
        for _ in range(2)
    ]
    del blocks
    return call()
