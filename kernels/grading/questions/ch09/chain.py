"""09.5: the bytes of chapter 08's chain with a norm, eager and as the compiler fuses it."""

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


def eager(rows: int, cols: int, itemsize: int) -> int:
    """Return the distinct bytes of the four operators."""
    matrix = rows * cols * itemsize
    return 9 * matrix + 2 * cols * itemsize + 8 * rows + rows * cols


def compiled(rows: int, cols: int, itemsize: int) -> int:
    """Return the distinct bytes of the two launches: that of the seed, and the generated one."""
    matrix = rows * cols * itemsize
    return 3 * matrix + 2 * cols * itemsize + 8 * rows * cols + 16


_PARAMETERS = "weight and bias are missing."
_ELEMENTS = "Those are elements, not bytes."
_EAGER: tuple[Mistake, ...] = (
    (
        "The mask is missing: dropout writes a byte for each element.",
        lambda r, n, s: eager(r, n, s) - r * n,
    ),
    (
        "A mask takes one byte an element, whatever the dtype is.",
        lambda r, n, s: eager(r, n, s) + (s - 1) * r * n,
    ),
    (
        "The statistics are missing: the norm writes two numbers in fp32 for each row.",
        lambda r, n, s: eager(r, n, s) - 8 * r,
    ),
    (
        "The statistics are fp32, 4 bytes each, whatever the dtype is.",
        lambda r, n, s: eager(r, n, s) - 8 * r + 2 * s * r,
    ),
    (
        "The mask and the statistics are missing: operators write them, wanted or not.",
        lambda r, n, s: eager(r, n, s) - 8 * r - r * n,
    ),
    (
        "The sum reads two tensors, the residual and what dropout wrote.",
        lambda r, n, s: eager(r, n, s) - r * n * s,
    ),
    (
        "What one operator writes the next one reads: each tensor between two counts twice.",
        lambda r, n, s: eager(r, n, s) - 3 * r * n * s,
    ),
    (
        "The last sum doesn't read the mask: dropout has applied it.",
        lambda r, n, s: eager(r, n, s) + r * n,
    ),
    (_PARAMETERS, lambda r, n, s: eager(r, n, s) - 2 * n * s),
    (_ELEMENTS, lambda r, n, s: 10 * r * n + 2 * n + 2 * r),
)
_COMPILED: tuple[Mistake, ...] = (
    (
        "The random numbers are missing. The kernel stores them in fp32 and loads them again: it "
        "is all there in its tl.store and tl.load of out_ptr2.",
        lambda r, n, s: compiled(r, n, s) - 8 * r * n,
    ),
    (
        "The random numbers are written, and read again by a later loop: distinct bytes count once "
        "for each of the two.",
        lambda r, n, s: compiled(r, n, s) - 4 * r * n,
    ),
    (
        "The random numbers are fp32, whatever the dtype of x is: 4 bytes each.",
        lambda r, n, s: compiled(r, n, s) - 8 * r * n + 2 * r * n * s,
    ),
    (
        "x is loaded in two loops, and touched once: distinct bytes are counted.",
        lambda r, n, s: compiled(r, n, s) + r * n * s,
    ),
    (
        "The seed is missing: one launch writes its 8 bytes, the other reads them.",
        lambda r, n, s: compiled(r, n, s) - 16,
    ),
    (
        "The seed is written by one launch and read by another: 8 bytes each.",
        lambda r, n, s: compiled(r, n, s) - 8,
    ),
    (
        "The kernel stores no statistics: they are tmp3 and tmp7, and stay in registers.",
        lambda r, n, s: compiled(r, n, s) + 8 * r,
    ),
    (
        "The kernel stores no mask: tmp31 stays in registers.",
        lambda r, n, s: compiled(r, n, s) + r * n,
    ),
    (
        "That is the least a fused kernel needs. Look at what this one stores: out_ptr2 is a "
        "tensor as large as x.",
        lambda r, n, s: 3 * r * n * s + 2 * n * s,
    ),
    ("The residual is missing.", lambda r, n, s: compiled(r, n, s) - r * n * s),
    (_PARAMETERS, lambda r, n, s: compiled(r, n, s) - 2 * n * s),
    (_ELEMENTS, lambda r, n, s: 5 * r * n + 2 * n + 2),
)


def grade_chain_bytes(attempt: Attempt) -> None:
    """Grade `chain_bytes(rows, cols, itemsize)`: (eager, compiled), distinct bytes."""
    rng = random.Random(attempt.seed)
    calls = [(64, 512, 2), (64, 512, 4)]
    calls += [(rng.randrange(2, 90), rng.randrange(20, 900), rng.choice((2, 4))) for _ in range(5)]
    told: tuple[list[Told], list[Told]] = ([], [])
    names = ("eager", "compiled")
    for args in calls:
        label = asked(attempt, args)
        both = pair(answered(attempt, *args), label, "(eager, compiled)")
        for numbers, value, right, name in zip(
            told, both, (eager(*args), compiled(*args)), names, strict=True
        ):
            numbers.append(Told(label, args, whole(value, label, name), right))
    for numbers, mistakes, name in zip(told, (_EAGER, _COMPILED), names, strict=True):
        if wrong := first_wrong(numbers):
            off = abs(int(wrong.got - wrong.right))
            less = "fewer" if wrong.got < wrong.right else "more"
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,}; it is {wrong.right:,}, you have {off:,} "
                f"{less}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the bytes of {len(calls)} chains, eager and compiled")
