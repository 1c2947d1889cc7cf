"""02.1: the bytes of eager LayerNorm, predicted, and held against the ledger of its operators."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from kernels.grading.checks import call
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.lab.counting.op_ledger import count_op
from kernels.ops.norms.layernorm import OP
from kernels.registry import dtype_name

Bytes = Callable[[int, int, int], int]


def _right(rows: int, cols: int, size: int) -> int:
    # 48 bytes an element and 32 a row in fp32; in 16 bits two conversions of 6 an element each.
    convert = 12 * rows * cols if size == 2 else 0
    return 48 * rows * cols + 32 * rows + 2 * cols * size + convert


def _half(size: int) -> int:
    return 1 if size == 2 else 0


# What a wrong formula left out, or counted too much, and the number it then gives.
_BYTE_MISTAKES: tuple[tuple[str, Bytes], ...] = (
    (
        "The small tensors of shape (rows, 1) are missing: mean, variance and what follows from "
        "them are written, and read again.",
        lambda r, n, s: _right(r, n, s) - 32 * r,
    ),
    (
        "Weight and bias are missing: each is read once.",
        lambda r, n, s: _right(r, n, s) - 2 * n * s,
    ),
    (
        "The small tensors are missing: the statistics of shape (rows, 1), weight and bias.",
        lambda r, n, s: _right(r, n, s) - 32 * r - 2 * n * s,
    ),
    (
        "The adding of eps is missing: it reads the variance and writes a new tensor of it.",
        lambda r, n, s: _right(r, n, s) - 8 * r,
    ),
    (
        "The two conversions are missing: a 16-bit x is read and written as fp32 at the start, "
        "and y the other way at the end.",
        lambda r, n, s: _right(r, n, s) - 12 * r * n * _half(s),
    ),
    (
        "One of the two conversions is missing: there is one at the start and one at the end.",
        lambda r, n, s: _right(r, n, s) - 6 * r * n * _half(s),
    ),
    (
        "The conversions are counted for fp32 too: a tensor that has the dtype already is "
        "returned as it is.",
        lambda r, n, s: _right(r, n, s) + 16 * r * n * (1 - _half(s)),
    ),
    (
        "Only reads are counted: every operator also writes its result.",
        lambda r, n, s: 28 * r * n + 16 * r + 2 * n * s + 6 * r * n * _half(s),
    ),
    (
        "Only writes are counted: every operator also reads its operands.",
        lambda r, n, s: 20 * r * n + 16 * r + 6 * r * n * _half(s),
    ),
    (
        "The tensors in between are counted in x's dtype: from the first conversion to the last "
        "they are fp32, 4 bytes an element.",
        lambda r, n, s: s * (12 * r * n + 8 * r + 2 * n),
    ),
    (
        "The tensors in between are counted in x's dtype: from the first conversion to the last "
        "they are fp32, 4 bytes an element.",
        lambda r, n, s: s * (12 * r * n + 8 * r + 2 * n) + 4 * s * r * n * _half(s),
    ),
    (
        "Weight and bias are counted as fp32: they have x's dtype.",
        lambda r, n, s: _right(r, n, s) + 2 * n * (4 - s),
    ),
    (
        "Broadcast operands are counted once a row: an operator reads each element of weight and "
        "bias once.",
        lambda r, n, s: _right(r, n, s) + 2 * (r - 1) * n * s,
    ),
    (
        "Broadcast operands are counted as if they had x's shape: an operator reads each of their "
        "elements once.",
        lambda r, n, s: _right(r, n, s) + 2 * (r - 1) * n * s + 8 * r * (n - 1),
    ),
    (
        "The square reads centred twice in your count: it is one tensor, and counts once.",
        lambda r, n, s: _right(r, n, s) + 4 * r * n,
    ),
    (
        "That is the ideal: each input once, each output once. Eager moves every tensor in "
        "between as well.",
        lambda r, n, s: 2 * (r + 1) * n * s,
    ),
)


def _counted(rows: int, cols: int, dtype: torch.dtype) -> int:
    return count_op(OP, "eager", (rows, cols), dtype).bytes_unique


def grade_bytes(attempt: Attempt) -> None:
    """Grade `eager_bytes(rows, cols, itemsize)` at random shapes in every dtype."""
    rng = random.Random(attempt.seed)
    # No two of a mistake's terms can be mistaken for one another at sizes this far apart.
    shapes = [(rng.randrange(900, 9000), rng.randrange(1000, 9000)) for _ in range(2)]
    shapes += [(1, rng.randrange(2, 9000)), (rng.randrange(2, 9000), 1)]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for rows, cols in shapes:
            told = call(attempt, rows, cols, dtype.itemsize)
            asked = f"{attempt.name}({rows}, {cols}, {dtype.itemsize})"
            if told is None or told is ...:
                raise NotAnswered
            if type(told) is not int:
                what = f" {told!r}" if type(told) is float else ""
                kind = f"a {type(told).__name__}{what}"
                raise Wrong(
                    f"{asked} returned {kind}; a number of bytes is an int.",
                    "A division with / makes a float." if type(told) is float else "",
                )
            counted = _counted(rows, cols, dtype)
            if told != counted:
                raise _wrong_bytes(asked, told, counted, (rows, cols, dtype.itemsize))
        attempt.held.append(f"equal to the ledger in {dtype_name(dtype)}, at {len(shapes)} shapes")


def _spread(off: int, rows: int, cols: int) -> str:
    """In words, the bytes too many for each element, row and column; "" if they are no such sum."""
    if min(rows, cols) < 900:  # in a small shape the three can be mistaken for one another
        return ""
    fits = []
    for element in range(-64, 65, 2):
        rest = off - element * rows * cols
        for row in range(-128, 129, 2):
            column, odd = divmod(rest - row * rows, cols)
            if not odd and abs(column) <= 16:
                fits.append((element, row, column))
    if not fits:
        return ""
    element, row, column = min(fits, key=lambda fit: abs(fit[1]) + abs(fit[2]))
    parts = [
        f"{abs(number)} bytes too {'many' if number > 0 else 'few'} for each {what}"
        for number, what in ((element, "element of x"), (row, "row"), (column, "column"))
        if number
    ]
    where = {
        (True, False): " A tensor of shape (rows, 1) takes 4 bytes a row each time that an "
        "operator reads it, and 4 where it is written.",
        (False, True): " Bytes for each column are those of weight and bias.",
    }.get((not element and not column, not element and not row), "")
    return f"That is {', and '.join(parts)}.{where}"


def _wrong_bytes(asked: str, told: int, counted: int, args: tuple[int, int, int]) -> Wrong:
    if abs(told) >= 2**63:  # Python refuses to print the largest of these
        return Wrong(f"{asked} is beyond 2**63; the ledger counted {counted:,} bytes.")
    off = abs(told - counted)
    less = "less" if told < counted else "more"
    means = next((what for what, wrong in _BYTE_MISTAKES if wrong(*args) == told), "")
    means = means or _spread(told - counted, *args[:2])
    return Wrong(
        f"{asked} is {told:,}; the ledger counted {counted:,} bytes, you have {off:,} {less}.",
        means,
    )
