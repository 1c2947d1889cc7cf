"""13.6: where the loops of a causal backward begin and end, and where no mask is needed."""

from __future__ import annotations

import random

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    several,
    whole,
)

NAMES = ("begin", "unmasked", "end")


def begin(tile: int, block_m: int, block_n: int, n: int) -> int:
    """Return the first query that the program of a tile of keys asks for."""
    return tile * block_n // block_m * block_m


def unmasked(tile: int, block_m: int, block_n: int, n: int) -> int:
    """Return the first query, a tile's, from which on every key of the tile is seen."""
    last = min((tile + 1) * block_n, n) - 1
    return -(-last // block_m) * block_m


def end(tile: int, block_m: int, block_n: int, n: int) -> int:
    """Return how many keys the program of a tile of queries walks over, its last block cut off."""
    return min((tile + 1) * block_m, n)


RIGHT = (begin, unmasked, end)
_STEPS = "The loop goes in whole tiles of block_m queries: where it begins is a multiple of it."
_LAST_KEY = (
    "The last key of the tile decides: it is min((tile + 1) * block_n, n) - 1, and a query sees "
    "it from that number on."
)
_MISTAKES: tuple[tuple[Mistake, ...], ...] = (
    (
        (_STEPS, lambda t, m, b, n: t * b),
        (
            "Rounded up, the queries between the tile's first key and there are left out. They "
            "see keys of this tile.",
            lambda t, m, b, n: -(-t * b // m) * m,
        ),
        ("A tile of keys begins at tile * block_n, and not at tile * block_m.",
         lambda t, m, b, n: t * m),
        (
            "Queries before the tile's first key see none of its keys: the loop needn't begin at "
            "0.",
            lambda t, m, b, n: 0,
        ),
        ("The query with the number of the tile's first key sees that key: the loop begins with "
         "the tile of this query, and not behind the tile of keys.",
         lambda t, m, b, n: (t + 1) * b // m * m),
        ("That is the number of a tile: asked is a query.", lambda t, m, b, n: t * b // m),
    ),
    (
        (_LAST_KEY, lambda t, m, b, n: begin(t, m, b, n)),
        (_LAST_KEY, lambda t, m, b, n: -(-t * b // m) * m),
        (
            "The last key is (tile + 1) * block_n - 1, and the query of that number sees it.",
            lambda t, m, b, n: -(-min((t + 1) * b, n) // m) * m,
        ),
        (
            "The last tile of keys ends at n: its last key is n - 1.",
            lambda t, m, b, n: -(-((t + 1) * b - 1) // m) * m,
        ),
        (
            "The last tile of keys ends at n: its last key is n - 1.",
            lambda t, m, b, n: -(-((t + 1) * b) // m) * m,
        ),
        (
            "That is a tile too early: its first queries don't see the last key. Round up.",
            lambda t, m, b, n: (min((t + 1) * b, n) - 1) // m * m,
        ),
        (_STEPS, lambda t, m, b, n: min((t + 1) * b, n) - 1),
        ("That is the number of a tile: asked is a query.",
         lambda t, m, b, n: unmasked(t, m, b, n) // m),
    ),
    (
        ("The last tile of queries ends at n.", lambda t, m, b, n: (t + 1) * m),
        ("Behind its last query's key a tile of queries sees nothing.", lambda t, m, b, n: n),
        ("The last query of the tile sees its own key too.",
         lambda t, m, b, n: min((t + 1) * m, n) - 1),
        ("A tile goes on to the key of its last query, and not of its first one.",
         lambda t, m, b, n: t * m),
        ("A tile goes on to the key of its last query, and not of its first one.",
         lambda t, m, b, n: t * m + 1),
        ("A tile of queries ends at (tile + 1) * block_m, and not at that of block_n.",
         lambda t, m, b, n: min((t + 1) * b, n)),
        ("The end is cut off at the key: the loop's last block reaches behind it by itself.",
         lambda t, m, b, n: -(-min((t + 1) * m, n) // b) * b),
        ("The end is cut off at the key: the loop's last block reaches behind it by itself.",
         lambda t, m, b, n: min(-(-min((t + 1) * m, n) // b) * b, n)),
    ),
)  # fmt: skip


def _calls(rng: random.Random) -> list[tuple[int, int, int, int]]:
    """Tiles of either kind at once: a number that both a tile of keys and one of queries has."""
    calls = []
    for block_m, block_n in ((64, 64), (32, 128), (128, 32), (16, 64), (64, 16), (32, 32)):
        n = rng.randrange(300, 2000)
        least = -(-n // max(block_m, block_n))
        for tile in (0, rng.randrange(1, least), least - 1):
            calls.append((tile, block_m, block_n, n))
    # Last tiles that are ragged, of either kind, and one that is all there is.
    return [*calls, (2, 16, 64, 129), (2, 64, 16, 130), (0, 64, 64, 9), (1, 16, 64, 65)]


def grade_bounds(attempt: Attempt) -> None:
    """Grade `causal_bounds(tile, block_m, block_n, n)`: (begin, unmasked, end)."""
    told: list[list[Told]] = [[] for _ in NAMES]
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        values = several(answered(attempt, *args), NAMES, label)
        for numbers, value, name, formula in zip(told, values, NAMES, RIGHT, strict=True):
            numbers.append(Told(label, args, whole(value, label, name), formula(*args)))
    for numbers, mistakes, name in zip(told, _MISTAKES, NAMES, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,}; it is {wrong.right:,}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the bounds of {len(calls)} tiles")
