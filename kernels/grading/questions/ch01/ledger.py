"""01.3: how often a tensor was read, from the lines of a ledger of operators drawn at random."""

from __future__ import annotations

import random
from typing import Any

import torch

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import (
    Mistake,
    Told,
    answered,
    first_wrong,
    meaning,
    real,
)
from kernels.lab.counting import aten
from kernels.lab.counting.ledger import Ledger

Line = tuple[str, str, int, int]
Sizes = dict[str, int]


def _of(lines: list[Line], name: str) -> list[Line]:
    return [line for line in lines if line[1] == name]


def _read(lines: list[Line], name: str) -> int:
    return sum(line[2] for line in _of(lines, name))


READ_MISTAKES: tuple[Mistake, ...] = (
    (
        "You count lines. A step may read only a part of a tensor: add up the bytes.",
        lambda lines, sizes, name: float(sum(line[2] > 0 for line in _of(lines, name))),
    ),
    (
        "You count lines, and those that only write the tensor too.",
        lambda lines, sizes, name: float(len(_of(lines, name))),
    ),
    (
        "What was written is counted too: the question is how often it was read.",
        lambda lines, sizes, name: (
            sum(line[2] + line[3] for line in _of(lines, name)) / sizes[name]
        ),
    ),
    (
        "These are bytes: divide by the tensor's size.",
        lambda lines, sizes, name: _read(lines, name),
    ),
    (
        "The division is rounded to a whole number: half a tensor read is 0.5 times.",
        lambda lines, sizes, name: _read(lines, name) // sizes[name],
    ),
    (
        "Only the first line of the tensor is there: later steps may read it again.",
        lambda lines, sizes, name: (
            next(iter(line[2] for line in _of(lines, name)), 0) / sizes[name]
        ),
    ),
    (
        "The bytes are divided by the size of x: each tensor has its own.",
        lambda lines, sizes, name: _read(lines, name) / sizes["x"],
    ),
    (
        "That is the other way up: divide the bytes read by the tensor's size.",
        lambda lines, sizes, name: sizes[name] / max(_read(lines, name), 1),
    ),
    (
        "The reads of all tensors are added up: take the lines of the one that is asked for.",
        lambda lines, sizes, name: sum(line[2] for line in lines) / sizes[name],
    ),
)


def _drawn(rng: random.Random, rows: int) -> Any:
    """A function of x (rows, cols) and w (cols,) with operators in random order."""
    plan = ["half", "half", "times w", "square", "exp", "product", "row sum", "product"]
    rng.shuffle(plan)
    picks = [(rng.random(), rng.random()) for _ in plan]

    def run(x: torch.Tensor, w: torch.Tensor) -> None:
        pool = [x]
        for number, (kind, (first, second)) in enumerate(zip(plan, picks, strict=True)):
            a, b = (pool[int(pick * len(pool))] for pick in (first, second))
            a = x if number == plan.index("half") else a
            if kind == "half":
                torch.exp(a[: rows // 2])
            elif kind == "row sum":
                a.sum(-1, keepdim=True)
            elif kind == "exp":
                pool.append(torch.exp(a))
            else:
                pool.append(a * {"times w": w, "square": a, "product": b}[kind])

    return run


def _lines(ledger: Ledger) -> list[Line]:
    return [
        (f"{number} {step.name}", tensor.tensor, tensor.read_unique, tensor.write_unique)
        for number, step in enumerate(ledger, 1)
        for tensor in step.tensors
    ]


def grade_passes(attempt: Attempt) -> None:
    """Grade `passes_over(lines, sizes, name)` on ledgers of PyTorch operators drawn at random."""
    rng = random.Random(attempt.seed)
    told = []
    for _ in range(4):
        rows, cols = 2 * rng.randrange(50, 900), rng.randrange(100, 900)
        x, w = torch.empty(rows, cols, device="meta"), torch.empty(cols, device="meta")
        ledger = aten.count(_drawn(rng, rows), x, w)
        lines = _lines(ledger)
        sizes = {"x": x.numel() * 4, "w": w.numel() * 4}
        # A tensor that a step made was written once, whole.
        sizes |= {name: written for _, name, _, written in lines if written}
        for name in ledger.tensors:
            label = f"{attempt.name} of {name!r}, in a ledger of {len(ledger.steps)} steps,"
            got = answered(attempt, [*lines], dict(sizes), name)
            right = ledger.tensor(name).read_unique / sizes[name]
            told.append(
                Told(label, (lines, sizes, name), real(got, label, "a number of times"), right)
            )
    if wrong := first_wrong(told):
        lines, sizes, name = wrong.args
        reads = "; ".join(f"{step} reads {read:,}" for step, _, read, _ in _of(lines, name) if read)
        raise Wrong(
            f"{wrong.label} is {wrong.got:g} and should be {wrong.right:g}: it has "
            f"{sizes[name]:,} bytes; {reads or 'no step reads it'}.",
            meaning(READ_MISTAKES, told),
        )
    attempt.held.append(f"right for {len(told)} tensors in 4 ledgers")
