"""15.1: the bytes that a layer in training keeps for its backward, with two flags and without."""

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
    several,
    whole,
)

NAMES = ("plain", "gelu", "both")


class Call(NamedTuple):
    """The arguments of a call."""

    batch: int
    length: int
    width: int
    inner: int
    heads: int
    itemsize: int

    @property
    def tokens(self) -> int:
        """Tokens of the batch."""
        return self.batch * self.length


# Numbers a token: qkv, o, h, n = LN(h) and y are E wide, or 3E; u and a are I wide.
_WIDE, _INNER = 7, 2
_SEEDS = 64


def kept(args: Any, wide: float = _WIDE, inner: float = _INNER, more: float = 0) -> float:
    """Return the bytes of so many tensors (B, S, E) and (B, S, I), and of L, statistics, seeds."""
    c = Call(*args)
    small = 4 * c.tokens * (c.heads + 2) + _SEEDS
    return c.tokens * c.itemsize * (wide * c.width + inner * c.inner) + small + more


def plain(*args: Any) -> int:
    """Return what a layer keeps without flags."""
    return int(kept(args))


def gelu(*args: Any) -> int:
    """Return what it keeps where a is made again."""
    return int(kept(args, inner=1))


def both(*args: Any) -> int:
    """Return what it keeps where o is made again as well."""
    return int(kept(args, wide=6, inner=1))


RIGHT = (plain, gelu, both)


def _usual(wide: int, inner: int) -> tuple[Mistake, ...]:
    """Mistakes that each of the three numbers may have."""

    def of(**other: Any) -> Any:
        return lambda *a: kept(a, **({"wide": wide, "inner": inner} | other))

    def less(bytes_of: Any) -> Any:
        return lambda *a: kept(a, wide, inner, -bytes_of(Call(*a)))

    return (
        ("Elements are counted, not bytes.", lambda *a: kept((*a[:5], 1), wide, inner)),
        ("A number has itemsize bytes, 2 in fp16 and bf16 and 4 in fp32.",
         lambda *a: kept((*a[:5], 2), wide, inner)),
        ("L has one number for each query of each head: the scores are not kept.",
         less(lambda c: -4 * c.tokens * c.heads * (c.length - 1))),
        ("The seeds are those of a layer, whatever the batch.",
         less(lambda c: -_SEEDS * (c.batch - 1))),
        ("The whole batch is kept.", lambda *a: kept((1, *a[1:]), wide, inner)),
        ("qkv has three vectors of E numbers a token.", of(wide=wide - 2)),
        ("qkv is one tensor, of 3E numbers a token: it is kept once.", of(wide=wide + 3)),
        (
            "Four tensors have E numbers a token, beside qkv: o, h, n and y.",
            of(wide=wide - 1),
        ),
        (
            "The table is all that counts: no other tensor of E numbers a token does, x neither, "
            "which is the y of the layer before.",
            of(wide=wide + 1),
        ),
        ("L is missing: 4 bytes for each query of each head.", less(lambda c: 4 * c.tokens
                                                                    * c.heads)),
        ("L is fp32, 4 bytes a number, whatever the dtype of the layer.",
         less(lambda c: (4 - c.itemsize) * c.tokens * c.heads)),
        ("L has a number for each head of a token.",
         less(lambda c: 4 * c.tokens * (c.heads - 1))),
        ("mean and inv_std are missing: two numbers a token, 4 bytes each.",
         less(lambda c: 8 * c.tokens)),
        ("mean and inv_std are two: 8 bytes a token.", less(lambda c: 4 * c.tokens)),
        ("mean, inv_std and L are fp32, whatever the dtype of the layer.",
         less(lambda c: (4 - c.itemsize) * c.tokens * (c.heads + 2))),
        ("mean and inv_std are fp32, whatever the dtype of the layer.",
         less(lambda c: (4 - c.itemsize) * c.tokens * 2)),
        ("seeds are missing: four dropouts, two int64 each, 64 bytes for the layer.",
         less(lambda c: _SEEDS)),
        ("seeds has 4 · 2 numbers of 8 bytes each.", less(lambda c: _SEEDS - 8)),
        ("seeds has 4 · 2 numbers of 8 bytes each.", less(lambda c: _SEEDS - 16)),
        ("seeds has 4 · 2 numbers of 8 bytes each.", less(lambda c: _SEEDS - 32)),
        ("seeds are kept once a layer, not once a token.",
         lambda *a: kept(a, wide, inner, _SEEDS * (Call(*a).tokens - 1))),
        ("L, the statistics and the seeds are kept too.",
         less(lambda c: 4 * c.tokens * (c.heads + 2) + _SEEDS)),
        ("u and a have I numbers a token, not E.",
         lambda *a: kept(a, wide + inner, 0)),
    )  # fmt: skip


_FREED = "What a flag makes again is not kept: that is what it spares."
_MISTAKES: tuple[tuple[Mistake, ...], ...] = (
    (
        ("They are returned in the order (plain, gelu, both).", both),
        ("u is kept as well as a: GELU's backward reads u, the product's a.",
         lambda *a: kept(a, inner=1)),
        *_usual(7, 2),
    ),
    (
        (_FREED, plain),
        (
            "a is made again from u, and u is kept for that.",
            lambda *a: kept(a, inner=0),
        ),
        (
            "gelu_checkpoint makes a again, which is I wide, and not a tensor that is E wide.",
            lambda *a: kept(a, wide=6, inner=2),
        ),
        (
            "That is what the flag spares. Asked is what the layer still keeps.",
            lambda *a: Call(*a).tokens * Call(*a).inner * Call(*a).itemsize,
        ),
        ("That is with both flags.", both),
        *_usual(7, 1),
    ),
    (
        (_FREED, gelu),
        (_FREED, plain),
        (
            "o is made again from qkv, and qkv is kept for that.",
            lambda *a: kept(a, wide=4, inner=1),
        ),
        (
            "o is made again from qkv, and qkv is kept for that.",
            lambda *a: kept(a, wide=3, inner=1),
        ),
        (
            "Both flags are set: a is made again as well.",
            lambda *a: kept(a, wide=6, inner=2),
        ),
        (
            "L is kept with both flags: attention's backward makes its weights of it.",
            lambda *a: kept(a, 6, 1, -4 * Call(*a).tokens * Call(*a).heads),
        ),
        (
            "That is what the flags spare. Asked is what the layer still keeps.",
            lambda *a: Call(*a).tokens * (Call(*a).inner + Call(*a).width) * Call(*a).itemsize,
        ),
        *_usual(6, 1),
    ),
)  # fmt: skip


def _calls(rng: random.Random) -> list[Call]:
    calls = []
    for itemsize in (2, 4, 2, 2, 4):
        heads, width = rng.randrange(2, 17), 64 * rng.randrange(2, 17)
        sizes = rng.randrange(2, 17), rng.randrange(100, 2000)
        calls.append(Call(*sizes, width, width * rng.randrange(2, 5) + 8, heads, itemsize))
    return [*calls, Call(16, 512, 1024, 4096, 16, 2), Call(1, 1, 64, 128, 1, 4)]


def grade_kept(attempt: Attempt) -> None:
    """Grade `kept_bytes(batch, length, width, inner, heads, itemsize)`: (plain, gelu, both)."""
    told: list[list[Told]] = [[] for _ in NAMES]
    calls = _calls(random.Random(attempt.seed))
    for one in calls:
        args = tuple(one)
        label = asked(attempt, args)
        values = several(answered(attempt, *args), NAMES, label)
        for numbers, value, name, formula in zip(told, values, NAMES, RIGHT, strict=True):
            got = whole(value, label, f"the bytes of {name}")
            numbers.append(Told(label, args, got, formula(*args)))
    for numbers, mistakes, name in zip(told, _MISTAKES, NAMES, strict=True):
        if wrong := first_wrong(numbers):
            off = abs(int(wrong.got - wrong.right))
            less = "fewer" if wrong.got < wrong.right else "more"
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:,} bytes; it is {wrong.right:,}, you have "
                f"{off:,} {less}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"the bytes kept by {len(calls)} layers, with the flags and without")
