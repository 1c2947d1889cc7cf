"""14.8: how much memory a layer takes beside its input, operator by operator and fused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kernels.grading.question import Attempt
from kernels.grading.questions.ch14.layers import (
    FUSED,
    OPERATORS,
    Steps,
    alive,
    numbers,
    width,
)
from kernels.grading.questions.kits.numbers import Mistake
from kernels.grading.questions.kits.several import grade_several

NAMES = ("before", "after")
GRAIN = 512
Formula = Callable[[int, int, int, int, int], int]
Sets = Sequence[set[str]]


def _up(size: int, grain: int) -> int:
    return -(-size // grain) * grain


def _peak(sets: Sets, grain: int = GRAIN, rounds: str = "each") -> Formula:
    """The largest sum of what lives at once, rounded up to a multiple of `grain`.

    rounds: each tensor, the "total", those "alike" together, or each "token" of a tensor.
    """

    def formula(b: int, s: int, e: int, i: int, item: int) -> int:
        tokens = 1 if rounds == "token" else b * s

        def taken(one: set[str]) -> int:
            sizes = [tokens * numbers(name, e, i) * item for name in sorted(one)]
            if rounds == "total":
                sizes = [sum(sizes)]
            if rounds == "alike":
                wide = sorted({width(name) for name in one})
                sizes = [
                    sum(tokens * numbers(name, e, i) * item for name in one if width(name) == w)
                    for w in wide
                ]
            return sum(_up(size, grain) for size in sizes)

        return max(map(taken, sets)) * (b * s // tokens)

    return formula


BEFORE, AFTER = (_peak(alive(steps)) for steps in (OPERATORS, FUSED))


def _mistakes(steps: Steps, other: Formula) -> tuple[Mistake, ...]:
    right = alive(steps)
    at_hand = [{*step.reads, step.writes} - {"x"} for step in steps]
    written = [step.writes for step in steps]
    until_read = [
        one - {step.writes} if len(one) > 1 else one for one, step in zip(right, steps, strict=True)
    ]
    without_read = [
        (one - set(step.reads)) | {step.writes} for one, step in zip(right, steps, strict=True)
    ]
    added = max(at for at, step in enumerate(steps) if "x" in step.reads)
    until_added = [one | {"x"} if at <= added else one for at, one in enumerate(right)]
    held = _peak(right)
    return (
        (
            "h is missing: it passes by the launches of the MLP, and lives until the last launch "
            "adds it.",
            _peak(at_hand),
        ),
        (
            "h is missing: it lives while the MLP runs, until the last launch adds it.",
            _peak([one - {"h"} for one in right]),
        ),
        (
            "Each tensor is rounded up by itself, and then they are added.",
            _peak(right, rounds="total"),
        ),
        (
            "Each tensor is rounded up by itself, those of one size too, and then they are added.",
            _peak(right, rounds="alike"),
        ),
        (
            "A tensor is rounded up, and not each token's part of it.",
            _peak(right, rounds="token"),
        ),
        ("A tensor takes a multiple of 512 bytes: round each up.", _peak(right, 1)),
        (
            "Nothing is used again: those are all tensors. One lives from the launch that writes "
            "it to the last that reads it.",
            _peak([set(written)]),
        ),
        (
            "Nothing is used again: those are all tensors. One lives from the launch that writes "
            "it to the last that reads it.",
            _peak([set(written)], 1),
        ),
        ("x is the caller's: it takes nothing of the workspace.", _peak(until_added)),
        ("x is the caller's: it takes nothing of the workspace.",
         _peak([one | {"x"} for one in right])),
        (
            "What a launch reads lives while it runs, and so does what it writes.",
            _peak(until_read),
        ),
        (
            "What a launch reads lives while it runs, and so does what it writes.",
            _peak(without_read),
        ),
        ("That is the largest tensor alone: several live at once.", _peak([{n} for n in written])),
        ("before and after have changed places.", other),
        ("Elements are counted, not bytes.", lambda b, s, e, i, t: held(b, s, e, i, 1)),
        ("That is one sequence of the batch.", lambda b, s, e, i, t: held(1, s, e, i, t)),
        (
            "That is while QKV and attention run: where I is large, the MLP takes more.",
            _peak(right[: len(right) // 2]),
        ),
        (
            "That is while the MLP runs: where I is small, QKV and attention take more.",
            _peak(right[len(right) // 2 :]),
        ),
    )  # fmt: skip


def _calls(rng: random.Random) -> list[tuple[int, ...]]:
    calls: list[tuple[int, ...]] = []
    # An inner width below E, of which QKV and attention take most, near it, and above.
    for share, itemsize in ((0.5, 2), (1.5, 2), (4, 2), (3, 4), (2, 4)):
        e = 8 * rng.randrange(5, 40)
        tokens = rng.randrange(2, 9), 2 * rng.randrange(5, 50) + 1
        calls.append((*tokens, e, round(share * e) + 1, itemsize))
    return [*calls, (8, 512, 1024, 4096, 2), (1, 1, 40, 24, 2), (1, 3, 64, 100, 4)]


def grade_workspace(attempt: Attempt) -> None:
    """Grade `workspace_bytes(batch, length, e, i, itemsize)`: (before, after)."""
    mistakes = _mistakes(OPERATORS, AFTER), _mistakes(FUSED, BEFORE)
    calls = _calls(random.Random(attempt.seed))
    grade_several(attempt, calls, NAMES, (BEFORE, AFTER), mistakes, " bytes")
