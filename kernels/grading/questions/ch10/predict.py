"""10.1 and 10.2: the bytes that a product's tiles ask for, and what taller tiles leave of them."""

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
    real,
    several,
    whole,
)


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def of_x(m: int, n: int, k: int, block_m: int, block_n: int, itemsize: int) -> int:
    """Return the bytes of x (m, k) that all programs of a masked, tiled product ask for."""
    return m * k * itemsize * _blocks(n, block_n)


def of_weight(m: int, n: int, k: int, block_m: int, block_n: int, itemsize: int) -> int:
    """Return the bytes of weight (n, k) that all programs ask for."""
    return n * k * itemsize * _blocks(m, block_m)


_ELEMENTS = "Elements are counted, not bytes."
_ONCE = (
    "Those are the distinct bytes. Each program asks anew: a row of x is asked for by every tile "
    "in its row of tiles, a row of weight by every tile in its column."
)
_EACH = "That is one output at a time, whatever the tile: a tile asks once for all of its outputs."
_DOWN = "The number of tiles is rounded up: the last one may be ragged."
_PADDED = "Masked lanes ask for nothing: a ragged tile asks for the rows that there are."
_Q1: tuple[tuple[Mistake, ...], ...] = (
    (
        (
            "x is shared along a row of tiles: divide N by BLOCK_N. BLOCK_M is not in it.",
            lambda m, n, k, bm, bn, s: m * k * s * _blocks(n, bm),
        ),
        (
            "Those are the requests of weight.",
            of_weight,
        ),
        (_ELEMENTS, lambda m, n, k, bm, bn, s: of_x(m, n, k, bm, bn, 1)),
        (_ONCE, lambda m, n, k, bm, bn, s: m * k * s),
        (_EACH, lambda m, n, k, bm, bn, s: m * n * k * s),
        (_DOWN, lambda m, n, k, bm, bn, s: m * k * s * (n // bn)),
        (_DOWN, lambda m, n, k, bm, bn, s: m * n * k * s // bn),
        (_DOWN, lambda m, n, k, bm, bn, s: m * n * k * s / bn),
        (
            _PADDED,
            lambda m, n, k, bm, bn, s: _blocks(m, bm) * bm * k * s * _blocks(n, bn),
        ),
        (
            "That asks for x once by each tile along M too: a tile takes its own rows alone.",
            lambda m, n, k, bm, bn, s: m * k * s * _blocks(n, bn) * _blocks(m, bm),
        ),
    ),
    (
        (
            "weight is shared along a column of tiles: divide M by BLOCK_M. BLOCK_N is not in it.",
            lambda m, n, k, bm, bn, s: n * k * s * _blocks(m, bn),
        ),
        ("Those are the requests of x.", of_x),
        (_ELEMENTS, lambda m, n, k, bm, bn, s: of_weight(m, n, k, bm, bn, 1)),
        (_ONCE, lambda m, n, k, bm, bn, s: n * k * s),
        (_EACH, lambda m, n, k, bm, bn, s: m * n * k * s),
        (_DOWN, lambda m, n, k, bm, bn, s: n * k * s * (m // bm)),
        (_DOWN, lambda m, n, k, bm, bn, s: m * n * k * s // bm),
        (_DOWN, lambda m, n, k, bm, bn, s: m * n * k * s / bm),
        (
            _PADDED,
            lambda m, n, k, bm, bn, s: _blocks(n, bn) * bn * k * s * _blocks(m, bm),
        ),
        (
            "That asks for weight once by each tile along N too: a tile takes its own columns "
            "alone.",
            lambda m, n, k, bm, bn, s: n * k * s * _blocks(n, bn) * _blocks(m, bm),
        ),
    ),
)


def _q1_calls(rng: random.Random) -> list[tuple[int, int, int, int, int, int]]:
    calls = []
    for block_m, block_n in ((1, 1), (64, 128), (128, 64), (16, 256), (1, 64)):
        m, n, k = rng.randrange(300, 900), rng.randrange(1000, 2000), rng.randrange(20, 3000)
        calls.append((m, n, k, block_m, block_n, rng.choice((2, 4))))
    calls.append((256 * rng.randrange(2, 9), 256 * rng.randrange(10, 19), 1024, 64, 128, 2))
    calls.append((rng.randrange(1, 16), 4096, 4096, 16, 64, 2))
    return calls


def grade_requested(attempt: Attempt) -> None:
    """Grade `requested_bytes(m, n, k, block_m, block_n, itemsize)`: of (x, weight)."""
    told: tuple[list[Told], list[Told]] = ([], [])
    names = ("x", "weight")
    calls = _q1_calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        both = pair(answered(attempt, *args), label, "(of_x, of_weight)")
        for numbers, value, formula, name in zip(told, both, (of_x, of_weight), names, strict=True):
            got = whole(value, label, f"the bytes of {name}")
            numbers.append(Told(label, args, got, formula(*args)))
    for numbers, mistakes, name in zip(told, _Q1, names, strict=True):
        if wrong := first_wrong(numbers):
            off = abs(int(wrong.got - wrong.right))
            less = "fewer" if wrong.got < wrong.right else "more"
            raise Wrong(
                f"{wrong.label}: {wrong.got:,} bytes of {name}; the programs ask for "
                f"{wrong.right:,}, you have {off:,} {less}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the requested bytes of {len(calls)} products")


def _left(m: int, n: int, block_m: int, block_n: int) -> tuple[float, float, float]:
    x, before = m * _blocks(n, block_n), n * _blocks(m, block_m)
    after = n * _blocks(m, 2 * block_m)
    return 1.0, after / before, (x + after) / (x + before)


def _weights_part(m: int, n: int, block_m: int, block_n: int) -> float:
    """The share of weight's requests in all, before."""
    x, weight = m * _blocks(n, block_n), n * _blocks(m, block_m)
    return weight / (x + weight)


_ALL_HALF = (
    "BLOCK_M divides the requests of weight alone. x is asked for by every block of columns, as "
    "before."
)
_ONE_BLOCK = (
    "The number of blocks of rows is rounded up, before and after. It is halved where it is even, "
    "and where one block holds all rows there is nothing left to halve."
)
_Q2: tuple[tuple[Mistake, ...], ...] = (
    (
        (_ALL_HALF, lambda m, n, bm, bn: 0.5),
        (_ALL_HALF, lambda m, n, bm, bn: _left(m, n, bm, bn)[1]),
        ("x is asked for as often as before, and no more.", lambda m, n, bm, bn: 2.0),
        ("That is what is saved; asked is what is left.", lambda m, n, bm, bn: 0.0),
    ),
    (
        (_ONE_BLOCK, lambda m, n, bm, bn: 0.5),
        (
            "That is what x has: BLOCK_M is the edge that weight's rows are shared along.",
            lambda m, n, bm, bn: 1.0,
        ),
        (
            "That is what is saved; asked is what is left.",
            lambda m, n, bm, bn: 1 - _left(m, n, bm, bn)[1],
        ),
        (
            "That takes N and BLOCK_N: it is M that BLOCK_M divides.",
            lambda m, n, bm, bn: _blocks(n, 2 * bn) / _blocks(n, bn),
        ),
        (
            "The number of blocks is rounded up.",
            lambda m, n, bm, bn: m // (2 * bm) / max(1, m // bm),
        ),
    ),
    (
        (_ALL_HALF, lambda m, n, bm, bn: 0.5),
        (
            "That is the mean of the two shares. They weigh as much as their requests do.",
            lambda m, n, bm, bn: (1 + _left(m, n, bm, bn)[1]) / 2,
        ),
        (
            "That is the mean of the two shares. They weigh as much as their requests do.",
            lambda m, n, bm, bn: 0.75,
        ),
        ("That is weight's share alone.", lambda m, n, bm, bn: _left(m, n, bm, bn)[1]),
        (
            "That is what is saved; asked is what is left.",
            lambda m, n, bm, bn: 1 - _left(m, n, bm, bn)[2],
        ),
        (
            _ONE_BLOCK,
            lambda m, n, bm, bn: (1 / bn + 1 / (2 * bm)) / (1 / bn + 1 / bm),
        ),
        (_ONE_BLOCK, lambda m, n, bm, bn: 1 - _weights_part(m, n, bm, bn) / 2),
    ),
)
_SHARES = ("x", "weight", "both")


def _q2_calls(rng: random.Random) -> list[tuple[int, int, int, int]]:
    """Even, odd and single numbers of blocks along M, and tiles of unequal edges."""
    calls = [(4096, 4096, 64, 64), (4096, 4096, 128, 64), (48, 4096, 64, 128)]
    for block_m in (16, 32, 64, 128):
        blocks = rng.choice((3, 5, 7))
        m = block_m * blocks - rng.randrange(block_m // 2)
        calls.append((m, rng.randrange(500, 5000), block_m, rng.choice((32, 64, 256))))
    return calls


def grade_taller(attempt: Attempt) -> None:
    """Grade `twice_as_tall(m, n, block_m, block_n)`: what is left of requests, three shares."""
    told: tuple[list[Told], ...] = ([], [], [])
    calls = _q2_calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        three = several(answered(attempt, *args), _SHARES, label)
        for numbers, value, right, name in zip(told, three, _left(*args), _SHARES, strict=True):
            got = real(value, label, f"what is left of {name}")
            numbers.append(Told(label, args, got, right))
    for numbers, mistakes, name in zip(told, _Q2, _SHARES, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: of the requests of {name} {wrong.got:.4g} is left; it is "
                f"{wrong.right:.4g}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"what taller tiles leave of the requests, in {len(calls)} products")
