"""09.9: a router's softmax and the means of its columns, one pass where the compiler makes two."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import call, computed_by_kernels, reads_once, within_bytes
from kernels.grading.closeness import kind_fault, wrong_elements
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.gradients import no_atomics, right_gradient
from kernels.grading.questions.kits.masks import near
from kernels.grading.questions.kits.numbers import pair
from kernels.grading.questions.kits.rms_gradients import column_sum_tolerance
from kernels.grading.questions.kits.two_outputs import Part
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    only_end_missing,
    recognised,
)
from kernels.launch import interpreting
from kernels.registry import DTYPES

FEWEST, MOST = 16, 64  # tokens of a program of the first launch
_PLAN = (
    (64, 8, "fp32", 0.0),
    (50, 17, "fp32", 0.0),
    (33, 64, "bf16", 0.0),
    (100, 3, "fp16", 0.0),
    (1, 5, "fp32", 0.0),
    (40, 48, "fp32", 200.0),
    (40, 48, "fp32", -300.0),
    (2100, 5, "fp32", 0.0),
)
_WIDEST = (80, 128, "fp32", 0.0)
_PASS = (
    "That is the pass which the compiler makes, too. A program that has a tile of probs in "
    "registers can sum its columns there, before it stores them."
)
_TOO_LARGE = (
    "No maximum is taken away: exp of a large number is infinite, and of a small one 0. Each row "
    "takes its own largest element away first."
)
_OUTSIDE = (
    "A tile has two edges: the mask of x and probs takes (rows < tokens)[:, None] & "
    "(cols < experts)[None, :]."
)


def _cases(rng: random.Random, tokens: int, experts: int, name: str, mean: float) -> list[Case]:
    """The same call twice: graded by probs, and by load."""
    x = (1.5 * drawn(rng, (tokens, experts), torch.float32) + mean).to(DTYPES[name])
    # So that the experts' loads differ.
    x += torch.linspace(-1, 1, experts).to(x.dtype)
    probs = torch.softmax(x.double(), -1)
    trait = f"values near {mean:.0f}" if mean else ""
    one = near(x.dtype)
    close = column_sum_tolerance(probs)
    wide = replace(close, relative_norm=close.relative_norm + 2.0**-20,
                   largest=close.largest + 2.0**-19)  # fmt: skip
    return [
        Case({"x": x}, (), probs, one, trait),
        Case({"x": x}, (), probs.mean(0), wide, trait, dtype=torch.float32),
    ]


def _down(tile: Tensor) -> Tensor:
    """Divide the exponentials of a tile by their sums down the columns."""
    e = torch.exp(tile - tile.amax(-1, keepdim=True))
    return e / e.sum(0)


def _softmaxes(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    lanes = 1 << (x.shape[1] - 1).bit_length()
    own = x.amax(-1, keepdim=True)
    for top in (torch.clamp(own, min=0.0) if lanes > x.shape[1] else own, own):
        values = torch.exp((x - top).float()).double()
        over = (lanes - x.shape[1]) * torch.exp(-top.float()).double()
        yield (
            "Masked lanes enter the sum of a row: they hold 0, and exp(0 - max) is not 0. The "
            "neutral element of a maximum, and of exp, is -inf.",
            values / (values.sum(-1, keepdim=True) + over),
        )
    yield "The exp is not divided by the sum of its row.", torch.exp(x - own)
    for tiles in (x.split(block) for block in (16, 32, 64, len(x))):
        yield (
            "The softmax runs down the columns: a row is a token.",
            torch.cat([torch.softmax(tile, 0) for tile in tiles]),
        )
        yield (
            "The sum runs down the columns: each row, a token, has a sum of its own.",
            torch.cat([_down(tile) for tile in tiles]),
        )
        yield (
            "One sum serves all rows of a tile: each token has its own.",
            torch.cat([torch.softmax(tile.flatten(), 0).view_as(tile) for tile in tiles]),
        )
    yield "That is the logarithm of it.", torch.log_softmax(x, -1)


def _loads(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    tokens, experts = x.shape
    probs = torch.softmax(x, -1)
    yield "The sums are not divided by the tokens: load is a mean.", probs.sum(0)
    yield "The sums are divided by the experts: they run over the tokens.", probs.sum(0) / experts
    yield (
        "The rounded probs are summed: the mean is that of the fp32 values, before the store.",
        probs.to(case.x.dtype).double().mean(0),
    )
    for block in (2**power for power in range(9)):
        over = -(-tokens // block) * block - tokens
        parts = -(-tokens // block)
        uniform = "Masked rows enter the sums: a row beyond the last is no token, and its softmax "
        uniform += "is not 0."
        for lanes in (experts, 1 << (experts - 1).bit_length()):
            yield uniform, (probs.sum(0) + over / lanes) / tokens
        yield (
            "The sums are divided by the lanes of the tiles, not by the tokens.",
            probs.sum(0) / (parts * block),
        )
        yield "That is the sum of the first tile alone.", probs[:block].sum(0) / tokens
        yield (
            "Only the last tile entered the sums.",
            (probs[(tokens - 1) // block * block :].sum(0) / tokens),
        )
        yield "The sums are divided by the number of partial sums.", probs.sum(0) / parts
        means = torch.stack([part.mean(0) for part in probs.split(block)])
        yield "A mean of means: the last tile has fewer tokens, and the same weight.", means.mean(0)
        yield (
            "It is divided twice: the partial sums by their tokens, and the whole by all of them.",
            means.sum(0) / tokens,
        )
        yield (
            "It is divided twice: the partial sums by their tokens, and the whole by all of them.",
            probs.sum(0) / block / tokens,
        )
    for what, wrong in _softmaxes(case):
        yield what, wrong.mean(0)


def _no_maximum(runs: list[Run]) -> bool:
    """Whether it is wrong only where values lie far from 0."""
    failed = [r for r in runs if r.fault is not None]
    return bool(failed) and all(r.case.trait and r.wrong.numel() > 0 for r in failed)


def _explain_probs(runs: list[Run]) -> str:
    if told := recognised(runs, _softmaxes):
        return told
    return _TOO_LARGE if _no_maximum(runs) else ""


def _explain_load(runs: list[Run]) -> str:
    if told := recognised(runs, _loads):
        return told
    if _no_maximum(runs):
        return _TOO_LARGE
    failed = [r for r in runs if r.fault is not None and r.wrong.numel()]
    if failed and all(bool(r.output.isnan().all()) for r in failed):
        return (
            "Every load is nan. In a row beyond the last token everything is -inf, and so is its "
            "maximum: -inf - (-inf) is nan, and one nan is the sum of its column. Give such rows "
            "another maximum, or leave them out of the sums with tl.where."
        )
    return "The last experts have no load: the grid is too small." if only_end_missing(runs) else ""


def _is_pair(attempt: Attempt, case: Case) -> None:
    with interpreting():
        told = call(attempt, case.x.clone())
    if told is None or told is ...:
        raise NotAnswered
    pair(told, attempt.name, "(probs, load)")


def _graded_loads(
    attempt: Attempt, cases: list[Case], runs: list[Run], pairs: list[Any]
) -> list[Run]:
    """The runs of probs as runs of load, the second of each pair; `Wrong` if one is wrong."""
    found = []
    for case, r, (_, load) in zip(cases, runs, pairs, strict=True):
        wrong = kind_fault(load, case.like) is not None or bool(
            wrong_elements(load, case.reference, case.tolerance).any()
        )
        if wrong:
            # Once more by itself, for all that is told of a wrong output.
            part = Attempt(Part(attempt.answer, 1), attempt.seed)
            return right_gradient(part, cases, _explain_load, "load", _OUTSIDE)
        found.append(replace(r, case=replace(case, tensors=r.case.tensors), output=load))
    return found


def _one_pass(runs: list[Run]) -> None:
    """`Wrong` if probs is read back, or x by both launches."""
    for r in runs:
        if back := r.traffic(r.output).read_unique:
            raise Wrong(
                f"The launches read {back:,} bytes of probs back on {r.case}.",
                _PASS,
            )
        x = r.case.x
        times = r.traffic(x).read_unique / (x.numel() * x.element_size())
        if times > 1:
            raise Wrong(f"{times:.0f} launches read x on {r.case}; the first one will do.", _PASS)


def _tiles(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` unless a program of the first launch takes `FEWEST` to `MOST` tokens."""
    for r in runs:
        first, tokens = r.launches.seen[0], len(r.case.x)
        count = math.prod(first.grid)
        least, most = math.ceil(tokens / MOST), math.ceil(tokens / FEWEST)
        runs_on = f"{first.name} runs {count} program{'s' * (count != 1)} on {r.case}; the question"
        if count < least:
            raise Wrong(
                f"{runs_on} takes {least} at least: {MOST} tokens a program at most.",
                "A GPU has dozens of SMs, and a program runs on one: with few programs most of "
                "them idle.",
            )
        if count > most:
            raise Wrong(
                f"{runs_on} takes {most} at most: {FEWEST} tokens a program at least.",
                "Each program writes a row of partial sums, which is read once more: with few "
                "tokens a program, these are as many bytes as a pass over x.",
            )
    attempt.held.append(f"{FEWEST} to {MOST} tokens for each program of the first launch")


def grade_router(attempt: Attempt) -> None:
    """Grade `routed(x)`: (probs, load) in two launches, x read once, probs never."""
    rng = random.Random(attempt.seed)
    plan = [*_PLAN, _WIDEST, (rng.randrange(130, 260), rng.randrange(9, 60), "fp32", 0.0)]
    both = [_cases(rng, *one) for one in plan]
    of_probs, of_load = ([one[place] for one in both] for place in (0, 1))
    _is_pair(attempt, of_probs[0])
    part = Part(attempt.answer, 0)
    own = Attempt(part, attempt.seed)
    runs = right_gradient(own, of_probs, _explain_probs, "probs", _OUTSIDE)
    if not any(r.operators for r in runs):
        _one_pass(runs)
    loads = _graded_loads(attempt, of_load, runs, part.returned)
    attempt.held.append(f"probs and load right on {len(runs)} random inputs")
    # An atomic is the more telling fault where the launches are also too few.
    no_atomics(attempt, of_probs[0])
    computed_by_kernels(own, runs, launches=2)
    computed_by_kernels(Attempt(part, attempt.seed), loads, launches=2)
    attempt.held.append("2 launches of your own, and no PyTorch operator beside them")
    reads_once(attempt, runs, "x")
    _tiles(attempt, runs)

    def ideal(case: Case) -> int:
        tokens, experts = case.x.shape
        parts = math.ceil(tokens / FEWEST)
        return 2 * tokens * experts * case.x.itemsize + (2 * parts + 1) * experts * 4

    what = (
        "x read, probs written, at most a row of partial sums for every "
        f"{FEWEST} tokens written and read, load written"
    )
    within_bytes(attempt, runs, ideal, what)
    for place, seen in enumerate((runs, loads)):
        one = Attempt(Part(attempt.answer, place), attempt.seed)
        masked_lanes_named(one, [r for r in seen if r.case.x.shape[-1] == 17][:1])
    attempt.held.append("no result depends on a masked lane that has no value")
    compiles(attempt, [_cases(rng, *_WIDEST)[0]])
