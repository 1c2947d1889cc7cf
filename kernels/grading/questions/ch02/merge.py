"""02.3: two states (count, mean, m2) merged into one, graded against exact fractions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from kernels.grading.checks import call
from kernels.grading.question import Attempt, NotAnswered, Wrong

State = tuple[int, Any, Any]
EMPTY: State = (0, 0.0, 0.0)
_FLOATS = (float, np.float64, np.float32)
_COUNTS = (int, float, np.float64, np.float32, np.int64, np.int32)


@dataclass(frozen=True)
class _Pair:
    """Two states to merge, and what is special about them."""

    a: State
    b: State
    trait: str

    def exact(self) -> tuple[int, Fraction, Fraction]:
        """The merged state, without any rounding."""
        (na, ma, sa), (nb, mb, sb) = self.a, self.b
        n = na + nb
        if n == 0:
            return (0, Fraction(0), Fraction(0))
        delta = Fraction(float(mb)) - Fraction(float(ma))
        mean = Fraction(float(ma)) + delta * nb / n
        return (n, mean, Fraction(float(sa)) + Fraction(float(sb)) + delta * delta * na * nb / n)

    def allowed(self) -> tuple[float, float]:
        """How far mean and m2 may lie from `exact`: some roundings of every right formula.

        Each formula takes means from each other, and so carries a rounding of the larger one.
        """
        (na, ma, _), (nb, mb, _) = self.a, self.b
        n, _, m2 = self.exact()
        unit = float(np.finfo(np.float32 if type(ma) is np.float32 else np.float64).eps)
        rounding = 8 * unit * max(abs(float(ma)), abs(float(mb)))
        delta = abs(float(mb) - float(ma)) if na and nb else 0.0
        # What cancels is judged where the mean is large: a last digit elsewhere is no fault.
        return rounding, max(32 * unit, 1e-9) * float(m2) + n * rounding * (delta + rounding)


def state_of(values: list[float]) -> State:
    """The state of some numbers, each entry rounded once."""
    if not values:
        return EMPTY
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    return (len(exact), float(mean), float(sum((value - mean) ** 2 for value in exact)))


def _single(state: State) -> State:
    return (state[0], np.float32(state[1]), np.float32(state[2]))


def _pairs(rng: random.Random) -> list[_Pair]:
    def drawn(count: int, mean: float, spread: float) -> State:
        return state_of([rng.gauss(mean, spread) for _ in range(count)])

    pairs = []
    for _ in range(6):
        size = rng.randrange(4, 60)
        a, b = drawn(size, 0.5, 2.0), drawn(size, 3.0, 1.0)
        pairs.append(_Pair(a, b, "halves of one size"))
    for _ in range(6):
        a, b = drawn(rng.randrange(2, 9), -2.0, 1.0), drawn(rng.randrange(20, 90), 4.0, 3.0)
        pairs += [_Pair(a, b, "halves of uneven sizes"), _Pair(b, a, "halves of uneven sizes")]
    for _ in range(3):
        one, other, many = drawn(1, 2.0, 2.0), drawn(1, 5.0, 2.0), drawn(17, 3.0, 2.0)
        pairs += [_Pair(x, y, "a single element") for x, y in ((one, other), (many, one))]
    some = drawn(9, 2.0, 1.0)
    pairs += [_Pair(a, b, "an empty state") for a, b in ((EMPTY, some), (some, EMPTY))]
    pairs.append(_Pair(EMPTY, EMPTY, "two empty states"))
    for _ in range(3):
        a, b = _single(drawn(12, 3.0, 1.0)), _single(drawn(33, 4.0, 1.0))
        pairs.append(_Pair(a, b, "np.float32"))
    for mean in (1e3, 1e4, 1e6):
        a, b = drawn(rng.randrange(8, 50), mean, 1e-3), drawn(rng.randrange(8, 50), mean, 1e-3)
        pairs.append(_Pair(a, b, f"a mean near {mean:.0e}, a spread of 1e-03"))
    return pairs


def _merged(attempt: Attempt, a: State, b: State) -> State:
    """Call the reader's `merge`; `Wrong` unless it returns three real numbers."""
    asked = f"{attempt.name}({_told(a)}, {_told(b)})"
    try:
        with np.errstate(all="ignore"):
            result = call(attempt, a, b)
    except Wrong as wrong:
        if "ZeroDivisionError" in wrong.sentence:
            raise Wrong(f"{asked} divides by zero.", _EMPTY_MEANS) from None
        raise
    if result is None or result is ...:
        raise NotAnswered
    if type(result) not in (tuple, list) or len(result) != 3:
        size = f" of {len(result)}" if type(result) in (tuple, list) else ""
        got = f"a {type(result).__name__}{size}"
        raise Wrong(f"{asked} returned {got}; it takes the tuple (count, mean, m2).")
    for name, value, kinds in zip(
        ("count", "mean", "m2"), result, (_COUNTS, *[(*_FLOATS, int)] * 2), strict=True
    ):
        if type(value) not in kinds:
            raise Wrong(f"{asked} returned a {type(value).__name__} as {name}; it is a number.")
        huge = type(value) is int and abs(value) >= 2**63  # math.isfinite raises on the largest
        if huge or not math.isfinite(value):
            shown = "a number beyond 2**63" if huge else repr(float(value))
            raise Wrong(f"{asked} returned {shown} as {name}.", _EMPTY_MEANS)
    if result[0] != int(result[0]):
        raise Wrong(f"{asked} returned the count {float(result[0])!r}, which is no whole number.")
    return (int(result[0]), float(result[1]), float(result[2]))


_EMPTY_MEANS = (
    "A state of count 0 has no mean: two empty states give (0, 0.0, 0.0), and nothing may be "
    "divided by their count."
)


def _told(state: State) -> str:
    return f"({state[0]}, {float(state[1])!r}, {float(state[2])!r})"


# Faults known by their value: from (na, ma, sa, nb, mb, sb), what they give.
_Fault = Callable[[float, float, float, float, float, float], float]
_MEAN_FAULTS: tuple[tuple[str, _Fault], ...] = (
    (
        "The means are averaged without their counts: a half with more elements weighs more.",
        lambda na, ma, sa, nb, mb, sb: (ma + mb) / 2,
    ),
    (
        "The weights are swapped: b's mean weighs as b's share of the elements, nb / n.",
        lambda na, ma, sa, nb, mb, sb: (ma * nb + mb * na) / (na + nb),
    ),
    (
        "The step goes the wrong way: delta = mean of b - mean of a, added to the mean of a.",
        lambda na, ma, sa, nb, mb, sb: ma - (mb - ma) * nb / (na + nb),
    ),
    (
        "That is a sum: it is not divided by the count of both.",
        lambda na, ma, sa, nb, mb, sb: ma * na + mb * nb,
    ),
)
_M2_FAULTS: tuple[tuple[str, _Fault], ...] = (
    (
        "The delta² term is missing: two halves with different means spread further together "
        "than each alone.",
        lambda na, ma, sa, nb, mb, sb: sa + sb,
    ),
    (
        "The delta² term lacks its weight na · nb / n.",
        lambda na, ma, sa, nb, mb, sb: sa + sb + (mb - ma) ** 2,
    ),
    (
        "The delta² term is not divided by the count of both, n.",
        lambda na, ma, sa, nb, mb, sb: sa + sb + (mb - ma) ** 2 * na * nb,
    ),
    (
        "delta is not squared.",
        lambda na, ma, sa, nb, mb, sb: sa + sb + (mb - ma) * na * nb / (na + nb),
    ),
    (
        "That is a variance: m2 is the sum of squares, not yet divided by the count.",
        lambda na, ma, sa, nb, mb, sb: (sa + sb + (mb - ma) ** 2 * na * nb / (na + nb)) / (na + nb),
    ),
)


# Pairs, and what the reader made of each.
_Merges = list[tuple[_Pair, State]]


def _matching(faults: tuple[tuple[str, _Fault], ...], merges: _Merges, place: int) -> str:
    """The fault that gives the number at `place` of every state, of those that are right too."""
    told = [
        ([float(number) for number in (*pair.a, *pair.b)], got[place])
        for pair, got in merges
        if pair.a[0] and pair.b[0]
    ]
    for what, fault in faults:
        if all(math.isclose(fault(*numbers), got, rel_tol=1e-6) for numbers, got in told):
            return what
    return ""


_CANCELS = (
    "It is right while the mean is small. From means this large, E[x²] - E[x]² takes two nearly "
    "equal numbers from each other and only their rounding is left. Use the difference of the two "
    "means instead: it is small and exact."
)


def _grade_pairs(attempt: Attempt, pairs: list[_Pair]) -> None:
    merges: _Merges = []
    stopped: Wrong | None = None
    for pair in pairs:
        try:
            merges.append((pair, _merged(attempt, pair.a, pair.b)))
        except Wrong as wrong:  # what is wrong before it is told first
            stopped = wrong
            break
    for pair, (count, mean, m2) in merges:
        n, exact_mean, exact_m2 = pair.exact()
        asked = f"{attempt.name}({_told(pair.a)}, {_told(pair.b)}), {pair.trait}"
        if count != n:
            raise Wrong(f"{asked}: the count is {count} and should be {n}.")
        if _is_off(pair, mean, 1):
            raise Wrong(
                f"{asked}: the mean is {mean!r} and should be {float(exact_mean)!r}.",
                _matching(_MEAN_FAULTS, merges, 1),
            )
        if _is_off(pair, m2, 2):
            means = _matching(_M2_FAULTS, merges, 2)
            off = [(pair, got[2]) for pair, got in merges if _is_off(pair, got[2], 2)]
            if not means and all(_cancels(pair, got) for pair, got in off):
                means = _CANCELS
            raise Wrong(f"{asked}: m2 is {m2!r} and should be {float(exact_m2)!r}.", means)
    if stopped is not None:
        raise stopped


def _is_off(pair: _Pair, got: float, place: int) -> bool:
    """Whether a mean (`place` 1) or an m2 (2) is further from the exact one than allowed."""
    return abs(Fraction(got) - pair.exact()[place]) > pair.allowed()[place - 1]


def _cancels(pair: _Pair, m2: float) -> bool:
    """Whether an m2 is off as one whose digits have cancelled may be."""
    return "spread" in pair.trait or math.isclose(m2, float(pair.exact()[2]), rel_tol=1e-3)


def grade_merge(attempt: Attempt) -> None:
    """Grade `merge(a, b)`: pairs of every kind, then whole rows merged from uneven chunks."""
    rng = random.Random(attempt.seed)
    pairs = _pairs(rng)
    _grade_pairs(attempt, pairs)
    kinds = dict.fromkeys(pair.trait for pair in pairs)
    attempt.held.append(f"right on {len(pairs)} pairs: {'; '.join(kinds)}")
    for mean, spread in ((0.5, 2.0), (1e4, 1e-2)):
        _grade_row(attempt, rng, [rng.gauss(mean, spread) for _ in range(257)])
    attempt.held.append(
        "the variance of whole rows, merged from chunks left to right and as a tree"
    )


def _grade_row(attempt: Attempt, rng: random.Random, row: list[float]) -> None:
    cuts = sorted(rng.sample(range(1, len(row)), 12))
    chunks = [row[i:j] for i, j in zip([0, *cuts], [*cuts, len(row)], strict=True)]
    states = [state_of(chunk) for chunk in chunks]
    in_order: Any = EMPTY
    for state in states:
        in_order = _merged(attempt, in_order, state)
    tree: list[Any] = list(states)
    while len(tree) > 1:
        last = [tree[-1]] if len(tree) % 2 else []
        tree = [_merged(attempt, a, b) for a, b in zip(tree[::2], tree[1::2], strict=False)] + last
    count, _, m2 = state_of(row)
    for how, got in (("left to right", in_order), ("as a tree", tree[0])):
        # A rounding of the mean at each merge, carried into the sum of squares.
        if not math.isclose(got[2] / count, m2 / count, rel_tol=1e-6):
            raise Wrong(
                f"{attempt.name} over {len(chunks)} chunks of a row, {how}: the variance is "
                f"{got[2] / count!r} and should be {m2 / count!r}.",
            )
