"""08.2: the bytes of a chain with a norm in front, trained, wherever it is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence

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

SEED_BYTES = 16  # a seed and an offset, int64
_ROW_BYTES = 8  # mean and inv_std, fp32

Cuts = Sequence[int]


def moved(rows: int, cols: int, itemsize: int, cuts: Cuts, stored_mask: bool) -> int:
    """Return the distinct bytes that the forward's launches read and write in training."""
    matrix = rows * cols * itemsize
    mask = rows * cols if stored_mask else 0
    parameters = 2 * cols * itemsize
    return (3 + 2 * len(cuts)) * matrix + parameters + _ROW_BYTES * rows + SEED_BYTES + mask


def kept(rows: int, cols: int, itemsize: int, cuts: Cuts, stored_mask: bool) -> int:
    """Return the bytes that stay until the backward beside x, the parameters and the seed."""
    return _ROW_BYTES * rows + (rows * cols if stored_mask else 0)


def _matrices(count: int, cuts_count: int = 0) -> Mistake:
    what = {
        -1: "The residual is missing: the last launch reads two tensors.",
        1: "One tensor too many: each cut is one written and one read.",
    }[count]
    return what, lambda r, n, s, c, m: moved(r, n, s, c, m) + count * r * n * s


_WIDE_MASK = "A mask takes one byte an element, whatever the dtype is."
_NO_MASK = "The mask is missing, where it is stored: one byte an element."
_MASK_ALWAYS = "Where the mask is not stored it has no bytes: the backward makes it again."
_NO_ROWS = "The statistics are missing: mean and inv_std of each row, which the backward needs."
_ONE_ROW = "A row has two statistics, mean and inv_std: 8 bytes."
_NARROW_ROWS = "The statistics are fp32, 4 bytes each, whatever the dtype of x is."
_MOVED: tuple[Mistake, ...] = (
    _matrices(-1),
    (
        "A cut costs a write and a read: the launch behind it reads what the one before it wrote.",
        lambda r, n, s, c, m: moved(r, n, s, c, m) - len(c) * r * n * s,
    ),
    ("The cuts are left out: that is one launch.", lambda r, n, s, c, m: moved(r, n, s, (), m)),
    (
        "That is a launch for each step, whatever the cuts are.",
        lambda r, n, s, c, m: moved(r, n, s, (1, 2, 3), m),
    ),
    (
        "The number of launches is one more than that of the cuts: a cut costs two passes.",
        lambda r, n, s, c, m: moved(r, n, s, (*c, 0), m),
    ),
    (_NO_MASK, lambda r, n, s, c, m: moved(r, n, s, c, False)),
    (_MASK_ALWAYS, lambda r, n, s, c, m: moved(r, n, s, c, True)),
    (_WIDE_MASK, lambda r, n, s, c, m: moved(r, n, s, c, False) + m * r * n * s),
    (
        "That counts a bit an element: a mask takes a byte.",
        lambda r, n, s, c, m: moved(r, n, s, c, False) + m * r * n // 8,
    ),
    (
        "The mask is counted twice: the forward writes it, and the backward's read is not asked.",
        lambda r, n, s, c, m: moved(r, n, s, c, m) + m * r * n,
    ),
    (_NO_ROWS, lambda r, n, s, c, m: moved(r, n, s, c, m) - 8 * r),
    (_ONE_ROW, lambda r, n, s, c, m: moved(r, n, s, c, m) - 4 * r),
    (_NARROW_ROWS, lambda r, n, s, c, m: moved(r, n, s, c, m) - 8 * r + 2 * r * s),
    (
        "Seed and offset are missing: the launch that drops reads 16 bytes.",
        lambda r, n, s, c, m: moved(r, n, s, c, m) - SEED_BYTES,
    ),
    (
        "weight and bias are missing.",
        lambda r, n, s, c, m: moved(r, n, s, c, m) - 2 * n * s,
    ),
    (
        "One parameter is missing: the norm has weight and bias.",
        lambda r, n, s, c, m: moved(r, n, s, c, m) - n * s,
    ),
    (
        "weight and bias count once: all rows take the same bytes, and distinct bytes are counted.",
        lambda r, n, s, c, m: moved(r, n, s, c, m) + 2 * (r - 1) * n * s,
    ),
    _matrices(1),
    (
        "Numbers are counted, not bytes.",
        lambda r, n, s, c, m: (3 + 2 * len(c)) * r * n + 2 * n + 2 * r + 2 + m * r * n,
    ),
)
_KEPT: tuple[Mistake, ...] = (
    (_NO_MASK, lambda r, n, s, c, m: 8 * r),
    (_MASK_ALWAYS, lambda r, n, s, c, m: 8 * r + r * n),
    (_WIDE_MASK, lambda r, n, s, c, m: 8 * r + m * r * n * s),
    (
        "That counts a bit an element: a mask takes a byte.",
        lambda r, n, s, c, m: 8 * r + m * r * n // 8,
    ),
    (_NO_ROWS, lambda r, n, s, c, m: m * r * n),
    (_ONE_ROW, lambda r, n, s, c, m: 4 * r + m * r * n),
    (_NARROW_ROWS, lambda r, n, s, c, m: 2 * r * s + m * r * n),
    (
        "What GELU is taken of need not be kept: the backward makes it again from x and the "
        "statistics.",
        lambda r, n, s, c, m: kept(r, n, s, c, m) + r * n * s,
    ),
    (
        "What crosses a cut is needed by the next launch alone: the backward makes it again.",
        lambda r, n, s, c, m: kept(r, n, s, c, m) + len(c) * r * n * s,
    ),
    (
        "Seed and offset are there already, and so is x: they are not counted.",
        lambda r, n, s, c, m: kept(r, n, s, c, m) + SEED_BYTES,
    ),
    (
        "x and the parameters are not counted: the model has them anyhow.",
        lambda r, n, s, c, m: kept(r, n, s, c, m) + (r + 2) * n * s,
    ),
)


def _calls(rng: random.Random) -> list[tuple[int, int, int, list[int], bool]]:
    chosen: list[list[int]] = [[], [1, 2, 3], [1], [2], [3], [1, 3]]
    calls = []
    for number, cuts in enumerate(chosen):
        rows, cols = rng.randrange(9, 90), 8 * rng.randrange(9, 90)
        calls.append((rows, cols, rng.choice((2, 4)), cuts, number % 2 == 0))
        calls.append((rows, cols, 2 if number % 2 else 4, cuts, number % 2 == 1))
    return calls


def grade_training_bytes(attempt: Attempt) -> None:
    """Grade `training_bytes(rows, cols, itemsize, cuts, stored_mask)`: (moved, kept)."""
    told: tuple[list[Told], list[Told]] = ([], [])
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        rows, cols, itemsize, cuts, mask = args
        result = answered(attempt, rows, cols, itemsize, list(cuts), mask)
        both = pair(result, label, "(moved, kept)")
        for numbers, value, right, name in zip(
            told, both, (moved(*args), kept(*args)), ("moved", "kept"), strict=True
        ):
            numbers.append(Told(label, args, whole(value, label, name), right))
    for numbers, mistakes, name in zip(told, (_MOVED, _KEPT), ("moved", "kept"), strict=True):
        if wrong := first_wrong(numbers):
            off = abs(int(wrong.got - wrong.right))
            less = "fewer" if wrong.got < wrong.right else "more"
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,}; it is {wrong.right:,}, you have {off:,} "
                f"{less}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the bytes of {len(calls)} chains, cut and trained")
