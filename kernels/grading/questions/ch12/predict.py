"""12.4 and 12.5: the bytes that tiles of queries ask for, and what they are at twice the length."""

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
    kind,
    meaning,
    pair,
    real,
    whole,
)

_Call = tuple[int, int, int, int, int, bool]
_Count = Callable[[int, int, int], int]


def _up(size: int, block: int) -> int:
    return -(-size // block)


def keys_asked_for(n: int, block_m: int, block_n: int, causal: bool) -> int:
    """Return how many keys all tiles of one head's queries ask for together."""
    if not causal:
        return _up(n, block_m) * n
    ends = (min(first + block_m, n) for first in range(0, n, block_m))
    return sum(min(_up(end, block_n) * block_n, n) for end in ends)


def of_q(n: int, d: int, block_m: int, block_n: int, itemsize: int, causal: bool) -> int:
    """Return the bytes of q (n, d) that all programs ask for."""
    return n * d * itemsize


def of_k(n: int, d: int, block_m: int, block_n: int, itemsize: int, causal: bool) -> int:
    """Return the bytes of k (n, d) that all programs ask for; of v they are as many."""
    return keys_asked_for(n, block_m, block_n, causal) * d * itemsize


_ELEMENTS = "Elements are counted, not bytes."
_PADDED = "Masked lanes ask for nothing: the last tile asks for the rows that there are."
_ROUND = "The number of tiles of queries is rounded up: the last one may be ragged."
_DISTINCT = (
    "Those are the distinct bytes. Each tile of queries walks over the keys by itself, and asks "
    "for them anew."
)
_FROM_DIAGONAL = (
    "A program asks for whole blocks of keys, up to the one that holds its diagonal, and not for "
    "half of all."
)


def _per_row(n: int, d: int, bm: int, bn: int, s: int, c: bool) -> float:
    return sum(range(1, n + 1)) * d * s if c else n * n * d * s


def _ends(n: int, bm: int) -> list[int]:
    return [min(first + bm, n) for first in range(0, n, bm)]


_Q: tuple[Mistake, ...] = (
    (_ELEMENTS, lambda n, d, bm, bn, s, c: n * d),
    (_PADDED, lambda n, d, bm, bn, s, c: _up(n, bm) * bm * d * s),
    (
        "A program loads its tile of queries once, before its loop.",
        lambda n, d, bm, bn, s, c: n * d * s * _up(n, bn),
    ),
    (
        "Each tile of queries is loaded by one program alone.",
        lambda n, d, bm, bn, s, c: n * d * s * _up(n, bm),
    ),
    ("Those are the requests of k.", of_k),
    (
        "That is q and the output: asked is what is loaded of q.",
        lambda n, d, bm, bn, s, c: 2 * n * d * s,
    ),
)
_K: tuple[Mistake, ...] = (
    (_ELEMENTS, lambda n, d, bm, bn, s, c: of_k(n, d, bm, bn, 1, c)),
    (_DISTINCT, lambda n, d, bm, bn, s, c: n * d * s),
    (
        "That is one query at a time: a tile of queries asks for a key once, for all of them.",
        _per_row,
    ),
    (
        "That is one query at a time: a tile of queries asks for a key once, for all of them.",
        lambda n, d, bm, bn, s, c: n * n * d * s,
    ),
    (
        "A causal program stops at the block that holds its diagonal: what lies behind it is not "
        "asked for.",
        lambda n, d, bm, bn, s, c: of_k(n, d, bm, bn, s, False),
    ),
    (
        "Without a mask every tile of queries walks over all keys.",
        lambda n, d, bm, bn, s, c: of_k(n, d, bm, bn, s, True),
    ),
    (
        "The number of tiles is that of tiles of queries: divide by block_m, for each of them "
        "walks over the keys once.",
        lambda n, d, bm, bn, s, c: of_k(n, d, bn, bm, s, c),
    ),
    (
        "The number of tiles is that of tiles of queries: divide by block_m, for each of them "
        "walks over the keys once.",
        lambda n, d, bm, bn, s, c: of_k(n, d, bn, bn, s, c),
    ),
    (
        "That is k and v together: asked is k.",
        lambda n, d, bm, bn, s, c: 2 * of_k(n, d, bm, bn, s, c),
    ),
    (_FROM_DIAGONAL, lambda n, d, bm, bn, s, c: of_k(n, d, bm, bn, s, False) // (2 if c else 1)),
    (_FROM_DIAGONAL, lambda n, d, bm, bn, s, c: of_k(n, d, bm, bn, s, False) / (2 if c else 1)),
    (
        "Blocks are whole: the one with the diagonal is asked for to its end, or to the last key.",
        lambda n, d, bm, bn, s, c: (sum(_ends(n, bm)) if c else _up(n, bm) * n) * d * s,
    ),
    (
        "The block that holds the diagonal is asked for too: the number of blocks is rounded up.",
        lambda n, d, bm, bn, s, c: (
            (sum(end // bn * bn for end in _ends(n, bm)) if c else _up(n, bm) * n) * d * s
        ),
    ),
    (
        "A tile stops at the diagonal of its last query, and not of its first one.",
        lambda n, d, bm, bn, s, c: (
            (sum(min(_up(first, bn) * bn, n) for first in range(0, n, bm)) if c else _up(n, bm) * n)
            * d
            * s
        ),
    ),
    (
        "A tile stops at the diagonal of its last query, and not of its first one.",
        lambda n, d, bm, bn, s, c: (
            (
                sum(min(_up(first + 1, bn) * bn, n) for first in range(0, n, bm))
                if c
                else _up(n, bm) * n
            )
            * d
            * s
        ),
    ),
    (
        _PADDED,
        lambda n, d, bm, bn, s, c: (
            (sum(_up(end, bn) * bn for end in _ends(n, bm)) if c else _up(n, bm) * _up(n, bn) * bn)
            * d
            * s
        ),
    ),
    (
        "The last tile of queries ends at the last query: its diagonal is there.",
        lambda n, d, bm, bn, s, c: (
            (sum(_up(first + bm, bn) * bn for first in range(0, n, bm)) if c else _up(n, bm) * n)
            * d
            * s
        ),
    ),
    (
        _ROUND,
        lambda n, d, bm, bn, s, c: (
            of_k(n // bm * bm, d, bm, bn, s, True) if c else n // bm * n * d * s
        ),
    ),
    (_ROUND, lambda n, d, bm, bn, s, c: n * n * d * s / bm),
)


def _calls(rng: random.Random) -> list[_Call]:
    calls: list[_Call] = []
    for causal in (False, True):
        for block_m, block_n in ((64, 64), (128, 64), (64, 128), (16, 32), (128, 32)):
            n, d = rng.randrange(130, 3000), rng.choice((16, 64, 80, 128))
            if n % 64 == 0:
                n += 1  # ragged; the whole ones come below
            calls.append((n, d, block_m, block_n, rng.choice((2, 4)), causal))
        calls.append((128 * rng.randrange(3, 9), 64, 128, 64, 2, causal))
        calls.append((rng.randrange(2, 16), 32, 16, 32, 4, causal))
    return calls


def grade_requested(attempt: Attempt) -> None:
    """Grade `requested_bytes(n, d, block_m, block_n, itemsize, causal)`: of (q, k)."""
    told: tuple[list[Told], list[Told]] = ([], [])
    names = ("q", "k")
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        both = pair(answered(attempt, *args), label, "(of_q, of_k)")
        for numbers, value, formula, name in zip(told, both, (of_q, of_k), names, strict=True):
            got = whole(value, label, f"the bytes of {name}")
            numbers.append(Told(label, args, got, formula(*args)))
    for numbers, mistakes, name in zip(told, (_Q, _K), names, strict=True):
        if wrong := first_wrong(numbers):
            off = abs(int(wrong.got - wrong.right))
            less = "fewer" if wrong.got < wrong.right else "more"
            raise Wrong(
                f"{wrong.label}: {wrong.got:,} bytes of {name}; the programs ask for "
                f"{wrong.right:,}, you have {off:,} {less}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the requested bytes of {len(calls)} heads, causal or not")


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
        three = answered(attempt, *args)
        if type(three) not in (tuple, list) or len(three) != 3:
            size = f" of {len(three)}" if type(three) in (tuple, list) else ""
            raise Wrong(
                f"{label} returned {kind(three)}{size}; it takes the tuple ({', '.join(_SHARES)})."
            )
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
