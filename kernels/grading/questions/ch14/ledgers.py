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
VERDICTS = ("pre", "pre, norms in products", "post")
_KINDS: tuple[tuple[str, Steps], ...] = (
    ("pre", OPERATORS),
    ("pre", FUSED),
    ("pre, norms in products", FOLDED),
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


def _residuals(ledger: Ledger) -> dict[str, Launch]:
    """The tensors that two launches read, each with the first of these."""
    readers: dict[str, list[Launch]] = defaultdict(list)
    for launch in ledger:
        for name in launch.reads:
            readers[name].append(launch)
    return {name: found[0] for name, found in readers.items() if len(found) == 2}


def _same(launch: Launch) -> bool:
    """Whether a launch reads one tensor and writes one as large."""
    return len(launch.reads) == 1 and {*launch.reads.values()} == {*launch.writes.values()}


def _past_a_norm(ledger: Ledger) -> bool:
    """Whether residuals are read first by what writes as much, a norm."""
    return any(_same(launch) for launch in _residuals(ledger).values())


def _behind_a_norm(ledger: Ledger) -> bool:
    """Whether residuals are what a norm wrote."""
    residuals = _residuals(ledger)
    return any(_same(one) and not residuals.keys().isdisjoint(one.writes) for one in ledger)


def where(ledger: Ledger) -> str:
    """The right word: who reads a residual first, and who wrote it."""
    if _behind_a_norm(ledger):
        return "post"
    return "pre" if _past_a_norm(ledger) else "pre, norms in products"


_WHO_ELSE = "Look at who else reads what a launch reads."
_MISTAKES = (
    (
        f"A ledger is cut anywhere: its first launch need not be a layer's first. {_WHO_ELSE}",
        lambda ledger: "pre" if _same(ledger[0]) else "post",
    ),
    (
        f"A ledger is cut anywhere: its last launch need not be a layer's last. {_WHO_ELSE}",
        lambda ledger: "post" if _same(ledger[-1]) else "pre",
    ),
    (
        "A launch that reads a tensor and writes one as large is in every ledger where norms are "
        "launches. What counts is the residual: is it what the norm read, or what it wrote?",
        lambda ledger: "pre" if any(map(_same, ledger)) else "pre, norms in products",
    ),
    (
        "A launch that reads a tensor and writes one as large is in every ledger where norms are "
        "launches. What counts is the residual: is it what the norm read, or what it wrote? Don't "
        "go by the last sum of a ledger: in pre-LN the next sum reads it too, behind the cut.",
        lambda ledger: "post" if any(map(_same, ledger)) else "pre, norms in products",
    ),
    (
        "A residual that a product reads first, and no norm, is not yet post-LN: the norm may "
        "stand in that product. Who wrote the residual?",
        lambda ledger: "pre" if _past_a_norm(ledger) else "post",
    ),
    (
        "A residual that a product reads first, and no norm, is not yet pre-LN with its norms in "
        "products: in post-LN it is so too. Who wrote the residual?",
        lambda ledger: "pre" if _past_a_norm(ledger) else "pre, norms in products",
    ),
    (
        "You tell pre from post. Where the norms of pre-LN stand in products, no launch writes as "
        "much as it reads.",
        lambda ledger: where(ledger).partition(",")[0],
    ),
    (
        "pre and post have changed places: in pre-LN the residual goes past the norm, which reads "
        "it first.",
        lambda ledger: {"pre": "post", "post": "pre"}.get(where(ledger), where(ledger)),
    ),
)
_TELLS = {
    "pre": "Each residual is read twice: by a launch that writes as much as it read, the norm, and "
    "then by the one that adds it.",
    "pre, norms in products": "Each residual is read first by a launch that writes three times as "
    "much, or I / E times: a product. And it was written by a launch that reads two tensors, a "
    "sum, and no norm.",
    "post": "Each residual was written by a launch that reads one tensor of its size, a norm. Its "
    "first reader is a product.",
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
