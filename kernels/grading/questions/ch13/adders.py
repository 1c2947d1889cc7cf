"""13.5: how many programs add to one tile of a gradient, in designs of a backward."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    first_wrong,
    meaning,
    pair,
    whole,
)

# A tile of scores: its head of queries, its tile of queries, its tile of keys.
Tile = tuple[int, int, int]
Programs = list[list[Tile]]
NAMES = ("of_dq", "of_dk")


class Design(NamedTuple):
    """A backward of one sequence; `told` names it in a sentence."""

    told: str
    programs: Programs
    group: int


def _tile_of_dq(tile: Tile, group: int) -> tuple[int, ...]:
    return tile[0], tile[1]


def _tile_of_dk(tile: Tile, group: int) -> tuple[int, ...]:
    return tile[0] // group, tile[2]


def _counts(
    programs: Programs, group: int, of: Callable[[Tile, int], tuple[int, ...]], visits: bool = False
) -> list[int]:
    """By how many programs each tile of a gradient is added to; with `visits`, how often."""
    adds: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, tiles in enumerate(programs):
        for tile in tiles:
            adds[of(tile, group)].append(number)
    return [len(numbers if visits else set(numbers)) for numbers in adds.values()]


def adders(programs: Programs, group: int) -> tuple[int, int]:
    """Return the most programs that add to one tile of dq, and to one of dk."""
    of_dq, of_dk = (max(_counts(programs, group, of)) for of in (_tile_of_dq, _tile_of_dk))
    return of_dq, of_dk


_GROUP = (
    "The heads of a group share their keys: heads h and h' add to the same dk where h // group is "
    "h' // group."
)
_VISITS = (
    "Those are visits. A program that comes back to a tile adds to it in its registers: programs "
    "are counted, and each once."
)
_MOST = "The tile to which most programs add decides: if one needs an atomic, all do."
_CHANGED = (
    "dq and dk have changed places: a tile of dq belongs to queries, (head, i), and one of dk to "
    "keys."
)
_TILES = "That is how many tiles there are: asked is how many programs add to one of them."
_ALL = "That is all programs: only those count that have a pair of this tile."


def _mistakes(place: int) -> tuple[Mistake, ...]:
    of = (_tile_of_dq, _tile_of_dk)[place]
    other: Callable[[Tile, int], tuple[int, ...]]
    other = (lambda tile, group: (tile[1],)) if place == 0 else (lambda tile, group: (tile[2],))
    found: list[Mistake] = [
        (_CHANGED, lambda p, g: adders(p, g)[1 - place]),
        (_VISITS, lambda p, g: max(_counts(p, g, of, visits=True))),
        (
            "Each head has queries, and gradients, of its own.",
            lambda p, g: max(_counts(p, g, other)),
        ),
        (_MOST, lambda p, g: min(_counts(p, g, of))),
        (_MOST, lambda p, g: _counts(p, g, of)[0]),
        (_MOST, lambda p, g: _counts(p, g, of)[-1]),
        (_ALL, lambda p, g: len(p)),
        (_TILES, lambda p, g: len(_counts(p, g, of))),
        (
            "That is to how many tiles a program adds, and not how many programs to a tile.",
            lambda p, g: max(len({of(tile, g) for tile in tiles}) for tiles in p if tiles),
        ),
        (
            "One program that adds to a tile is 1: it needs no atomic, and it counts.",
            lambda p, g: adders(p, g)[place] - 1,
        ),
    ]
    if place == 1:
        found += [
            (_GROUP, lambda p, g: max(_counts(p, 1, of))),
            (
                "Heads of one group lie side by side: head // group, and not head % group.",
                lambda p, g: max(_counts(p, g, lambda tile, g: (tile[0] % g, tile[2]))),
            ),
        ]
    else:
        found.append(
            (
                "Each head has queries of its own: only k, v and their gradients are shared.",
                lambda p, g: max(_counts(p, g, lambda tile, g: (tile[0] // g, tile[1]))),
            )
        )
    return tuple(found)


_MISTAKES = tuple(_mistakes(place) for place in (0, 1))


def _all(heads: int, rows: int, cols: int, causal: bool) -> list[Tile]:
    return [
        (head, i, j)
        for head in range(heads)
        for i in range(rows)
        for j in range(cols)
        if not causal or j <= i
    ]


def _grouped(tiles: Iterable[Tile], key: Callable[[Tile], object]) -> Programs:
    """One program for each value of `key`, with the tiles that have it."""
    found: dict[object, list[Tile]] = defaultdict(list)
    for tile in tiles:
        found[key(tile)].append(tile)
    return list(found.values())


def _kinds(
    rng: random.Random, tiles: list[Tile], group: int, count: int
) -> list[tuple[str, Programs]]:
    """Ways to share tiles of scores out, each with its name."""
    return [
        ("a program for each head's tile of keys", _grouped(tiles, lambda t: (t[0], t[2]))),
        ("a program for each head's tile of queries", _grouped(tiles, lambda t: (t[0], t[1]))),
        ("a program for each group's tile of keys",
         _grouped(tiles, lambda t: (t[0] // group, t[2]))),
        ("a program for each tile of scores", _grouped(tiles, lambda t: t)),
        ("a program for each head", _grouped(tiles, lambda t: t[0])),
        (f"{count} programs that stride over the tiles of scores",
         [tiles[first::count] for first in range(count)]),
        (f"{count} programs whose tiles are drawn",
         _grouped(tiles, lambda t: rng.randrange(count))),
    ]  # fmt: skip


def designs(rng: random.Random) -> list[Design]:
    """Programs that own keys, queries, a group's keys or pairs, that stride or that are drawn."""
    made = []
    for causal in (False, True):
        group, rows = rng.choice((2, 3)), rng.randrange(3, 6)
        heads, cols = 2 * group, rows if causal else rng.randrange(6, 9)
        tiles = _all(heads, rows, cols, causal)
        for told, programs in _kinds(rng, tiles, group, rng.randrange(4, 9)):
            shape = f"{heads} heads of {rows} × {cols} tiles{', causal' if causal else ''}"
            rng.shuffle(programs)
            made.append(Design(f"{told}, {shape}, group = {group}", programs, group))
    told, programs = _kinds(rng, _all(3, 4, 4, False), 1, 1)[0]
    made.append(Design(f"{told}, 3 heads of 4 × 4 tiles, group = 1", programs, 1))
    return made


def grade_adders(attempt: Attempt) -> None:
    """Grade `adders(programs, group)`: the most programs that add to a tile of dq, and of dk."""
    told: tuple[list[Told], list[Told]] = ([], [])
    made = designs(random.Random(attempt.seed))
    for design in made:
        given = [list(tiles) for tiles in design.programs]
        both = pair(answered(attempt, given, design.group), attempt.name, "(of_dq, of_dk)")
        right = adders(design.programs, design.group)
        for numbers, value, wanted, name in zip(told, both, right, NAMES, strict=True):
            got = whole(value, attempt.name, name)
            args = (design.programs, design.group)
            numbers.append(Told(design.told, args, got, wanted))
    for numbers, mistakes, name in zip(told, _MISTAKES, NAMES, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{attempt.name} says {name} = {wrong.got:,}, and it is {wrong.right:,}, of: "
                f"{wrong.label}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"how many programs add to a tile, in {len(made)} designs")
