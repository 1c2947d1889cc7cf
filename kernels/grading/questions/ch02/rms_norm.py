"""02.6: a fused RMSNorm, held against RMSNorms with one known fault each."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.row_norms import rms_normalised, row_groups
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, recognised, right_or_told
from kernels.registry import DTYPES, Tolerance

WIDEST = 16384
_PLAN: tuple[tuple[int, int, str], ...] = (
    (4, 64, "fp32 fp16 bf16"),
    (3, 17, "fp32 fp16 bf16"),
    (2, 3, "fp32 fp16 bf16"),
    (1, 1000, "fp32 fp16 bf16"),
    (5, 1, "fp32 bf16"),
    (1, 5000, "fp16 bf16"),
    (1, WIDEST, "fp32 fp16"),
)
# The block is the row, which has to be held: a smaller one is no way out.
_FEWER = "Give the row more threads (num_warps=8 or 16), or load weight only after the sum."
_OUTSIDE = "Columns beyond the row need a mask in the loads and in the store: cols < n_cols."


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, weight = (tensor.double() for tensor in case.tensors.values())
    (eps,) = case.options
    n = x.shape[-1]
    block = triton.next_power_of_2(n)
    squares = (x * x).sum(-1, keepdim=True)
    right = torch.sqrt(squares / n + eps)
    centred = x - x.mean(-1, keepdim=True)
    # The larger fault comes first where two can give the same numbers.
    yield (
        "The sum of squares is divided by BLOCK: divide by the number of columns.",
        x / torch.sqrt(squares / block + eps) * weight,
    )
    yield (
        "A sum is multiplied by the number of columns; a mean is divided by it.",
        x / torch.sqrt(squares * n + eps) * weight,
    )
    taken = x / torch.sqrt(squares / n - eps) * weight
    yield "eps is taken away from the mean square; it is added.", taken
    yield "It is divided by weight; weight multiplies.", x / right / weight
    yield "It is multiplied by the root; it is divided by it.", x * right * weight
    spread = torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    yield "That is a LayerNorm: RMSNorm subtracts no mean.", centred / spread * weight
    yield (
        "The mean is subtracted from the squares: RMSNorm has no mean at all.",
        x / spread * weight,
    )
    yield (
        "The mean is subtracted from x: RMSNorm has no mean at all.",
        centred / right * weight,
    )
    yield (
        "The sum of the squares is not divided by the number of columns.",
        x / torch.sqrt(squares + eps) * weight,
    )
    yield "x is divided by the mean square, not by its root.", x / (squares / n + eps) * weight
    unused = "eps is not added to the mean square, or it is not the one given."
    yield unused, x / torch.sqrt(squares / n) * weight
    yield (
        "eps is added to the root; it belongs under it.",
        x / (torch.sqrt(squares / n) + eps) * weight,
    )
    yield (
        "eps is added to the reciprocal of the root; it belongs under the root.",
        x * (1 / torch.sqrt(squares / n) + eps) * weight,
    )
    yield (
        "eps is added before the division by the number of columns.",
        x / torch.sqrt((squares + eps) / n) * weight,
    )
    yield unused, x / torch.sqrt(squares / n + 1e-5) * weight
    yield "Weight is not applied.", x / right
    yield "Weight is added; it multiplies.", x / right + weight
    yield (
        "The output is 0 where squares overflow: 300² is beyond the largest fp16. Convert to fp32 "
        "before you square.",
        torch.where((x.abs() >= 256).any(-1, keepdim=True), 0.0, x / right * weight),
    )


def _explain(runs: list[Run]) -> str:
    return recognised(runs, _models)


def _case(
    rng: random.Random,
    rows: int,
    cols: int,
    name: str,
    trait: str = "",
    scale: float = 1.0,
    eps: float = 1e-5,
) -> Case:
    dtype = DTYPES[name]
    x = (scale * drawn(rng, (rows, cols), torch.float32, 0.7)).to(dtype)
    weight = drawn(rng, (cols,), dtype, 1.0)
    # Rounding to the output's dtype, and an fp32 sum in a tree.
    unit = torch.finfo(dtype).eps / 2
    sums = 4 * 2.0**-24 * (2 + math.log2(cols + 1))
    near = Tolerance(unit + sums, 2 * unit + sums)
    return Case({"x": x, "weight": weight}, (eps,), rms_normalised(x, weight, eps), near, trait)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    case = functools.partial(_case, rng)
    cases = [case(r, n, name) for r, n, names in _PLAN for name in names.split()]
    cases.append(case(rng.randrange(13, 17), rng.randrange(65, 600), "fp32"))
    cases.append(case(2, 128, "fp32", eps=0.5))
    cases.append(case(2, 100, "fp32", eps=1e-3, scale=0.03))
    return cases + [case(2, n, "fp16", "values near 1000", scale=1000.0) for n in (64, 300)]


def grade_rms_norm(attempt: Attempt) -> None:
    """Grade `rms_norm(x, weight, eps)`: right, one launch, x read once, no byte beside the least.

    The widest row has 16384 columns, and its registers must hold it.
    """
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return (2 * rows + 1) * cols * case.x.itemsize

    within_bytes(attempt, runs, ideal, "x and weight read, y written")
    enough_programs(attempt, runs, row_groups, "one for every four rows")
    compiles(attempt, (r.case for r in runs), _FEWER)


RMS_SPEED = Speed(lambda seed: _case(random.Random(seed), 8192, 2048, "fp32"), 0.85)
