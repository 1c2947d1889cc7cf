"""02.8: rows that show one fault of a LayerNorm each, and hide four others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton

from kernels.grading.checks import call
from kernels.grading.closeness import told as number
from kernels.grading.question import Attempt, NotAnswered, Wrong

Tensor = torch.Tensor

# An output is wrong beyond the one error, and right below the other; between them it is neither.
WRONG, RIGHT = 0.05, 0.01
_MOST = 4096


def _two_sums(x: Tensor, eps: float) -> Tensor:
    mean = x.mean()
    variance = (x * x).mean() - mean * mean
    return (x - mean) * torch.rsqrt(variance + eps)


def _idle_lanes(x: Tensor, eps: float) -> Tensor:
    n = x.numel()
    mean = x.sum() / n
    lanes = torch.zeros(triton.next_power_of_2(n))
    lanes[:n] = x
    variance = ((lanes - mean) ** 2).sum() / n
    return (x - mean) * torch.rsqrt(variance + eps)


def _half_squares(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean()
    squares = centred.half() ** 2
    return centred * torch.rsqrt(squares.float().mean() + eps)


def _n_minus_one(x: Tensor, eps: float) -> Tensor:
    return (x - x.mean()) * torch.rsqrt(x.var(correction=1) + eps)


def _eps_outside(x: Tensor, eps: float) -> Tensor:
    return (x - x.mean()) / (x.std(correction=0) + eps)


FAULTY: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "two sums": _two_sums,
    "idle lanes": _idle_lanes,
    "half squares": _half_squares,
    "n minus one": _n_minus_one,
    "eps outside": _eps_outside,
}
_RIGHT = "a right LayerNorm in fp32"


def _exact(x: Tensor, eps: float) -> Tensor:
    x = x.double()
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + eps)


def _in_two_passes(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean()
    return centred * torch.rsqrt((centred * centred).mean() + eps)


def errors(x: Tensor, eps: float) -> dict[str, float]:
    """Return the relative error of each faulty LayerNorm on a row, and of a right one in fp32.

    x: (n,) in fp32, not all equal. An output that isn't finite has an infinite error.
    """
    exact = _exact(x, eps)
    norm = float(exact.norm())

    def error(output: Tensor) -> float:
        off = float((output.double() - exact).norm()) / norm
        return off if math.isfinite(off) else math.inf

    found = {name: error(faulty(x, eps)) for name, faulty in FAULTY.items()}
    return {_RIGHT: error(_in_two_passes(x, eps))} | found


# Why a fault stays hidden on a row, and why it shows on one that was meant for another.
_HIDDEN = {
    "two sums": "It takes the square of the mean from the mean of the squares. Both have a "
    "rounding of about mean² / 2²⁴, which harms only where the variance is no larger than that.",
    "idle lanes": "Each lane beyond the row adds mean² to the sum of squares. That harms only "
    "where there are such lanes, and where mean² counts beside the variance.",
    "half squares": "fp16 keeps three digits, which is enough here. It harms where a square has "
    "no place in fp16: the largest number there is 65,504.",
    "n minus one": "The variance comes out n / (n - 1) times too large. That harms only where n "
    "is small.",
    "eps outside": "√(var + eps) and √var + eps are nearly equal where the variance is large "
    "against eps. They differ where both are small alike.",
}
_SHOWN = {
    "two sums": "The mean is large against the spread.",
    "idle lanes": "The row has lanes beyond it, and a mean that is not small.",
    "half squares": "The squares leave the range of fp16: above 65,504, or among its smallest "
    "numbers with no eps to cover them.",
    "n minus one": "The row is short: n / (n - 1) is not near 1.",
    "eps outside": "The variance is small, of the size of eps.",
    _RIGHT: "The row is so far from 0 that its mean itself, rounded to fp32, is off by a good "
    "part of the spread. Every method in fp32 fails there.",
}


def _spread_lost(value: Tensor) -> str:
    """Where fp32 can't hold a spread of 1 around a value: how far apart it has its numbers."""
    apart = float(torch.nextafter(value.abs(), torch.tensor(torch.inf)) - value.abs())
    if apart < 1:
        return ""
    return (
        f" If you added a spread: fp32 keeps 7 digits, and near {number(float(value))} its "
        f"neighbours lie {number(apart)} apart."
    )


def _row(attempt: Attempt, fault: str, eps: float) -> Tensor:
    """The reader's row for a fault; `Wrong` if it is no row of 2 to 4096 numbers."""
    asked = f"{attempt.name}({fault!r}, {eps:.1e})"
    row: Any = call(attempt, fault, eps)
    if row is None or row is ...:
        raise NotAnswered
    takes = f"a row is a torch.Tensor of shape (n,) in fp32, with n from 2 to {_MOST}"
    if type(row) is not torch.Tensor:
        raise Wrong(f"{asked} returned a {type(row).__name__}; {takes}.")
    if row.dtype != torch.float32 or row.dim() != 1 or not 2 <= row.numel() <= _MOST:
        raise Wrong(f"{asked} returned the shape {tuple(row.shape)} in {row.dtype}; {takes}.")
    row = row.detach().cpu().contiguous()
    if not bool(row.isfinite().all()):
        raise Wrong(f"{asked} returned a row with numbers that are not finite.")
    if bool((row == row[0]).all()):
        raise Wrong(
            f"{asked} returned a row of equal numbers.",
            "Its LayerNorm is 0 everywhere, and an error has nothing to be measured against."
            + _spread_lost(row[0]),
        )
    return row


def grade_counterexamples(attempt: Attempt) -> None:
    """Grade `counterexample(fault, eps)`: each row shows its fault and none of the others."""
    rng = random.Random(attempt.seed)
    for fault in FAULTY:
        for _ in range(3):
            eps = 10 ** rng.uniform(-6, -3)
            _grade_row(attempt, fault, eps)
        attempt.held.append(f"a row that shows {fault!r} alone, for three eps")


def _grade_row(attempt: Attempt, fault: str, eps: float) -> None:
    x = _row(attempt, fault, eps)
    off = errors(x, eps)
    wide = x.double()
    row = (
        f"{attempt.name}({fault!r}, {eps:.1e}), a row of {x.numel()} with mean "
        f"{number(float(wide.mean()))} and spread {number(float(wide.std(correction=0)))}"
    )
    if off[fault] <= WRONG:
        raise Wrong(
            f"{row}: {fault!r} is off by {off[fault]:.2%} there; a row that shows it puts it off "
            f"by more than {WRONG:.0%}.",
            _HIDDEN[fault],
        )
    for other, error in off.items():
        if other != fault and error >= RIGHT:
            name = other if other == _RIGHT else repr(other)
            raise Wrong(
                f"{row}: {name} is off by {error:.2%} there as well; it has to stay below "
                f"{RIGHT:.0%}.",
                _SHOWN[other],
            )
