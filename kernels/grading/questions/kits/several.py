"""Asking for several whole numbers at once, each with mistakes of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    several,
    whole,
)


def grade_several(
    attempt: Attempt,
    calls: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    right: Sequence[Callable[..., int]],
    mistakes: Sequence[Sequence[Mistake]],
    unit: str = "",
) -> None:
    """Ask for the tuple of `names` on each call; `Wrong` names the first number that is none.

    right: a formula for each name; mistakes: what wrong formulas of it mean. unit: as " bytes".
    """
    told: list[list[Told]] = [[] for _ in names]
    for args in calls:
        label = asked(attempt, args)
        values = several(answered(attempt, *args), names, label)
        for numbers, value, name, formula in zip(told, values, names, right, strict=True):
            numbers.append(Told(label, args, whole(value, label, name), formula(*args)))
    for numbers, known, name in zip(told, mistakes, names, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,}{unit}; it is {wrong.right:,}{unit}.",
                meaning(known, numbers),
            )
    attempt.held.append(f"{', '.join(names)} of {len(calls)} calls")
