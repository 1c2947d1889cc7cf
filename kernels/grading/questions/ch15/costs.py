"""15.10: what a byte spared costs in time, by each of the two flags."""

from __future__ import annotations

import random
from typing import Any

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

NAMES = ("gelu", "attention", "turn")


def gelu(length: int, itemsize: int, flops_per_s: float, bytes_per_s: float) -> float:
    """Return seconds for a byte spared: u is read and a written, and a was spared."""
    return 2 / bytes_per_s


def attention(length: int, itemsize: int, flops_per_s: float, bytes_per_s: float) -> float:
    """Return seconds for a byte of o: 4 · S FLOPs a number, or qkv read and o written."""
    return max(4 * length / itemsize / flops_per_s, 4 / bytes_per_s)


def turn(length: int, itemsize: int, flops_per_s: float, bytes_per_s: float) -> float:
    """Return the length at which attention's FLOPs take as long as its bytes."""
    return itemsize * flops_per_s / bytes_per_s


RIGHT = (gelu, attention, turn)
_BY_BYTES = "Seconds are bytes divided by bytes a second."
_LONGER = "A kernel takes the longer of its two times: that of its FLOPs or that of its bytes."
_GELU: tuple[Mistake, ...] = (
    ("The launch reads u and writes a: two bytes move for each one spared.",
     lambda s, i, f, b: 1 / b),
    ("The launch reads u and writes a: two bytes move for each one spared.",
     lambda s, i, f, b: 4 / b),
    ("The launch reads u and writes a; a is read by the product with the flag and without.",
     lambda s, i, f, b: 3 / b),
    ("That is seconds for a number: it has itemsize bytes.", lambda s, i, f, b: 2 * i / b),
    ("Bytes are counted as they are: of u and a alike itemsize a number, and they cancel.",
     lambda s, i, f, b: 2 / i / b),
    (_BY_BYTES, lambda s, i, f, b: b / 2),
    (_BY_BYTES, lambda s, i, f, b: 2 / f),
    ("It doesn't depend on the length: bytes that move and bytes spared grow alike.",
     lambda s, i, f, b: 2 * s / b),
)  # fmt: skip
_ATTENTION: tuple[Mistake, ...] = (
    (_LONGER, lambda s, i, f, b: 4 * s / i / f),
    (_LONGER, lambda s, i, f, b: 4 / b),
    (_LONGER, lambda s, i, f, b: 4 * s / i / f + 4 / b),
    (_LONGER, lambda s, i, f, b: min(4 * s / i / f, 4 / b)),
    ("A multiply-add is two FLOPs, and there are two products: 4 · S for a number of o.",
     lambda s, i, f, b: max(2 * s / i / f, 4 / b)),
    ("A multiply-add is two FLOPs, and there are two products: 4 · S for a number of o.",
     lambda s, i, f, b: max(s / i / f, 4 / b)),
    ("A number of o has itemsize bytes: its 4 · S FLOPs are shared by them.",
     lambda s, i, f, b: max(4 * s / f, 4 / b)),
    ("A number of o has itemsize bytes: its 4 · S FLOPs are shared by them.",
     lambda s, i, f, b: max(4 * s * i / f, 4 / b)),
    ("q, k and v are read and o is written: four bytes move for each one spared.",
     lambda s, i, f, b: max(4 * s / i / f, 3 / b)),
    ("q, k and v are read and o is written: four bytes move for each one spared.",
     lambda s, i, f, b: max(4 * s / i / f, 2 / b)),
    ("q, k and v are read and o is written: four bytes move for each one spared.",
     lambda s, i, f, b: max(4 * s / i / f, 1 / b)),
    ("4 · S FLOPs are those of both products, and a multiply-add is two of them already.",
     lambda s, i, f, b: max(8 * s / i / f, 4 / b)),
    ("The four bytes are for each byte spared: itemsize cancels.",
     lambda s, i, f, b: max(4 * s / i / f, 4 * i / b)),
    ("That is seconds for all of a sequence: divide by its bytes.",
     lambda s, i, f, b: max(4 * s * s / i / f, 4 / b)),
)  # fmt: skip
_TURN: tuple[Mistake, ...] = (
    ("4 · S / itemsize FLOPs against 4 bytes: the two fours cancel.",
     lambda s, i, f, b: i * f / b / 4),
    ("4 · S / itemsize FLOPs against 4 bytes: the two fours cancel.",
     lambda s, i, f, b: i * f / b / 2),
    ("4 · S / itemsize FLOPs against 4 bytes: the two fours cancel.",
     lambda s, i, f, b: 4 * i * f / b),
    ("4 · S / itemsize FLOPs against 4 bytes: the two fours cancel.",
     lambda s, i, f, b: 2 * i * f / b),
    ("The formula is right, and its result is cut to a whole number: return it as it comes out.",
     lambda s, i, f, b: int(i * f / b)),
    ("That is the card's FLOPs a byte; a number has itemsize bytes.", lambda s, i, f, b: f / b),
    ("4 · S / itemsize / flops_per_s = 4 / bytes_per_s: solve it for S.",
     lambda s, i, f, b: f / b / i),
    ("4 · S / itemsize / flops_per_s = 4 / bytes_per_s: solve it for S.",
     lambda s, i, f, b: b / f / i),
    ("4 · S / itemsize / flops_per_s = 4 / bytes_per_s: solve it for S.",
     lambda s, i, f, b: i * b / f),
    ("That is where attention's FLOPs take as long as GELU's bytes. Asked is where they take as "
     "long as attention's own.", lambda s, i, f, b: i * f / b * 0.5),
    ("That is the length that was given: asked is the one at which both times are alike.",
     lambda s, i, f, b: s),
)  # fmt: skip
_MISTAKES = (_GELU, _ATTENTION, _TURN)


def _calls(rng: random.Random) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    for itemsize in (2, 4):
        for far in (0.05, 0.4, 3, 20):
            flops, moved = rng.uniform(20, 900) * 1e12, rng.uniform(0.3, 8) * 1e12
            length = max(1, int(far * rng.uniform(0.8, 1.2) * itemsize * flops / moved))
            calls.append((length, itemsize, flops, moved))
    return [*calls, (512, 2, 6e14, 4e12), (8192, 2, 6e14, 4e12)]


def grade_costs(attempt: Attempt) -> None:
    """Grade `again_costs(length, itemsize, flops_per_s, bytes_per_s)`: (gelu, attention, turn)."""
    told: list[list[Told]] = [[] for _ in NAMES]
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        values = several(answered(attempt, *args), NAMES, label)
        for numbers, value, name, formula in zip(told, values, NAMES, RIGHT, strict=True):
            numbers.append(Told(label, args, real(value, label, name), formula(*args)))
    for numbers, mistakes, name in zip(told, _MISTAKES, NAMES, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:.6g}; it is {wrong.right:.6g}.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"what a byte costs by either flag, in {len(calls)} calls")
