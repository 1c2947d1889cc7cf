"""08.10: what a mask costs in time, made again or stored: bytes and instructions side by side."""

from __future__ import annotations

import random

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    asked,
    first_wrong,
    meaning,
    pair,
    real,
)

_WARP = 32


def _times(
    n: int, each: float, instructions: float, gbs: float, slots: float
) -> tuple[float, float]:
    """How long DRAM takes, and the issue slots, in µs."""
    return n * each / (gbs * 1e3), n * instructions / (_WARP * slots)


def _took(n: int, each: float, instructions: float, gbs: float, slots: float) -> float:
    return max(_times(n, each, instructions, gbs, slots))


def made_again(n: int, each: int, without: int, drawn: int, gbs: int, slots: int) -> float:
    """Return the µs that a kernel takes longer when it makes the mask."""
    return _took(n, each, without + drawn, gbs, slots) - _took(n, each, without, gbs, slots)


def stored(n: int, each: int, without: int, drawn: int, gbs: int, slots: int) -> float:
    """Return the µs that a kernel takes longer when it loads the mask, a byte an element."""
    return _took(n, each + 1, without, gbs, slots) - _took(n, each, without, gbs, slots)


_WHOLE = "That is the whole time of the kernel: asked is what the mask adds to it."
_SUM = (
    "The two times are added up. While some warps wait for memory others issue: a kernel takes the "
    "longer of the two."
)
_MADE: tuple[Mistake, ...] = (
    (
        "A mask that is made again moves no byte, and its instructions are still issued: it is "
        "free only while memory takes longer.",
        lambda n, b, i, d, g, s: 0.0,
    ),
    (_WHOLE, lambda n, b, i, d, g, s: _took(n, b, i + d, g, s)),
    (_SUM, lambda n, b, i, d, g, s: _times(n, b, d, g, s)[1]),
    (
        "A slot issues an instruction for a warp: 32 elements share it.",
        lambda n, b, i, d, g, s: _took(n, b, 32 * (i + d), g, s) - _took(n, b, 32 * i, g, s),
    ),
    (
        "The other instructions are left out: all of a kernel's share the slots.",
        lambda n, b, i, d, g, s: max(0.0, _times(n, b, d, g, s)[1] - _times(n, b, d, g, s)[0]),
    ),
    (
        "Without the mask the kernel may be bound by its instructions already: take the longer of "
        "its two times then, too.",
        lambda n, b, i, d, g, s: max(0.0, _took(n, b, i + d, g, s) - _times(n, b, i, g, s)[0]),
    ),
    (
        "The shorter of the two times is taken: a kernel waits for the longer.",
        lambda n, b, i, d, g, s: min(_times(n, b, i + d, g, s)) - min(_times(n, b, i, g, s)),
    ),
)
_STORED: tuple[Mistake, ...] = (
    (
        "That is a byte an element at the card's bandwidth. Where instructions bind, memory has "
        "time for it.",
        lambda n, b, i, d, g, s: n / (g * 1e3),
    ),
    (_WHOLE, lambda n, b, i, d, g, s: _took(n, b + 1, i, g, s)),
    (
        "A mask that is loaded is not drawn: its numbers take no instructions.",
        lambda n, b, i, d, g, s: _took(n, b + 1, i + d, g, s) - _took(n, b, i, g, s),
    ),
    (
        "That counts a bit an element: a mask takes a byte.",
        lambda n, b, i, d, g, s: _took(n, b + 1 / 8, i, g, s) - _took(n, b, i, g, s),
    ),
    (
        "That counts two bytes an element: a mask takes a byte, and is only read here.",
        lambda n, b, i, d, g, s: _took(n, b + 2, i, g, s) - _took(n, b, i, g, s),
    ),
    (
        "A slot issues an instruction for a warp: 32 elements share it.",
        lambda n, b, i, d, g, s: _took(n, b + 1, 32 * i, g, s) - _took(n, b, 32 * i, g, s),
    ),
    (
        "The shorter of the two times is taken: a kernel waits for the longer.",
        lambda n, b, i, d, g, s: min(_times(n, b + 1, i, g, s)) - min(_times(n, b, i, g, s)),
    ),
)


# GB/s, and issue slots of all SMs in a µs, of a T4, an A100 and an H100.
_CARDS = ((320, 254_400), (1555, 609_120), (3350, 1_045_440))
# Instructions without the mask and of the mask, as shares of what memory leaves time for: memory
# binds always, not with the mask, not with a byte less, never.
_SHARES = ((0.3, 0.2), (0.5, 1.3), (1.07, 0.4), (1.6, 0.3))


def _calls(rng: random.Random) -> list[tuple[int, int, int, int, int, int]]:
    """Kernels that memory binds with a mask and without, one of the two, and neither."""
    calls = []
    for gbs, slots in _CARDS:
        for shares in _SHARES:
            each = rng.choice((4, 6, 8))
            balance = each * _WARP * slots / (gbs * 1e3)
            without, drawn = (round(balance * share * rng.uniform(0.98, 1.02)) for share in shares)
            calls.append((rng.randrange(1, 200) * 2**20, each, without, drawn, gbs, slots))
    return calls


def grade_free(attempt: Attempt) -> None:
    """Grade `mask_costs(...)`: the µs that a mask adds to a kernel, made again and stored."""
    told: tuple[list[Told], list[Told]] = ([], [])
    calls = _calls(random.Random(attempt.seed))
    for args in calls:
        label = asked(attempt, args)
        both = pair(answered(attempt, *args), label, "(made_again, stored)")
        for numbers, value, right in zip(
            told, both, (made_again(*args), stored(*args)), strict=True
        ):
            numbers.append(Told(label, args, real(value, label, "a time"), right))
    names = ("made_again", "stored")
    for numbers, mistakes, name in zip(told, (_MADE, _STORED), names, strict=True):
        if wrong := first_wrong(numbers):
            raise Wrong(
                f"{wrong.label}: {name} is {wrong.got:.6g} µs; it is {wrong.right:.6g} µs.",
                meaning(mistakes, numbers),
            )
    attempt.held.append(f"what a mask adds to {len(calls)} kernels, made again and stored")
