"""12.3: the FLOPs of a row of attention in three steps, and of one that walks over blocks."""

from __future__ import annotations

import random

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.ch12.counts import Asked, hold, two_and_a_flag
from kernels.grading.questions.kits.numbers import Mistake, first_wrong, meaning


def in_three_steps(n: int, d: int, block_n: int) -> int:
    """Return the FLOPs of a row whose n scores are all there at once."""
    return 4 * n * d + 6 * n


def in_blocks(n: int, d: int, block_n: int) -> int:
    """Return the FLOPs of a row that walks over blocks of keys with a state (m, l, acc)."""
    return 4 * n * d + 5 * n + n // block_n * (d + 5) + d


_ONE_FLOP = "A multiply-add is two FLOPs, in both products."
_MAXIMUM = "The line with max counts as well: of B numbers it is B."
_SUBTRACT = "exp(s - m) is two for each score: a subtraction and an exp."
_PER_STEP = (
    "What is done once a block counts once a block: there are n / B of them, each with one new "
    "maximum, two for the correction, two for l and d for acc."
)
_DIVIDE = "The division comes once, behind the loop: acc has d numbers, and there are no n weights."
_THREE: tuple[Mistake, ...] = (
    (_ONE_FLOP, lambda n, d, b: 2 * n * d + 6 * n),
    (_ONE_FLOP, lambda n, d, b: 3 * n * d + 6 * n),
    ("Those are the products alone: each line counts.", lambda n, d, b: 4 * n * d),
    ("Those are the products alone: each line counts.", lambda n, d, b: 2 * n * d),
    ("There are two products: s, and o.", lambda n, d, b: 2 * n * d + 6 * n),
    (_SUBTRACT, lambda n, d, b: 4 * n * d + 5 * n),
    ("The scale counts, and so does the maximum.", lambda n, d, b: 4 * n * d + 4 * n),
    (
        "The division is of n weights here: p / l comes before the second product.",
        lambda n, d, b: 4 * n * d + 5 * n + d,
    ),
    (
        "The division is of n weights here: p / l comes before the second product.",
        lambda n, d, b: 4 * n * d + 5 * n + 1,
    ),
    ("That is all of n rows: asked is one.", lambda n, d, b: n * in_three_steps(n, d, b)),
    ("Those are the FLOPs of the walk over blocks.", in_blocks),
)
_BLOCKS: tuple[Mistake, ...] = (
    (_ONE_FLOP, lambda n, d, b: in_blocks(n, d, b) - 2 * n * d),
    (_ONE_FLOP, lambda n, d, b: in_blocks(n, d, b) - n * d),
    ("Those are the products alone: each line counts.", lambda n, d, b: 4 * n * d),
    ("Those are the FLOPs of the three steps.", in_three_steps),
    (
        "The correction of acc is missing: d multiplications a block.",
        lambda n, d, b: 4 * n * d + 5 * n + n // b * 5 + d,
    ),
    (
        "acc has d numbers: its correction is d multiplications a block, and not one.",
        lambda n, d, b: 4 * n * d + 5 * n + n // b * 6 + d,
    ),
    (_DIVIDE, lambda n, d, b: 4 * n * d + 6 * n + n // b * (d + 5)),
    (_DIVIDE, lambda n, d, b: 4 * n * d + 5 * n + n // b * (2 * d + 5)),
    ("The division at the end is missing: d of them.", lambda n, d, b: in_blocks(n, d, b) - d),
    (_DIVIDE, lambda n, d, b: in_blocks(n, d, b) - d + 1),
    (_PER_STEP, lambda n, d, b: 4 * n * d + 5 * n + d + 5 + d),
    (_PER_STEP, lambda n, d, b: 4 * n * d + 5 * n + n * (d + 5) + d),
    (_PER_STEP, lambda n, d, b: 4 * n * d + 5 * n + n // b * d + d),
    (_PER_STEP, lambda n, d, b: 4 * n * d + 5 * n + d),
    *(
        (_PER_STEP, lambda n, d, b, less=less: in_blocks(n, d, b) - less * (n // b))
        for less in (1, 2, 3, 4)
    ),
    (_SUBTRACT, lambda n, d, b: in_blocks(n, d, b) - n),
    (_MAXIMUM, lambda n, d, b: in_blocks(n, d, b) - n - n // b),
    ("That is all of n rows: asked is one.", lambda n, d, b: n * in_blocks(n, d, b)),
)
_FEWER = (
    "Neither is always true. A walk saves n - d divisions, and pays d + 5 for each block: it does "
    "fewer where its blocks have more keys than that, and more where they have less."
)
_NAMES = ("the three steps", "the walk over blocks")
_ASKED = (
    Asked("three_steps", f"the FLOPs of {_NAMES[0]}", in_three_steps),
    Asked("blocks", f"the FLOPs of {_NAMES[1]}", in_blocks),
    Asked("fewer", "fewer", lambda n, d, b: in_blocks(n, d, b) < in_three_steps(n, d, b)),
)


def _calls(rng: random.Random) -> list[tuple[int, int, int]]:
    """Rows in which either does fewer, or none."""
    calls = [(128, 64, 128), (4096, 64, 128), (2048, 128, 64), (8192, 16, 32)]
    calls += [(64, 18, 32), (96, 20, 32)]  # the same number, and one fewer
    for d in (16, 32, 64, 128, 256):
        block = rng.choice((16, 32, 64, 128, 256, 512))
        calls.append((block * rng.randrange(2, 40), d, block))
    rng.shuffle(calls)
    return calls


def grade_flops(attempt: Attempt) -> None:
    """Grade `row_flops(n, d, block_n)`: (in three steps, in blocks, whether the latter is less)."""
    calls = _calls(random.Random(attempt.seed))
    told, flags = two_and_a_flag(attempt, calls, _ASKED)
    for numbers, mistakes, name in zip(told, (_THREE, _BLOCKS), _NAMES, strict=True):
        if wrong := first_wrong(numbers):
            off = abs(int(wrong.got - wrong.right))
            less = "fewer" if wrong.got < wrong.right else "more"
            raise Wrong(
                f"{wrong.label}: {wrong.got:,} FLOPs in {name}; it does {wrong.right:,}, you have "
                f"{off:,} {less}.",
                meaning(mistakes, numbers),
            )
    hold(flags, "fewer", _FEWER)
    attempt.held.append(f"the FLOPs of {len(calls)} rows, both ways")
