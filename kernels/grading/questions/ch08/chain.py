"""08.9: residual + dropout(gelu(LayerNorm(x))) in one launch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt
from kernels.grading.questions.ch08.backward import gelu
from kernels.grading.questions.kits.masks import (
    edge,
    explains_all,
    kept,
    masks_and_scales,
    near,
    right_masked,
    state,
)
from kernels.grading.questions.kits.row_norms import row_groups
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, masked_lanes_named
from kernels.philox import scale
from kernels.registry import DTYPES, Tolerance

# Widths are multiples of 8, so that a row begins with a block.
_PLAN: tuple[tuple[int, int, str, float | None], ...] = (
    (4, 64, "fp32", 0.25),
    (3, 24, "fp32", 0.5),
    (5, 200, "fp16", 0.1),
    (6, 8, "fp32", 0.4),
    (2, 1000, "bf16", 0.3),
    (1, 4096, "fp32", None),
    (3, 40, "fp32", 0.0),
    (2, 24, "fp16", 1.0),
)


def _parts(given: dict[str, Tensor]) -> list[Tensor]:
    """x, weight, bias and residual in float64."""
    return [given[name].double() for name in ("x", "weight", "bias", "residual")]


def _normalised(x: Tensor, eps: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + eps)


def _case(
    rng: random.Random, rows: int, cols: int, name: str, p: float | None, mean: float = 0.4
) -> Case:
    seed_offset, eps = state(rng), rng.choice((1e-5, 1e-3, 0.1))
    p = edge(rng, rows * cols, seed_offset) if p is None else p
    dtype = DTYPES[name]
    given = {
        "x": drawn(rng, (rows, cols), dtype, mean),
        "weight": (1.0 + 0.5 * drawn(rng, (cols,), torch.float32)).to(dtype),
        "bias": (0.5 + 0.4 * drawn(rng, (cols,), torch.float32)).to(dtype),
        "residual": drawn(rng, (rows, cols), dtype),
        "seed_offset": seed_offset,
    }
    x, weight, bias, residual = _parts(given)
    mask = kept((rows, cols), p, seed_offset)
    active = gelu(_normalised(x, eps) * weight + bias)
    y = residual + torch.where(mask, active * scale(p), 0.0)
    one = near(dtype)
    # What a mean far from 0 loses in fp32, and sums of a row.
    sums = (2 + abs(mean)) * 2.0**-24 * (4 + math.log2(cols)) * 2
    close = Tolerance(one.relative_norm + sums, one.largest + 4 * sums)
    trait = f"a mean of {mean:g}" if mean > 1 else ""
    return Case(given, (p, eps), y, close, trait)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases = [_case(rng, *one) for one in _PLAN]
    cases.append(_case(rng, rng.randrange(4, 9), 8 * rng.randrange(9, 40), "fp32", 0.2))
    return [*cases, _case(rng, 2, 400, "fp32", 0.3, 2000.0)]


def _wrong_h(case: Case) -> Iterator[tuple[str, Tensor]]:
    """What GELU is taken of, with one fault in the norm."""
    x, weight, bias, _ = _parts(case.tensors)
    eps = case.options[1]
    n = x.shape[-1]
    lanes = triton.next_power_of_2(n)
    mean = x.mean(-1, keepdim=True)
    squares = ((x - mean) ** 2).sum(-1, keepdim=True)

    def made(variance: Tensor, mean: Tensor = mean) -> Tensor:
        return (x - mean) / torch.sqrt(variance + eps) * weight + bias

    right = made(squares / n)
    yield (
        "Masked lanes enter the variance. The lanes of a block beyond the row load 0, so x - mean "
        "is -mean there, and each adds mean² to the sum.",
        made((squares + (lanes - n) * mean**2) / n),
    )
    block = "A sum is divided by BLOCK: divide by the number of columns."
    low = x.sum(-1, keepdim=True) / lanes
    low_squares = ((x - low) ** 2).sum(-1, keepdim=True)
    yield block, made(squares / lanes)
    yield block, made(low_squares / lanes, low)
    yield block, made(low_squares / n, low)
    yield "LayerNorm is missing: GELU is taken of x.", x
    yield "weight is not applied.", _normalised(x, eps) + bias
    yield "bias is not added.", _normalised(x, eps) * weight
    yield "weight and bias are left out.", _normalised(x, eps)
    yield "weight and bias have changed places.", _normalised(x, eps) * bias + weight
    yield "eps is not used, or not the one given.", made(squares / n - eps)
    yield "eps is not used, or not the one given.", made(squares / n - eps + 1e-5)
    yield "The mean is not subtracted.", made(squares / n, torch.zeros_like(mean))
    yield "The sum of the squared distances is not divided by n_cols.", made(squares)
    yield (
        "The centred values are divided by the variance, not by its square root.",
        (x - mean) / (squares / n + eps) * weight + bias,
    )
    root = torch.sqrt(squares / n)
    outside = (x - mean) / (root + eps) * weight + bias
    yield "eps is added to the root; it belongs under it.", outside
    yield (
        "eps is added to the reciprocal of the root; it belongs under the root.",
        (x - mean) * (1 / root + eps) * weight + bias,
    )
    yield "The variance is divided by n - 1.", made(squares / (n - 1))
    yield "bias is taken away; it is added.", right - 2 * bias


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, weight, bias, residual = _parts(case.tensors)
    p, eps = case.options
    seed_offset, shape = case.tensors["seed_offset"], tuple(x.shape)
    mask = kept(shape, p, seed_offset)
    h = _normalised(x, eps) * weight + bias

    def made(active: Tensor, mask: Tensor = mask, by: float = scale(p)) -> Tensor:
        return residual + torch.where(mask, active * by, 0.0)

    yield "residual is not added.", made(gelu(h)) - residual
    yield (
        "Dropout is taken of the sum: residual is added behind it, and is never dropped.",
        torch.where(mask, (residual + gelu(h)) * scale(p), 0.0),
    )
    yield "GELU is missing.", made(h)
    yield (
        "Dropout comes before GELU: it takes what GELU made.",
        residual + gelu(torch.where(mask, h * scale(p), 0.0)),
    )
    yield (
        "GELU is taken of the sum with residual: residual is added last.",
        gelu(residual + torch.where(mask, h * scale(p), 0.0)),
    )
    yield "That is SiLU: GELU's sigmoid takes 2u.", made(h * torch.sigmoid(h))
    yield (
        "That is GELU with the error function: this one is its tanh form.",
        made(0.5 * h * (1 + torch.erf(h * 0.5**0.5))),
    )
    yield "The sign in the sigmoid is wrong: GELU is h · sigmoid(2u), u as h.", made(h - gelu(h))
    yield "x is added in residual's place.", made(gelu(h)) - residual + x
    for what, wrong in _wrong_h(case):
        yield what, made(gelu(wrong))
    for what, other, factor in masks_and_scales(shape, p, seed_offset):
        yield what, made(gelu(h), other, factor)


def _explain(runs: list[Run]) -> str:
    return explains_all(runs, _models)


def grade_chain(attempt: Attempt) -> None:
    """Grade `norm_chain(x, weight, bias, residual, seed_offset, p, eps)`: in three passes."""
    runs = right_masked(attempt, _cases(attempt.seed), _explain)
    judged = [r for r in runs if 0 < r.case.options[0] < 1]
    computed_by_kernels(attempt, judged, launches=1)
    for name in ("x", "residual"):
        reads_once(attempt, judged, name)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return (3 * rows + 2) * cols * case.x.itemsize + 16

    what = "x, residual, weight, bias and the seed read, y written: three passes"
    within_bytes(attempt, judged, ideal, what)
    enough_programs(attempt, judged, row_groups, "one for every four rows")
    masked_lanes_named(attempt, judged)
    compiles(attempt, (r.case for r in judged))
