"""09.4: what a generated kernel with two loops asks for, and which bytes it touches."""

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
    pair,
    whole,
)


def requested(rows: int, cols: int, itemsize: int, xblock: int) -> int:
    """Return the bytes that the lanes of all programs ask for, loads and stores."""
    matrix = rows * cols * itemsize
    return 5 * matrix + rows // xblock * cols * itemsize


def unique(rows: int, cols: int, itemsize: int, xblock: int) -> int:
    """Return the distinct bytes that the launch reads and writes."""
    return (3 * rows + 1) * cols * itemsize


_ELEMENTS = "Those are elements, not bytes."
_REQUESTED: tuple[Mistake, ...] = (
    (
        "Each load asks: a and b are loaded in both loops, and nothing of the first loop is kept.",
        lambda r, n, s, x: (3 * r + r // x) * n * s,
    ),
    (
        "b is loaded in both loops, as a is: tmp8 and tmp23.",
        lambda r, n, s, x: (4 * r + r // x) * n * s,
    ),
    ("The store is missing: its lanes ask too.", lambda r, n, s, x: (4 * r + r // x) * n * s),
    (
        "That is what it touches. A byte that is loaded twice is asked for twice.",
        unique,
    ),
    (
        "c is asked for once by each program: the tile of its load is (1, R0_BLOCK), whatever "
        "XBLOCK is.",
        lambda r, n, s, x: 6 * r * n * s,
    ),
    (
        "c is asked for by each program, not once in the launch.",
        lambda r, n, s, x: (5 * r + 1) * n * s,
    ),
    (
        "c is loaded in the second loop alone.",
        lambda r, n, s, x: (5 * r + 2 * (r // x)) * n * s,
    ),
    (
        "There are rows / XBLOCK programs: a program takes XBLOCK rows.",
        lambda r, n, s, x: (5 * r + x) * n * s,
    ),
    ("The requests for c are missing.", lambda r, n, s, x: 5 * r * n * s),
    (_ELEMENTS, lambda r, n, s, x: (5 * r + r // x) * n),
)
_UNIQUE: tuple[Mistake, ...] = (
    (
        "That is what is asked for. A byte counts once here, however often it is loaded.",
        requested,
    ),
    (
        "A byte of a or b that both loops load is one byte: it counts once.",
        lambda r, n, s, x: (5 * r + 1) * n * s,
    ),
    (
        "All programs load the same bytes of c: they count once.",
        lambda r, n, s, x: (3 * r + r // x) * n * s,
    ),
    (
        "All programs load the same bytes of c: they count once.",
        lambda r, n, s, x: 4 * r * n * s,
    ),
    ("c is missing.", lambda r, n, s, x: 3 * r * n * s),
    ("y is missing: written bytes count too.", lambda r, n, s, x: (2 * r + 1) * n * s),
    (_ELEMENTS, lambda r, n, s, x: (3 * r + 1) * n),
)


def grade_asks(attempt: Attempt) -> None:
    """Grade `asked_for(rows, cols, itemsize, xblock)`: (requested, unique), in bytes."""
    rng = random.Random(attempt.seed)
    calls = [(8, 4096, 2, 1), (8, 4096, 2, 4)]
    for _ in range(5):
        xblock = 2 ** rng.randrange(1, 5)
        rows = xblock * rng.randrange(3, 40)
        calls.append((rows, 8 * rng.randrange(9, 400), rng.choice((2, 4)), xblock))
    told: tuple[list[Told], list[Told]] = ([], [])
    names = ("requested", "unique")
    for args in calls:
        label = asked(attempt, args)
        both = pair(answered(attempt, *args), label, "(requested, unique)")
        for numbers, value, right, name in zip(
            told, both, (requested(*args), unique(*args)), names, strict=True
        ):
            numbers.append(Told(label, args, whole(value, label, name), right))
    for numbers, mistakes, name in zip(told, (_REQUESTED, _UNIQUE), names, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,}; it is {wrong.right:,}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"what {len(calls)} launches ask for, and what they touch")
