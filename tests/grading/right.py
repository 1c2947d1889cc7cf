"""A right answer passes, and a reader doesn't wait long for that."""

import os
from collections.abc import Iterable
from typing import Any

from kernels.grading import check

MOST_SECONDS = 5.0


def assert_passes_soon(question: str, answer: Any, seed: int | None = None) -> None:
    """Check a right answer: it passes within `MOST_SECONDS` of a processor.

    A check runs in a process of its own, so that other work on the machine doesn't count.
    """
    before = os.times()
    result = check(question, answer, seed=seed)
    took = sum(os.times()[:4]) - sum(before[:4])
    assert result.passed, result
    assert took < MOST_SECONDS, f"{question} took {took:.1f} s"


def assert_all_pass_soon(question: str, answers: Iterable[Any]) -> None:
    """Check right answers: the first without a seed, as a reader does, the others from seed 0."""
    for place, answer in enumerate(answers):
        assert_passes_soon(question, answer, seed=place - 1 if place else None)
