"""07.9: what DRAM moves for a sequence of readings, behind a cache that keeps the latest."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    whole,
)

# A block's name and its bytes; a block has the same bytes at each reading.
Reading = tuple[str, int]


def moved(
    readings: Sequence[Reading],
    capacity: int,
    *,
    renews: bool = True,
    oldest: bool = True,
    most_out: int | None = None,
    empties: bool = False,
    in_bytes: bool = True,
) -> int:
    """Return the bytes that DRAM moves, behind a cache of `capacity` bytes, empty at first.

    As the question says with the defaults: a reading renews a block, and blocks leave from the
    oldest on, as many as it takes. Each option is a mistake.
    """
    cache: OrderedDict[str, int] = OrderedDict()
    total = 0
    for name, size in readings:
        if name in cache:
            if renews:
                cache.move_to_end(name)
            continue
        total += size if in_bytes else 1
        out = 0
        while cache and sum(cache.values()) + size > capacity and out != most_out:
            cache.popitem(last=not oldest)
            out += 1
            if empties:
                cache.clear()
        cache[name] = size
    return total


def team_order(rows: int, rows_each: int, size: int) -> Iterator[Reading]:
    """Yield the readings of x and dy: `rows_each` rows for dx, then the same rows for their sums.

    `size` is the bytes of a row of one tensor. With `rows_each` of `rows` it is two launches.
    """
    for first in range(0, rows, rows_each):
        team = range(first, min(first + rows_each, rows))
        for _ in range(2):
            yield from ((f"{name}{row}", size) for row in team for name in ("x", "dy"))


_MISTAKES: tuple[Mistake, ...] = (
    (
        "Every reading is counted. One that finds its block in the cache moves nothing.",
        lambda readings, _capacity: sum(size for _, size in readings),
    ),
    (
        "Each block is counted once, as if the cache held everything.",
        lambda readings, _capacity: sum(dict(readings).values()),
    ),
    (
        "The block that came first leaves. It is the one whose last reading is longest ago: a "
        "reading that finds a block makes it the newest.",
        lambda readings, capacity: moved(readings, capacity, renews=False),
    ),
    (
        "The newest block leaves, not the one whose last reading is longest ago.",
        lambda readings, capacity: moved(readings, capacity, oldest=False),
    ),
    (
        "A block that fills the cache to its last byte still fits.",
        lambda readings, capacity: moved(readings, capacity - 1),
    ),
    (
        "One block leaves for one that comes. If that is larger, more leave, until it fits.",
        lambda readings, capacity: moved(readings, capacity, most_out=1),
    ),
    (
        "All blocks leave when one doesn't fit. Only as many leave as it takes.",
        lambda readings, capacity: moved(readings, capacity, empties=True),
    ),
    (
        "Readings are counted, not bytes.",
        lambda readings, capacity: moved(readings, capacity, in_bytes=False),
    ),
)


def _drawn(rng: random.Random, length: int, even: bool) -> tuple[list[Reading], int]:
    """Readings of five blocks, of one size if `even`, and a capacity that can't hold them all."""
    sizes = {name: 8 if even else rng.randrange(2, 13) for name in "abcde"}
    readings = [(name, sizes[name]) for name in rng.choices("abcde", k=length)]
    return readings, rng.randrange(max(sizes.values()), sum(sizes.values()))


def cases(rng: random.Random) -> list[tuple[list[Reading], int]]:
    """Return readings and a capacity each; among them one for every mistake."""
    round_trip = [(name, 8) for name in "abc" * 3]
    fixed = [
        (round_trip, 24),  # fits to the last byte
        (round_trip, 23),  # no longer, and then nothing is ever found
        ([(name, 8) for name in "abacab"], 16),  # a is read again, so b is the older
        ([("a", 3), ("b", 3), ("c", 6), ("b", 3)], 8),  # c takes the room of both
        ([("a", 4), ("b", 4), ("c", 4), ("b", 4)], 8),  # b stays when c comes
    ]
    return fixed + [_drawn(rng, 12, even) for even in (True, False, True, False)]


def grade_moved(attempt: Attempt) -> None:
    """Grade `moved_bytes(readings, capacity)` on small sequences, then on a backward's."""
    rng = random.Random(attempt.seed)
    told = []
    for readings, capacity in cases(rng):
        label = asked(attempt, (readings, capacity))
        number = whole(answered(attempt, list(readings), capacity), label, "the bytes")
        told.append(Told(label, (readings, capacity), number, moved(readings, capacity)))
    rows, size = rng.randrange(20, 40), 2 * rng.randrange(20, 60)
    for rows_each in (4, rows):
        readings = list(team_order(rows, rows_each, size))
        capacity = 10 * size
        label = f"{attempt.name}, for {rows} rows of x and dy in teams of {rows_each}"
        number = whole(answered(attempt, list(readings), capacity), label, "the bytes")
        told.append(Told(label, (readings, capacity), number, moved(readings, capacity)))
    if wrong := first_wrong(told):
        raise Wrong(
            f"{wrong.label}: {wrong.got:,} bytes; the cache asks DRAM for {wrong.right:,}.",
            meaning(_MISTAKES, told),
        )
    attempt.held.append(f"right for {len(told)} sequences of readings")
