"""RMSNorm's dx and dweight: cases, tolerances, and gradients with one known fault each."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.diagnosis import only_in_16_bits, only_where
from kernels.grading.questions.kits.gradients import gradient_tolerance, norm_inputs
from kernels.grading.questions.kits.wrong_models import Tensor, recognised
from kernels.registry import Tolerance

_HALF = (
    "It is right in fp32: convert x, dy and weight to fp32 behind their loads, and dx only when "
    "you store it."
)


def row_mean(values: Tensor) -> Tensor:
    """Return the mean of each row of values (rows, cols), (rows, 1)."""
    return values.mean(-1, keepdim=True)


def column_sum_tolerance(terms: Tensor) -> Tolerance:
    """fp32 sums of terms (count, cols) in any order, against what cancels in the sums."""
    sums = terms.sum(0)
    count = len(terms)
    size = float(terms.abs().sum(0).max() / sums.abs().max())
    near = 2.0**-24 * (4 + math.sqrt(count)) * size
    wide = near * max(1.0, math.sqrt(terms.shape[-1]))
    return Tolerance(wide, wide)


def right_in_fp32(runs: list[Run]) -> str:
    """Return what to tell where 16 bits alone are wrong, as roundings make them, or ""."""
    return _HALF if only_in_16_bits(runs) else ""


def _rms_terms(given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_hat, dy, g (rows, cols) and inv_rms (rows, 1) of an RMSNorm, in float64."""
    x, dy, weight, inv_rms = (t.double() for t in given.values())
    return x * inv_rms[:, None], dy, dy * weight, inv_rms[:, None]


def rms_dx_case(
    rng: random.Random, rows: int, cols: int, name: str, options: tuple[int, ...] = ()
) -> Case:
    """Return a call with x, dy, weight and inv_rms, held against RMSNorm's dx."""
    given = norm_inputs(rng, rows, cols, name, centred=False)
    x_hat, _, g, inv_rms = _rms_terms(given)
    dx = (g - x_hat * row_mean(g * x_hat)) * inv_rms
    near = gradient_tolerance(g * inv_rms, dx, given["x"].dtype)
    return Case(given, options, dx, near)


def _rms_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x_hat, dy, g, inv_rms = _rms_terms(case.tensors)
    n = x_hat.shape[-1]
    lanes = triton.next_power_of_2(n)

    def made(g: Tensor, along: Tensor, x_hat: Tensor = x_hat) -> Tensor:
        return (g - x_hat * along) * inv_rms

    along = row_mean(g * x_hat)
    yield (
        "The sum of g · x_hat is divided by BLOCK: divide by the number of columns.",
        made(g, along * n / lanes),
    )
    yield (
        "That is LayerNorm's dx: RMSNorm has no mean, and its dx takes no mean of g away.",
        made(g - row_mean(g), along),
    )
    yield "weight is left out: g is dy · weight.", made(dy, row_mean(dy * x_hat))
    yield (
        "The projection takes the mean of dy · x_hat; it is the mean of g · x_hat.",
        made(g, row_mean(dy * x_hat)),
    )
    yield "The projection onto x_hat is not taken away.", made(g, torch.zeros_like(along))
    yield "The projection is added; it is taken away.", made(g, -along)
    multiplied = "A sum is multiplied by the number of columns; a mean is divided by it."
    yield multiplied, made(g, n * n * along)
    over = dy / case.tensors["weight"].double()
    yield "dy is divided by weight: g is dy · weight.", made(over, row_mean(over * x_hat))
    yield "g is divided by x_hat; it takes a product.", made(g, row_mean(g / x_hat))
    yield "The sum of g · x_hat is not divided by the number of columns.", made(g, n * along)
    yield "dx is not multiplied by inv_rms.", made(g, along) / inv_rms
    yield "dx is multiplied by inv_rms twice.", made(g, along) * inv_rms
    x = x_hat / inv_rms
    yield (
        "x stands for x_hat in both places: x_hat is x · inv_rms.",
        made(g, along / inv_rms, x),
    )
    yield "x stands for x_hat in one place: x_hat is x · inv_rms.", made(g, along, x)
    yield "x stands for x_hat in one place: x_hat is x · inv_rms.", made(g, along / inv_rms)


def explain_rms_dx(runs: list[Run]) -> str:
    """Return the fault of RMSNorm's dx that one of the wrong runs shows, or ""."""
    return recognised(runs, _rms_models) or right_in_fp32(runs)


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
    return terms.sum(0), column_sum_tolerance(terms)


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
            "The last rows are missing: rows // programs rounds down, and what is left over is "
            "nobody's.",
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
    """Return the fault of dweight that the wrong runs show, or ""."""
    if told := recognised(runs, _dweight_models):
        return told
    failed = [r for r in runs if r.fault is not None]
    if any(not r.wrong.numel() for r in failed):
        return ""
    if only_where(runs, lambda r: bool(r.case.options[-1] > len(r.case.x))):
        return (
            "It is right wherever each program has a row. A program without one has partial sums "
            "too: they are 0, and it has to store them."
        )
    if only_in_16_bits(runs):
        return "It is right in fp32: convert x and dy to fp32 before they are multiplied."
    return ""
