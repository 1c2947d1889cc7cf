"""12.1 and 12.2: the states of two halves of the keys merged, and two outputs with their L."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.numbers import (
    _FLOATS,
    _INTS,
    Mistake,
    Told,
    answered,
    kind,
    meaning,
    same,
)

State = tuple[float, ...]
_INF = math.inf


class _Pair(NamedTuple):
    """Two states to merge, and what is special about them, "" for nothing."""

    a: State
    b: State
    trait: str


def state_of(keys: list[tuple[float, float]]) -> State:
    """(m, l, acc) of some keys, each a score and a value."""
    if not keys:
        return (-_INF, 0.0, 0.0)
    m = max(s for s, _ in keys)
    weights = [math.exp(s - m) for s, _ in keys]
    return (m, sum(weights), sum(w * v for w, (_, v) in zip(weights, keys, strict=True)))


def output_of(state: State) -> State:
    """(o, L) of a state: acc / l, and m + log l; (0, −inf) where there is no key."""
    m, l, acc = state  # noqa: E741
    return (acc / l, m + math.log(l)) if l else (0.0, -_INF)


def merged(a: State, b: State) -> State:
    """Return the state of both."""
    m = max(a[0], b[0])
    if m == -_INF:
        return (m, 0.0, 0.0)
    of_a, of_b = math.exp(a[0] - m), math.exp(b[0] - m)
    return (m, a[1] * of_a + b[1] * of_b, a[2] * of_a + b[2] * of_b)


def merged_outputs(a: State, b: State) -> State:
    """Return (o, L) of both."""
    larger = max(a[1], b[1])
    if larger == -_INF:
        return (0.0, larger)
    of_a, of_b = math.exp(a[1] - larger), math.exp(b[1] - larger)
    return ((a[0] * of_a + b[0] * of_b) / (of_a + of_b), larger + math.log(of_a + of_b))


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


_OF_M = "m is the largest score of both halves: the larger of the two."
_SAME_MEANS = (
    "Both sums are taken as they are. Each is about its own maximum: what belongs to the smaller "
    "one is multiplied by exp(its m - the common m)."
)
_OTHER_WAY = (
    "The factor is the wrong way round: exp(its m - the common m) is at most 1. It makes the sums "
    "of the smaller maximum smaller."
)
_ONE_LEFT = "One half alone is left of it: both are added up."
_EACH_OTHER = "Each half takes the other one's factor: a's sums take exp(m of a - m)."


def _about(place: int) -> tuple[Mistake, ...]:
    """Faults known by their value, of l (1) or of acc (2)."""

    def factors(a: State, b: State) -> tuple[float, float]:
        m = max(a[0], b[0])
        return math.exp(a[0] - m), math.exp(b[0] - m)

    def both(of_a: float, a: State, of_b: float, b: State) -> float:
        return of_a * a[place] + of_b * b[place]

    return (
        (_SAME_MEANS, lambda a, b: a[place] + b[place]),
        (_OTHER_WAY, lambda a, b: both(1 / factors(a, b)[0], a, 1 / factors(a, b)[1], b)),
        (_EACH_OTHER, lambda a, b: both(factors(a, b)[1], a, factors(a, b)[0], b)),
        (
            "One half's sum takes its factor and the other's takes none: whose maximum is larger "
            "is not known beforehand.",
            lambda a, b: both(factors(a, b)[0], a, 1.0, b),
        ),
        (
            "One half's sum takes its factor and the other's takes none: whose maximum is larger "
            "is not known beforehand.",
            lambda a, b: both(1.0, a, factors(a, b)[1], b),
        ),
        (
            "a's sum is taken to b's maximum. The common one is the larger of the two.",
            lambda a, b: both(math.exp(a[0] - b[0]), a, 1.0, b),
        ),
        (
            "b's sum is taken to a's maximum. The common one is the larger of the two.",
            lambda a, b: both(1.0, a, math.exp(b[0] - a[0]), b),
        ),
        (
            "Sums are about their maximum: exp(m) itself is no factor of them.",
            lambda a, b: both(math.exp(a[0]), a, math.exp(b[0]), b),
        ),
        (_ONE_LEFT, lambda a, b: a[place]),
        (_ONE_LEFT, lambda a, b: b[place]),
        (
            "That is a product of the sums: they are added.",
            lambda a, b: factors(a, b)[0] * a[place] * factors(a, b)[1] * b[place],
        ),
        (
            "acc is divided by l: a state keeps the sum, and the division comes once, at the end.",
            lambda a, b: merged(a, b)[2] / merged(a, b)[1],
        ),
        (
            "That is the mean of the halves: sums are added.",
            lambda a, b: merged(a, b)[place] / 2,
        ),
    )


_STATE: tuple[tuple[Mistake, ...], ...] = (
    (
        (_OF_M, lambda a, b: min(a[0], b[0])),
        (_OF_M, lambda a, b: a[0]),
        (_OF_M, lambda a, b: b[0]),
        (_OF_M, lambda a, b: a[0] + b[0]),
        (_OF_M, lambda a, b: (a[0] + b[0]) / 2),
        ("That is L, m + log l: the state keeps m.", lambda a, b: _lse(a, b)),
    ),
    _about(1),
    _about(2),
)


def _lse(a: State, b: State) -> float:
    return output_of(merged(a, b))[1]


def _weighed(of_a: float, a: State, of_b: float, b: State) -> float:
    return (of_a * a[0] + of_b * b[0]) / (of_a + of_b)


def _exps(a: State, b: State) -> tuple[float, float]:
    return math.exp(a[1]), math.exp(b[1])


_OUTPUT: tuple[tuple[Mistake, ...], ...] = (
    (
        (
            "The outputs are averaged. A half whose keys weigh more counts more: its share is "
            "exp(its L - the common L).",
            lambda a, b: (a[0] + b[0]) / 2,
        ),
        (
            "The outputs are added. Each takes its share first, exp(its L - the common L).",
            lambda a, b: a[0] + b[0],
        ),
        (
            "Each half takes the other one's share: o of a takes exp(L of a - L).",
            lambda a, b: _weighed(_exps(a, b)[1], a, _exps(a, b)[0], b),
        ),
        (
            "The shares are L itself. A half's keys weigh exp(L) together.",
            lambda a, b: _weighed(a[1], a, b[1], b),
        ),
        (
            "The outputs are not divided by what both halves weigh: the shares add up to 1.",
            lambda a, b: sum(one[0] * math.exp(one[1] - max(a[1], b[1])) for one in (a, b)),
        ),
        (
            "The outputs are not divided by what both halves weigh: the shares add up to 1.",
            lambda a, b: a[0] * _exps(a, b)[0] + b[0] * _exps(a, b)[1],
        ),
        ("One half alone is left of it: both have their share.", lambda a, b: a[0]),
        ("One half alone is left of it: both have their share.", lambda a, b: b[0]),
        (
            "One half alone is left of it: both have their share.",
            lambda a, b: (a if a[1] > b[1] else b)[0],
        ),
        (
            "exp is taken to the base 2, and L is a natural logarithm.",
            lambda a, b: _weighed(2 ** a[1], a, 2 ** b[1], b),
        ),
    ),
    (
        (
            "L is the logarithm of a sum of exponentials, and no sum of logarithms.",
            lambda a, b: a[1] + b[1],
        ),
        ("That is the larger one alone: the other half adds to it.", lambda a, b: max(a[1], b[1])),
        (
            "That is the mean of both: exponentials are added, and the logarithm is taken of that.",
            lambda a, b: (a[1] + b[1]) / 2,
        ),
        (
            "The logarithm is missing: that is exp(L).",
            lambda a, b: sum(_exps(a, b)),
        ),
        (
            "The logarithm is missing: L is the larger L plus a logarithm.",
            lambda a, b: max(a[1], b[1]) + math.exp(-abs(a[1] - b[1])) + 1,
        ),
        (
            "That is the logarithm of the mean of both: a sum is asked for.",
            lambda a, b: math.log(sum(_exps(a, b)) / 2),
        ),
        (
            "The larger L was taken out of the sum, and is not added again.",
            lambda a, b: math.log(1 + math.exp(-abs(a[1] - b[1]))),
        ),
        ("L is a natural logarithm.", lambda a, b: math.log2(sum(_exps(a, b)))),
        ("L is a natural logarithm.", lambda a, b: math.log10(sum(_exps(a, b)))),
    ),
)
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
    if type(value) not in (*_INTS, *_FLOATS):
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
    except NotAnswered:
        raise
    except Wrong as wrong:
        # Python's math raises where NumPy gives inf or nan.
        for error in ("OverflowError", "ZeroDivisionError", "math domain error"):
            if error in wrong.sentence and pair.trait:
                what = f" on {pair.trait}"
                raise Wrong(f"{wrong.sentence[:-1]}{what}.", _TELLS[pair.trait]) from None
        raise
    if type(result) not in (tuple, list) or len(result) != len(names):
        size = f" of {len(result)}" if type(result) in (tuple, list) else ""
        raise Wrong(
            f"{label} returned {kind(result)}{size}; it takes the tuple ({', '.join(names)})."
        )
    return [_number(value, label, name) for value, name in zip(result, names, strict=True)]


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
    _graded(attempt, pairs, ("m", "l", "acc"), merged, _STATE)


def grade_merge_outputs(attempt: Attempt) -> None:
    """Grade `merge_outputs(a, b)`: two outputs and their log-sum-exps, (o, L), made one."""
    pairs = [
        _Pair(output_of(a), output_of(b), trait)
        for a, b, trait in _pairs(random.Random(attempt.seed))
    ]
    _graded(attempt, pairs, ("o", "L"), merged_outputs, _OUTPUT)
