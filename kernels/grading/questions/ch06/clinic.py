"""06.2: the clinic. What ails a kernel is told by experiments alone, before its code is seen."""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

import torch

from kernels.grading.checks import call
from kernels.grading.closeness import relative_error, wrong_elements
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.ch06.patients import PATIENTS
from kernels.grading.questions.kits.layer_norm import norm_tolerance
from kernels.grading.questions.kits.numbers import kind
from kernels.lab.counting import traffic
from kernels.ops.norms.layernorm import reference
from kernels.registry import DTYPES

Tensor = torch.Tensor

ILLNESSES = tuple(PATIENTS)
_EPS = 1e-5
_MOST = 8
_ELEMENTS = 65536


class Trial(NamedTuple):
    """What one experiment showed.

    `right` says whether every element is within the rounding of fp32 sums and of the dtype, and
    `error` is ‖y − reference‖ / ‖reference‖: inf if an element was never stored. `stored` is the
    share of y's bytes that the launch wrote, `times_read` how often it asked for a byte of x.
    `mean` and `spread` are those of all of y.
    """

    right: bool
    error: float
    stored: float
    times_read: float
    mean: float
    spread: float


def drawn_rows(rows: int, cols: int, mean: float, generator: torch.Generator) -> Tensor:
    """Return random rows with a spread near 1 and a mean near `mean`, 0 for 0, in float64."""
    x = torch.randn(rows, cols, generator=generator, dtype=torch.float64)
    x -= x.mean(-1, keepdim=True)
    # A tenth either way: the roundings of a round mean could cancel.
    near = 0.9 + 0.2 * torch.rand(rows, 2, generator=generator, dtype=torch.float64)
    return mean * near[:, :1] + x * near[:, 1:] / x.std(-1, correction=0, keepdim=True)


def _integer(value: Any, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} is {value!r}; it takes an int from {least} to {most:,}")
    return value


class Patient:
    """A kernel that nobody has seen: call it with an input of your choice, and get a `Trial`."""

    def __init__(self, illness: str, seed: int) -> None:
        self._launch = PATIENTS[illness]
        self._generator = torch.Generator().manual_seed(seed)
        self.calls: list[str] = []

    def __call__(self, rows: int, cols: int, dtype: str = "fp32", mean: float = 0.0) -> Trial:
        """Run the kernel once on random rows, each with about that mean and a spread of about 1.

        Where `mean` is 0, the mean of each row is 0 too, to the last bits.

        rows: from 1, cols: from 16, at most 65536 elements together. dtype: "fp32", "fp16" or
        "bf16". mean: from -10000 to 10000. ValueError names what it got instead.
        """
        rows = _integer(rows, "rows", 1, _ELEMENTS)
        cols = _integer(cols, "cols", 16, _ELEMENTS)
        if rows * cols > _ELEMENTS:
            raise ValueError(f"{rows} rows of {cols} are more than {_ELEMENTS:,} elements")
        if type(dtype) is not str or dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}; it takes one of {', '.join(DTYPES)}")
        if type(mean) not in (int, float) or not -1e4 <= mean <= 1e4:
            raise ValueError(f"mean is {mean!r}; it takes a number from -10000 to 10000")
        x = drawn_rows(rows, cols, mean, self._generator).to(DTYPES[dtype])
        self.calls.append(f"({rows}, {cols}) in {dtype} with mean {mean:g}")
        return self.examined(x)

    def examined(self, x: Tensor) -> Trial:
        """Run the kernel on x (rows, cols) and hold its output against float64."""
        y = torch.full_like(x, math.nan)
        (step,) = traffic.count(self._launch, x, y, _EPS)
        exact = reference(x, eps=_EPS)
        wrong = wrong_elements(y, exact, norm_tolerance({"x": x}, _EPS))
        stored = step.tensor("y").write_unique / (y.numel() * y.itemsize)
        times_read = step.tensor("x").times_read
        mean, spread = float(y.double().mean()), float(y.double().std(correction=0))
        right = not bool(wrong.any())
        return Trial(right, relative_error(y, exact), stored, times_read, mean, spread)


def ward(seed: int) -> list[Patient]:
    """Return a patient with each illness and a healthy one, in random order."""
    rng = random.Random(seed)
    return [Patient(name, rng.getrandbits(31)) for name in rng.sample(ILLNESSES, len(ILLNESSES))]


_TELLS = {
    "low precision": "It is right in fp32 whatever the row. It fails where 16 bits have to hold a "
    "large sum: with a mean that is not 0, the more so with many columns.",
    "powers of two": "It fails on each width that is no power of two, on rows of mean 0 as well.",
    "missing mask": "It fails on a width that is no power of two, unless the mean is 0: the lanes "
    "beyond the row add mean² each, and that is nothing there.",
    "one pass": "It fails in fp32 where the mean is large against the spread, on each width.",
    "wrong axis": "It is wrong on the plainest input: rows of mean 0, 64 wide, in fp32.",
    "stale tail": "Not all of y is stored on some widths. The ledger says so: `stored` is below 1.",
    "healthy": "It is right on every input there is.",
}
_SAME = {
    frozenset(("powers of two", "missing mask")): "Both fail on widths that are no power of two. "
    "Rows of mean 0 on such a width tell them apart: without the mean, lanes beyond the row add 0.",
    frozenset(("one pass", "missing mask")): "Both fail where the mean is large. A width that is a "
    "power of two has no lanes beyond the row: there a missing mask does no harm.",
    frozenset(("powers of two", "stale tail")): "Both fail on widths that are no power of two. "
    "Only one of them leaves part of y unstored.",
    frozenset(("one pass", "low precision")): "Both fail where the mean is large. fp32 and a mean "
    "that 16 bits can hold tell them apart.",
}


def _asked_too_often(name: str, patient: Patient) -> Wrong:
    return Wrong(
        f"{name} made {len(patient.calls)} experiments on one kernel; {_MOST} will do.",
        "Six illnesses and one healthy kernel: choose experiments that split them into halves.",
    )


def _experiments(patient: Patient) -> str:
    if not patient.calls:
        return "It made no experiment."
    return f"It tried {'; '.join(patient.calls)}."


def grade_illness(attempt: Attempt) -> None:
    """Grade `illness(examine)` on each patient, and on some of them once more."""
    rng = random.Random(attempt.seed)
    beds = [*ILLNESSES, *rng.sample(ILLNESSES, 3)]
    said: list[str] = []
    for right in beds:
        patient = Patient(right, rng.getrandbits(31))
        told = call(attempt, patient)
        if told is None or told is ...:
            raise NotAnswered
        if type(told) is not str or told not in ILLNESSES:
            got = repr(told[:40]) if type(told) is str else kind(told)
            known = ", ".join(repr(name) for name in ILLNESSES)
            raise Wrong(f"{attempt.name} returned {got}; a verdict is one of {known}.")
        said.append(told)
        if len(patient.calls) > _MOST:
            raise _asked_too_often(attempt.name, patient)
        if told != right:
            raise Wrong(
                f"{attempt.name} says {told!r} of a kernel that is {_ails(right)}. "
                f"{_experiments(patient)}",
                _SAME.get(frozenset((told, right)), _TELLS[right]),
            )
    attempt.held.append(f"the verdict on {len(beds)} kernels, by experiments alone")


def _ails(illness: str) -> str:
    return "healthy" if illness == "healthy" else f"ill with {illness!r}"
