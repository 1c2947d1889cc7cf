"""What questions about products y = x · weightᵀ share: cases, models of mistakes, requests.

x (M, K) and weight (N, K) lie row by row, in one dtype; y (M, N) has it too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.closeness import relative_error
from kernels.grading.diagnosis import only_where
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.wrong_models import (
    Models,
    Tensor,
    drawn,
    only_end_missing,
    recognised,
)
from kernels.registry import DTYPES, Tolerance, dtype_name

OUTSIDE = (
    "A tile of x takes (rows < M)[:, None] & (k < K)[None, :], one of weight (cols < N) & (k < K) "
    "with the axes it has, and y (rows < M)[:, None] & (cols < N)[None, :]."
)
LONG = "a long sum"
PEAK = "partial sums beyond 65504"
_STEPS = (16, 32, 64, 128)
# Steps along K, and edges of tiles, that a reader may well take.
_EDGES = (16, 32, 64, 128)


class ProductCase(Case):
    """A call that sentences name by both of its matrices."""

    def __str__(self) -> str:
        named = [f"{name} {tuple(t.shape)}" for name, t in self.tensors.items()]
        special = f", {self.trait}" if self.trait else ""
        return f"{', '.join(named)} in {dtype_name(self.x.dtype)}{special}"


def sum_tolerance(terms: Tensor, total: Tensor, length: int, dtype: torch.dtype) -> Tolerance:
    """The output's rounding, and fp32 sums of `length` terms in any order.

    terms: the sum of the terms' magnitudes for each element of `total`, both in float64.
    """
    size = max(1.0, float(terms.max() / total.abs().max()))
    unit = torch.finfo(dtype).eps / 2
    sums = 2.0**-24 * (4 + math.sqrt(length)) * size
    return Tolerance(unit + sums, 2 * unit + sums)


def product_inputs(
    rng: random.Random, m: int, n: int, k: int, name: str, trait: str = ""
) -> dict[str, Tensor]:
    """Return x (m, k) and weight (n, k) in one dtype.

    With `LONG` all terms are near 1. With `PEAK` they are large, and the second half of the sum
    takes nearly all of the first one away.
    """
    dtype = DTYPES[name]
    x, weight = drawn(rng, (m, k), torch.float32), drawn(rng, (n, k), torch.float32)
    if trait == LONG:
        x, weight = 1 + 0.1 * x, 1 + 0.1 * weight
    elif trait == PEAK:
        sign = torch.where(torch.arange(k) < k // 2, 1.0, -1.0)
        x, weight = (20 + x) * sign, 20 + weight
    else:
        x, weight = 0.5 + x, 0.3 + weight
    return {"x": x.to(dtype), "weight": weight.to(dtype)}


def product_case(
    rng: random.Random,
    m: int,
    n: int,
    k: int,
    name: str,
    trait: str = "",
    options: tuple[object, ...] = (),
) -> ProductCase:
    """Return a call of y = x · weightᵀ on random matrices."""
    given = product_inputs(rng, m, n, k, name, trait)
    x, weight = given["x"].double(), given["weight"].double()
    y = x @ weight.T
    near = sum_tolerance(x.abs() @ weight.abs().T, y, k, DTYPES[name])
    return ProductCase(given, options, y, near, trait)


def product_cases(seed: int, names: Sequence[str]) -> list[Case]:
    """Calls with whole tiles and ragged ones, one row, K of 1, and long sums, in dtypes `names`."""
    rng = random.Random(seed)
    shapes = [(64, 64, 64), (17, 33, 50), (1, 100, 130), (130, 70, 96), (40, 40, 40), (5, 3, 1)]
    shapes += [
        (192, 128, 40),
        (rng.randrange(65, 128), rng.randrange(3, 200), rng.randrange(9, 99)),
    ]
    cases: list[Case] = []
    for number, shape in enumerate(shapes):
        cases.append(product_case(rng, *shape, names[number % len(names)]))
    cases += [product_case(rng, 9, 20, 2600, name, LONG) for name in names]
    # Of the first one's sizes, and with other numbers: an output that was kept is wrong.
    cases.append(product_case(rng, *shapes[0], names[0]))
    if "fp16" in names:
        cases.append(product_case(rng, 20, 9, 700, "fp16", PEAK))
    return cases


def _nan_beyond(y: Tensor, rows: int, cols: int) -> Tensor:
    model = torch.full_like(y, torch.nan)
    model[:rows, :cols] = y[:rows, :cols]
    return model


def along_k(x: Tensor, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Sums x · weightᵀ with a fault along K, of matrices in float64."""
    m, k = x.shape
    n = len(weight)
    right = x @ weight.T
    # Where a fault does no harm its model is right, so that a right output doesn't deny it.
    for step in _STEPS:
        yield (
            "What is left of K behind the last whole step is missing: the steps go up to K, "
            "range(0, K, BLOCK_K), and the last one is masked.",
            x[:, : k // step * step] @ weight[:, : k // step * step].T,
        )
        over = -(-k // step) * step
        wide_x = torch.nn.functional.pad(x.flatten(), (0, over)).unfold(0, over, k)[:m]
        wide_w = torch.nn.functional.pad(weight.flatten(), (0, over)).unfold(0, over, k)[:n]
        yield (
            "The next row's first elements enter the sum: a mask that asks whether a place lies in "
            "the tensor lets them in. The mask along K is k < K.",
            wide_x @ wide_w.T,
        )
        yield (
            "Masked lanes along K enter the sum: each adds 1. The neutral element is 0.",
            right + (over - k),
        )
        yield (
            "Only the first step along K is in the sum: the loop goes on to K.",
            x[:, :step] @ weight[:, :step].T,
        )
        last = (k - 1) // step * step
        yield (
            "Only the last step along K is in the sum: the loop replaces what it should add to. "
            "tl.dot(x, weight, total) adds.",
            x[:, last:] @ weight[:, last:].T,
        )
        yield (
            "Every step takes the first BLOCK_K columns: k begins at start.",
            x[:, :step] @ weight[:, :step].T * (over // step),
        )


def unstored(y: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The output y, in float64, with tiles that nobody stored."""
    m, n = y.shape
    for edge in _EDGES:
        # A grid of no blocks stores nothing, and one that is never empty has one.
        for rows in {m // edge * edge, max(edge, m // edge * edge)}:
            yield (
                "The last rows of y were never stored: the grid takes triton.cdiv(M, BLOCK_M) "
                "blocks of rows.",
                _nan_beyond(y, rows, n),
            )
            for wide in _EDGES:
                for cols in {n // wide * wide, max(wide, n // wide * wide)}:
                    yield (
                        "Edges of y were never stored: both axes of the grid take triton.cdiv.",
                        _nan_beyond(y, rows, cols),
                    )
        for cols in {n // edge * edge, max(edge, n // edge * edge)}:
            yield (
                "The last columns of y were never stored: the grid takes triton.cdiv(N, BLOCK_N) "
                "blocks of columns.",
                _nan_beyond(y, m, cols),
            )
        for wide in _EDGES:
            yield (
                "Only one tile of y was stored: the grid has one for each.",
                _nan_beyond(y, edge, wide),
            )


def product_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Products with one fault each, in float64."""
    x, weight = case.tensors["x"].double(), case.tensors["weight"].double()
    y = case.reference
    (m, k), n = x.shape, len(weight)
    if n == k:
        yield (
            "That is x · weight. weight has the shape (N, K): output n takes row n of it, so the "
            "tile of weight is loaded as (BLOCK_K, BLOCK_N), or transposed.",
            x @ weight,
        )
    turned = y.T.reshape(m, n)
    yield "y is stored transposed: element [m, n] lies at m · N + n.", turned
    yield from along_k(x, weight)
    yield from unstored(y)
    yield "That is the product over K: it is a sum, and no mean.", y / k
    yield "Products of rows are summed with their magnitudes.", x.abs() @ weight.abs().T


def explain_sums(runs: Sequence[Run]) -> str:
    """What wrong runs show that are long sums alone, or sums that are large on their way; or ""."""
    failed = [r for r in runs if r.fault is not None]
    if not failed or any(not r.wrong.numel() for r in failed):
        return ""
    # With fp32 inputs every sum shows it, with 16 bits the long ones do.
    if all(r.case.trait == PEAK or _of_16_bits(r) for r in failed):
        return (
            "It is right, or nearly, for short sums. A sum kept in 16 bits is rounded at every "
            "step: in fp16 it is infinite beyond 65504, and what is small against it is lost. "
            "Accumulators and partial sums are fp32, and the last store converts."
        )
    return ""


def _of_16_bits(run: Run) -> bool:
    """Whether a sum is off by what 16 bits lose: digits, and what comes after it has stuck."""
    if run.case.trait != LONG and run.case.x.dtype != torch.float32:
        return False
    most = 0.95 if run.case.trait == LONG else 5e-3
    return relative_error(run.output, run.case.reference) < most


def turned_shape(runs: Sequence[Run]) -> bool:
    """Whether every wrong run has the shape of the transpose, one of them where it is another."""
    shapes = [
        (getattr(r.output, "shape", None), r.case.reference.shape)
        for r in runs
        if r.fault is not None
    ]
    turned = all(got is not None and got == of[::-1] for got, of in shapes)
    return turned and any(got != of for got, of in shapes)


def explain_product(runs: list[Run]) -> str:
    """Return the fault that wrong products show, or ""."""
    return explain_tiles(runs, product_models)


def explain_tiles(runs: list[Run], models: Models) -> str:
    """Return the fault that wrong outputs (M, N) show, of those that `models` know, or ""."""
    if turned_shape(runs):
        return "That has the shape of the transpose: y is (M, N), rows of x by rows of weight."
    if told := explain_sums(runs) or recognised(runs, models):
        return told
    failed = [r for r in runs if r.fault is not None]
    if any(not r.wrong.numel() for r in failed):
        return ""
    if only_end_missing(runs):
        return "The last rows of y were never stored: the grid has too few programs."
    if all(bool(r.output.isnan().any()) for r in failed):
        return (
            "Elements of y that are nan were never stored: each tile of y takes a program, "
            "triton.cdiv(M, BLOCK_M) · triton.cdiv(N, BLOCK_N) of them."
        )
    if only_where(runs, lambda r: r.case.x.shape[1] % 16 != 0):
        return "It is right where K is a multiple of 16: look at the lanes beyond K."
    if only_where(runs, lambda r: any(edge % 64 for edge in r.case.reference.shape)):
        return "It is right where tiles are whole: look at the masks of rows and columns."
    return ""


def tiles(case: Case, block_m: int, block_n: int) -> int:
    """How many tiles the output of a case has."""
    m, n = case.reference.shape
    return -(-m // block_m) * -(-n // block_n)


def within_requests(
    attempt: Attempt,
    runs: Sequence[Run],
    names: tuple[str, str],
    budget: Callable[[Case], int],
    what: str,
) -> None:
    """`Wrong` if the launches ask for more bytes of the two tensors than `budget(case)`."""
    for r in runs:
        moved = [r.traffic(r.case.tensors[name]) for name in names]
        requested = sum(one.read_requested for one in moved)
        if requested > budget(r.case):
            times = " and ".join(
                f"{name} {one.times_read:.1f} times" for name, one in zip(names, moved, strict=True)
            )
            raise Wrong(
                f"{attempt.name} asks for {requested:,} bytes of {names[0]} and {names[1]} on "
                f"{r.case}; the budget is {budget(r.case):,}: {what}. It reads {times}.",
                f"Each column of tiles asks for all of {names[0]} again, each row of tiles for all "
                f"of {names[1]}: a larger tile uses what it loaded more often.",
                hint="The first operand is read as often as there are tiles side by side, the "
                "second as often as there are tiles above one another.",
            )
    attempt.held.append(f"requested bytes within the budget: {what}")
