"""12.1 and 12.2: the states of two halves of the keys merged, and two outputs with their L."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.ch12.halves import (
    OF_L,
    OF_O,
    OF_STATE,
    State,
    merged,
    merged_outputs,
    output_of,
    state_of,
)
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    kind,
    meaning,
    same,
    several,
)

_NUMBERS = (float, np.float64, np.float32, int, np.int64, np.int32)


class _Pair(NamedTuple):
    """Two states to merge, and what is special about them, "" for nothing."""

    a: State
    b: State
    trait: str


LARGE, SMALL, EMPTY, NOTHING = (
    "scores near 1000",
    "scores near -1000",
    "an empty state",
    "two empty states",
)


def _pairs(rng: random.Random) -> list[_Pair]:
    """Ordinary pairs, either one with the larger maximum; then special ones."""

    def drawn(count: int, near: float) -> State:
        return state_of([(near + rng.uniform(-1, 1), rng.uniform(1, 3)) for _ in range(count)])

    pairs = []
    for near_a, near_b in ((1.0, 3.0), (4.0, 2.0), (3.0, 3.5), (2.5, 6.0), (-1.0, -4.0)):
        pairs.append(_Pair(drawn(rng.randrange(2, 9), near_a), drawn(5, near_b), ""))
    for near, trait in ((1000.0, LARGE), (-1000.0, SMALL)):
        pairs += [_Pair(drawn(4, near), drawn(7, near + step), trait) for step in (2.0, -3.0)]
    none, some = state_of([]), drawn(6, 2.0)
    pairs += [_Pair(none, some, EMPTY), _Pair(some, none, EMPTY), _Pair(none, none, NOTHING)]
    return pairs


_TOO_LARGE = (
    "exp of a number near 1000 is infinite, and of one near -1000 it is 0, in float64 too. Take "
    "differences from the larger one first: exp of these is at most 1, and 1 for one of them."
)
_NO_KEYS = (
    "-inf - (-inf) is nan, and so is all that it enters. Where both halves are empty there is "
    "nothing to take a difference of: return the empty state."
)
_TELLS = {
    LARGE: _TOO_LARGE,
    SMALL: _TOO_LARGE,
    EMPTY: "A half without keys adds nothing: exp(-inf) is 0. The other half comes back as it was.",
    NOTHING: _NO_KEYS,
}


def _number(value: Any, label: str, what: str) -> float:
    """`value` as a float, which may be infinite or NaN."""
    if type(value) not in _NUMBERS:
        raise Wrong(f"{label} returned {kind(value)} as {what}; it is a number.")
    if type(value) is int and abs(value) >= 2**63:
        raise Wrong(f"{label} returned a number beyond 2**63 as {what}.")
    return float(value)


def _holds(got: float, right: float) -> bool:
    return got == right if math.isinf(right) or right == 0 else same(got, right)


def _asked(attempt: Attempt, pair: _Pair) -> str:
    return f"{attempt.name}({_shown(pair.a)}, {_shown(pair.b)})"


def _shown(state: State) -> str:
    return f"({', '.join(f'{number:.6g}' for number in state)})"


def _told(attempt: Attempt, pair: _Pair, names: tuple[str, ...]) -> list[float]:
    label = _asked(attempt, pair)
    try:
        result = answered(attempt, pair.a, pair.b)
    except Wrong as wrong:
        # Python's math raises where NumPy gives inf or nan.
        for error in ("OverflowError", "ZeroDivisionError", "math domain error"):
            if error in wrong.sentence and pair.trait:
                what = f" on {pair.trait}"
                raise Wrong(f"{wrong.sentence[:-1]}{what}.", _TELLS[pair.trait]) from None
        raise
    values = several(result, names, label)
    return [_number(value, label, name) for value, name in zip(values, names, strict=True)]


def _graded(
    attempt: Attempt,
    pairs: list[_Pair],
    names: tuple[str, ...],
    right: Callable[[State, State], State],
    mistakes: tuple[tuple[Mistake, ...], ...],
) -> None:
    usual = [pair for pair in pairs if not pair.trait]
    told: list[list[Told]] = [[] for _ in names]
    for pair in usual:
        got = _told(attempt, pair, names)
        for numbers, value, wanted in zip(told, got, right(pair.a, pair.b), strict=True):
            numbers.append(Told(_asked(attempt, pair), (pair.a, pair.b), value, wanted))
    for numbers, known, name in zip(told, mistakes, names, strict=True):
        for number in numbers:
            if not _holds(number.got, number.right):
                raise Wrong(
                    f"{number.label}: {name} is {number.got:.9g} and should be {number.right:.9g}.",
                    meaning(known, numbers),
                )
    attempt.held.append(f"right on {len(usual)} ordinary pairs")
    for pair in pairs:
        if pair.trait:
            got = _told(attempt, pair, names)
            for value, wanted, name in zip(got, right(pair.a, pair.b), names, strict=True):
                if not _holds(value, wanted):
                    raise Wrong(
                        f"{_asked(attempt, pair)}, {pair.trait}: {name} is {value:.9g} and should "
                        f"be {wanted:.9g}.",
                        _TELLS[pair.trait],
                    )
    attempt.held.append(f"and with {', '.join(dict.fromkeys(p.trait for p in pairs if p.trait))}")


def grade_merge(attempt: Attempt) -> None:
    """Grade `merge(a, b)`: two states (m, l, acc) made one."""
    pairs = _pairs(random.Random(attempt.seed))
    _graded(attempt, pairs, ("m", "l", "acc"), merged, OF_STATE)


def grade_merge_outputs(attempt: Attempt) -> None:
    """Grade `merge_outputs(a, b)`: two outputs and their log-sum-exps, (L, o), made one."""
    pairs = [
        _Pair(output_of(a), output_of(b), trait)
        for a, b, trait in _pairs(random.Random(attempt.seed))
    ]
    _graded(attempt, pairs, ("L", "o"), merged_outputs, (OF_L, OF_O))
