"""What 12.3 and 12.10 ask alike: two whole numbers of a call, and whether something holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Told,
    answered,
    asked,
    kind,
    several,
    whole,
)


class Asked(NamedTuple):
    """One of the three: what the tuple calls it, what a sentence does, and what is right."""

    name: str
    what: str
    right: Callable[..., Any]


class Flag(NamedTuple):
    """What was said of one call by True or False, and what holds."""

    label: str
    got: bool
    right: bool


def two_and_a_flag(
    attempt: Attempt, calls: Sequence[tuple[Any, ...]], three: tuple[Asked, Asked, Asked]
) -> tuple[tuple[list[Told], list[Told]], list[Flag]]:
    """Ask for (int, int, bool) at each call: both numbers of all calls, and all flags.

    `Wrong` where an answer is no such tuple. Whether it is right isn't looked at.
    """
    told: tuple[list[Told], list[Told]] = ([], [])
    flags = []
    flag = three[2]
    for args in calls:
        label = asked(attempt, args)
        *counts, holds = several(answered(attempt, *args), [one.name for one in three], label)
        for numbers, value, one in zip(told, counts, three[:2], strict=True):
            got = whole(value, label, one.what)
            numbers.append(Told(label, args, got, one.right(*args)))
        if type(holds) not in (bool, np.bool_):
            raise Wrong(f"{label} returned {kind(holds)} as {flag.what}; it is True or False.")
        flags.append(Flag(label, bool(holds), flag.right(*args)))
    return told, flags


def hold(flags: Sequence[Flag], name: str, means: str) -> None:
    """Raise `Wrong`, with what it means, at the first flag that isn't what holds."""
    for label, got, right in flags:
        if got != right:
            raise Wrong(f"{label}: {name} is {got} and should be {right}.", means)
