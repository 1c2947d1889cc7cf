"""States of two halves merged: rightly, and by mistakes that are known by their values."""

from __future__ import annotations

import math

from kernels.grading.questions.kits.numbers import Mistake

State = tuple[float, ...]
_INF = math.inf


def state_of(keys: list[tuple[float, float]]) -> State:
    """(m, l, acc) of some keys, each a score and a value."""
    if not keys:
        return (-_INF, 0.0, 0.0)
    m = max(s for s, _ in keys)
    weights = [math.exp(s - m) for s, _ in keys]
    return (m, sum(weights), sum(w * v for w, (_, v) in zip(weights, keys, strict=True)))


def output_of(state: State) -> State:
    """(L, o) of a state: m + log l, and acc / l; (−inf, 0) where there is no key."""
    m, l, acc = state  # noqa: E741
    return (m + math.log(l), acc / l) if l else (-_INF, 0.0)


def merged(a: State, b: State) -> State:
    """Return the state of both."""
    m = max(a[0], b[0])
    if m == -_INF:
        return (m, 0.0, 0.0)
    of_a, of_b = math.exp(a[0] - m), math.exp(b[0] - m)
    return (m, a[1] * of_a + b[1] * of_b, a[2] * of_a + b[2] * of_b)


def merged_outputs(a: State, b: State) -> State:
    """Return (L, o) of both."""
    larger = max(a[0], b[0])
    if larger == -_INF:
        return (larger, 0.0)
    of_a, of_b = math.exp(a[0] - larger), math.exp(b[0] - larger)
    return (larger + math.log(of_a + of_b), (a[1] * of_a + b[1] * of_b) / (of_a + of_b))


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


OF_STATE: tuple[tuple[Mistake, ...], ...] = (
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
    return output_of(merged(a, b))[0]


def _weighed(of_a: float, a: State, of_b: float, b: State) -> float:
    return (of_a * a[1] + of_b * b[1]) / (of_a + of_b)


def _exps(a: State, b: State) -> tuple[float, float]:
    return math.exp(a[0]), math.exp(b[0])


OF_O: tuple[Mistake, ...] = (
    (
        "The outputs are averaged. A half whose keys weigh more counts more: its share is "
        "exp(its L - the common L).",
        lambda a, b: (a[1] + b[1]) / 2,
    ),
    (
        "The outputs are added. Each takes its share first, exp(its L - the common L).",
        lambda a, b: a[1] + b[1],
    ),
    (
        "Each half takes the other one's share: o of a takes exp(L of a - L).",
        lambda a, b: _weighed(_exps(a, b)[1], a, _exps(a, b)[0], b),
    ),
    (
        "The shares are L itself. A half's keys weigh exp(L) together.",
        lambda a, b: _weighed(a[0], a, b[0], b),
    ),
    (
        "The outputs are not divided by what both halves weigh: the shares add up to 1.",
        lambda a, b: sum(one[1] * math.exp(one[0] - max(a[0], b[0])) for one in (a, b)),
    ),
    (
        "The outputs are not divided by what both halves weigh: the shares add up to 1.",
        lambda a, b: a[1] * _exps(a, b)[0] + b[1] * _exps(a, b)[1],
    ),
    ("One half alone is left of it: both have their share.", lambda a, b: a[1]),
    ("One half alone is left of it: both have their share.", lambda a, b: b[1]),
    (
        "One half alone is left of it: both have their share.",
        lambda a, b: (a if a[0] > b[0] else b)[1],
    ),
    (
        "exp is taken to the base 2, and L is a natural logarithm.",
        lambda a, b: _weighed(2 ** a[0], a, 2 ** b[0], b),
    ),
)
OF_L: tuple[Mistake, ...] = (
    (
        "L is the logarithm of a sum of exponentials, and no sum of logarithms.",
        lambda a, b: a[0] + b[0],
    ),
    ("That is the larger one alone: the other half adds to it.", lambda a, b: max(a[0], b[0])),
    (
        "That is the mean of both: exponentials are added, and the logarithm is taken of that.",
        lambda a, b: (a[0] + b[0]) / 2,
    ),
    (
        "The logarithm is missing: that is exp(L).",
        lambda a, b: sum(_exps(a, b)),
    ),
    (
        "The logarithm is missing: L is the larger L plus a logarithm.",
        lambda a, b: max(a[0], b[0]) + math.exp(-abs(a[0] - b[0])) + 1,
    ),
    (
        "That is the logarithm of the mean of both: a sum is asked for.",
        lambda a, b: math.log(sum(_exps(a, b)) / 2),
    ),
    (
        "The larger L was taken out of the sum, and is not added again.",
        lambda a, b: math.log(1 + math.exp(-abs(a[0] - b[0]))),
    ),
    ("L is a natural logarithm.", lambda a, b: math.log2(sum(_exps(a, b)))),
    ("L is a natural logarithm.", lambda a, b: math.log10(sum(_exps(a, b)))),
)
