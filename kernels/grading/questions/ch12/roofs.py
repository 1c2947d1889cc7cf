"""12.10: where attention leaves the roof of memory, and the tile of queries for the L2's."""

from __future__ import annotations

import random
from fractions import Fraction

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.ch12.counts import Asked, hold, two_and_a_flag
from kernels.grading.questions.kits.numbers import Mistake, first_wrong, meaning


def _up(top: int, bottom: int) -> int:
    return -(-top // bottom)


def least_length(tflops: int, dram_gbs: int, l2_gbs: int, d: int, itemsize: int) -> int:
    """Return the least n at which a head's FLOPs take as long as its ideal bytes."""
    return _up(itemsize * 1000 * tflops, dram_gbs)


def least_tile(tflops: int, dram_gbs: int, l2_gbs: int, d: int, itemsize: int) -> int:
    """Return the least tile of queries whose FLOPs take as long as the keys it asks for."""
    return _up(itemsize * 1000 * tflops, 2 * l2_gbs)


def leaves(tflops: int, dram_gbs: int, l2_gbs: int, d: int, itemsize: int) -> bool:
    """Return whether three launches leave the roof of memory at any length."""
    # 4 n² d FLOPs over more than 4 n² numbers: below d / itemsize FLOPs a byte, however long.
    return d * dram_gbs > itemsize * 1000 * tflops


_DOWN = "The quotient is rounded down: there the bytes still take longer. Round up."
_THOUSAND = "TFLOP/s over GB/s is 1000 FLOPs a byte, not 1."
_TWO = "There are two products, and a multiply-add is two FLOPs: 4 n² d."
_FOUR = "Four tensors move, each of n · d: q, k and v are read, o is written."
_BYTES = "Numbers are counted, not bytes."
_LENGTH: tuple[Mistake, ...] = (
    (_DOWN, lambda t, r, c, d, s: s * 1000 * t // r),
    (_DOWN, lambda t, r, c, d, s: round(Fraction(s * 1000 * t, r))),
    (_TWO, lambda t, r, c, d, s: _up(2 * s * 1000 * t, r)),
    (_TWO, lambda t, r, c, d, s: _up(4 * s * 1000 * t, r)),
    (_FOUR, lambda t, r, c, d, s: _up(3 * s * 1000 * t, 4 * r)),
    (_FOUR, lambda t, r, c, d, s: _up(s * 1000 * t, 4 * r)),
    (_BYTES, lambda t, r, c, d, s: _up(1000 * t, r)),
    (_THOUSAND, lambda t, r, c, d, s: _up(s * t, r)),
    (
        "That takes the L2's rate: the ideal bytes come from DRAM.",
        lambda t, r, c, d, s: _up(s * 1000 * t, c),
    ),
    (
        "d is a factor of the FLOPs and of the bytes: it cancels.",
        lambda t, r, c, d, s: _up(s * 1000 * t, r * d),
    ),
    (
        "d is a factor of the FLOPs and of the bytes: it cancels.",
        lambda t, r, c, d, s: _up(s * 1000 * t * d, r),
    ),
)
_TILE: tuple[Mistake, ...] = (
    (_DOWN, lambda t, r, c, d, s: s * 1000 * t // (2 * c)),
    (_DOWN, lambda t, r, c, d, s: round(Fraction(s * 1000 * t, 2 * c))),
    (
        "A block of keys brings k and v, 2 · B · d numbers, and 4 · block_m · B · d FLOPs.",
        lambda t, r, c, d, s: _up(s * 1000 * t, c),
    ),
    (
        "A block of keys brings k and v, 2 · B · d numbers, and 4 · block_m · B · d FLOPs.",
        lambda t, r, c, d, s: _up(s * 1000 * t, 4 * c),
    ),
    (
        "A block of keys brings k and v, 2 · B · d numbers, and 4 · block_m · B · d FLOPs.",
        lambda t, r, c, d, s: _up(2 * s * 1000 * t, c),
    ),
    (
        "That takes DRAM's rate: what tiles ask for comes from the L2.",
        lambda t, r, c, d, s: _up(s * 1000 * t, 2 * r),
    ),
    (_BYTES, lambda t, r, c, d, s: _up(1000 * t, 2 * c)),
    (_THOUSAND, lambda t, r, c, d, s: _up(s * t, 2 * c)),
    (
        "d is a factor of the FLOPs and of the bytes: it cancels.",
        lambda t, r, c, d, s: _up(s * 1000 * t, 2 * c * d),
    ),
)
_LEAVES = (
    "s and p are written and read: 4 n² numbers beside 4 n · d. However long the sequence, 4 n² d "
    "FLOPs over these bytes stay below d / itemsize. Is the card's balance, FLOP/s over DRAM's "
    "bytes a second, below that? Where it is just as large, FLOPs catch up with the 4 n², and with "
    "the 4 n · d beside them at no length."
)
_ASKED = (
    Asked("length", "length", least_length),
    Asked("block_m", "block_m", least_tile),
    Asked("unfused", "unfused", leaves),
)


def _calls(rng: random.Random) -> list[tuple[int, int, int, int, int]]:
    """Cards near real ones: TFLOP/s of a dtype, GB/s of DRAM and of the L2; d; bytes."""
    calls = []
    for tflops, dram, l2 in (
        (65, 320, 1300),
        (312, 1555, 4500),
        (989, 3350, 7000),
        (20, 1555, 4500),
    ):
        for itemsize, d in ((2, 64), (4, 128), (2, 256)):
            near = [round(one * rng.uniform(0.9, 1.1)) for one in (tflops, dram, l2)]
            calls.append((near[0], near[1], near[2], d, itemsize))
    # Quotients that are whole: rounding them up adds nothing.
    return [
        *calls,
        *((256, 2048, 4000, 64, 2), (128, 1000, 4000, 128, 4)),
        (64, 2000, 1203, 64, 2),  # d / itemsize is the card's balance
    ]


def grade_roofs(attempt: Attempt) -> None:
    """Grade `leaves_roofs(tflops, dram_gbs, l2_gbs, d, itemsize)`: (length, block_m, unfused)."""
    calls = _calls(random.Random(attempt.seed))
    told, flags = two_and_a_flag(attempt, calls, _ASKED)
    for numbers, mistakes, count in zip(told, (_LENGTH, _TILE), _ASKED[:2], strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {count.name} is {wrong.got:,}; it is {wrong.right:,}.",
                meaning(mistakes, numbers),
            )
    hold(flags, "unfused", _LEAVES)
    attempt.held.append(f"where attention leaves both roofs, on {len(calls)} cards")
