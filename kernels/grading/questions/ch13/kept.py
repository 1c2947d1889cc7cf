"""13.4: the bytes that stay alive from forward to backward, in three steps and in flash."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from kernels.grading.question import Attempt, Wrong
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

NAMES = ("three_steps", "flash")


class Call(NamedTuple):
    """The arguments of a call."""

    batch: int
    heads: int
    kv_heads: int
    n: int
    d: int
    itemsize: int
    dropout: bool

    @property
    def q(self) -> int:
        """Elements of q, and of o."""
        return self.batch * self.heads * self.n * self.d

    @property
    def kv(self) -> int:
        """Elements of k, and of v."""
        return self.batch * self.kv_heads * self.n * self.d

    @property
    def p(self) -> int:
        """Elements of p."""
        return self.batch * self.heads * self.n**2

    @property
    def rows(self) -> int:
        """Rows of scores, each with its L."""
        return self.batch * self.heads * self.n


def three_steps(*args: Any) -> int:
    """Return the bytes of q, k, v and p; with dropout of the dropped weights and a mask too."""
    c = Call(*args)
    squares = c.p * c.itemsize + c.dropout * (c.p * c.itemsize + c.p)
    return (c.q + 2 * c.kv) * c.itemsize + squares


def flash(*args: Any) -> int:
    """Return the bytes of q, k, v, o and L; with dropout of a seed and an offset too."""
    c = Call(*args)
    return (2 * c.q + 2 * c.kv) * c.itemsize + 4 * c.rows + 16 * c.dropout


_GROUPS = "k and v have kv_heads heads, and each of these is kept once."
_ELEMENTS = "Elements are counted, not bytes."
_BATCH = "The whole batch is kept."
_THREE: tuple[Mistake, ...] = (
    (_ELEMENTS, lambda *a: three_steps(*Call(*a)._replace(itemsize=1))),
    (_BATCH, lambda *a: three_steps(*Call(*a)._replace(batch=1))),
    (_GROUPS, lambda *a: three_steps(*Call(*a)._replace(kv_heads=a[1]))),
    (
        "o is not read by this backward: p · dp is summed from p, which is there.",
        lambda *a: three_steps(*a) + Call(*a).q * a[5],
    ),
    (
        "s is not read by this backward: p is all that a softmax's gradient takes.",
        lambda *a: three_steps(*a) + Call(*a).p * a[5],
    ),
    (
        "p itself is missing: ds = p · (dp - delta) takes it.",
        lambda *a: three_steps(*a) - Call(*a).p * a[5],
    ),
    (
        "Dropout keeps more: dv takes the dropped weights, and dp the mask, a byte an element.",
        lambda *a: three_steps(*Call(*a)._replace(dropout=False)),
    ),
    (
        "The mask is missing: dp is 0 where a weight was dropped. It has a byte an element.",
        lambda *a: three_steps(*a) - a[6] * Call(*a).p,
    ),
    (
        "The dropped weights are missing: dv is made of them, and of p that was not dropped ds.",
        lambda *a: three_steps(*a) - a[6] * Call(*a).p * a[5],
    ),
    (
        "A mask has a byte an element here, and not the size of a number.",
        lambda *a: three_steps(*a) + a[6] * Call(*a).p * (a[5] - 1),
    ),
    (
        "A mask has a byte an element here, and not a bit.",
        lambda *a: three_steps(*a) - a[6] * (Call(*a).p - Call(*a).p // 8),
    ),
    ("q, k and v are kept as well: three products take them.",
     lambda *a: three_steps(*a) - (Call(*a).q + 2 * Call(*a).kv) * a[5]),
    ("Those are the bytes of flash.", flash),
)  # fmt: skip
_FLASH: tuple[Mistake, ...] = (
    (_ELEMENTS, lambda *a: flash(*Call(*a)._replace(itemsize=1))),
    (_ELEMENTS, lambda *a: 2 * Call(*a).q + 2 * Call(*a).kv + Call(*a).rows),
    (_BATCH, lambda *a: flash(*Call(*a)._replace(batch=1))),
    (_GROUPS, lambda *a: flash(*Call(*a)._replace(kv_heads=a[1]))),
    (
        "o is missing: delta is made of do and o.",
        lambda *a: flash(*a) - Call(*a).q * a[5],
    ),
    (
        "L is missing: without it p = exp(s - L) can't be made again from tiles.",
        lambda *a: flash(*a) - 4 * Call(*a).rows,
    ),
    (
        "L is fp32, 4 bytes a row, whatever the dtype of q.",
        lambda *a: flash(*a) + (a[5] - 4) * Call(*a).rows,
    ),
    (
        "A row keeps one number, L: it stands for the maximum and the sum. And delta can't be "
        "kept: it is made of do, which forward doesn't know.",
        lambda *a: flash(*a) + 4 * Call(*a).rows,
    ),
    (
        "Dropout keeps a seed and an offset, 8 bytes each, and no more.",
        lambda *a: flash(*a) - 16 * a[6],
    ),
    (
        "Dropout keeps a seed and an offset, 8 bytes each, and no more.",
        lambda *a: flash(*a) - 8 * a[6],
    ),
    (
        "No mask is kept: it is drawn again from the seed and the offset, 16 bytes.",
        lambda *a: flash(*a) + a[6] * (Call(*a).p - 16),
    ),
    (
        "No mask is kept: it is drawn again from the seed and the offset, 16 bytes.",
        lambda *a: flash(*a) + a[6] * Call(*a).p,
    ),
    ("Those are the bytes of the three steps.", three_steps),
)


def _calls(rng: random.Random) -> list[Call]:
    calls = []
    for dropout in (False, True):
        for itemsize in (2, 4, 2):
            kv_heads, n = rng.randrange(1, 5), rng.randrange(100, 5000)
            calls.append(
                Call(rng.randrange(2, 9), kv_heads * rng.randrange(2, 5), kv_heads, n,
                     rng.choice((32, 64, 80, 128)), itemsize, dropout)
            )  # fmt: skip
    return [*calls, Call(1, 16, 16, 8192, 128, 2, False), Call(3, 2, 2, 1, 16, 4, True)]


def grade_kept(attempt: Attempt) -> None:
    """Grade `kept_bytes(batch, heads, kv_heads, n, d, itemsize, dropout)`: (three_steps, flash)."""
    told: tuple[list[Told], list[Told]] = ([], [])
    calls = _calls(random.Random(attempt.seed))
    for one in calls:
        args = tuple(one)
        label = asked(attempt, args)
        both = pair(answered(attempt, *args), label, f"({', '.join(NAMES)})")
        for numbers, value, formula, name in zip(
            told, both, (three_steps, flash), NAMES, strict=True
        ):
            got = whole(value, label, f"the bytes of {name}")
            numbers.append(Told(label, args, got, formula(*args)))
    for numbers, mistakes, name in zip(told, (_THREE, _FLASH), NAMES, strict=True):
        if wrong := first_wrong(numbers):
            off = abs(int(wrong.got - wrong.right))
            less = "fewer" if wrong.got < wrong.right else "more"
            raise Wrong(
                f"{wrong.label}: {name} keeps {wrong.got:,} bytes; it keeps {wrong.right:,}, you "
                f"have {off:,} {less}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the bytes kept by {len(calls)} calls, in three steps and in flash")
