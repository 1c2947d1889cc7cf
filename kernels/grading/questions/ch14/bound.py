"""14.10: up to how many tokens a layer's launches take longer than its bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

from kernels.grading.question import Attempt
from kernels.grading.questions.ch14.layers import FUSED, OPERATORS, Steps, moved
from kernels.grading.questions.kits.numbers import Mistake
from kernels.grading.questions.kits.several import grade_several

NAMES = ("before", "after")
Formula = Callable[[int, int, int, int, int], int]


def _tokens(
    launches: int,
    of_e: int,
    of_i: int,
    weights: tuple[int, int] = (4, 2),
    each: int = 0,
    weighed: bool = False,
) -> Formula:
    """The most tokens whose bytes take no longer than the launches; 0 where the weights do.

    weights: multiples of E² and E · I; each: 1 to round up, -1 to leave out an even quotient;
    weighed: a weight takes one byte.
    """

    def formula(gbs: int, ns: int, e: int, i: int, item: int) -> int:
        of_weights = (weights[0] * e * e + weights[1] * e * i) * (1 if weighed else item)
        left = launches * ns * gbs - of_weights
        token = (of_e * e + of_i * i) * item
        return max(0, (left + (token - 1 if each > 0 else each)) // token)

    return formula


def _right(steps: Steps) -> Formula:
    return _tokens(len(steps), *moved(steps))


BEFORE, AFTER = _right(OPERATORS), _right(FUSED)


def _below_zero(steps: Steps) -> Formula:
    of_e, of_i = moved(steps)

    def formula(gbs: int, ns: int, e: int, i: int, item: int) -> int:
        left = len(steps) * ns * gbs - (4 * e * e + 2 * e * i) * item
        return left // ((of_e * e + of_i * i) * item)

    return formula


def _mistakes(steps: Steps, other: Steps) -> tuple[Mistake, ...]:
    count, sums = len(steps), moved(steps)
    right = _right(steps)
    return (
        (
            "The weights are missing: a launch reads all of them, however few tokens there are.",
            _tokens(count, *sums, weights=(0, 0)),
        ),
        (
            "That can't be below 0: where the weights alone take longer than the launches, it is "
            "0.",
            _below_zero(steps),
        ),
        ("before and after have changed places.", _right(other)),
        (
            "The launches are those of the other layer: twelve before, seven after.",
            _tokens(len(other), *sums),
        ),
        (
            "The bytes of a token are those of the other layer.",
            _tokens(count, *moved(other)),
        ),
        (
            "Rounded up, that many tokens take longer than the launches.",
            _tokens(count, *sums, each=1),
        ),
        (
            "At least as long is asked: where the quotient comes out even, that many tokens take "
            "just as long as the launches. Whole numbers keep it, a float on the way may not.",
            _tokens(count, *sums, each=-1),
        ),
        ("That is one launch: the layer has all of them.", _tokens(1, *sums)),
        (
            "QKV has 3 · E² weights, and the product behind attention E² more.",
            _tokens(count, *sums, weights=(3, 2)),
        ),
        (
            "An MLP has two products, E · I weights each.",
            _tokens(count, *sums, weights=(4, 1)),
        ),
        (
            "QKV has 3 · E² weights, and the product behind attention E² more.",
            _tokens(count, *sums, weights=(1, 2)),
        ),
        (
            "QKV has 3 · E² weights, and the product behind attention E² more.",
            _tokens(count, *sums, weights=(2, 2)),
        ),
        (
            "The MLP's weights are missing: 2 · E · I.",
            _tokens(count, *sums, weights=(4, 0)),
        ),
        (
            "The weights of QKV and of the product behind attention are missing: 4 · E².",
            _tokens(count, *sums, weights=(0, 2)),
        ),
        (
            "A number has itemsize bytes, in weights and in activations.",
            lambda g, n, e, i, t: right(g, n, e, i, 1),
        ),
        (
            "A number has itemsize bytes, a weight's too.",
            _tokens(count, *sums, weighed=True),
        ),
        (
            "Nanoseconds times 10⁹ bytes a second are bytes: no other factor comes in.",
            lambda g, n, e, i, t: right(1, n * g // 1000, e, i, t),
        ),
        (
            "Nanoseconds times 10⁹ bytes a second are bytes: no other factor comes in.",
            lambda g, n, e, i, t: right(1000 * g, n, e, i, t),
        ),
    )


def _rounded(launches: int, token: int, weights: int, gbs: int, ns: int) -> tuple[float, ...]:
    """The quotient, by floats in two ways: by bytes, and by seconds."""
    seconds = launches * ns * 1e-9
    by_bytes = (seconds * gbs * 1e9 - weights) / token
    return by_bytes, (seconds - weights / (gbs * 1e9)) / (token / (gbs * 1e9))


def _even(rng: random.Random, steps: Steps) -> tuple[int, ...]:
    """A call whose quotient comes out even, and which floats of both ways round below it.

    With I = 4 · E and as many GB/s as E, E cancels: what is left is linear in nanoseconds.
    """
    count, (of_e, of_i) = len(steps), moved(steps)
    while True:
        e, item, ns = 64 * rng.randrange(10, 40), 2, rng.randrange(4000, 9000)
        i, gbs = 4 * e, e
        token, weights = (of_e * e + of_i * i) * item, (4 * e * e + 2 * e * i) * item
        tokens, rest = divmod(count * ns * gbs - weights, token)
        if tokens <= 0 or rest:
            continue
        if all(int(one) < tokens for one in _rounded(count, token, weights, gbs, ns)):
            return gbs, ns, e, i, item


def _calls(rng: random.Random) -> list[tuple[int, ...]]:
    calls: list[tuple[int, ...]] = []
    for itemsize in (2, 2, 4):
        e = 64 * rng.randrange(4, 17)
        calls.append((rng.randrange(1000, 8000), rng.randrange(4000, 9000), e, 3 * e + 8, itemsize))
    # Weights that take longer than all launches, and than the fewer ones alone.
    calls += [(300, 2000, 2048, 8192, 2), (500, 5000, 1024, 4096, 2)]
    calls += [_even(rng, OPERATORS), _even(rng, FUSED)]
    return [*calls, (4800, 5000, 1024, 4096, 2), (320, 6000, 768, 3072, 2)]


def grade_bound(attempt: Attempt) -> None:
    """Grade `launch_bound(gbs, launch_ns, e, i, itemsize)`: (before, after), in tokens."""
    mistakes = _mistakes(OPERATORS, FUSED), _mistakes(FUSED, OPERATORS)
    calls = _calls(random.Random(attempt.seed))
    grade_several(attempt, calls, NAMES, (BEFORE, AFTER), mistakes, " tokens")
