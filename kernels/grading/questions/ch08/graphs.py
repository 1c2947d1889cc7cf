"""08.5: a seed that a captured graph freezes, found by replaying what was recorded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from kernels.cuda.cuda_launch import CudaLaunch
from kernels.grading.cases import Case, Run, memory_of
from kernels.grading.checks import call, computed_by_kernels, reads_once
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.masks import (
    edge,
    explains_all,
    kept,
    masks_and_scales,
    near,
    nonzero,
    right_masked,
    state,
)
from kernels.grading.questions.kits.wrong_models import Tensor
from kernels.launch import interpreting, recording
from kernels.launch.interpreter import tensors_of
from kernels.launch.launches import Launch
from kernels.philox import scale
from kernels.registry import DTYPES

_PLAN: tuple[tuple[int, str, float | None], ...] = (
    (64, "fp32", 0.25),
    (3000, "fp32", None),
    (2049, "fp16", 0.5),
    (1030, "bf16", 0.1),
)


def _case(rng: random.Random, n: int, name: str, p: float | None) -> Case:
    seed_offset = state(rng)
    p = edge(rng, n, seed_offset) if p is None else p
    x = nonzero(rng, (n,), DTYPES[name])
    y = torch.where(kept((n,), p, seed_offset), x.double() * scale(p), 0.0)
    return Case({"x": x, "seed_offset": seed_offset}, (p,), y, near(x.dtype))


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, (p,) = case.x.double(), case.options
    for what, mask, factor in masks_and_scales(tuple(x.shape), p, case.tensors["seed_offset"]):
        yield what, torch.where(mask, x * factor, 0.0)


def _explain(runs: list[Run]) -> str:
    first = runs[0].case.tensors["seed_offset"]

    def models(case: Case) -> Iterator[tuple[str, Tensor]]:
        x, (p,) = case.x.double(), case.options
        yield (
            "Every call draws with the numbers of the first: something keeps them, and they are "
            "not read again.",
            torch.where(kept(tuple(x.shape), p, first), x * scale(p), 0.0),
        )
        yield from _models(case)

    return explains_all(runs, models)


def replay(launches: list[Launch]) -> None:
    """Launch again what was recorded, interpreted, with the very arguments, as a graph does."""
    with interpreting():
        for launch in launches:
            launch.kernel[launch.grid](**launch.arguments)


def frozen_numbers(launch: Launch, seed_offset: Tensor) -> list[str]:
    """Return the arguments of a launch that hold a seed or an offset, or a half of one, as ints."""
    seed, offset = seed_offset.tolist()
    parts = {seed, offset}
    for number in (seed, offset):
        # A half may have been taken as a signed number.
        for half in (number & 0xFFFFFFFF, number >> 32):
            parts |= {half, half - 2**32}
    return [
        name for name, value in launch.arguments.items() if type(value) is int and value in parts
    ]


def _why(launches: list[Launch], seed_offset: Tensor) -> str:
    """What a replay's old mask comes from, as far as the recorded arguments tell."""
    for launch in launches:
        if names := frozen_numbers(launch, seed_offset):
            are = "is an int" if len(names) == 1 else "are ints"
            return (
                f"{' and '.join(names)} of {launch.name} {are} of the host. A graph writes such a "
                "number down once, and replays it for ever. A pointer is written down too, but "
                "what lies behind it is read at each replay: hand over seed_offset itself."
            )
        given = [t for value in launch.arguments.values() for t in tensors_of(value)]
        if not any(memory_of(t) == memory_of(seed_offset) for t in given):
            return (
                f"No argument of {launch.name} lies in the memory of seed_offset. A graph replays "
                "the launch with the memory that it had, so a copy made on the host stays as it "
                "was: hand over seed_offset itself."
            )
    return (
        "The launch has seed_offset, and something of the old numbers beside it: no number that "
        "changes from call to call may come from the host."
    )


def _replayed(attempt: Attempt, case: Case, later: Tensor) -> None:
    """`Wrong` unless a replay of what was recorded draws the mask of what is in memory then."""
    given = {name: tensor.clone() for name, tensor in case.tensors.items()}
    x, seed_offset = given.values()
    first = seed_offset.clone()
    with recording() as recorded:
        y: Any = call(attempt, x, seed_offset, *case.options)
    launches = recorded.seen
    (p,) = case.options
    for number, now in enumerate((first, later), 1):
        seed_offset.copy_(now)
        call(Attempt(replay, attempt.seed), launches)
        mask = kept(tuple(x.shape), p, now)
        if torch.equal(y != 0, mask):
            continue
        old = kept(tuple(x.shape), p, first)
        again = "the mask of the capture again" if torch.equal(y != 0, old) else "another mask"
        raise Wrong(
            f"{attempt.name} was recorded with seed_offset = {first.tolist()}. Replay {number}, "
            f"with {now.tolist()} in its memory, draws {again}.",
            _why(launches, first),
        )


def grade_frozen(attempt: Attempt) -> None:
    """Grade `captured_dropout(x, seed_offset, p)`: right, and right in a replay of its launch."""
    rng = random.Random(attempt.seed)
    cases = [_case(rng, *one) for one in _PLAN]
    runs = right_masked(attempt, cases, _explain)
    if by_pytorch := [r for r in runs if not r.launches.seen]:
        computed_by_kernels(attempt, by_pytorch, launches=1)
    by_cuda = [one.name for r in runs for one in r.launches if isinstance(one, CudaLaunch)]
    if by_cuda:
        raise Wrong(
            f"{attempt.name} launched {by_cuda[0]}, which is written in CUDA C++.",
            "The question takes the kernel in Triton, in its cell.",
        )
    _replayed(attempt, cases[1], state(rng))
    half = cases[2].tensors["seed_offset"] + torch.tensor([0, 1])
    _replayed(attempt, cases[2], half)
    attempt.held.append("replayed with other numbers in memory: another mask, the right one")
    if any("_local_scalar_dense" in r.operators for r in runs):
        raise Wrong(
            f"{attempt.name} reads a number of a tensor on the host.",
            "On a GPU that waits for all work under way, and a capture refuses it.",
        )
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")
    compiles(attempt, (r.case for r in runs))
