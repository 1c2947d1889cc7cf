"""10.10: the size from which on a product leaves the memory roof, and the tile for the L2's."""

from __future__ import annotations

import random
from fractions import Fraction

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


def _up(top: int, bottom: int) -> int:
    return -(-top // bottom)


def least_size(tflops: int, dram_gbs: int, l2_gbs: int, itemsize: int) -> int:
    """Return the least n at which n × n times n × n takes as long in FLOPs as in ideal bytes."""
    return _up(3 * itemsize * 1000 * tflops, 2 * dram_gbs)


def least_edge(tflops: int, dram_gbs: int, l2_gbs: int, itemsize: int) -> int:
    """Return the least edge of a square tile whose FLOPs take as long as its requests to the L2."""
    return _up(itemsize * 1000 * tflops, l2_gbs)


_DOWN = "The quotient is rounded down: there the bytes still take longer. Round up."
_THOUSAND = "TFLOP/s over GB/s is 1000 FLOPs a byte, not 1."
_ONE_FLOP = "A multiply-add is two FLOPs."
_SIZE: tuple[Mistake, ...] = (
    (_DOWN, lambda t, d, c, s: 3 * s * 1000 * t // (2 * d)),
    (_DOWN, lambda t, d, c, s: round(Fraction(3 * s * 1000 * t, 2 * d))),
    (_ONE_FLOP, lambda t, d, c, s: _up(3 * s * 1000 * t, d)),
    (
        "Three matrices move: two are read and one is written.",
        lambda t, d, c, s: _up(2 * s * 1000 * t, 2 * d),
    ),
    (
        "Three matrices move: two are read and one is written.",
        lambda t, d, c, s: _up(s * 1000 * t, 2 * d),
    ),
    ("Numbers are counted, not bytes.", lambda t, d, c, s: _up(3 * 1000 * t, 2 * d)),
    (_THOUSAND, lambda t, d, c, s: _up(3 * s * t, 2 * d)),
    (
        "That takes the L2's rate: the ideal bytes come from DRAM.",
        lambda t, d, c, s: _up(3 * s * 1000 * t, 2 * c),
    ),
    (
        "That is the card's balance in FLOPs a byte. A product's intensity is 2n / (3 · itemsize).",
        lambda t, d, c, s: _up(1000 * t, d),
    ),
)
_EDGE: tuple[Mistake, ...] = (
    (_DOWN, lambda t, d, c, s: s * 1000 * t // c),
    (_DOWN, lambda t, d, c, s: round(Fraction(s * 1000 * t, c))),
    (_ONE_FLOP, lambda t, d, c, s: _up(2 * s * 1000 * t, c)),
    (
        "A step loads a tile of x and one of weight: two, each of edge · BLOCK_K.",
        lambda t, d, c, s: _up(s * 1000 * t, 2 * c),
    ),
    (
        "That takes DRAM's rate: what tiles ask for comes from the L2.",
        lambda t, d, c, s: _up(s * 1000 * t, d),
    ),
    ("Numbers are counted, not bytes.", lambda t, d, c, s: _up(1000 * t, c)),
    (_THOUSAND, lambda t, d, c, s: _up(s * t, c)),
    (
        "The store of y is no part of a step: along K it costs next to nothing.",
        lambda t, d, c, s: _up(3 * s * 1000 * t, 2 * c),
    ),
)


def _calls(rng: random.Random) -> list[tuple[int, int, int, int]]:
    """Cards near real ones: TFLOP/s of a dtype, GB/s of DRAM and of the L2, bytes an element."""
    calls = []
    for tflops, dram, l2 in (
        (65, 320, 1300),
        (312, 1555, 4500),
        (989, 3350, 7000),
        (67, 3350, 7000),
    ):
        for itemsize in (2, 4):
            near = [round(one * rng.uniform(0.9, 1.1)) for one in (tflops, dram, l2)]
            calls.append((near[0], near[1], near[2], itemsize))
    # Quotients that are whole: rounding them up adds nothing.
    return [*calls, (256, 2048, 4000, 2), (128, 1000, 4000, 4)]


def grade_roofs(attempt: Attempt) -> None:
    """Grade `leaves_roofs(tflops, dram_gbs, l2_gbs, itemsize)`: (size, edge)."""
    told: tuple[list[Told], list[Told]] = ([], [])
    names = ("size", "edge")
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        both = pair(answered(attempt, *args), label, "(size, edge)")
        for numbers, value, formula, name in zip(
            told, both, (least_size, least_edge), names, strict=True
        ):
            numbers.append(Told(label, args, whole(value, label, name), formula(*args)))
    for numbers, mistakes, name in zip(told, (_SIZE, _EDGE), names, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,}; it is {wrong.right:,}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"where products leave both roofs, on {len(calls)} cards")
