"""A right answer passes, whatever a notebook has set, and a reader doesn't wait long for that."""

import os
from collections.abc import Sequence
from typing import Any

from kernels.grading import check
from tests.grading.amid import AT_ONCE, Setting, amid

MOST_SECONDS = 5.0


def assert_passes_soon(
    question: str, answer: Any, seed: int | None = None, around: tuple[Setting, ...] = ()
) -> None:
    """Check a right answer amid settings: it passes within `MOST_SECONDS` of a processor.

    A check runs in a process of its own, so that other work on the machine doesn't count.
    """
    before = os.times()
    with amid(around):
        result = check(question, answer, seed=seed)
    took = sum(os.times()[:4]) - sum(before[:4])
    assert result.passed, (result, around)
    assert took < MOST_SECONDS, f"{question} took {took:.1f} s"


def assert_all_pass_soon(question: str, answers: Sequence[Any]) -> None:
    """Check right answers: the first without a seed, as a reader does, the others from seed 0.

    The first has nothing set around it; then come those of `AT_ONCE`, in turn, each at least once.
    """
    for place in range(max(len(answers), len(AT_ONCE))):
        answer, around = answers[place % len(answers)], AT_ONCE[place % len(AT_ONCE)]
        assert_passes_soon(question, answer, seed=place - 1 if place else None, around=around)
