"""14.5: the bytes of a mask, told by sequence or as a table that is added to the scores."""

from __future__ import annotations

import random
from collections.abc import Callable

from kernels.grading.question import Attempt
from kernels.grading.questions.ch14.layers import FUSED, moved, numbers
from kernels.grading.questions.kits.numbers import Mistake
from kernels.grading.questions.kits.several import grade_several

NAMES = ("as_bool", "as_table", "asked_bool", "least_length")
Formula = Callable[[int, int, int, int, int, int, int], int]
OF_E, OF_I = moved(FUSED)
_ONCE = sorted({name for step in FUSED for name in (*step.reads, step.writes)})


def as_bool(b: int, h: int, s: int, e: int, i: int, item: int, block: int) -> int:
    """Bytes of a bool for each token."""
    return b * s


def as_table(b: int, h: int, s: int, e: int, i: int, item: int, block: int) -> int:
    """Bytes of a number for each score."""
    return b * h * s * s * item


def asked_bool(b: int, h: int, s: int, e: int, i: int, item: int, block: int) -> int:
    """Bytes that all programs ask for, each a tile of queries of a head: its sequence's bools."""
    return b * h * -(-s // block) * s


def least_length(b: int, h: int, s: int, e: int, i: int, item: int, block: int) -> int:
    """The least length at which the table has as many bytes as the layer moves, or more."""
    return -(-(OF_E * e + OF_I * i) // h)


RIGHT: tuple[Formula, ...] = (as_bool, as_table, asked_bool, least_length)
_NO_ITEM = "A bool has one byte, whatever the dtype of the scores."
_LENGTH = (
    "The table has heads · length² numbers a sequence, the layer moves (18 · E + 2 · I) · length: "
    "divide by what both have, and round up."
)
_MISTAKES: tuple[tuple[Mistake, ...], ...] = (
    (
        (_NO_ITEM, lambda b, h, s, e, i, t, m: b * s * t),
        (
            "Every head hides the same keys: the mask has no axis of heads.",
            lambda b, h, s, e, i, t, m: b * h * s,
        ),
        (
            "Every query of a sequence misses the same keys: the mask has one axis of tokens.",
            lambda b, h, s, e, i, t, m: b * s * s,
        ),
        ("Each sequence of the batch has its own.", lambda b, h, s, e, i, t, m: s),
        ("A bool in memory is a byte, and not a bit.", lambda b, h, s, e, i, t, m: b * s // 8),
        ("A bool in memory is a byte, and not a bit.", lambda b, h, s, e, i, t, m: -(-b * s // 8)),
        (
            "A token has one bool, and not one for each of its numbers.",
            lambda b, h, s, e, i, t, m: b * s * e,
        ),
    ),
    (
        ("Elements are counted, not bytes.", lambda b, h, s, e, i, t, m: b * h * s * s),
        (
            "This table is written out for every head: (batch, heads, length, length).",
            lambda b, h, s, e, i, t, m: b * s * s * t,
        ),
        (
            "A table has a number for each query and each key: length².",
            lambda b, h, s, e, i, t, m: b * h * s * t,
        ),
        (
            "This table is written out for every sequence: (batch, heads, length, length).",
            lambda b, h, s, e, i, t, m: h * s * s * t,
        ),
        (
            "Its numbers have the dtype of the scores' inputs, itemsize bytes.",
            lambda b, h, s, e, i, t, m: b * h * s * s * 4,
        ),
    ),
    (
        (
            "A last tile that is not full is a program too: round up.",
            lambda b, h, s, e, i, t, m: b * h * (s // m) * s,
        ),
        (
            "Tiles are rounded up: a program asks for its sequence's bools once, and not once for "
            "every row of its tile.",
            lambda b, h, s, e, i, t, m: b * h * s * s,
        ),
        (
            "Every head has programs of its own, and each of them asks.",
            lambda b, h, s, e, i, t, m: b * -(-s // m) * s,
        ),
        (
            "That is one program for each head: a head has a program for each tile of queries.",
            lambda b, h, s, e, i, t, m: b * h * s,
        ),
        ("That is one sequence's.", lambda b, h, s, e, i, t, m: h * -(-s // m) * s),
        (_NO_ITEM, lambda b, h, s, e, i, t, m: asked_bool(b, h, s, e, i, t, m) * t),
        (
            "That is how many programs there are: each asks for length bools.",
            lambda b, h, s, e, i, t, m: b * h * -(-s // m),
        ),
        (
            "That is as if length were a multiple of block_m: a last tile that is not full asks "
            "for as much as a full one.",
            lambda b, h, s, e, i, t, m: b * h * s * s // m,
        ),
        (
            "A tile's rows are queries. Bools are of keys, and a sequence has length of them: only "
            "the number of tiles is rounded up.",
            lambda b, h, s, e, i, t, m: b * h * (-(-s // m)) ** 2 * m,
        ),
        (
            "A tile lies within one head of one sequence: round up for each head, and then "
            "multiply.",
            lambda b, h, s, e, i, t, m: -(-b * h * s // m) * s,
        ),
        (
            "Those are the distinct bytes. Asked is what all programs ask for, each by itself.",
            as_bool,
        ),
    ),
    (
        (_LENGTH, lambda b, h, s, e, i, t, m: OF_E * e + OF_I * i),
        (
            "Rounded down, the table at that length is still smaller: the least length is rounded "
            "up.",
            lambda b, h, s, e, i, t, m: (OF_E * e + OF_I * i) // h,
        ),
        (
            "At least as many is asked: where it comes out even, that length will do.",
            lambda b, h, s, e, i, t, m: (OF_E * e + OF_I * i) // h + 1,
        ),
        (
            "itemsize is in both, and falls out.",
            lambda b, h, s, e, i, t, m: -(-(OF_E * e + OF_I * i) * t // h),
        ),
        (
            "itemsize is in both, and falls out.",
            lambda b, h, s, e, i, t, m: -(-(OF_E * e + OF_I * i) // (h * t)),
        ),
        (
            "Each sequence has a table, and each moves its own tokens: batch falls out.",
            lambda b, h, s, e, i, t, m: -(-(OF_E * e + OF_I * i) // (h * b)),
        ),
        (
            "That is the layer operator by operator: the fused one moves 18 · E + 2 · I numbers a "
            "token.",
            lambda b, h, s, e, i, t, m: -(-(30 * e + 4 * i) // h),
        ),
        (
            "That is each tensor once: the layer writes it, and reads it again, 18 · E + 2 · I "
            "numbers a token.",
            lambda b, h, s, e, i, t, m: -(-sum(numbers(name, e, i) for name in _ONCE) // h),
        ),
        (
            "That is the length itself: asked is the length at which the table has as many bytes "
            "as the layer moves.",
            lambda b, h, s, e, i, t, m: s,
        ),
    ),
)


def _calls(rng: random.Random) -> list[tuple[int, ...]]:
    calls: list[tuple[int, ...]] = []
    for itemsize, block in ((2, 64), (4, 32), (2, 128)):
        heads = rng.randrange(3, 17)
        e = heads * 8 * rng.randrange(4, 17)
        length = block * rng.randrange(2, 9) + rng.randrange(1, block)
        calls.append((rng.randrange(2, 33), heads, length, e, 3 * e + 40, itemsize, block))
    return [*calls, (4, 12, 512, 768, 3072, 2, 64), (8, 16, 2048, 1024, 4096, 2, 128),
            (1, 5, 1, 40, 7, 4, 16)]  # fmt: skip


def grade_mask_bytes(attempt: Attempt) -> None:
    """Grade `mask_bytes(batch, heads, length, e, i, itemsize, block_m)`: four numbers."""
    grade_several(attempt, _calls(random.Random(attempt.seed)), NAMES, RIGHT, _MISTAKES)
