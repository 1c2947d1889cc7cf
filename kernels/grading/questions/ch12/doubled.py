"""12.5: what a head of twice the length moves: ideally, by request, and in three launches."""

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
    real,
    several,
)

_Count = Callable[[int, int, int], int]


def ideal(n: int, d: int, block_m: int) -> int:
    """Return the elements of q, k, v and o of a head."""
    return 4 * n * d


def requested(n: int, d: int, block_m: int) -> int:
    """Return the elements that a head's programs ask for, and store; block_m divides n."""
    return 2 * n * d + n // block_m * 2 * n * d


def three_launches(n: int, d: int, block_m: int) -> int:
    """Return the elements that three launches touch: s and p are written and read beside."""
    return 4 * n * d + 4 * n * n


def _ratio(count: _Count, n: int, d: int, block_m: int) -> float:
    return count(2 * n, d, block_m) / count(n, d, block_m)


def _times(means: str, count: _Count) -> Mistake:
    return means, lambda n, d, bm: _ratio(count, n, d, bm)


_LINEAR = (
    "That is linear in n. S is never written, and yet it has to be computed: each of the n / "
    "block_m tiles of queries walks over all n keys, so the requests of k and v grow with n²."
)
_ALL_SQUARE = (
    "Not all of it grows with n²: q and the output move once, whatever the tiles, and stay linear."
)
_WRITTEN = "s and p are each written once and read once: 4 n² elements, beside q, k, v and o."
_DOUBLED: tuple[tuple[Mistake, ...], ...] = (
    (
        ("Each of q, k, v and o has n · d elements: there is no n² among them.", lambda *_: 4.0),
        ("Asked is what comes after over what was before.", lambda *_: 0.5),
        ("Asked is what comes after over what was before.", lambda *_: 1.0),
    ),
    (
        (_LINEAR, lambda *_: 2.0),
        (_ALL_SQUARE, lambda *_: 4.0),
        (
            "Those are the three launches, which write s and p.",
            lambda n, d, bm: _ratio(three_launches, n, d, bm),
        ),
        (
            "Asked is what comes after over what was before.",
            lambda n, d, bm: 1 / _ratio(requested, n, d, bm),
        ),
        _times(
            "The output is stored as well: n · d elements.",
            lambda n, d, bm: n * d + n // bm * 2 * n * d,
        ),
        _times(
            "A tile of queries walks over k and over v: two tensors.",
            lambda n, d, bm: 2 * n * d + n // bm * n * d,
        ),
        _times(
            "A tile of queries walks over k and over v: two tensors.",
            lambda n, d, bm: n * d + n // bm * n * d,
        ),
        _times(
            "A tile of queries asks for a key once, for all its rows: there are n / block_m tiles.",
            lambda n, d, bm: 2 * n * d + 2 * n * n * d,
        ),
    ),
    (
        ("Here s and p are written and read: n² elements each time.", lambda *_: 2.0),
        ("q, k, v and o move as well, and they stay linear.", lambda *_: 4.0),
        ("Those are the requests of the tiles.", lambda n, d, bm: _ratio(requested, n, d, bm)),
        _times(_WRITTEN, lambda n, d, bm: 4 * n * d + n * n),
        _times(_WRITTEN, lambda n, d, bm: 4 * n * d + 2 * n * n),
        _times(_WRITTEN, lambda n, d, bm: 4 * n * d + 3 * n * n),
        _times(_WRITTEN, lambda n, d, bm: 3 * n * d + 4 * n * n),
        (
            "Asked is what comes after over what was before.",
            lambda n, d, bm: 1 / _ratio(three_launches, n, d, bm),
        ),
    ),
)
_SHARES = ("ideal", "requested", "three_launches")


def _doubled_calls(rng: random.Random) -> list[tuple[int, int, int]]:
    """Lengths that block_m divides; tiles of all the length, and many."""
    calls = [(128, 64, 128), (64, 128, 16)]
    for block_m in (16, 64, 128):
        calls += [
            (block_m * rng.randrange(2, 80), rng.choice((16, 64, 128)), block_m) for _ in range(2)
        ]
    return calls


def grade_doubled(attempt: Attempt) -> None:
    """Grade `when_doubled(n, d, block_m)`: how many times as many bytes there are, three ways."""
    told: tuple[list[Told], ...] = ([], [], [])
    calls = _doubled_calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        three = several(answered(attempt, *args), _SHARES, label)
        counts = (ideal, requested, three_launches)
        for numbers, value, count, name in zip(told, three, counts, _SHARES, strict=True):
            got = real(value, label, name)
            numbers.append(Told(label, args, got, _ratio(count, *args)))
    for numbers, mistakes, name in zip(told, _DOUBLED, _SHARES, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:.4g} times as much; it is "
                f"{wrong.right:.4g} times.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"what {len(calls)} heads of twice the length move, three ways")
