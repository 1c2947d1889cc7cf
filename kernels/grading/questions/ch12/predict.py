"""12.4: the bytes that all tiles of queries ask for, causal or not."""

from __future__ import annotations

import random

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.attention import keys_asked_for
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    pair,
    whole,
)

_Call = tuple[int, int, int, int, int, bool]


def _up(size: int, block: int) -> int:
    return -(-size // block)


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
