"""Asking for numbers, and naming a mistake by all the numbers that it gave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch

from kernels.grading.checks import call
from kernels.grading.question import Attempt, NotAnswered, Wrong

# What a wrong formula means, and the formula: called with the question's arguments.
Mistake = tuple[str, Callable[..., float]]

_INTS = (int, np.int64, np.int32)
_FLOATS = (float, np.float64, np.float32)


class Told(NamedTuple):
    """One number of an answer: the call as a sentence names it, its arguments, and the right one.

    Whole numbers must be equal, others may differ by roundings.
    """

    label: str
    args: tuple[Any, ...]
    got: float
    right: float

    @property
    def holds(self) -> bool:
        """Whether the number is the right one."""
        return same(self.got, self.right)


def same(a: float, b: float) -> bool:
    """Whether two ints are equal; where one number is no int, whether they differ by roundings."""
    if type(a) is int and type(b) is int:
        return a == b
    # Wide enough for fp32; the known mistakes are off by far more.
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=0.0)


def first_wrong(told: Sequence[Told]) -> Told | None:
    """The first number that is not the right one."""
    return next((number for number in told if not number.holds), None)


def meaning(mistakes: Sequence[Mistake], told: Sequence[Told]) -> str:
    """What the first mistake means that gives every number that was told; "" if none does."""
    for means, formula in mistakes:
        if all(same(formula(*number.args), number.got) for number in told):
            return means
    # A result that rounding takes to 0 tells nothing about the formula.
    near = all(math.isclose(t.got, t.right, rel_tol=0.1) for t in told)
    if near and any(all(same(round(t.right, n), t.got) for t in told) for n in range(7)):
        return "The formula is right, and its result is rounded: return the number as it comes out."
    return ""


def asked(attempt: Attempt, args: Sequence[Any]) -> str:
    """The call as a sentence shows it: `add_bytes(3, 4, 2)`."""
    return f"{attempt.name}({', '.join(repr(arg) for arg in args)})"


def answered(attempt: Attempt, *args: Any) -> Any:
    """Call the reader's function; NotAnswered if it gives nothing."""
    result = call(attempt, *args)
    if result is None or result is ...:
        raise NotAnswered
    return result


def kind(value: Any) -> str:
    """The type of a value, with its article: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def real(value: Any, label: str, what: str) -> float:
    """`value` as a finite float; `Wrong` names `label`, the call, and `what` it should be."""
    if type(value) not in (*_INTS, *_FLOATS, Fraction):
        raise Wrong(f"{label} returned {kind(value)}; {what} is a number.")
    if type(value) not in _FLOATS and abs(value) >= 2**63:  # float() raises on the largest
        raise Wrong(f"{label} returned a number beyond 2**63 as {what}.")
    if not math.isfinite(value):
        raise Wrong(f"{label} returned {float(value)!r} as {what}.")
    return float(value)


def whole(value: Any, label: str, what: str) -> int:
    """`value` as an int; `Wrong` for anything else, a float included."""
    if type(value) in _INTS:
        real(value, label, what)
        return int(value)
    shown = f" {float(value)!r}" if type(value) in _FLOATS else ""
    raise Wrong(
        f"{label} returned {kind(value)}{shown}; {what} is an int.",
        "A division with / makes a float: // divides whole numbers." if shown else "",
    )


def several(value: Any, names: Sequence[str], label: str) -> tuple[Any, ...]:
    """`value` as a tuple with an element for each of `names`; `Wrong` for anything else."""
    if type(value) not in (tuple, list) or len(value) != len(names):
        size = f" of {len(value)}" if type(value) in (tuple, list) else ""
        raise Wrong(
            f"{label} returned {kind(value)}{size}; it takes the tuple ({', '.join(names)})."
        )
    return tuple(value)


def pair(value: Any, label: str, what: str) -> tuple[Any, Any]:
    """`value` as a tuple of two; `what` names them, as `(seconds, flops_per_s)`."""
    if type(value) not in (tuple, list) or len(value) != 2:
        size = f" of {len(value)}" if type(value) in (tuple, list) else ""
        raise Wrong(f"{label} returned {kind(value)}{size}; it takes the tuple {what}.")
    return value[0], value[1]


def shapeless(*shape: int, itemsize: int) -> torch.Tensor:
    """A tensor without memory, to be counted: fp32 for an `itemsize` of 4, fp16 for 2."""
    dtype = torch.float32 if itemsize == 4 else torch.float16
    return torch.empty(shape, dtype=dtype, device="meta")
