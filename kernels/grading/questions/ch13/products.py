"""13.3: the FLOPs of attention's products, forward and back, by what the backward does again."""

from __future__ import annotations

import random
from collections.abc import Callable

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

NAMES = ("forward", "kept", "one_kernel", "two_kernels")
# Products of each: forward s and o; back dv, dp, dq, dk; s once more; s and dp in both kernels.
PRODUCTS = (2, 4, 5, 7)


def pairs(m: int, n: int, causal: bool) -> int:
    """Return how many pairs of a query and a key of one head there are, of those that are seen."""
    return n * (n + 1) // 2 if causal else m * n


def flops(products: float, heads: int, m: int, n: int, d: int, causal: bool) -> float:
    """Return the FLOPs of so many products of each head, 2 · d for each pair."""
    return products * 2 * d * heads * pairs(m, n, causal)


_ONE = "A multiply-add is two FLOPs."
_HEADS = "Each head has its own: all heads are asked for."
_CAUSAL = "With causal, query i sees the keys 0 to i: n · (n + 1) / 2 pairs."


def _by(products: float) -> Callable[..., float]:
    return lambda *args: flops(products, *args)


def _usual(products: int) -> tuple[Mistake, ...]:
    """Mistakes that each of the four numbers may have."""
    return (
        (_ONE, _by(products / 2)),
        (_HEADS, lambda h, m, n, d, c: flops(products, 1, m, n, d, c)),
        (_CAUSAL, lambda h, m, n, d, c: flops(products, h, m, n, d, False)),
        (_CAUSAL, lambda h, m, n, d, c: products * 2 * d * h * (m * n // 2 if c else m * n)),
        (_CAUSAL, lambda h, m, n, d, c: products * 2 * d * h * (m * n / 2 if c else m * n)),
        (
            "The diagonal is seen as well: a query sees its own key.",
            lambda h, m, n, d, c: products * 2 * d * h * (n * (n - 1) // 2 if c else m * n),
        ),
        (
            "Queries and keys may differ in number: a product has m · n pairs.",
            lambda h, m, n, d, c: products * 2 * d * h * (pairs(m, n, c) if c else n * n),
        ),
        (
            "Queries and keys may differ in number: a product has m · n pairs.",
            lambda h, m, n, d, c: products * 2 * d * h * (pairs(m, n, c) if c else m * m),
        ),
        ("That is the number of pairs: each costs d multiply-adds.",
         lambda h, m, n, d, c: products * h * pairs(m, n, c)),
    )  # fmt: skip


_MISTAKES: tuple[tuple[Mistake, ...], ...] = (
    (
        ("There are two products: s = q · kᵀ, and o = p · v.", _by(1)),
        *_usual(2),
    ),
    (
        (
            "With p kept, s is not computed again: dv, dp, dq and dk are four products.",
            _by(5),
        ),
        ("dp is missing: it is do · vᵀ, and ds is made of it.", _by(3)),
        ("A backward has a product for each gradient and one for dp: four.", _by(2)),
        *_usual(4),
    ),
    (
        ("s is computed again, since p was not kept: a fifth product.", _by(4)),
        ("o is not computed again: delta takes it as it was kept.", _by(6)),
        ("One kernel computes s and dp once for all three gradients.", _by(7)),
        *_usual(5),
    ),
    (
        (
            "Two kernels share no tile: dq's computes s and dp for itself, and so does the one of "
            "dk and dv.",
            _by(5),
        ),
        ("dp is computed in both kernels, as s is: each makes its own ds.", _by(6)),
        (
            "A kernel computes what it needs: dv and dk are not in dq's, and dq is not in theirs.",
            _by(10),
        ),
        ("dq's kernel needs no dv: s, dp and dq are its three products.", _by(8)),
        *_usual(7),
    ),
)


def _calls(rng: random.Random) -> list[tuple[int, int, int, int, bool]]:
    calls = []
    for causal in (False, True):
        for _ in range(4):
            n = rng.randrange(65, 3000)
            m = n if causal else rng.randrange(65, 3000)
            calls.append((rng.randrange(2, 17), m, n, rng.choice((16, 64, 80, 128)), causal))
    return [*calls, (1, 1, 1, 16, True), (8, 1, 4096, 128, False)]


def grade_products(attempt: Attempt) -> None:
    """Grade `product_flops(heads, m, n, d, causal)`: (forward, kept, one_kernel, two_kernels)."""
    told: list[list[Told]] = [[] for _ in NAMES]
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        values = several(answered(attempt, *args), NAMES, label)
        for numbers, value, name, count in zip(told, values, NAMES, PRODUCTS, strict=True):
            got = whole(value, label, f"the FLOPs of {name}")
            numbers.append(Told(label, args, got, flops(count, *args)))
    for numbers, mistakes, name in zip(told, _MISTAKES, NAMES, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,} FLOPs; it is {wrong.right:,}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the FLOPs of {len(calls)} calls, forward and three ways back")
