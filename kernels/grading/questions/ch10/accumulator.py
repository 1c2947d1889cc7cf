"""10.3: what a product of ones comes to, whose accumulator has 16 bits."""

from __future__ import annotations

import math
import random

import torch

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    kind,
    meaning,
)
from kernels.registry import DTYPES

_DIGITS = {"fp16": 11, "bf16": 8, "fp32": 24}  # bits of a significand, the hidden one too


def total_of_ones(k: int, block_k: int, name: str) -> float:
    """Add up k ones, block_k at a step, in an accumulator of dtype `name`; rounded at each step."""
    total = torch.zeros((), dtype=DTYPES[name])
    for start in range(0, k, block_k):
        after = (total.float() + min(block_k, k - start)).to(total.dtype)
        if torch.equal(after, total) and start + 2 * block_k <= k:
            # It has stuck: all that is left to add is the rest behind the last whole step.
            rest = k % block_k
            return float((total.float() + rest).to(total.dtype))
        total = after
    return float(total)


def _sticks(digits: int, step: int, k: int) -> float:
    return float(min(k, step * 2**digits))


def _formula(k: int, block_k: int, name: str) -> float:
    """Where it sticks, and nothing of infinity, nor of a rest that rounds."""
    return _sticks(_DIGITS[name], block_k, k)


def _capped(k: int, block_k: int, name: str) -> float:
    return (
        min(_formula(k, block_k, name), 65504.0) if name == "fp16" else _formula(k, block_k, name)
    )


_MISTAKES: tuple[Mistake, ...] = (
    (
        "That is the exact sum. An accumulator holds so many digits, and a step that is half of "
        "the last one's worth, or less, changes nothing.",
        lambda k, b, name: float(k),
    ),
    (
        "That is where ones stick that are added one by one. A step adds BLOCK_K of them at once: "
        "it is lost only where the total is that much larger.",
        lambda k, b, name: _sticks(_DIGITS[name], 1, k),
    ),
    (
        "fp16 has no number beyond 65504: a total that rounds to more is infinite.",
        _formula,
    ),
    (
        "fp16 doesn't stop at its largest number: what rounds to more than 65504 is infinite.",
        _capped,
    ),
    (
        "bf16 has 8 bits for its digits, and not fp16's 11. Its range is that of fp32.",
        lambda k, b, name: total_of_ones(k, b, "fp16" if name == "bf16" else name),
    ),
    (
        "A whole step is added even where K leaves less than one: masked lanes add nothing.",
        lambda k, b, name: total_of_ones(-(-k // b) * b, b, name),
    ),
    (
        "What is left of K behind the last whole step is added too.",
        lambda k, b, name: total_of_ones(k // b * b, b, name),
    ),
    (
        "Every step rounds to the accumulator's digits, the last one too: a rest behind the last "
        "whole step may be lost, or rounded up.",
        lambda k, b, name: (
            total_of_ones(k // b * b, b, name) + k % b if k % b else total_of_ones(k, b, name)
        ),
    ),
)


def _calls(rng: random.Random) -> list[tuple[int, int, str]]:
    calls = [
        (rng.randrange(100, 200) * 16, 16, "fp16"),  # exact still
        (2**16 + rng.randrange(999), 16, "fp16"),  # sticks at 2048 steps
        (2**17 + rng.randrange(999), 32, "fp16"),  # infinite
        (2**16 + 64 * rng.randrange(9, 99), 64, "fp16"),
        (rng.randrange(100, 200) * 32 + rng.randrange(3, 15) * 2 + 1, 32, "fp16"),  # a rest rounds
        (2**14 + rng.randrange(999), 32, "bf16"),
        (2**16 + rng.randrange(999), 128, "bf16"),
        (rng.randrange(9, 200) * 16, 16, "bf16"),
        (2**17 + rng.randrange(999), 64, "fp32"),
    ]
    rng.shuffle(calls)
    return calls


def _number(value: object, label: str) -> float:
    """An answer as a float; infinity is one."""
    if type(value) is torch.Tensor and value.numel() == 1:
        value = value.item()
    if type(value) not in (int, float):
        try:
            value = float(value)  # type: ignore[arg-type]
        except Exception:
            raise Wrong(f"{label} returned {kind(value)}; a total is a number.") from None
    number = float(value)  # type: ignore[arg-type]
    if math.isnan(number):
        raise Wrong(f"{label} returned nan as a total.")
    return number


def grade_ones(attempt: Attempt) -> None:
    """Grade `total_of_ones(k, block_k, dtype)`: what the accumulator holds at the end."""
    attempt.predicts = True  # the page's own kernel would tell
    told = []
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        told.append(
            Told(label, args, _number(answered(attempt, *args), label), total_of_ones(*args))
        )
    if wrong := first_wrong(told):
        raise Wrong(
            f"{wrong.label} is {wrong.got:,.10g}; the accumulator holds {wrong.right:,.10g}.",
            meaning(_MISTAKES, told),
        )
    attempt.held.append(f"the totals of {len(calls)} accumulators")
