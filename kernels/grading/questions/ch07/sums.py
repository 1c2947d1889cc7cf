"""07.5 and 07.6: partial sums added up, and RMSNorm's dweight by programs that share the rows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.hardware import compiles
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.ch07.kit import (
    OUTSIDE_OF_SHARE,
    enough_to_finish,
    no_atomics,
    norm_inputs,
    programs_as_told,
    right_gradient,
)
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    only_end_missing,
    recognised,
)
from kernels.registry import Tolerance

_SHAPES = ((1, 64), (7, 100), (64, 64), (33, 1), (20, 9), (5, 500))
_EDGES = (
    "A tile of partial sums has two edges: the mask takes (parts < n_parts)[:, None] & "
    "(cols < n_cols)[None, :]."
)


def _sum_tolerance(terms: Tensor, dtype: torch.dtype = torch.float32) -> Tolerance:
    """fp32 sums of terms (count, cols) in any order, against what cancels in the sums."""
    sums = terms.sum(0)
    count = len(terms)
    size = float(terms.abs().sum(0).max() / sums.abs().max())
    near = 2.0**-24 * (4 + math.sqrt(count)) * size
    wide = near * max(1.0, math.sqrt(terms.shape[-1]))
    return Tolerance(wide, wide)


class _PartsCase(Case):
    """A call that sentences name by its partial sums."""

    def __str__(self) -> str:
        return f"parts of shape {tuple(self.x.shape)}"


def _parts_case(rng: random.Random, count: int, cols: int) -> Case:
    parts = drawn(rng, (count, cols), torch.float32, mean=0.5)
    return _PartsCase({"parts": parts}, (), parts.double().sum(0), _sum_tolerance(parts.double()))


def _parts_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    parts = case.x.double()
    count, cols = parts.shape
    for block in (2**power for power in range(11)):
        if block < count:
            yield (
                f"Only the first {block} row{'s' * (block > 1)} of parts entered the sums: a loop "
                "takes all of them, a tile at a time.",
                parts[:block].sum(0),
            )
            yield (
                f"Only the last {block} row{'s' * (block > 1)} of parts or fewer entered the sums: "
                "the loop replaces what it should add to.",
                parts[(count - 1) // block * block :].sum(0),
            )
        yield (
            "The rows of parts after the last whole tile are missing: a number of tiles that is "
            "rounded down.",
            parts[: count // block * block].sum(0),
        )
        over = triton.cdiv(count, block) * block
        if over > count:
            yield (
                "Masked rows enter the sums: each adds 1. The neutral element of a sum is 0.",
                parts.sum(0) + (over - count),
            )
    yield "That is the mean of the partial sums: they are added up, and not divided.", parts.mean(0)
    if count == cols:
        yield "The sums run along the rows: column c is the sum over all programs.", parts.sum(1)


def _explain_parts(runs: list[Run]) -> str:
    if told := recognised(runs, _parts_models):
        return told
    if only_end_missing(runs):
        return (
            "The last columns were never stored: the grid takes triton.cdiv(n_cols, BLOCK_COLS) "
            "programs."
        )
    return ""


def grade_sum_parts(attempt: Attempt) -> None:
    """Grade `sum_parts(parts)`: parts (P, N) in fp32, their sums over P (N,) in fp32."""
    rng = random.Random(attempt.seed)
    shapes = [*_SHAPES, (rng.randrange(65, 300), rng.randrange(65, 200))]
    cases = [_parts_case(rng, *shape) for shape in shapes]
    runs = right_gradient(attempt, cases, _explain_parts, "sums", _EDGES)
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "parts")

    def ideal(case: Case) -> int:
        return 4 * (case.x.numel() + case.x.shape[-1])

    within_bytes(attempt, runs, ideal, "parts read, a sum a column written")
    enough_to_finish(attempt, runs)
    no_atomics(attempt, cases[1])
    masked_lanes_named(attempt, runs)
    compiles(attempt, (r.case for r in runs))


PARTS_SPEED = Speed(lambda seed: _parts_case(random.Random(seed), 264, 8192), 0.5)


# (rows, columns, dtypes, programs): rows left over, fewer than programs, as many, one program.
_PLAN: tuple[tuple[int, int, str, int], ...] = (
    (8, 64, "fp32", 4),
    (7, 17, "fp32 bf16", 3),
    (3, 40, "fp16", 5),
    (4, 3, "fp32", 4),
    (5, 100, "fp16", 1),
    (2, 1100, "fp32", 2),
)
# What is compiled, and not run: the interpreter takes seconds for so many finishing programs.
WIDEST = (8, 4096, "fp32", 4)


def dweight_plan(seed: int) -> tuple[random.Random, list[tuple[int, int, str, int]]]:
    """Return a generator for `seed`, and the (rows, columns, dtype, programs) of all cases."""
    rng = random.Random(seed)
    cases = [(r, n, name, p) for r, n, names, p in _PLAN for name in names.split()]
    return rng, [*cases, (rng.randrange(9, 13), rng.randrange(65, 250), "fp32", 4)]


def dweight_of(given: dict[str, Tensor]) -> tuple[Tensor, Tolerance]:
    """Return RMSNorm's dweight (N,) in float64 of x, dy and inv_rms, and its tolerance."""
    x, dy, inv_rms = (given[name].double() for name in ("x", "dy", "inv_rms"))
    terms = dy * x * inv_rms[:, None]
    return terms.sum(0), _sum_tolerance(terms)


def _dweight_case(rng: random.Random, rows: int, cols: int, name: str, programs: int) -> Case:
    given = norm_inputs(rng, rows, cols, name, centred=False)
    del given["weight"]
    dweight, near = dweight_of(given)
    return Case(given, (programs,), dweight, near, dtype=torch.float32)


def _dweight_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, dy, inv_rms = (case.tensors[name].double() for name in ("x", "dy", "inv_rms"))
    programs = case.options[-1]
    rows = len(x)
    terms = dy * x * inv_rms[:, None]
    each = rows // programs
    yield "inv_rms is left out: x_hat is x · inv_rms.", (dy * x).sum(0)
    yield "That is the sum of dy alone: each row's term is dy · x_hat.", dy.sum(0)
    yield "That is the mean over the rows: dweight is the sum.", terms.mean(0)
    if each * programs < rows:
        yield (
            f"The last {rows - each * programs} rows are missing: {rows} rows are shared by "
            f"{programs} programs, and rows // programs rounds down.",
            terms[: each * programs].sum(0),
        )
    if programs < rows:
        yield (
            "Each program took one row: it takes all that are its share, in a loop.",
            terms[:programs].sum(0),
        )
        share = triton.cdiv(rows, programs)
        lasts = sorted({min(p * share + share, rows) - 1 for p in range(programs)})
        yield (
            "Each program kept the last of its rows: the loop replaces what it should add to.",
            terms[lasts].sum(0),
        )
        yield (
            "Each program kept the last of its rows: the loop replaces what it should add to.",
            terms[rows - programs :].sum(0),
        )
    first = triton.cdiv(rows, programs)
    if first < rows:
        one = "The partial sums of the first program alone were taken: the last launch adds up all."
        yield one, terms[:first].sum(0)
        yield one, terms[::programs].sum(0)


def explain_dweight(runs: list[Run]) -> str:
    """Return the fault of dweight that one of the wrong runs shows, or ""."""
    if told := recognised(runs, _dweight_models):
        return told
    failed = [r for r in runs if r.fault is not None]
    if any(not r.wrong.numel() for r in failed):
        return ""
    if all(r.case.options[-1] > len(r.case.x) for r in failed):
        return (
            "It is right wherever each program has a row. A program without one has partial sums "
            "too: they are 0, and it has to store them."
        )
    if all(r.case.x.dtype != torch.float32 for r in failed):
        return "It is right in fp32: convert x and dy to fp32 before they are multiplied."
    return ""


def grade_dweight(attempt: Attempt) -> None:
    """Grade `weight_gradient(x, dy, inv_rms, programs)`: dweight (N,) in fp32, in two launches."""
    rng, plan = dweight_plan(attempt.seed)
    cases = [_dweight_case(rng, *call) for call in plan]
    runs = right_gradient(attempt, cases, explain_dweight, "dweight", OUTSIDE_OF_SHARE)
    # An atomic is the more telling fault where the launches are also too few or too many.
    no_atomics(attempt, cases[0])
    computed_by_kernels(attempt, runs, launches=2)
    for name in ("x", "dy"):
        reads_once(attempt, runs, name)
    programs_as_told(attempt, runs)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        matrices = 2 * rows * cols * case.x.itemsize
        return matrices + 4 * rows + 8 * case.options[-1] * cols + 4 * cols

    what = "x, dy and inv_rms read, a row of partial sums a program written and read, dweight"
    within_bytes(attempt, runs, ideal, what)
    enough_to_finish(attempt, runs)
    masked_lanes_named(attempt, runs)
    compiles(attempt, [_dweight_case(rng, *WIDEST)])


DWEIGHT_SPEED = Speed(lambda seed: _dweight_case(random.Random(seed), 8192, 2048, "fp32", 264), 0.6)
