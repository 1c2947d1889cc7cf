"""The ledger of a call at many rows, from the first programs of each launch at a few rows.

In some kernels a fixed number of programs, hundreds, share all the rows. To interpret such a launch
whole takes minutes. But each program does the same as the others, to rows of its own, so two lines
lead to its ledger:

- Along the programs: the first program of a launch is run, then the first two, then three. If
  their bytes lie on a line, that line gives the bytes of the whole grid.
- Along the rows: this is done at three small numbers of rows, at which every program has rows. If
  the bytes lie on a line, that line gives the bytes at the wanted number of rows.

The first programs don't tell of all in some launches, and those are refused by a ValueError:

- The kernel asks for the number of programs, which is smaller in a run of the first few.
- The count comes to more bytes than the tensor has. So it does where the last program has fewer
  rows than the others, where two programs far apart touch the same memory, and where programs of
  two kinds take turns.

Of a refused launch all programs are run, at a few rows, if they are not too many.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels.lab.counting import traffic
from kernels.lab.counting.ledger import Ledger, Step, extend_rows
from kernels.launch import Launch, recording
from kernels.launch.interpreter import interpret, tensors_of
from kernels.launch.triton_launch import TritonLaunch

_FEW = (1, 2, 3)
_MOST_PROGRAMS = 640  # to run one by one, some hundredths of a second each
# Numbers of rows to count at, three at a time: a few, multiples of a warp, of blocks. Multiples of
# a grid's sizes are tried too.
ROW_COUNTS = ((4, 8, 12), (32, 64, 96), (64, 128, 192), (256, 512, 768))


def recorded(call: Callable[[], object]) -> tuple[Launch, ...]:
    """The launches of a call, in order; none of them runs."""
    with recording() as launches:
        call()
    return tuple(launches)


def _line(values: Sequence[float], counts: Sequence[int], rows: int) -> float | None:
    """The value at `rows` on the line through three; None if they lie on none."""
    first, second, third = values
    slope = (second - first) / (counts[1] - counts[0])
    if third != first + slope * (counts[2] - counts[0]):
        return None
    return first + slope * (rows - counts[0])


def stands_for(few: Sequence[Launch], counts: Sequence[int], launch: Launch, rows: int) -> bool:
    """Whether a launch at `rows` rows is that of `few` at three smaller `counts` of rows, grown.

    Each size of its grid, and each number among its arguments, must lie on the line through the
    three. A number may lie a little above it, as the rows of each program: it is rounded up to a
    whole number, the last program has fewer rows, and all programs together have as many.
    """
    if any(one.name != launch.name for one in few):
        return False
    for axis in range(3):
        if _line([one.grid[axis] for one in few], counts, rows) != launch.grid[axis]:
            return False
    for name, value in launch.arguments.items():
        if not isinstance(value, int | float):
            continue
        told = _line([one.arguments[name] for one in few], counts, rows)
        # rows / told programs share the rows; other axes of a grid may share the columns.
        rounded = told is not None and told < value and value * (rows / told - 1) < rows
        constant = few[0].arguments[name] == few[1].arguments[name]
        if value != told and (constant or not rounded):
            return False
    return True


def count(call_at: Callable[[int], Callable[[], object]], rows: int) -> Ledger:
    """The ledger of a call at `rows` rows, launch by launch; `method` is "linear".

    `call_at(rows)` makes the call. Its launches are recorded and not run, so its results are never
    computed. ValueError where a few programs at a few rows don't tell of all.
    """
    at = functools.cache(lambda few: recorded(call_at(few)))
    whole = at(rows)
    sizes = {size for launch in whole for size in launch.grid}
    units = sorted({size * 2**power for size in sizes for power in range(7)})
    places = [c for c in (*ROW_COUNTS, *((u, 2 * u, 3 * u) for u in units)) if max(c) < rows]

    def step(number: int, launch: Launch) -> Step:
        for counts in places:
            few = [at(n)[number] for n in counts if len(at(n)) == len(whole)]
            if len(few) == len(counts) and stands_for(few, counts, launch, rows):
                short = math.prod(few[-1].grid) <= _MOST_PROGRAMS
                for run in (_step, _all_programs) if short else (_step,):
                    with contextlib.suppress(
                        ValueError
                    ):  # not on a line here; it may be at other rows
                        seen = [Ledger((run(one),)) for one in few]
                        return extend_rows(zip(counts, seen, strict=True), rows).steps[0]
        return _step(launch)

    return Ledger(tuple(step(*numbered) for numbered in enumerate(whole)), "linear")


def _sampled(launch: Launch) -> TritonLaunch:
    if not isinstance(launch, TritonLaunch) or "num_programs" in launch.kernel.src:
        raise ValueError(f"launch of {launch.name!r}: its first programs don't tell of the others")
    return launch


def _all_programs(launch: Launch) -> Step:
    return _extended(_sampled(launch), launch.grid).steps[0]


def _step(launch: Launch) -> Step:
    launch = _sampled(launch)
    step = _extended(launch, ()).steps[0]
    names = traffic.told_names(launch.arguments)
    for name, value in launch.arguments.items():
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(value))
        moved = step.tensor(names[name])
        if max(moved.read_unique, moved.write_unique) > size:
            raise ValueError(f"launch of {launch.name!r}: its programs don't share {name!r} evenly")
    return step


def _extended(launch: TritonLaunch, grid: tuple[int, ...]) -> Ledger:
    """The ledger of a launch of which the first sizes of the grid are given, axis by axis."""
    if len(grid) == 3:
        sizes = (grid[0], grid[1], grid[2])
        arena = interpret(launch.kernel, launch.arguments, sizes)
        return Ledger((traffic.step_of(replace(launch, grid=sizes, arena=arena)),))
    whole = launch.grid[len(grid)]
    if whole <= max(_FEW):
        return _extended(launch, (*grid, whole))
    return extend_rows([(few, _extended(launch, (*grid, few))) for few in _FEW], whole)
