"""11.10: the largest mean at which what folding does to it still hides in the output's rounding."""

from __future__ import annotations

import math
import random

import torch

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    first_wrong,
    meaning,
    real,
    several,
)
from kernels.registry import DTYPES

_FP32 = 2.0**-24  # half of the distance of numbers near 1, relative: what a rounding loses
Row = list[float]


def unit(dtype: str) -> float:
    """Return the most that rounding to a dtype changes a number, relative to it."""
    return torch.finfo(DTYPES[dtype]).eps / 2


def rounded(row: Row, dtype: str) -> Row:
    """Return the numbers of a row, each rounded to a dtype."""
    return [float(one) for one in torch.tensor(row, dtype=torch.float64).to(DTYPES[dtype])]


def size(row: Row) -> float:
    """Return the root of the sum of squares."""
    return math.sqrt(math.fsum(one * one for one in row))


def centred(row: Row) -> Row:
    """Return a row less its mean."""
    mean = math.fsum(row) / len(row)
    return [one - mean for one in row]


def of_unrounded(row: Row, std: float, dtype: str) -> float:
    """Return the largest mean where c is summed over unrounded weights."""
    left = abs(math.fsum(rounded(row, dtype)) - math.fsum(row))
    return unit(dtype) * size(rounded(row, dtype)) * std / left


def of_rounded(row: Row, std: float, dtype: str) -> float:
    """Return the largest mean where c is summed over the rounded weights."""
    kept = rounded(row, dtype)
    return unit(dtype) * size(kept) * std / (_FP32 * abs(math.fsum(kept)))


def of_centred(row: Row, std: float, dtype: str) -> float:
    """Return the largest mean where the row was centred before it was rounded."""
    return of_rounded(centred(row), std, dtype)


_EPS = "A rounding loses half of eps at most: u is torch.finfo(dtype).eps / 2."
_STD = "The mean counts in units of the row's std: y is divided by it."
_NOT_STD = "Multiply by std: with twice the spread, twice the mean does the same harm."
_SIZE = "The size of an output is the root of the sum of squares of its rounded weights."
_DELTA = (
    "What is left is the sum of the rounded weights less that of the unrounded ones, signs and all."
)
_BEFORE = "The size is the norm of the rounded row; yours is that of the row before rounding."
_MISTAKES: tuple[tuple[Mistake, ...], ...] = (
    (
        (_EPS, lambda r, s, d: 2 * of_unrounded(r, s, d)),
        (_NOT_STD, lambda r, s, d: of_unrounded(r, s, d) / s),
        (_STD, lambda r, s, d: of_unrounded(r, s, d) / s**2),
        ("That is the largest mean with rounded sums.", of_rounded),
        (
            _DELTA,
            lambda r, s, d: (
                unit(d)
                * size(rounded(r, d))
                * s
                / math.fsum(abs(a - b) for a, b in zip(r, rounded(r, d), strict=True))
            ),
        ),
        (_BEFORE, lambda r, s, d: of_unrounded(r, s, d) * size(r) / size(rounded(r, d))),
        (_SIZE, lambda r, s, d: of_unrounded(r, s, d) / size(rounded(r, d))),
        (_SIZE, lambda r, s, d: of_unrounded(r, s, d) * size(rounded(r, d))),
        (_SIZE, lambda r, s, d: of_unrounded(r, s, d) / math.sqrt(len(r))),
        (
            "u is missing: the error has to hide in a rounding of y.",
            lambda r, s, d: of_unrounded(r, s, d) / unit(d),
        ),
        (
            "That takes fp32's rounding: unrounded sums are off by far more.",
            lambda r, s, d: of_unrounded(r, s, d) / _FP32,
        ),
    ),
    (
        (_EPS, lambda r, s, d: 2 * of_rounded(r, s, d)),
        (
            "fp32 has 24 binary digits: a rounding loses 2⁻²⁴.",
            lambda r, s, d: of_rounded(r, s, d) / 2,
        ),
        (_NOT_STD, lambda r, s, d: of_rounded(r, s, d) / s),
        (_BEFORE, lambda r, s, d: of_rounded(r, s, d) * size(r) / size(rounded(r, d))),
        (_SIZE, lambda r, s, d: of_rounded(r, s, d) / size(rounded(r, d))),
        (_SIZE, lambda r, s, d: of_rounded(r, s, d) / math.sqrt(len(r))),
        (
            "fp32's rounding is missing: mean · c is off by 2⁻²⁴ of itself.",
            lambda r, s, d: of_rounded(r, s, d) * _FP32,
        ),
        (
            "u is missing: the error has to hide in a rounding of y.",
            lambda r, s, d: of_rounded(r, s, d) / unit(d),
        ),
        (
            "c is the sum with its signs, not the sum of magnitudes.",
            lambda r, s, d: (
                of_rounded(r, s, d)
                * abs(math.fsum(rounded(r, d)))
                / math.fsum(abs(one) for one in rounded(r, d))
            ),
        ),
        ("That is the largest mean with unrounded sums.", of_unrounded),
        (
            "c is the sum of the rounded weights: here it was taken of the row as it was given.",
            lambda r, s, d: of_rounded(r, s, d) * math.fsum(rounded(r, d)) / math.fsum(r),
        ),
    ),
    (
        (_EPS, lambda r, s, d: 2 * of_centred(r, s, d)),
        ("That is the row as it was: centred it has another sum.", of_rounded),
        (
            "The rounded row was centred. Its rounding comes last, for the product takes 16 bits.",
            lambda r, s, d: of_rounded(centred(rounded(r, d)), s, d),
        ),
        (
            "The size of an output is that of the centred row, whose outputs these are.",
            lambda r, s, d: (
                of_centred(r, s, d) * size(rounded(r, d)) / size(rounded(centred(r), d))
            ),
        ),
        (
            _BEFORE,
            lambda r, s, d: of_centred(r, s, d) * size(centred(r)) / size(rounded(centred(r), d)),
        ),
        (_NOT_STD, lambda r, s, d: of_centred(r, s, d) / s),
        (
            "fp32's rounding is missing: mean · c is off by 2⁻²⁴ of itself.",
            lambda r, s, d: of_centred(r, s, d) * _FP32,
        ),
    ),
)


def _leaves_something(row: Row, dtype: str) -> bool:
    """Whether rounding leaves something of each sum: where it leaves nothing any mean will do."""
    left = math.fsum(rounded(row, dtype)) - math.fsum(row)
    sums = (left, math.fsum(rounded(row, dtype)), math.fsum(rounded(centred(row), dtype)))
    return all(abs(one) > 1e-6 for one in sums)


def _calls(rng: random.Random) -> list[tuple[Row, float, str]]:
    calls: list[tuple[Row, float, str]] = []
    for dtype in ("fp16", "bf16", "bf16", "fp16"):
        row: Row = [0.0]
        while not _leaves_something(row, dtype):
            count = rng.randrange(20, 60)
            row = [0.02 + rng.gauss(0.0, 1.0) / math.sqrt(count) for _ in range(count)]
        calls.append((row, round(rng.uniform(0.5, 3.0), 2), dtype))
    return calls


def grade_bounds(attempt: Attempt) -> None:
    """Grade `largest_means(row, std, dtype)`: (unrounded, rounded, centred)."""
    names = ("unrounded", "rounded", "centred")
    rights = (of_unrounded, of_rounded, of_centred)
    told: tuple[list[Told], ...] = ([], [], [])
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        row, std, dtype = args
        label = f"{attempt.name}(a row of {len(row)}, {std!r}, {dtype!r})"
        values = several(answered(attempt, list(row), std, dtype), names, label)
        for numbers, value, right, name in zip(told, values, rights, names, strict=True):
            numbers.append(Told(label, args, real(value, label, name), right(*args)))
    for numbers, mistakes, name in zip(told, _MISTAKES, names, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:.6g}; it is {wrong.right:.6g}.",
                meaning(mistakes, numbers) or _in_fp32(numbers),
            )
    attempt.held.append(f"the largest means of {len(calls)} outputs, three ways")


def _in_fp32(told: list[Told]) -> str:
    near = all(math.isclose(one.got, one.right, rel_tol=0.05) for one in told)
    return "It is right, or nearly: compute in float64, sums too." if near else ""
