"""14.1: the bytes of a layer's activations, operator by operator and fused."""

from __future__ import annotations

import random
from collections.abc import Callable

from kernels.grading.question import Attempt
from kernels.grading.questions.ch14 import layers
from kernels.grading.questions.ch14.layers import FUSED, OPERATORS, Steps
from kernels.grading.questions.kits.numbers import Mistake
from kernels.grading.questions.kits.several import grade_several

NAMES = ("before", "after")
Formula = Callable[[int, int, int, int, int], int]


def _bytes(of_e: float, of_i: float) -> Formula:
    """Bytes of so many numbers a token."""
    return lambda b, s, e, i, item: int(b * s * (of_e * e + of_i * i) * item)


BEFORE, AFTER = (_bytes(*layers.moved(steps)) for steps in (OPERATORS, FUSED))


def _sums(steps: Steps) -> dict[str, tuple[int, int]]:
    """What is read, what is written, and each tensor once: multiples of E and of I."""

    def total(names: list[str]) -> tuple[int, int]:
        parts = [layers.width(name) for name in names]
        return sum(e for e, _ in parts), sum(i for _, i in parts)

    read = [name for step in steps for name in step.reads]
    first = [step.reads[0] for step in steps]
    written = [step.writes for step in steps]
    return {
        "read": total(read),
        "written": total(written),
        "once": total(sorted({*read, *written})),
        "one read": total([*first, *written]),
    }


def _mistakes(steps: Steps, other: Formula) -> tuple[Mistake, ...]:
    of_e, of_i = layers.moved(steps)
    sums = _sums(steps)
    right = _bytes(of_e, of_i)
    return (
        ("Elements are counted, not bytes.", lambda b, s, e, i, item: right(b, s, e, i, 1)),
        ("That is one sequence of the batch.", lambda b, s, e, i, item: right(1, s, e, i, item)),
        (
            "That is one token a sequence: each of length tokens has its numbers.",
            lambda b, s, e, i, item: right(b, 1, e, i, item),
        ),
        ("Those are the bytes read: each launch writes a tensor as well.", _bytes(*sums["read"])),
        ("Those are the bytes written: each launch reads as well.", _bytes(*sums["written"])),
        (
            "Each tensor is counted once. It is written by one launch and read by others, and each "
            "time it crosses memory.",
            _bytes(*sums["once"]),
        ),
        (
            "2 · E a token are missing. The residual is read too: a launch that adds reads two "
            "tensors. And attention reads queries, keys and values, 3 · E.",
            _bytes(*sums["one read"]),
        ),
        ("before and after have changed places.", other),
        (_told_of_narrow(steps), _qkv_as_wide_as_e(steps)),
        (
            "u and g are I wide, and not E.",
            lambda b, s, e, i, item: right(b, s, e, e, item),
        ),
        (
            "The weights are counted: activations alone are asked for.",
            lambda b, s, e, i, item: right(b, s, e, i, item) + (4 * e * e + 2 * e * i) * item,
        ),
        ("That is a launch short: go through the table row by row.", _bytes(of_e - 2, of_i)),
        (
            "GELU reads I numbers a token and writes as many: that is a launch too.",
            _bytes(of_e, of_i - 2),
        ),
        (
            "GELU is no launch of its own here: what lies between it and its product stays in "
            "registers.",
            _bytes(of_e, of_i + 2),
        ),
    )


def _told_of_narrow(steps: Steps) -> str:
    """What it means if qkv were E wide; where there are copies, these have as many bytes."""
    told = "qkv is 3 · E wide: queries, keys and values."
    copies = tuple(step for step in steps if step.does == "copy")
    of_copies, of_narrow = layers.moved(copies)[0] if copies else 0, _narrower(steps)
    if of_copies == of_narrow:
        return f"{of_copies} · E a token are missing. {told} And the copies are launches too."
    return told


def _narrower(steps: Steps) -> int:
    """How many E a token are missing if what is 3 · E wide were E wide."""
    names = [name for step in steps for name in (*step.reads, step.writes)]
    return 2 * sum(layers.width(name) == (3, 0) for name in names)


def _qkv_as_wide_as_e(steps: Steps) -> Formula:
    of_e, of_i = layers.moved(steps)
    return _bytes(of_e - _narrower(steps), of_i)


def _calls(rng: random.Random) -> list[tuple[int, ...]]:
    calls: list[tuple[int, ...]] = []
    for itemsize in (2, 4, 2):
        e = 64 * rng.randrange(3, 20)
        calls.append((rng.randrange(2, 40), rng.randrange(10, 900), e, 3 * e + 64, itemsize))
    return [*calls, (1, 128, 1024, 4096, 2), (3, 1, 64, 32, 4)]


def grade_moved(attempt: Attempt) -> None:
    """Grade `layer_bytes(batch, length, e, i, itemsize)`: (before, after)."""
    mistakes = _mistakes(OPERATORS, AFTER), _mistakes(FUSED, BEFORE)
    calls = _calls(random.Random(attempt.seed))
    grade_several(attempt, calls, NAMES, (BEFORE, AFTER), mistakes, " bytes")
