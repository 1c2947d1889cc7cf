"""06.4: RMSNorm of many narrow rows, several of them in one program."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.ch06.kit import faulty_rms, rms_near
from kernels.grading.questions.kits.row_norms import rms_normalised
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    recognised,
    right_or_told,
)
from kernels.registry import DTYPES

_PLAN: tuple[tuple[int, int, str], ...] = (
    (16, 64, "fp32 fp16 bf16"),
    (40, 128, "fp32 fp16"),
    (21, 80, "fp32 bf16"),
    (100, 17, "fp32 fp16"),
    (1, 96, "fp32 bf16"),
    (33, 1, "fp32"),
    (9, 256, "fp32 fp16"),
)
_FEWEST, _MOST = 8, 64
_OUTSIDE = (
    "A tile has two edges: rows < n_rows and cols < n_cols, in each load and in the store of y."
)


def _of_tiles(h: Tensor, weight: Tensor, eps: float) -> Iterator[tuple[str, Tensor]]:
    """What sums over a whole tile, and over its columns, give."""
    rows = len(h)
    for size in (2, 4, 8, 16, 32, 64):
        tiles = [h[start : start + size] for start in range(0, rows, size)]
        of_all = [(t * t).sum() / h.shape[-1] for t in tiles]
        yield (
            "The squares of a whole tile are summed, rows and all. Each row has a sum of its own: "
            "axis=1.",
            torch.cat([t / torch.sqrt(s + eps) for t, s in zip(tiles, of_all, strict=True)])
            * weight,
        )
        down = [(t * t).sum(0, keepdim=True) / h.shape[-1] for t in tiles]
        yield (
            "The squares are summed down the columns of a tile, axis 0. A row lies along axis 1.",
            torch.cat([t / torch.sqrt(s + eps) for t, s in zip(tiles, down, strict=True)]) * weight,
        )


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, weight = (tensor.double() for tensor in case.tensors.values())
    (eps,) = case.options
    yield from _of_tiles(x, weight, eps)
    yield from faulty_rms(x, weight, eps)


def _explain(runs: list[Run]) -> str:
    return recognised(runs, _models)


def _case(
    rng: random.Random, rows: int, cols: int, name: str, trait: str = "", **how: float
) -> Case:
    dtype, eps = DTYPES[name], how.get("eps", 1e-5)
    x = (how.get("scale", 1.0) * drawn(rng, (rows, cols), torch.float32, 0.7)).to(dtype)
    weight = drawn(rng, (cols,), dtype, 1.0)
    exact = rms_normalised(x, weight, eps)
    return Case({"x": x, "weight": weight}, (eps,), exact, rms_near(dtype, cols), trait)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    case = functools.partial(_case, rng)
    cases = [case(rows, cols, name) for rows, cols, names in _PLAN for name in names.split()]
    cases.append(case(rng.randrange(65, 140), rng.randrange(18, 120), "fp32"))
    cases.append(case(12, 64, "fp32", eps=0.5))
    cases.append(case(12, 48, "fp32", eps=1e-3, scale=0.03))
    return cases + [case(10, cols, "fp16", "values near 1000", scale=1000.0) for cols in (64, 80)]


def _few_programs(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if a launch has more programs than one for every eight rows."""
    for r in runs:
        rows = len(r.case.x)
        most = -(-rows // _FEWEST)
        for launch in r.launches:
            programs = launch.grid[0] * launch.grid[1] * launch.grid[2]
            if programs > most:
                raise Wrong(
                    f"{launch.name} runs {programs} programs on {r.case}; the question takes "
                    f"{most} at most, one for every {_FEWEST} rows.",
                    "A row of 64 numbers gives each thread of one warp two of them. A program has "
                    "more to do than that: let it take a tile of rows.",
                )
    attempt.held.append(f"no more than a program for every {_FEWEST} rows")


def _weight_once(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if a program asks for an element of the weight more than once."""
    for r in runs:
        weight = r.case.tensors["weight"]
        (launch,) = r.launches
        programs = launch.grid[0] * launch.grid[1] * launch.grid[2]
        most = programs * weight.numel() * weight.itemsize
        told = r.traffic(weight).read_requested
        if told > most:
            with_one = "program with one load of it asks"
            if programs != 1:
                with_one = "programs with one load of it each ask"
            raise Wrong(
                f"weight: {told:,} bytes are asked for on {r.case}; {programs} {with_one} for "
                f"{most:,}.",
                "All rows of a tile take the same weight. Load it as one row of numbers, and "
                "broadcast the variable: [None, :] on it, not on what it is loaded with per row.",
            )
    attempt.held.append("weight is asked for once a program")


def grade_head_norm(attempt: Attempt) -> None:
    """Grade `head_norm(x, weight, eps)`: right, one launch, tiles of rows, each byte once."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return (2 * rows + 1) * cols * case.x.itemsize

    within_bytes(attempt, runs, ideal, "x and weight read, y written")
    _few_programs(attempt, runs)
    _weight_once(attempt, runs)

    def least(case: Case) -> int:
        return -(-len(case.x) // _MOST)

    enough_programs(attempt, runs, least, f"one for every {_MOST} rows")
    masked_lanes_named(attempt, runs)
    compiles(attempt, (r.case for r in runs))


HEAD_SPEED = Speed(lambda seed: _case(random.Random(seed), 131072, 128, "fp32"), 0.8)
