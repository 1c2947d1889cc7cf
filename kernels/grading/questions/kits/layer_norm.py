"""02.2 and 03.8: a fused LayerNorm, held against LayerNorms with one known fault each."""

from __future__ import annotations

import functools
import math
import random

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, right_everywhere, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.wrong_models import Model, recognised
from kernels.ops.norms.layernorm import OP
from kernels.registry import DTYPES, Tolerance

Tensor = torch.Tensor


def _known_faults(case: Case) -> list[Model]:
    """LayerNorms with one fault, in float64: an output that equals one has that fault."""
    x, weight, bias = (tensor.double() for tensor in case.tensors.values())
    (eps,) = case.options
    n = x.shape[-1]
    block = triton.next_power_of_2(n)
    mean = x.mean(-1, keepdim=True)
    squares = ((x - mean) ** 2).sum(-1, keepdim=True)

    def made(variance: Tensor, mean: Tensor = mean) -> Tensor:
        return (x - mean) / torch.sqrt(variance + eps) * weight + bias

    multiplied = "A sum is multiplied by the number of columns; a mean is divided by it."
    off = x + mean
    spread = torch.sqrt((off**2).mean(-1, keepdim=True) + eps)
    added_mean = off / spread * weight + bias
    masked = (block - n) * mean**2
    low = x.sum(-1, keepdim=True) / block
    low_squares = ((x - low) ** 2).sum(-1, keepdim=True)
    # One sentence for all shapes: it has to explain every run that failed.
    block_means = "A sum is divided by BLOCK: divide by the number of columns."
    lanes_mean = (
        "Masked lanes enter the variance. The lanes of a block beyond the row load 0, so x - mean "
        "is -mean there, and each adds mean² to the sum."
    )
    faults: list[Model] = [
        (lanes_mean, made((squares + masked) / n)),
        (
            "mean² is taken off for each lane beyond the row, and these lanes add nothing: they "
            "are masked in the sum already.",
            made((squares - masked) / n),
        ),
        (block_means, made(squares / block)),
        (block_means, made(low_squares / block, low)),
        (block_means, made(low_squares / n, low)),
        (block_means, made((squares + masked) / block)),
        (block_means, made((low_squares + (block - n) * low**2) / block, low)),
        (block_means, made((low_squares + (block - n) * low**2) / n, low)),
        (
            "eps is not used, or not the one given.",
            made(squares / n - eps + 1e-5),
        ),
        ("eps is not added to the variance.", made(squares / n - eps)),
        ("eps is taken away from the variance; it is added.", made(squares / n - 2 * eps)),
        (multiplied, made(squares * n)),
        ("The mean is added to x; it is taken away.", added_mean),
        (
            "It is divided by weight; weight multiplies.",
            (x - mean) / torch.sqrt(squares / n + eps) / weight + bias,
        ),
        ("Bias is taken away; it is added.", made(squares / n) - 2 * bias),
        (
            "It is multiplied by the root; it is divided by it, or multiplied by tl.rsqrt.",
            (x - mean) * torch.sqrt(squares / n + eps) * weight + bias,
        ),
        (
            "The centred values are divided by the variance, not by its square root.",
            (x - mean) / (squares / n + eps) * weight + bias,
        ),
        (
            "The sum of the squared distances is not divided by the number of columns.",
            made(squares),
        ),
        (
            "eps is added to the root; it belongs under it.",
            (x - mean) / (torch.sqrt(squares / n) + eps) * weight + bias,
        ),
        (
            "eps is added to the reciprocal of the root; it belongs under the root.",
            (x - mean) * (1 / torch.sqrt(squares / n) + eps) * weight + bias,
        ),
        (
            "Weight and bias are swapped: weight multiplies, bias is added.",
            (x - mean) / torch.sqrt(squares / n + eps) * bias + weight,
        ),
        ("The output is 0 everywhere: nothing was computed.", torch.zeros_like(x)),
        (
            "The centred values are not divided by the root of the variance.",
            (x - mean) * weight + bias,
        ),
        ("What comes back is x itself.", x),
        ("The mean is not subtracted.", made(squares / n, torch.zeros_like(mean))),
        ("Bias is not added.", made(squares / n) - bias),
        ("Weight is not applied.", (x - mean) / torch.sqrt(squares / n + eps) + bias),
    ]
    var, middle = torch.var_mean(x, 0, correction=0, keepdim=True)
    root = torch.sqrt(var + eps)
    # Of three equal numbers far from 0, one above the other, fp32 leaves its rounding alone.
    lost = 2.0**-24 * x.shape[0] * middle.abs() / root * weight
    faults.append(
        (
            "Mean and variance run down the columns: a row lies along the last axis, and each row "
            "has its own.",
            (x - middle) / root * weight + bias,
            lost.expand_as(x),
        )
    )
    # With one column that is 0 / 0, or guarded.
    for count in (n - 1, max(n - 1, 1)):
        faults.append(("The variance is divided by N - 1, not by N.", made(squares / count)))
    return faults


def explain_layer_norm(runs: list[Run]) -> str:
    """Return the known fault that every wrong run shows and no right one denies, or ""."""
    return recognised(runs, _known_faults)


_PLAN: tuple[tuple[int, int, str], ...] = (
    (4, 64, "fp32 fp16 bf16"),
    (3, 17, "fp32 fp16 bf16"),
    (2, 3, "fp32 fp16 bf16"),
    (1, 1000, "fp32 fp16 bf16"),
    (5, 1, "fp32 bf16"),
    (2, 4096, "fp32 fp16"),
    (2, 1536, "bf16"),
)
_FAR = ((3, 17), (2, 3), (2, 1000))


def norm_tolerance(inputs: dict[str, Tensor], eps: float) -> Tolerance:
    """The operation's own, and what a mean far from 0 loses: it is rounded to fp32 as all sums."""
    x = inputs["x"].double()
    mean, variance = x.mean(-1), x.var(-1, correction=0)
    far = float((mean.abs() / torch.sqrt(variance + eps)).max())
    own = OP.tolerance(inputs["x"].dtype, tuple(x.shape))
    more = far * 2.0**-24 * (2 + math.log2(max(x.shape[-1], 2)))
    return Tolerance(own.relative_norm + more, own.largest + more)


def _case(
    rng: random.Random, rows: int, cols: int, name: str, trait: str = "", **options: float
) -> Case:
    eps = options.pop("eps", 1e-5)
    inputs = OP.inputs((rows, cols), DTYPES[name], "cpu", rng.getrandbits(31), **options)
    reference = OP.reference(**inputs, eps=eps)
    return Case(inputs, (eps,), reference, norm_tolerance(inputs, eps), trait)


def _layer_norm_cases(seed: int) -> list[Case]:
    case = functools.partial(_case, random.Random(seed))
    rng = random.Random(seed + 1)
    cases = [case(r, n, name) for r, n, names in _PLAN for name in names.split()]
    cases.append(case(rng.randrange(2, 5), rng.randrange(65, 600), "fp32"))
    cases.append(case(2, 128, "fp32", eps=0.5))
    for rows, cols in _FAR:
        # 16 bits can't tell values near 1000 apart.
        cases.append(case(rows, cols, "fp32", "mean near 1000", mean=1000.0, spread=1.0))
        cases.append(case(rows, cols, "fp16", "mean near 30", mean=30.0))
    cases.append(case(2, 1000, "bf16", "mean near 30", mean=30.0))
    return cases


def grade_layer_norm(attempt: Attempt) -> None:
    """Grade `my_layer_norm(x, weight, bias, eps)`: right, one launch, each byte moved once."""
    runs = right_everywhere(attempt, _layer_norm_cases(attempt.seed), explain_layer_norm)
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return OP.cost((rows, cols), case.x.dtype, "fwd").bytes_ideal

    within_bytes(attempt, runs, ideal, "x, weight and bias read, y written")
    compiles(attempt, (r.case for r in runs))


SPEED = Speed(lambda seed: _case(random.Random(seed), 8192, 2048, "fp32"), 0.85)
