"""08.1: which random number an element has, what it is held against, and the scale."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.masks import NOTHING_LEFT
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    real,
    several,
    whole,
)
from kernels.philox import scale, threshold

_NAMES = ("block", "number", "threshold", "scale")
_RIGHT: tuple[Callable[..., float], ...] = (
    lambda row, col, n, p: (row * n + col) // 8,
    lambda row, col, n, p: (row * n + col) % 8,
    lambda row, col, n, p: threshold(p),
    lambda row, col, n, p: scale(p),
)
_COLUMN = "That is the column's alone: the index is row · n_cols + col, so that rows differ."
_CHANGED = "Block and number have changed places: eight neighbours share a block."
_FOUR = "A call gives eight numbers, two of each of its four words."
_OF_ROWS = "A row doesn't begin a block of its own: the index runs on from row to row."
_MISTAKES: tuple[tuple[Mistake, ...], ...] = (
    (
        (_COLUMN, lambda row, col, n, p: col // 8),
        (_CHANGED, lambda row, col, n, p: (row * n + col) % 8),
        (_FOUR, lambda row, col, n, p: (row * n + col) // 4),
        (
            "That is the element's index: eight neighbours share a block.",
            lambda row, col, n, p: row * n + col,
        ),
        (_OF_ROWS, lambda row, col, n, p: row * -(-n // 8) + col // 8),
        ("That rounds up: blocks are counted from 0.", lambda r, c, n, p: -(-(r * n + c) // 8)),
    ),
    (
        (_COLUMN, lambda row, col, n, p: col % 8),
        (_CHANGED, lambda row, col, n, p: (row * n + col) // 8),
        (_FOUR, lambda row, col, n, p: (row * n + col) % 4),
        ("Numbers are counted from 0.", lambda row, col, n, p: (row * n + col) % 8 + 1),
    ),
    (
        ("T is rounded to the nearest: int() rounds down.", lambda r, c, n, p: int(65536 * p)),
        ("That is how many numbers are kept.", lambda r, c, n, p: 65536 - threshold(p)),
        ("16 bits make 65536 numbers, 0 among them.", lambda r, c, n, p: round(65535 * p)),
        ("That rounds up: T is rounded to the nearest.", lambda r, c, n, p: -int(-65536 * p // 1)),
    ),
    (
        (
            "That is 1 / (1 - p). T is rounded, and the mean is kept exactly by what T drops: "
            "65536 / (65536 - T).",
            lambda r, c, n, p: 1 / (1 - p) if p < 1 else 0.0,
        ),
        (
            "That is the share that is kept: kept values are divided by it.",
            lambda r, c, n, p: 1 - threshold(p) / 65536,
        ),
        (
            "Where T is 65536 nothing is kept: the scale is 0.0 there.",
            lambda r, c, n, p: scale(p) or 1.0,
        ),
    ),
)


def _calls(rng: random.Random) -> list[tuple[int, int, int, float]]:
    """Rows, columns, widths and p: rows of any width, and p where T is 0 and where it is 65536."""
    chances = [0.1, 0.25, 0.3, 0.0, 1.0, 1e-6, 0.999999]
    chances += [round(rng.uniform(0.05, 0.95), 3) for _ in range(4)]
    calls = []
    for p in chances:
        n_cols = rng.choice((rng.randrange(9, 40), 8 * rng.randrange(2, 9)))
        calls.append((rng.randrange(1, 30), rng.randrange(n_cols), n_cols, p))
    return [*calls, (0, 0, 5, 0.5), (2, 3, 13, 0.1)]


def grade_draw(attempt: Attempt) -> None:
    """Grade `draw(row, col, n_cols, p)`: (block, number, threshold, scale) of an element."""
    told: dict[str, list[Told]] = {name: [] for name in _NAMES}
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        try:
            values = several(answered(attempt, *args), _NAMES, label)
        except Wrong as wrong:
            if "ZeroDivisionError" in wrong.sentence:
                wrong.means = NOTHING_LEFT
            raise
        for name, value, right in zip(_NAMES, values, _RIGHT, strict=True):
            got = real(value, label, name) if name == "scale" else _integer(value, label, name)
            told[name].append(Told(label, args, got, right(*args)))
    for name, mistakes in zip(_NAMES, _MISTAKES, strict=True):
        if wrong_one := first_wrong(told[name]):
            raise Wrong(
                f"{wrong_one.label}: {name} is {wrong_one.got:g}; it is {wrong_one.right:g}.",
                meaning(mistakes, told[name]),
            )
    attempt.held.append(f"number, threshold and scale of {len(calls)} elements")


def _integer(value: Any, label: str, name: str) -> int:
    try:
        return whole(value, label, name)
    except Wrong as wrong:
        if name == "threshold" and wrong.means:
            wrong.means = "A threshold is one of 65536 numbers: round() makes an int of 65536 · p."
        raise
