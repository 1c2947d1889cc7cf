"""03.7: a normalisation that reads x three times, to be fused into one that reads it once."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.row_norms import normalised
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    recognised,
    right_or_told,
)
from kernels.registry import Tolerance

_SHAPES = ((3, 64), (3, 17), (2, 1000), (3, 1), (1, 4096), (1, 2500))
_OUTSIDE = "Columns beyond the row need a mask in the load and in the store: cols < n_cols."


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    (eps,) = case.options
    n = x.shape[-1]
    block = triton.next_power_of_2(n)
    mean = x.mean(-1, keepdim=True)
    squares = ((x - mean) ** 2).sum(-1, keepdim=True)

    def made(variance: Tensor, mean: Tensor = mean) -> Tensor:
        return (x - mean) / torch.sqrt(variance + eps)

    yield (
        "Masked lanes enter the variance. In the lanes beyond the row x - mean is -mean, and each "
        "adds mean² to the sum. Mask again before you reduce.",
        made((squares + (block - n) * mean**2) / n),
    )
    low = x.sum(-1, keepdim=True) / block
    low_squares = ((x - low) ** 2).sum(-1, keepdim=True)
    divided = "A sum is divided by BLOCK: divide by the number of columns."
    yield divided, made(squares / block)
    yield divided, made(low_squares / block, low)
    yield divided, made(low_squares / n, low)
    yield from _first_block_alone(x, eps)
    yield "eps is not added to the variance.", made(squares / n - eps)
    yield "eps is taken away from the variance; it is added.", made(squares / n - 2 * eps)
    off = x + mean
    spread = torch.sqrt((off**2).mean(-1, keepdim=True) + eps)
    yield "The mean is added to x; it is taken away.", off / spread
    multiplied = "A sum is multiplied by the number of columns; a mean is divided by it."
    yield multiplied, made(squares * n)
    yield "eps is not the one given.", made(squares / n - eps + 1e-5)
    root = torch.sqrt(squares / n)
    yield "eps is added to the root; it belongs under it.", (x - mean) / (root + eps)
    yield (
        "eps is added to the reciprocal of the root; it belongs under the root.",
        (x - mean) * (1 / root + eps),
    )
    yield "The mean is not subtracted.", made(squares / n, torch.zeros_like(mean))
    yield (
        "The centred values are divided by the variance, not by its square root.",
        (x - mean) / (squares / n + eps),
    )
    # With one column that is 0 / 0, or guarded.
    for count in (n - 1, max(n - 1, 1)):
        yield "The variance is divided by N - 1, not by N.", made(squares / count)


def _first_block_alone(x: Tensor, eps: float) -> Iterator[tuple[str, Tensor]]:
    """What a block narrower than the row gives: x (rows, cols) in float64, NaN beyond the block."""
    n = x.shape[-1]
    for width in (2**power for power in range(4, 12)):
        if width >= n:
            return
        block = x[:, :width]
        centred = block - block.sum(-1, keepdim=True) / n
        variance = (centred**2).sum(-1, keepdim=True) / n
        model = torch.full_like(x, torch.nan)
        model[:, :width] = centred / torch.sqrt(variance + eps)
        yield (
            f"Only the first {width} columns are summed and stored: the row is wider than the "
            "block. BLOCK takes triton.next_power_of_2(n_cols).",
            model,
        )


def _explain(runs: list[Run]) -> str:
    return recognised(runs, _models)


def _case(
    rng: random.Random, rows: int, cols: int, dtype: torch.dtype, mean: float, eps: float = 1e-5
) -> Case:
    x = drawn(rng, (rows, cols), dtype, mean)
    # Rounding to x's dtype, fp32 sums, and what a mean far from 0 loses of the differences.
    spread = torch.sqrt(x.double().var(-1, correction=0) + eps)
    far = float((x.double().mean(-1).abs() / spread).max())
    near = torch.finfo(dtype).eps + 2.0**-22 * (4 + math.log2(cols + 1)) * (1 + far)
    trait = f"mean near {mean:.0f}" if mean > 10 else ""
    return Case({"x": x}, (eps,), normalised(x, eps), Tolerance(near, near), trait)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    shapes = [*_SHAPES, (rng.randrange(2, 5), rng.randrange(65, 600))]
    cases = [_case(rng, *s, d, 2.0) for s in shapes for d in (torch.float32, torch.float16)]
    cases.append(_case(rng, 2, 128, torch.float32, 2.0, eps=0.5))
    far = ((3, 17), (2, 1000), (2, 64))
    # 16 bits can't tell values near 3000 apart.
    cases += [_case(rng, *shape, torch.float16, 30.0) for shape in far]
    return cases + [_case(rng, *shape, torch.float32, 3000.0) for shape in far]


def _fused(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if every program passes over x more than once."""
    times = min(r.traffic(r.case.x).times_read for r in runs)
    if times < 1.5:
        return
    passes = round(times)
    left = (
        "The statistics share a pass, or one of them shares it with the output; the other still "
        "loads x again. Take in all of the row before the first sum."
        if passes == 2
        else "Mean, variance and output each pass over memory. A row of up to 4096 elements fits "
        "into one program's registers: fuse the passes, and the two later loads go away."
    )
    raise Wrong(f"x is read {times:.1f} times on {runs[0].case}; once will do.", left)


def grade_fused_passes(attempt: Attempt) -> None:
    """Grade `my_normalize(x, eps)`: right, one launch, x read once, no byte beside x and y."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    _fused(attempt, runs)
    reads_once(attempt, runs, "x")
    within_bytes(attempt, runs, lambda c: 2 * c.x.numel() * c.x.itemsize, "x read, y written")
    masked_lanes_named(attempt, runs)
    compiles(attempt, (r.case for r in runs))


SPEED = Speed(lambda seed: _case(random.Random(seed), 8192, 2048, torch.float32, 2.0), 0.85)
