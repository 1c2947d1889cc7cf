"""07.1: the bytes of LayerNorm's backward in two launches, predicted, against their ledger."""

from __future__ import annotations

import random

import torch

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
from kernels.lab.counting import traffic
from kernels.ops.norms.backward_kernels import norm_backward_rows, sum_partials

_DTYPES = (torch.float32, torch.float16)


def launch_backward(rows: int, cols: int, dtype: torch.dtype, programs: int) -> None:
    """Launch LayerNorm's backward on zeros: `programs` programs share the rows, then the sums.

    x, dy and dx (rows, cols), weight and the two parameter gradients (cols,) have `dtype`; the
    statistics (rows,) and the partial sums (programs, cols) are fp32.
    """
    x, dy, dx = torch.zeros(3, rows, cols, dtype=dtype)
    weight, dweight, dbias = torch.zeros(3, cols, dtype=dtype)
    mean, inv_std = torch.zeros(2, rows)
    parts = torch.zeros(2, programs, cols)
    norm_backward_rows[(programs,)](
        dy,
        None,
        x,
        weight,
        mean,
        inv_std,
        dx,
        *parts,
        dy_row_stride=cols,
        x_row_stride=cols,
        n_rows=rows,
        rows_each=-(-rows // programs),
        n_col_units=cols,
        STRIDE_UNIT=1,
        BLOCK_ROWS=1,
        BLOCK_COLS=1 << (cols - 1).bit_length(),
        STAGES=1,
        HOLD_WEIGHT=True,
    )
    sum_partials[(-(-cols // 32),)](
        *parts, dweight, dbias, n_parts=programs, n_cols=cols, BLOCK_ROWS=16, BLOCK_COLS=32
    )


def counted_backward(rows: int, cols: int, itemsize: int, programs: int) -> tuple[int, int]:
    """Return the distinct bytes of the two launches; `itemsize` is 4 for fp32, 2 for fp16."""
    (dtype,) = (dtype for dtype in _DTYPES if dtype.itemsize == itemsize)
    first, second = traffic.count(launch_backward, rows, cols, dtype, programs)
    return first.bytes_unique, second.bytes_unique


def _first(r: int, n: int, s: int, p: int) -> int:
    return 3 * r * n * s + n * s + 8 * r + 8 * p * n


def _second(r: int, n: int, s: int, p: int) -> int:
    return 8 * p * n + 2 * n * s


_PARTS_DTYPE = "The partial sums are fp32, 4 bytes each, whatever the dtype of x is."
_ONE_BUFFER = "There are partial sums for weight and for bias: two buffers."
_FIRST: tuple[Mistake, ...] = (
    ("The partial sums are missing.", lambda r, n, s, p: _first(r, n, s, 0)),
    (_ONE_BUFFER, lambda r, n, s, p: _first(r, n, s, p) - 4 * p * n),
    (_PARTS_DTYPE, lambda r, n, s, p: _first(r, n, s, 0) + 2 * p * n * s),
    (
        "One row of partial sums is counted; each program stores one for weight and one for bias.",
        lambda r, n, s, p: _first(r, n, s, 1),
    ),
    (
        "That counts a row of partial sums for each row of x: a program has one, for all its rows.",
        lambda r, n, s, p: _first(r, n, s, r),
    ),
    ("The statistics are missing.", lambda r, n, s, p: _first(r, n, s, p) - 8 * r),
    (
        "A row has two statistics, mean and inv_std: 8 bytes.",
        lambda r, n, s, p: _first(r, n, s, p) - 4 * r,
    ),
    (
        "The statistics are fp32, 4 bytes each, whatever the dtype of x is.",
        lambda r, n, s, p: _first(r, n, s, p) - 8 * r + 2 * r * s,
    ),
    ("weight is missing: g is dy · weight.", lambda r, n, s, p: _first(r, n, s, p) - n * s),
    (
        "weight counts once: all programs read the same bytes, and distinct bytes are counted.",
        lambda r, n, s, p: _first(r, n, s, p) + (p - 1) * n * s,
    ),
    (
        "weight counts once: all rows take the same bytes, and distinct bytes are counted.",
        lambda r, n, s, p: _first(r, n, s, p) + (r - 1) * n * s,
    ),
    (
        "bias is counted. No gradient depends on it: the backward pass doesn't read it.",
        lambda r, n, s, p: _first(r, n, s, p) + n * s,
    ),
    (
        "One matrix is missing: x and dy are read, dx is written.",
        lambda r, n, s, p: _first(r, n, s, p) - r * n * s,
    ),
    (
        "One matrix too many: x and dy are read once each, dx is written, and y isn't needed.",
        lambda r, n, s, p: _first(r, n, s, p) + r * n * s,
    ),
    (
        "Numbers are counted, not bytes.",
        lambda r, n, s, p: 3 * r * n + n + 2 * r + 2 * p * n,
    ),
)
_SECOND: tuple[Mistake, ...] = (
    (_ONE_BUFFER, lambda r, n, s, p: 4 * p * n + 2 * n * s),
    (
        "One parameter's gradient is counted: there are dweight and dbias.",
        lambda r, n, s, p: 4 * p * n + n * s,
    ),
    (
        "One parameter's gradient is written in your count: there are dweight and dbias.",
        lambda r, n, s, p: 8 * p * n + n * s,
    ),
    (_PARTS_DTYPE, lambda r, n, s, p: 2 * p * n * s + 2 * n * s),
    (
        "dweight and dbias have the dtype of weight, here that of x.",
        lambda r, n, s, p: 8 * p * n + 8 * n,
    ),
    ("The two gradients that it writes are missing.", lambda r, n, s, p: 8 * p * n),
    ("The partial sums that it reads are missing.", lambda r, n, s, p: 2 * n * s),
    (
        "The partial sums are counted twice: the first launch writes them, the second reads them.",
        lambda r, n, s, p: 16 * p * n + 2 * n * s,
    ),
    (
        "Numbers are counted, not bytes.",
        lambda r, n, s, p: 2 * p * n + 2 * n,
    ),
)


def grade_bytes(attempt: Attempt) -> None:
    """Grade `backward_bytes(rows, cols, itemsize, programs)`: the bytes of (first, second)."""
    rng = random.Random(attempt.seed)
    calls = [
        (rng.randrange(9, 16), rng.randrange(40, 60), itemsize, rng.randrange(3, 8))
        for itemsize in (4, 2, 4, 2)
    ]
    # A program without a row still stores its sums, which are 0.
    calls += [(1, rng.randrange(3, 40), 2, 3), (rng.randrange(3, 9), 1, 4, 1)]
    told: tuple[list[Told], list[Told]] = ([], [])
    for args in calls:
        sentence = asked(attempt, args)
        both = pair(answered(attempt, *args), sentence, "(first, second)")
        for numbers, value, right, which in zip(
            told, both, counted_backward(*args), ("first", "second"), strict=True
        ):
            number = whole(value, sentence, f"the bytes of the {which} launch")
            numbers.append(Told(sentence, args, number, right))
    for numbers, mistakes, which in zip(told, (_FIRST, _SECOND), ("first", "second"), strict=True):
        if wrong := first_wrong(numbers):
            off = abs(int(wrong.got - wrong.right))
            less = "fewer" if wrong.got < wrong.right else "more"
            raise Wrong(
                f"{wrong.label}: the {which} launch has {wrong.got:,} bytes in your count; the "
                f"ledger counted {wrong.right:,}, you have {off:,} {less}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"equal to the ledger of {len(calls)} backward passes, launch by launch")
