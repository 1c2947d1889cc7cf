"""Asking for a verdict on things whose code nobody sees, found out by experiments alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kernels.grading.checks import call
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.numbers import kind


class Subject(Protocol):
    """What experiments are made on; `calls` says of each what it was made with."""

    calls: list[str]


def grade_verdicts(
    attempt: Attempt,
    verdicts: Sequence[str],
    made: Callable[[str, random.Random], Subject],
    most: int,
    tells: Mapping[str, str],
    pairs: Mapping[frozenset[str], str],
) -> None:
    """Ask for the verdict on a subject of each kind, and on some of them once more.

    made: makes a subject of a verdict. most: experiments on one. tells: how to know each verdict;
    pairs: what tells two apart, where a wrong one was given.
    """
    rng = random.Random(attempt.seed)
    beds = [*verdicts, *rng.sample(verdicts, 3)]
    rng.shuffle(beds)
    for right in beds:
        subject = made(right, rng)
        told = call(attempt, subject)
        if told is None or told is ...:
            raise NotAnswered
        if type(told) is not str or told not in verdicts:
            got = repr(told[:40]) if type(told) is str else kind(told)
            known = ", ".join(repr(name) for name in verdicts)
            raise Wrong(f"{attempt.name} returned {got}; a verdict is one of {known}.")
        if len(subject.calls) > most:
            raise Wrong(
                f"{attempt.name} made {len(subject.calls)} experiments on one function; {most} "
                "will do.",
                "Choose inputs on which one fault alone shows, and go from the plainest on: what "
                "is found out need not be looked for again.",
            )
        if told != right:
            tried = "; ".join(subject.calls) or "nothing"
            raise Wrong(
                f"{attempt.name} says {told!r} where it is {right!r}. It tried {tried}.",
                pairs.get(frozenset((told, right)), tells[right]),
            )
    attempt.held.append(f"the verdict on {len(beds)} functions, by experiments alone")
