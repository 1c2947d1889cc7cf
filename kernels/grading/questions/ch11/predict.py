"""11.1 and 11.2: what a prologue asks for, and what an epilogue saves where the L2 holds it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

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


def _up(size: int, block: int) -> int:
    return -(-size // block)


def times(m: int, n: int, k: int, block_m: int, block_n: int, itemsize: int) -> int:
    """Return how many programs normalise the same row."""
    return _up(n, block_n)


def one_kernel(m: int, n: int, k: int, block_m: int, block_n: int, itemsize: int) -> int:
    """Return the bytes of x that a product with the norm as its prologue asks for."""
    return 2 * m * k * itemsize * _up(n, block_n)


def two_kernels(m: int, n: int, k: int, block_m: int, block_n: int, itemsize: int) -> int:
    """Return the bytes of x and h that a norm and a product ask for and store."""
    return m * k * itemsize * (2 + _up(n, block_n))


_BY_ROWS = "Programs of one row of tiles share its rows: there are as many as blocks of columns."
_DOWN = "The number of blocks is rounded up: the last one may be ragged."
_ONE_PASS = (
    "The statistics are known only behind a pass over the whole row: a program reads its rows for "
    "them, and once more for the product."
)
_ELEMENTS = "Elements are counted, not bytes."
_PADDED = "Masked lanes ask for nothing: a ragged tile asks for the rows that there are."
_H_TOO = "h is stored once, x read once, and each block of columns asks for h: 2 + blocks in all."


def _x(m: int, k: int, itemsize: int) -> int:
    return m * k * itemsize


_ASKS: tuple[tuple[Mistake, ...], ...] = (
    (
        (_BY_ROWS, lambda m, n, k, bm, bn, s: _up(m, bm)),
        (_BY_ROWS, lambda m, n, k, bm, bn, s: _up(n, bm)),
        (_BY_ROWS, lambda m, n, k, bm, bn, s: _up(m, bm) * _up(n, bn)),
        (_DOWN, lambda m, n, k, bm, bn, s: n // bn),
        (_DOWN, lambda m, n, k, bm, bn, s: n // bn + 1),
        (
            "That is once, as in two kernels. Here every program of a row of tiles does it anew.",
            lambda m, n, k, bm, bn, s: 1,
        ),
        (
            "That is how often a row is read: twice by each program, which normalises it once.",
            lambda m, n, k, bm, bn, s: 2 * _up(n, bn),
        ),
        (
            "That is one output at a time: a program normalises its rows for BLOCK_N columns.",
            lambda m, n, k, bm, bn, s: n,
        ),
    ),
    (
        (_ONE_PASS, lambda m, n, k, bm, bn, s: _x(m, k, s) * _up(n, bn)),
        (_ONE_PASS, lambda m, n, k, bm, bn, s: _x(m, k, s) * (1 + _up(n, bn))),
        (_ELEMENTS, lambda m, n, k, bm, bn, s: 2 * m * k * _up(n, bn)),
        (_BY_ROWS, lambda m, n, k, bm, bn, s: 2 * _x(m, k, s) * _up(m, bm)),
        (_BY_ROWS, lambda m, n, k, bm, bn, s: 2 * _x(m, k, s) * _up(m, bm) * _up(n, bn)),
        (_DOWN, lambda m, n, k, bm, bn, s: 2 * _x(m, k, s) * (n // bn)),
        (_PADDED, lambda m, n, k, bm, bn, s: 2 * _x(_up(m, bm) * bm, k, s) * _up(n, bn)),
        (
            "Those are the distinct bytes, twice: every block of columns asks anew.",
            lambda m, n, k, bm, bn, s: 2 * _x(m, k, s),
        ),
        (
            "That is x alone: weight isn't asked for here.",
            lambda m, n, k, bm, bn, s: 2 * _x(m, k, s) * _up(n, bn) + _x(n, k, s) * _up(m, bm),
        ),
    ),
    (
        ("h is stored too.", lambda m, n, k, bm, bn, s: _x(m, k, s) * (1 + _up(n, bn))),
        (_H_TOO, lambda m, n, k, bm, bn, s: _x(m, k, s) * _up(n, bn)),
        (
            "A tile of h is asked for by every block of columns, not once.",
            lambda m, n, k, bm, bn, s: 3 * _x(m, k, s),
        ),
        (
            "The norm's own launch holds its row: it reads x once, and not twice.",
            lambda m, n, k, bm, bn, s: _x(m, k, s) * (3 + _up(n, bn)),
        ),
        (
            "The second launch reads h once for each block of columns: its statistics are done.",
            lambda m, n, k, bm, bn, s: _x(m, k, s) * (2 + 2 * _up(n, bn)),
        ),
        ("That is one kernel's.", one_kernel),
        (_ELEMENTS, lambda m, n, k, bm, bn, s: m * k * (2 + _up(n, bn))),
        (_BY_ROWS, lambda m, n, k, bm, bn, s: _x(m, k, s) * (2 + _up(m, bm))),
        (_DOWN, lambda m, n, k, bm, bn, s: _x(m, k, s) * (2 + n // bn)),
        (_PADDED, lambda m, n, k, bm, bn, s: _x(_up(m, bm) * bm, k, s) * (2 + _up(n, bn))),
    ),
)


def _asks_calls(rng: random.Random) -> list[tuple[int, int, int, int, int, int]]:
    calls = []
    for block_m, block_n in ((64, 128), (128, 64), (16, 256), (64, 64), (32, 96)):
        m, n, k = rng.randrange(300, 900), rng.randrange(1000, 2000), rng.randrange(100, 3000)
        calls.append((m, n + (n % block_n == 0), k, block_m, block_n, rng.choice((2, 4))))
    calls.append((256 * rng.randrange(2, 9), 256 * rng.randrange(10, 19), 1024, 64, 256, 2))
    calls.append((rng.randrange(3, 16), rng.randrange(20, 60), 4096, 16, 64, 2))
    return calls


def _each(
    attempt: Attempt,
    calls: Sequence[tuple[Any, ...]],
    names: tuple[str, ...],
    rights: tuple[Callable[..., int], ...],
) -> tuple[list[Told], ...]:
    """Ask at each call for a whole number of each name; what was told, name by name."""
    told: tuple[list[Told], ...] = tuple([] for _ in names)
    for args in calls:
        label = asked(attempt, args)
        values = several(answered(attempt, *args), names, label)
        for numbers, value, right, name in zip(told, values, rights, names, strict=True):
            numbers.append(Told(label, args, whole(value, label, name), right(*args)))
    return told


def grade_asks(attempt: Attempt) -> None:
    """Grade `normalised(m, n, k, block_m, block_n, itemsize)`: (times, one, two)."""
    names = ("times", "one_kernel", "two_kernels")
    calls = _asks_calls(random.Random(attempt.seed))
    told = _each(attempt, calls, names, (times, one_kernel, two_kernels))
    for numbers, mistakes, name in zip(told, _ASKS, names, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,}; it is {wrong.right:,}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"how often rows are normalised and asked for, in {len(calls)} products")


# ------------------------------------------------------------------------------------------- saved


_Call = tuple[int, int, int, int, bool]


def saved_requests(m: int, n: int, itemsize: int, l2_bytes: int, in_place: bool) -> int:
    """Return the bytes that are no longer asked for or stored: h written, and read."""
    return 2 * m * n * itemsize


def saved_dram(m: int, n: int, itemsize: int, l2_bytes: int, in_place: bool) -> int:
    """Return the bytes that DRAM no longer moves."""
    h = m * n * itemsize
    held = h <= l2_bytes
    if in_place:
        return 0 if held else 2 * h
    return h if held else 2 * h


_WRITE_ONLY = (
    "What is saved is a round trip: h isn't stored any more, and it isn't read again. Either is "
    "M · N · itemsize bytes."
)
_WITH_Y = "y is stored either way: it is no part of what is saved."
_HELD = (
    "Where the L2 holds h, it is read from there: that read never reached DRAM, and can't be saved."
)
_DIRTY = (
    "Where the L2 holds h, the read is free, and not the write: h's lines go to DRAM when others "
    "take their place, unless the same lines were written again before."
)
_IN_PLACE = (
    "In place, y is written over h. Where the L2 holds h, its lines are still there, and go to "
    "DRAM once, as y: with and without the fusion."
)
_LARGE_IN_PLACE = (
    "Where the L2 does not hold h, its lines went to DRAM before they were read: in place or not, "
    "h is written and read there."
)
_BOUND = "A tensor of just l2_bytes bytes is held."


def _h(m: int, n: int, s: int) -> int:
    return m * n * s


_SAVED: tuple[tuple[Mistake, ...], ...] = (
    (
        (_WRITE_ONLY, lambda m, n, s, c, p: _h(m, n, s)),
        (_WITH_Y, lambda m, n, s, c, p: 3 * _h(m, n, s)),
        (_WITH_Y, lambda m, n, s, c, p: 4 * _h(m, n, s)),
        (_ELEMENTS, lambda m, n, s, c, p: 2 * m * n),
        ("That is what DRAM is spared.", saved_dram),
        (
            "In place or not, the second launch reads h: only the place of y is another.",
            lambda m, n, s, c, p: _h(m, n, s) * (1 if p else 2),
        ),
    ),
    (
        (
            "That is what is no longer asked for. How much of it ever reached DRAM?",
            saved_requests,
        ),
        (_HELD, lambda m, n, s, c, p: saved_requests(m, n, s, c, p)),
        (_DIRTY, lambda m, n, s, c, p: 0 if _h(m, n, s) <= c else 2 * _h(m, n, s)),
        (_IN_PLACE, lambda m, n, s, c, p: saved_dram(m, n, s, c, False)),
        (_LARGE_IN_PLACE, lambda m, n, s, c, p: 0 if p else saved_dram(m, n, s, c, p)),
        (
            _LARGE_IN_PLACE,
            lambda m, n, s, c, p: (
                _h(m, n, s) if p and _h(m, n, s) > c else saved_dram(m, n, s, c, p)
            ),
        ),
        (
            "Held or not is turned round: a tensor is held where its bytes are at most l2_bytes.",
            lambda m, n, s, c, p: saved_dram(m, n, s, 2 * _h(m, n, s) - c - 1, p),
        ),
        (_BOUND, lambda m, n, s, c, p: saved_dram(m, n, s, c - 1, p)),
        (
            "h alone has to be held: y is written line by line, after h was read there.",
            lambda m, n, s, c, p: saved_dram(m, n, s, c // 2, p),
        ),
        (
            "l2_bytes are bytes, and h has itemsize of them an element.",
            lambda m, n, s, c, p: saved_dram(m, n, s, c * s, p),
        ),
        (
            _WRITE_ONLY,
            lambda m, n, s, c, p: 0 if _h(m, n, s) <= c and p else _h(m, n, s),
        ),
        ("What is saved where the L2 does not hold h?", lambda m, n, s, c, p: 0),
        (_ELEMENTS, lambda m, n, s, c, p: saved_dram(m, n, s, c, p) // s),
    ),
)


def _saved_calls(rng: random.Random) -> list[_Call]:
    calls = []
    for in_place in (False, True):
        for size in (0.1, 0.4, 0.7, 1.4, 3.0):
            m, n = rng.randrange(500, 5000), rng.randrange(500, 5000)
            itemsize = rng.choice((2, 4))
            # Past one bound of a mistake each: half the L2, all of it, elements for bytes.
            share = size * rng.uniform(0.95, 1.05)
            calls.append((m, n, itemsize, round(m * n * itemsize / share), in_place))
        m, n = rng.randrange(500, 5000), rng.randrange(500, 5000)
        calls.append((m, n, 2, 2 * m * n, in_place))
        calls.append((m, n, 2, 2 * m * n - 1, in_place))
    return calls


def grade_saved(attempt: Attempt) -> None:
    """Grade `saved_bytes(m, n, itemsize, l2_bytes, in_place)`: (requested, dram)."""
    names = ("requested", "dram")
    calls = _saved_calls(random.Random(attempt.seed))
    told = _each(attempt, calls, names, (saved_requests, saved_dram))
    for numbers, mistakes, name in zip(told, _SAVED, names, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,}; it is {wrong.right:,}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"what {len(calls)} epilogues save, by request and in DRAM")
