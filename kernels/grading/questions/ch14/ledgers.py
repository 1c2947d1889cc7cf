"""14.2: where the norms of a layer stand, read from a ledger without names."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import NamedTuple

from kernels.grading.question import Attempt
from kernels.grading.questions.ch14.layers import (
    FOLDED,
    FUSED,
    FUSED_POST,
    OPERATORS,
    OPERATORS_POST,
    Steps,
    numbers,
)
from kernels.grading.questions.kits.words import Words


class Launch(NamedTuple):
    """A launch: the bytes of each tensor that it reads, and of each that it writes."""

    reads: dict[str, int]
    writes: dict[str, int]


Ledger = tuple[Launch, ...]
VERDICTS = ("pre", "pre, one norm in a product", "post")
_KINDS: tuple[tuple[str, Steps], ...] = (
    ("pre", OPERATORS),
    ("pre", FUSED),
    ("pre, one norm in a product", FOLDED),
    ("post", OPERATORS_POST),
    ("post", FUSED_POST),
)


def _ledger(rng: random.Random, steps: Steps, e: int, i: int, tokens: int, cut: int) -> Ledger:
    """Three layers of the kind, the first `cut` launches left out; tensors have numbers as names.

    Memory is not used again: a name stands for one tensor.
    """
    launches: list[Launch] = []
    fresh = iter(rng.sample(range(100, 1000), 60))
    x = f"t{next(fresh)}"
    for _ in range(3):
        names = {"x": x}
        for step in steps:
            names[step.writes] = f"t{next(fresh)}"
            reads = {names[one]: 2 * tokens * numbers(one, e, i) for one in step.reads}
            if rng.random() < 0.5:  # no order among what a launch reads
                reads = dict(reversed(reads.items()))
            size = 2 * tokens * numbers(step.writes, e, i)
            launches.append(Launch(reads, {names[step.writes]: size}))
        x = names["y"]
    return tuple(launches[cut : cut + 2 * len(steps)])


def ledgers(seed: int) -> list[tuple[str, Ledger]]:
    """Ledgers with their right words: each kind twice, cut at different places."""
    rng = random.Random(seed)
    made = []
    for word, steps in _KINDS:
        for cut in (0, rng.randrange(1, len(steps))):
            e = 64 * rng.randrange(2, 9)
            i = e * rng.choice((2, 3, 4))
            made.append((word, _ledger(rng, steps, e, i, rng.randrange(10, 400), cut)))
    rng.shuffle(made)
    return made


def sample_ledgers() -> list[Ledger]:
    """A ledger of each of three kinds, which the page prints."""
    rng = random.Random(14)
    kinds = [FUSED, FOLDED, FUSED_POST]
    rng.shuffle(kinds)
    return [_ledger(rng, steps, 64, 256, 100, 2)[: len(steps) + 1] for steps in kinds]


def _ways(ledger: Ledger) -> set[int]:
    """How wide what the first reader of a tensor read twice leaves, in widths of that tensor."""
    readers: dict[str, list[int]] = defaultdict(list)
    for launch in ledger:
        for name, size in launch.reads.items():
            readers[name].append(sum(launch.writes.values()) // size)
    return {found[0] for found in readers.values() if len(found) == 2}


def where(ledger: Ledger) -> str:
    """The right word: a residual goes past a norm, past a product that has one, or comes behind."""
    ways = _ways(ledger)
    if 1 not in ways:
        return "post"
    return "pre" if ways == {1} else "pre, one norm in a product"


def _same(launch: Launch) -> bool:
    """Whether a launch reads one tensor and writes one as large."""
    return len(launch.reads) == 1 and {*launch.reads.values()} == {*launch.writes.values()}


def _by_first(ledger: Ledger) -> str:
    return "pre" if _same(ledger[0]) else "post"


def _by_last(ledger: Ledger) -> str:
    return "post" if _same(ledger[-1]) else "pre"


_MISTAKES = (
    (
        "A ledger is cut anywhere: its first launch need not be a layer's first. Look who else "
        "reads what a launch reads.",
        _by_first,
    ),
    (
        "A ledger is cut anywhere: its last launch need not be a layer's last. Look who else "
        "reads what a launch reads.",
        _by_last,
    ),
    (
        "Every ledger here has launches that read a tensor and write one as large. Whether it is "
        "pre-LN shows in the residual: is it what the norm read, or what it wrote?",
        lambda ledger: "pre" if any(_same(launch) for launch in ledger) else "post",
    ),
    (
        "You tell pre from post. In some pre-LN ledgers the norm in front of QKV is no launch: "
        "there the residual of the one half is read by a norm, that of the other by a product.",
        lambda ledger: where(ledger).partition(",")[0],
    ),
    (
        "pre and post have changed places: in pre-LN the residual goes past the norm, which reads "
        "it first.",
        lambda ledger: {"pre": "post", "post": "pre"}.get(where(ledger), where(ledger)),
    ),
    (
        "A residual that a product reads, and no norm, is post-LN as well: one norm in a product "
        "leaves the other norm where it shows.",
        lambda ledger: "pre, one norm in a product" if len(_ways(ledger)) > 1 or 1 not in
        _ways(ledger) else "pre",
    ),
)  # fmt: skip
_TELLS = {
    "pre": "Each residual is read twice: by a launch that writes as much as it read, the norm, and "
    "then by the one that adds it.",
    "pre, one norm in a product": "One residual is read first by a launch that writes as much as "
    "it read, the norm; the other by one that writes three times as much. So a norm is there, in "
    "front of a residual's sum, and the other stands in QKV's product.",
    "post": "Each residual is what a norm wrote: its first reader is a product, which writes three "
    "times as much or I numbers a token.",
}


def _shown(ledger: Ledger) -> str:
    first = ledger[0]
    reads = " and ".join(f"{size:,} bytes of {name}" for name, size in first.reads.items())
    ((name, size),) = first.writes.items()
    return (
        f"it has {len(ledger)} launches, and the first one reads {reads} and writes {size:,} "
        f"bytes of {name}"
    )


WORDS: Words[Ledger] = Words(VERDICTS, "ledger", _shown, _MISTAKES, _TELLS)


def grade_ledgers(attempt: Attempt) -> None:
    """Grade `norm_place(ledger)`: one of three words for each of ten ledgers."""
    made = ledgers(attempt.seed)
    # A copy of its own: an answer may change what it is given.
    given = [
        (word, tuple(Launch(dict(one.reads), dict(one.writes)) for one in ledger))
        for word, ledger in made
    ]
    WORDS.grade(attempt, given)
    attempt.held.append(f"where the norms stand, of {len(made)} ledgers")
