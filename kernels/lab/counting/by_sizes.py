"""A ledger at large sizes from ledgers at a few, along several dimensions at once.

Each number of a ledger is taken for a polynomial in the sizes, of the degree that the operation
names for each: 1 in batch and heads, 2 in the length of attention's sequences, since every tile of
queries walks over the keys. A grid of small sizes, one more along each dimension than its degree,
decides the polynomial. Then it must foretell ledgers at sizes outside of that grid, one along each
dimension; where it misses one, nothing is extended and every program is run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

from kernels.lab.counting import by_programs
from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic

Sizes = dict[str, int]

# Steps to try along a dimension of degree 2: the tile of a kernel divides one of them, and so do
# all larger sizes that are asked for. Shorter ones cost fewer programs.
_TILES = (16, 32, 64, 128, 256)
_NUMBERS = ("read_unique", "read_requested", "write_unique", "write_requested")


def polynomial(values: Mapping[int, int], at: int) -> int:
    """The value at `at` of the polynomial through all `values`, exactly.

    ValueError if it is no whole number, as no count could be then.
    """
    total = Fraction(0)
    for place, value in values.items():
        weight = Fraction(1)
        for other in values:
            if other != place:
                weight *= Fraction(at - other, place - other)
        total += value * weight
    if total.denominator != 1:
        raise ValueError(f"{dict(values)} give {total} at {at}, which is no count")
    return int(total)


def extend(ledgers: Mapping[int, Ledger], size: int) -> Ledger:
    """The ledger at `size` along one dimension, each number on the polynomial through its values.

    ValueError if the ledgers differ in their steps or tensors.
    """
    shapes = {tuple((s.name, tuple(t.tensor for t in s.tensors)) for s in led)
              for led in ledgers.values()}  # fmt: skip
    if len(shapes) > 1:
        raise ValueError("the steps differ between the sizes; nothing can be extended")

    def number(of: Callable[[Ledger], int]) -> int:
        return polynomial({place: of(ledger) for place, ledger in ledgers.items()}, size)

    first = next(iter(ledgers.values()))
    return replace(
        first,
        steps=tuple(_step(step, index, number) for index, step in enumerate(first.steps)),
        method="polynomial",
    )


def _step(step: Step, index: int, number: Callable[[Callable[[Ledger], int]], int]) -> Step:
    def tensor(place: int, name: str) -> TensorTraffic:
        values = [
            number(lambda led, what=what: getattr(led.steps[index].tensors[place], what))  # type: ignore[misc]
            for what in _NUMBERS
        ]
        return TensorTraffic(name, *values)

    x, y, z = (number(lambda led, d=d: led.steps[index].grid[d]) for d in range(3))  # type: ignore[misc]
    sectors = None
    if step.bytes_sectors is not None:
        sectors = number(lambda led: led.steps[index].bytes_sectors or 0)
    return replace(
        step,
        tensors=tuple(tensor(place, told.tensor) for place, told in enumerate(step.tensors)),
        grid=(x, y, z),
        lanes=number(lambda led: led.steps[index].lanes),
        masked_lanes=number(lambda led: led.steps[index].masked_lanes),
        bytes_sectors=sectors,
    )


def by_sizes(
    at: Callable[[Sizes], Ledger],
    call_at: Callable[[Sizes], Callable[[], object]],
    whole: Mapping[str, int],
    degrees: Mapping[str, int],
) -> Ledger:
    """The ledger at the sizes `whole`, extended where small sizes foretell it, else counted there.

    `at(sizes)` counts at other sizes; `call_at(sizes)` makes the call whose launches are recorded
    and not run: their grids at the whole sizes must be those that the polynomial gives.
    """
    asked = dict(whole)
    recorded = by_programs.recorded(call_at(asked))
    for unit in _TILES:
        if any(degree > 1 and asked[d] % unit for d, degree in degrees.items()):
            continue
        points = {
            d: [(unit if degree > 1 else 1) * n for n in range(1, degree + 3)]
            for d, degree in degrees.items()
        }
        if any(max(points[d]) >= asked[d] for d, degree in degrees.items() if degree > 1):
            continue
        with contextlib.suppress(ValueError):
            found = _extended(at, points, asked, degrees)
            if tuple(step.grid for step in found) == tuple(launch.grid for launch in recorded):
                return found
    return at(asked)


def _extended(
    at: Callable[[Sizes], Ledger],
    points: Mapping[str, list[int]],
    asked: Sizes,
    degrees: Mapping[str, int],
) -> Ledger:
    seen = functools.cache(lambda *sizes: at(dict(zip(points, sizes, strict=True))))

    def along(fixed: tuple[int, ...], sizes: tuple[int, ...]) -> Ledger:
        """The ledger at `sizes`, those before `fixed` being grid points, the rest extended."""
        place = len(fixed)
        if place == len(points):
            return seen(*fixed)
        name = list(points)[place]
        grid = points[name][: degrees[name] + 1]
        if sizes[place] in grid:
            return along((*fixed, sizes[place]), sizes)
        return extend({p: along((*fixed, p), sizes) for p in grid}, sizes[place])

    smallest = tuple(values[0] for values in points.values())
    for place, values in enumerate(points.values()):
        outside = (*smallest[:place], values[-1], *smallest[place + 1 :])
        told, counted = along((), outside), seen(*outside)
        if told.steps != counted.steps:
            raise ValueError(f"at {dict(zip(points, outside, strict=True))} the counts turn off")
    # One place off the grid in every dimension: what two sizes have in common shows there alone.
    far = tuple(values[-1] for values in points.values())
    if len(points) > 1 and along((), far).steps != seen(*far).steps:
        raise ValueError(f"at {dict(zip(points, far, strict=True))} the counts turn off")
    return replace(along((), tuple(asked[name] for name in points)), method="polynomial")
