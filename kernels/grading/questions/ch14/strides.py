"""14.3: where queries, keys and values of each head stand inside of rows of 3 · E numbers."""

from __future__ import annotations

import random

from kernels.grading.question import Attempt
from kernels.grading.questions.kits.numbers import Mistake
from kernels.grading.questions.kits.several import grade_several

NAMES = ("batch", "head", "row", "k_offset", "v_offset")
Args = tuple[int, int, int, bool]


def batch(length: int, heads: int, d: int, by_head: bool) -> int:
    """Numbers from a sequence to the next."""
    return length * 3 * heads * d


def head(length: int, heads: int, d: int, by_head: bool) -> int:
    """Numbers from a head's query to the next head's."""
    return 3 * d if by_head else d


def row(length: int, heads: int, d: int, by_head: bool) -> int:
    """Numbers from a token to the next."""
    return 3 * heads * d


def k_offset(length: int, heads: int, d: int, by_head: bool) -> int:
    """Numbers from the first query to the first key."""
    return d if by_head else heads * d


def v_offset(length: int, heads: int, d: int, by_head: bool) -> int:
    """Numbers from the first query to the first value."""
    return 2 * k_offset(length, heads, d, by_head)


RIGHT = (batch, head, row, k_offset, v_offset)
_BYTES = "Strides count numbers, as PyTorch's and Triton's do, and not bytes."
_AS_A_COPY = (
    "That is the stride in a copy of its own, (B, H, S, D). Here a row of qkv has the queries, "
    "keys and values of all heads."
)
_OTHER = (
    "by_head has changed its meaning: with True each head's d queries, d keys and d values stand "
    "side by side, with False all heads' queries come first."
)


def _turned(formula: int) -> Mistake:
    return _OTHER, lambda s, h, d, by: RIGHT[formula](s, h, d, not by)


_MISTAKES: tuple[tuple[Mistake, ...], ...] = (
    (
        (_AS_A_COPY, lambda s, h, d, by: s * h * d),
        ("A sequence has length rows: that is one.", lambda s, h, d, by: 3 * h * d),
        ("That is one head's: a row has all heads.", lambda s, h, d, by: s * 3 * d),
        (_BYTES, lambda s, h, d, by: 2 * batch(s, h, d, by)),
        (_BYTES, lambda s, h, d, by: 4 * batch(s, h, d, by)),
    ),
    (
        (_AS_A_COPY, lambda s, h, d, by: s * d),
        _turned(1),
        (
            "by_head is left out: with it, a head's keys and values stand between its queries and "
            "the next head's.",
            lambda s, h, d, by: d,
        ),
        (
            "Only by_head puts keys and values between the queries of neighbouring heads.",
            lambda s, h, d, by: 3 * d,
        ),
        ("That is a row: a head is d numbers of it, or 3 · d.", lambda s, h, d, by: 3 * h * d),
        ("Heads are d numbers wide: that is how many there are.", lambda s, h, d, by: h),
    ),
    (
        (_AS_A_COPY, lambda s, h, d, by: d),
        (
            "That is as wide as the queries of a row: keys and values of all heads stand in it as "
            "well.",
            lambda s, h, d, by: h * d,
        ),
        ("That is one head's part of a row: a row has all heads.", lambda s, h, d, by: 3 * d),
        (_BYTES, lambda s, h, d, by: 2 * row(s, h, d, by)),
        (_BYTES, lambda s, h, d, by: 4 * row(s, h, d, by)),
    ),
    (
        _turned(3),
        (
            "by_head is left out: with it, a head's keys come right behind its queries.",
            lambda s, h, d, by: h * d,
        ),
        (
            "Without by_head the keys come behind the queries of all heads.",
            lambda s, h, d, by: d,
        ),
        (
            "That is where keys would begin if all rows' queries came first: they stand in the "
            "same row.",
            lambda s, h, d, by: s * h * d,
        ),
        ("k_offset and v_offset have changed places.", v_offset),
    ),
    (
        _turned(4),
        (
            "by_head is left out: with it, a head's values come right behind its keys.",
            lambda s, h, d, by: 2 * h * d,
        ),
        (
            "Without by_head the values come behind the keys of all heads.",
            lambda s, h, d, by: 2 * d,
        ),
        (
            "That is where values would begin if all rows' keys came first: they stand in the "
            "same row.",
            lambda s, h, d, by: 2 * s * h * d,
        ),
        ("That is where the keys begin: values come behind them.", k_offset),
        (
            "That is counted from the keys on: from the first query it is twice as far.",
            lambda s, h, d, by: v_offset(s, h, d, by) - k_offset(s, h, d, by),
        ),
    ),
)


def _calls(rng: random.Random) -> list[Args]:
    calls: list[Args] = [(5, 2, 4, False), (5, 2, 4, True), (7, 1, 16, True), (7, 1, 16, False)]
    for by_head in (False, True, True, False):
        calls.append((rng.randrange(9, 400), rng.randrange(3, 25), 8 * rng.randrange(2, 17),
                      by_head))  # fmt: skip
    return calls


def grade_strides(attempt: Attempt) -> None:
    """Grade `head_strides(length, heads, d, by_head)`: three strides and two offsets."""
    grade_several(attempt, _calls(random.Random(attempt.seed)), NAMES, RIGHT, _MISTAKES)
