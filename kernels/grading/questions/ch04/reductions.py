"""04.5 and 04.6: the sum of a row by a tree in shared memory, and 1 / rms of a row by shuffles."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.cuda_checks import few_shared_stores, in_cuda, no_conflicts, within_sectors
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.cuda_cases import (
    Tensor,
    aligned,
    nearly_right,
    right_in_cuda,
    sum_tolerance,
    unstored,
)
from kernels.grading.questions.kits.lanes import (
    BY_FOURS,
    TAKEN_AWAY,
    signs,
    step_missing,
    whole_numbers,
)
from kernels.grading.questions.kits.row_norms import inverse_rms
from kernels.grading.questions.kits.wrong_models import Models, drawn, only_end_missing, recognised
from kernels.registry import Tolerance

_SHAPES = ((4, 64), (3, 17), (2, 1000), (5, 1), (1, 2048), (3, 300), (2, 256), (2, 257))
_GUARD = "A thread stops at the end of its row: col < n_cols."


def _shapes(rng: random.Random) -> list[tuple[int, int]]:
    return [*_SHAPES, (rng.randrange(2, 6), rng.randrange(65, 900))]


def _row_reads(attempt: Attempt, runs: list[Run], what: str) -> None:
    """`Wrong` unless one launch reads each element once, in whole sectors, a block a row or so."""
    in_cuda(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")

    def ideal(case: Case) -> int:
        return 4 * (case.x.numel() + len(case.x))

    within_bytes(attempt, runs, ideal, f"x read, {what} a row written")
    within_sectors(attempt, aligned(runs), "x")
    # A block's warps may take a row each.
    enough_programs(attempt, runs, lambda case: -(-len(case.x) // 32), "one for every 32 rows")


def _parts(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What a reduction makes of each row of x that leaves threads, warps or columns out."""
    n = x.shape[-1]
    yield "The last column is left out: a thread goes on while col < n_cols.", x[:, :-1].sum(-1)
    for threads in (32, 64, 128, 256, 512, 1024):
        if threads < n:
            yield (
                f"Only the first {threads} columns are taken: a thread takes every so many-th "
                "column, up to the end of the row.",
                x[:, :threads].sum(-1),
            )
        # Where all fit, its models are right: a right output there doesn't deny them.
        yield (
            "Each thread keeps its last column alone: the loop replaces what it should add to.",
            x[:, -threads:].sum(-1),
        )
        yield (
            "Every thread begins at column 0: it begins at its own, threadIdx.x.",
            threads * x[:, ::threads].sum(-1),
        )
        times = (torch.arange(n) // 32 + 1).clamp(max=threads // 32)
        yield (
            "Columns are in the sum several times: a thread's step is the number of threads.",
            (x * times).sum(-1),
        )
        yield (
            "Each thread adds in an int, and what stands behind the point is lost: float sum.",
            whole_numbers(x, threads),
        )
        # What thread t has of a row, as the loop over columns hands it out.
        own = torch.zeros(len(x), -(-n // threads) * threads, dtype=x.dtype)
        own[:, :n] = x
        own = own.reshape(len(x), -1, threads).sum(1)
        place = torch.arange(threads)
        yield "That is what thread 0 summed; the other threads' sums are lost.", own[:, 0]
        yield (
            "That is the sum of the block's first warp; the other warps' sums are lost.",
            own[:, :32].sum(-1),
        )
        if threads > 32:
            yield (
                "That is the sum of the block's last warp; the other warps' sums are lost.",
                own[:, -32:].sum(-1),
            )
            yield "The last warp's sum is left out.", own[:, : threads - 32].sum(-1)
        for kept in (place & 10 == 0, (place | place // 32) & 10 == 0):
            yield BY_FOURS, own[:, kept].sum(-1)
        for of in (signs(place % 32), signs(place % 32) * signs(place // 32)):
            yield TAKEN_AWAY, (own * of).sum(-1)
        replaced = "What comes from another thread replaces the own value: it takes +=."
        yield replaced, own[:, -1]
        yield replaced, torch.zeros_like(own[:, -1])
        for offset in (2**power for power in range(10)):
            # One step missing in all of the block, or in each warp and between the warps.
            for kept in (place & offset == 0, ((place | place // 32) & offset) == 0):
                if offset < threads:
                    yield step_missing(offset), own[:, kept].sum(-1)


_STRIDED = (
    "A block takes every n_rows-th element, as if a row ran down a column. A row lies along the "
    "last axis: its elements are side by side, from row * n_cols on."
)


def _strided(x: Tensor) -> Tensor:
    """What the rows' sums are where row r is taken for the elements r, r + n_rows and so on."""
    return x.reshape(x.shape[1], len(x)).sum(0)


def _sum_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    yield from _parts(x)
    yield "That is the mean: a sum is not divided by the number of columns.", x.mean(-1)
    yield "That is the largest element of each row, not the sum.", x.amax(-1)
    yield "The sign is lost: what should be added is taken away.", -x.sum(-1)
    windows = x.flatten().unfold(0, x.shape[1], 1)[: len(x)].sum(-1)
    yield "Row r begins at r * n_cols, and not at r: rows overlap in your sums.", windows
    yield "Every block sums the first row: its row is blockIdx.x.", x[:1].sum(-1).expand(len(x))
    yield _STRIDED, _strided(x)


def _explain(runs: list[Run], models: Models) -> str:
    if only_end_missing(runs):
        return "The last rows were never stored: the grid takes one block for every row."
    if unstored(runs):
        return "A row that is nan was never stored: one thread of each row stores the result."
    if told := recognised(runs, models):
        return told
    if nearly_right(runs):
        return "It is right to three digits: on its way a sum went through 16 bits."
    return ""


def _sum_case(rng: random.Random, rows: int, cols: int) -> Case:
    x = drawn(rng, (rows, cols), torch.float32, mean=1.0)
    near = sum_tolerance(x)
    return Case({"x": x}, (), x.double().sum(-1), Tolerance(near, near))


def grade_row_sum(attempt: Attempt) -> None:
    """Grade `row_sum(x)`: x (rows, cols) in fp32, the sums (rows,)."""
    rng = random.Random(attempt.seed)
    cases = [_sum_case(rng, *shape) for shape in _shapes(rng)]
    runs = right_in_cuda(attempt, cases, lambda runs: _explain(runs, _sum_models), _GUARD)
    _row_reads(attempt, runs, "a sum")
    no_conflicts(attempt, runs)
    compiles(attempt, (r.case for r in runs))


SUM_SPEED = Speed(lambda seed: _sum_case(random.Random(seed), 8192, 2048), 0.7)


def _rms_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    (eps,) = case.options
    mean = (x * x).mean(-1)
    total = mean * x.shape[1]
    yield "The squares are not divided by the number of columns.", torch.rsqrt(total + eps)
    yield (
        "The sum is multiplied by the columns; it is divided.",
        torch.rsqrt(total * x.shape[1] + eps),
    )
    yield "eps is taken away; it is added.", torch.rsqrt(mean - eps)
    yield "Elements are doubled, not squared: x * x.", torch.rsqrt(2 * x.mean(-1) + eps)
    yield "Squares are taken away; they are added.", torch.rsqrt(eps - mean)
    yield "eps is not added.", torch.rsqrt(mean)
    yield "eps is not the one given.", torch.rsqrt(mean + 1e-5)
    yield "eps is added to the root; it belongs under it.", 1 / (mean.sqrt() + eps)
    yield (
        "eps is added to the reciprocal of the root; it belongs under the root.",
        torch.rsqrt(mean) + eps,
    )
    yield "eps is added before the division by the columns.", torch.rsqrt(mean + eps / x.shape[1])
    yield "That is the root, and the question takes 1 / root.", torch.sqrt(mean + eps)
    yield "That is the mean of squares, and the question takes 1 / its root.", mean + eps
    yield "That is the mean of squares without the root: take rsqrtf.", 1 / (mean + eps)
    yield "The elements are summed, not their squares.", torch.rsqrt(x.mean(-1) + eps)
    deviation = x.var(-1, correction=0)
    yield "The mean is taken away first: that is LayerNorm's.", torch.rsqrt(deviation + eps)
    first = inverse_rms(x[:1], eps).expand(len(x))
    yield "Every block takes the first row: its row is blockIdx.x.", first
    yield _STRIDED, torch.rsqrt(_strided(x * x) / x.shape[1] + eps)
    for what, part in _parts(x * x):
        yield what, torch.rsqrt(part / x.shape[1] + eps)
    for warps in (1, 2, 4, 8, 16):
        yield (
            "Lanes without a warp's sum enter the last shuffles, each with 1: the neutral element "
            "of a sum is 0.",
            torch.rsqrt((total + 32 - warps) / x.shape[1] + eps),
        )


def _rms_case(rng: random.Random, rows: int, cols: int, eps: float) -> Case:
    # Rows of different sizes, so that none can stand for another.
    x = drawn(rng, (rows, cols), torch.float32, mean=0.5)
    x *= 0.5 + torch.arange(rows)[:, None]
    # Half of a sum's error, for the root, and three roundings.
    near = sum_tolerance(x**2) / 2 + 3 * 2.0**-23
    return Case({"x": x}, (eps,), inverse_rms(x, eps), Tolerance(near, near))


def grade_inverse_rms(attempt: Attempt) -> None:
    """Grade `inverse_rms(x, eps)`: x (rows, cols) in fp32, (rows,); its lanes use shuffles."""
    rng = random.Random(attempt.seed)
    cases = [_rms_case(rng, *shape, rng.choice((0.25, 1e-3))) for shape in _shapes(rng)]
    runs = right_in_cuda(attempt, cases, lambda runs: _explain(runs, _rms_models), _GUARD)
    _row_reads(attempt, runs, "a number")
    few_shared_stores(attempt, runs)
    compiles(attempt, (r.case for r in runs))


# An H100 ran a block of 256 a row at 0.67 of the copy.
RMS_SPEED = Speed(lambda seed: _rms_case(random.Random(seed), 8192, 2048, 1e-5), 0.6)
