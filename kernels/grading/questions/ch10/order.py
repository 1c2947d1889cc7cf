"""10.6: an order of tiles in which programs that run at once share what they load."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, asked, pair, whole

Order = Callable[[int, int, int, int], tuple[int, int]]
_SLACK = 1.05


def grouped(number: int, tiles_m: int, tiles_n: int, wave: int, group: int = 8) -> tuple[int, int]:
    """Return tile `number` where `group` blocks of rows go together, column by column."""
    first = number // (group * tiles_n) * group
    height = min(tiles_m - first, group)
    inside = number - first * tiles_n
    return first + inside % height, inside // height


def grouped_along_n(number: int, tiles_m: int, tiles_n: int, wave: int) -> tuple[int, int]:
    """Return tile `number` where eight blocks of columns go together, row by row."""
    col, row = grouped(number, tiles_n, tiles_m, wave)
    return row, col


def row_major(number: int, tiles_m: int, tiles_n: int, wave: int) -> tuple[int, int]:
    """Return tile `number`, one row of tiles after another."""
    return divmod(number, tiles_n)


def column_major(number: int, tiles_m: int, tiles_n: int, wave: int) -> tuple[int, int]:
    """Return tile `number`, one column of tiles after another."""
    col, row = divmod(number, tiles_m)
    return row, col


def distinct(tiles: list[tuple[int, int]], wave: int) -> list[int]:
    """Return, for each wave, how many blocks of x's rows and of weight's rows it touches."""
    waves = [tiles[first : first + wave] for first in range(0, len(tiles), wave)]
    return [len({m for m, _ in one}) + len({n for _, n in one}) for one in waves]


def touched(order: Order, tiles_m: int, tiles_n: int, wave: int) -> int:
    """Return the blocks that all waves of an order touch."""
    numbers = range(tiles_m * tiles_n)
    return sum(distinct([order(i, tiles_m, tiles_n, wave) for i in numbers], wave))


def _grids(rng: random.Random) -> list[tuple[int, int, int]]:
    """Tiles along M and N, and programs that run at once."""
    grids = [(32, 32, 132), (32, 96, 132), (17, 40, 108), (40, 23, 80), (64, 12, 108)]
    grids += [(1, 50, 40), (50, 1, 40), (9, 9, 132), (3, 70, 64)]
    grids.append((rng.randrange(20, 60), rng.randrange(20, 60), rng.randrange(60, 140)))
    return grids


def _turned(attempt: Attempt, tiles_m: int, tiles_n: int, wave: int) -> bool:
    """Whether all tiles would lie within the output if m and n changed places."""
    for number in range(tiles_m * tiles_n):
        told = answered(attempt, number, tiles_m, tiles_n, wave)
        row, col = pair(told, attempt.name, "(m, n)")
        if not (0 <= whole(row, attempt.name, "m") < tiles_n):
            return False
        if not (0 <= whole(col, attempt.name, "n") < tiles_m):
            return False
    return True


def _tiles(attempt: Attempt, tiles_m: int, tiles_n: int, wave: int) -> list[tuple[int, int]]:
    """All tiles in the reader's order; `Wrong` unless each comes once."""
    met: dict[tuple[int, int], int] = {}
    for number in range(tiles_m * tiles_n):
        args = (number, tiles_m, tiles_n, wave)
        label = asked(attempt, args)
        row, col = pair(answered(attempt, *args), label, "(m, n)")
        tile = whole(row, label, "m"), whole(col, label, "n")
        if not (0 <= tile[0] < tiles_m and 0 <= tile[1] < tiles_n):
            turned = _turned(attempt, tiles_m, tiles_n, wave)
            raise Wrong(
                f"{label} is {tile}: there are {tiles_m} × {tiles_n} tiles.",
                "Have m and n changed places? m counts blocks of rows, below tiles_m."
                if turned
                else "The last group has fewer blocks of rows where they don't divide tiles_m: its "
                "height is what is left.",
            )
        if tile in met:
            raise Wrong(
                f"{label} is {tile}, and so is that of number {met[tile]}: one tile is computed "
                "twice, and another is left out.",
                "Each number has a tile of its own. Where groups don't divide tiles_m, the last "
                "one is lower: within it, divide by its own height.",
            )
        met[tile] = number
    return list(met)


def _means(found: list[tuple[tuple[int, int, int], list[tuple[int, int]]]]) -> str:
    known: tuple[tuple[Any, str], ...] = (
        (
            row_major,
            "That is one row of tiles after another. A wave touches few blocks of x and nearly all "
            "of weight's: nothing of weight is left in the L2 when the next row begins.",
        ),
        (
            column_major,
            "That is one column of tiles after another. A wave touches few blocks of weight and "
            "nearly all of x's.",
        ),
    )
    for order, means in known:
        if all([order(i, *grid) for i in range(len(tiles))] == tiles for grid, tiles in found):
            return means
    return (
        "A wave touches fewest blocks where its tiles lie in a square, about as many blocks of "
        "rows as of columns: wave programs touch 2 · √wave blocks then, and in a line wave + 1."
    )


def grade_order(attempt: Attempt) -> None:
    """Grade `tile_of(number, tiles_m, tiles_n, wave)`: every tile once, in waves that share."""
    found = []
    for grid in _grids(random.Random(attempt.seed)):
        found.append((grid, _tiles(attempt, *grid)))
    for grid, tiles in found:
        waves = distinct(tiles, grid[2])
        most = int(_SLACK * max(touched(one, *grid) for one in (grouped, grouped_along_n)))
        if sum(waves) > most:
            raise Wrong(
                f"{attempt.name} on {grid[0]} × {grid[1]} tiles, {grid[2]} at a time: its waves "
                f"touch {sum(waves):,} blocks, the first {waves[0]}; {most:,} will do.",
                _means(found),
            )
    attempt.held.append(f"each tile once, and waves that share, on {len(found)} grids")
