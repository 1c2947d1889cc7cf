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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch

from kernels.lab.counting import by_programs
from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic
from kernels.launch import Launch
from kernels.launch.tape import is_descriptor

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
    and not run: at the whole sizes they must be those that the small ones foretell.
    """
    asked = dict(whole)
    seen = functools.cache(lambda *sizes: by_programs.recorded(call_at(_sizes(whole, sizes))))
    for unit in _TILES:
        if any(degree > 1 and asked[d] % unit for d, degree in degrees.items()):
            continue
        points = {
            d: [(unit if degree > 1 else 1) * n for n in range(1, degree + 3)]
            for d, degree in degrees.items()
        }
        if any(max(points[d]) > asked[d] for d, degree in degrees.items() if degree > 1):
            continue
        with contextlib.suppress(ValueError):
            _foretell_launches(seen, points, asked, degrees)
            return _extended(at, points, asked, degrees)
    return at(asked)


def _sizes(names: Iterable[str], sizes: Sequence[int]) -> Sizes:
    return dict(zip(names, sizes, strict=True))


def _foretell_launches(
    seen: Callable[..., tuple[Launch, ...]],
    points: Mapping[str, list[int]],
    asked: Sizes,
    degrees: Mapping[str, int],
) -> None:
    """ValueError unless the launches at small sizes foretell those at the sizes `asked`.

    They are the same kernels; each size of a grid and each number among the arguments lies on its
    polynomial; what else they are given, a flag or a block, is the same at all sizes.
    """
    whole = seen(*(asked[name] for name in points))
    smallest = seen(*(values[0] for values in points.values()))
    if [launch.name for launch in whole] != [launch.name for launch in smallest]:
        raise ValueError("other kernels are launched at the whole size")
    for index, launch in enumerate(whole):
        for name, value in launch.arguments.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                same = smallest[index].arguments[name]
                if not isinstance(value, torch.Tensor) and _told(value) != _told(same):
                    raise ValueError(f"{name!r} of {launch.name!r} is another at the whole size")
                continue
            _foretell(seen, lambda ls, i=index, n=name: ls[i].arguments[n], points, asked, degrees)  # type: ignore[misc]
        for axis in range(3):
            _foretell(seen, lambda ls, i=index, d=axis: ls[i].grid[d], points, asked, degrees)  # type: ignore[misc]


def _told(value: Any) -> Any:
    """What has to be the same at all sizes: of a descriptor its tile, whatever it describes."""
    return value.block_shape if is_descriptor(value) else value


def _foretell(
    seen: Callable[..., tuple[Launch, ...]],
    number: Callable[[tuple[Launch, ...]], Any],
    points: Mapping[str, list[int]],
    asked: Sizes,
    degrees: Mapping[str, int],
) -> None:
    """ValueError unless a number of the launches at small sizes foretells it at those asked."""
    wanted = tuple(asked[name] for name in points)
    whole = number(seen(*wanted))
    if whole == number(seen(*(values[0] for values in points.values()))):
        return  # a number that no size changes, a scale for one, may be any
    told = _along(lambda *sizes: number(seen(*sizes)), polynomial, points, degrees, wanted)
    if told != whole:
        raise ValueError(f"a launch has {whole} where {told} was foretold")


def _along(
    at: Callable[..., Any],
    combine: Callable[[Mapping[int, Any], int], Any],
    points: Mapping[str, list[int]],
    degrees: Mapping[str, int],
    sizes: tuple[int, ...],
    fixed: tuple[int, ...] = (),
) -> Any:
    """What `at` gives at `sizes`, combined from its values on the grid of the small sizes.

    The first sizes are `fixed` to points of the grid.
    """
    place = len(fixed)
    if place == len(points):
        return at(*fixed)
    name = list(points)[place]
    grid = points[name][: degrees[name] + 1]

    def further(point: int) -> Any:
        return _along(at, combine, points, degrees, sizes, (*fixed, point))

    if sizes[place] in grid:
        return further(sizes[place])
    return combine({point: further(point) for point in grid}, sizes[place])


def _extended(
    at: Callable[[Sizes], Ledger],
    points: Mapping[str, list[int]],
    asked: Sizes,
    degrees: Mapping[str, int],
) -> Ledger:
    seen = functools.cache(lambda *sizes: at(_sizes(points, sizes)))

    def told(sizes: tuple[int, ...]) -> Ledger:
        found: Ledger = _along(seen, extend, points, degrees, sizes)
        return found

    smallest = tuple(values[0] for values in points.values())
    outside = [
        (*smallest[:place], values[-1], *smallest[place + 1 :])
        for place, values in enumerate(points.values())
    ]
    # One place off the grid in every dimension too: what two sizes share shows there alone.
    outside += [tuple(values[-1] for values in points.values())] if len(points) > 1 else []
    for sizes in outside:
        if told(sizes).steps != seen(*sizes).steps:
            raise ValueError(f"at {_sizes(points, sizes)} the counts turn off")
    return replace(told(tuple(asked[name] for name in points)), method="polynomial")
