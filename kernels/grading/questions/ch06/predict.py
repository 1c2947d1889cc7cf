"""06.1: the distinct bytes of a residual sum and its RMSNorm, in two launches and in one."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, asked, pair, whole
from kernels.lab.counting import traffic

_DTYPES = {2: torch.float16, 4: torch.float32}
_Sizes = tuple[int, int, int]


@triton.jit
def add_kernel(x_ptr, residual_ptr, h_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store h = x + residual in fp32."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(h_ptr + offsets, x + tl.load(residual_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def norm_kernel(  # type: ignore[no-untyped-def]
    h_ptr, residual_ptr, weight_ptr, y_ptr, sum_ptr, n_cols, eps, BLOCK: tl.constexpr
):
    """Store the RMSNorm of h; with a residual, of h + residual, which is stored too."""
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    at = tl.program_id(0) * n_cols + cols
    h = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        h += tl.load(residual_ptr + at, mask=mask, other=0.0)
        tl.store(sum_ptr + at, h, mask=mask)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = h * tl.rsqrt(tl.sum(h * h, axis=0) / n_cols + eps) * weight
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


def counted(rows: int, cols: int, itemsize: int) -> tuple[int, int]:
    """Return the distinct bytes of real launches: of both kernels, and of the fused one."""
    x, y = (torch.zeros(rows, cols, dtype=_DTYPES[itemsize]) for _ in range(2))
    residual, h = torch.zeros(2, rows, cols)
    weight = torch.zeros(cols, dtype=_DTYPES[itemsize])
    block = triton.next_power_of_2(cols)

    def in_two() -> None:
        grid = (triton.cdiv(x.numel(), 1024),)
        add_kernel[grid](x, residual, h, x.numel(), BLOCK=1024)
        norm_kernel[(rows,)](h, None, weight, y, None, cols, 1e-5, BLOCK=block)

    def in_one() -> None:
        norm_kernel[(rows,)](x, residual, weight, y, h, cols, 1e-5, BLOCK=block)

    return traffic.count(in_two).bytes_unique, traffic.count(in_one).bytes_unique


def _two(rows: int, cols: int, size: int) -> int:
    return rows * cols * (2 * size + 12) + cols * size


def _one(rows: int, cols: int, size: int) -> int:
    return rows * cols * (2 * size + 8) + cols * size


_Mistakes = tuple[tuple[str, Callable[[int, int, int], int]], ...]
_WEIGHT = (
    "The weight counts once for each row. Its distinct bytes are those of one row, however many "
    "programs ask for them."
)
_NARROW = "The residual and h are fp32: 4 bytes an element, whatever x has."
_IN_TWO: _Mistakes = (
    (
        "h moves twice in two launches: the first writes it, the second reads it.",
        _one,
    ),
    (_WEIGHT, lambda r, n, s: r * n * (3 * s + 12)),
    (_NARROW, lambda r, n, s: r * n * 5 * s + n * s),
    ("The weight is missing.", lambda r, n, s: r * n * (2 * s + 12)),
    ("Those are elements, not bytes.", lambda r, n, s: r * n * 5 + n),
)
_IN_ONE: _Mistakes = (
    # First: with 2 bytes an element it gives the same number as an h that is not written.
    (_NARROW, lambda r, n, s: r * n * 4 * s + n * s),
    ("h is in registers when its row is normalised: one launch doesn't read it back.", _two),
    (
        "h is wanted behind the norm, as the next residual: one launch still writes it.",
        lambda r, n, s: r * n * (2 * s + 4) + n * s,
    ),
    (_WEIGHT, lambda r, n, s: r * n * (3 * s + 8)),
    ("The weight is missing.", lambda r, n, s: r * n * (2 * s + 8)),
    ("Those are elements, not bytes.", lambda r, n, s: r * n * 4 + n),
)


def grade_add_norm_bytes(attempt: Attempt) -> None:
    """Grade `add_norm_bytes(rows, cols, itemsize)`: (two launches, one), against real launches."""
    rng = random.Random(attempt.seed)
    sizes: list[_Sizes] = [(3, 64, 4), (3, 64, 2), (1, 1, 2)]
    sizes += [(rng.randrange(2, 9), rng.randrange(20, 900), rng.choice((2, 4))) for _ in range(4)]
    for size in sizes:
        sentence = asked(attempt, size)
        told = pair(answered(attempt, *size), sentence, "(in_two_launches, in_one)")
        names = ("in_two_launches", "in_one")
        for name, value, right, mistakes in zip(
            names, told, counted(*size), (_IN_TWO, _IN_ONE), strict=True
        ):
            number = whole(value, sentence, name)
            if number != right:
                means = next((what for what, f in mistakes if f(*size) == number), "")
                raise Wrong(
                    f"{sentence}: {name} is {number:,}; the ledger counted {right:,}.", means
                )
    attempt.held.append(f"equal to the ledgers of {len(sizes)} pairs of launches")
