"""What 11.6 and 11.9 share: rows and their statistics, rightly and with what goes wrong there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from kernels.grading.cases import Run
from kernels.grading.questions.kits.products import explain_sums, turned_shape
from kernels.grading.questions.kits.wrong_models import (
    Models,
    Tensor,
    only_end_missing,
    recognised,
)

EPS = 1e-5
STEPS = (16, 32, 64, 128)
FAR = "its mean is 1000 times its spread"
SMALL = "a spread of 0.003"
Statistics = tuple[Tensor, Tensor]


def statistics(x: Tensor, eps: float = EPS) -> Statistics:
    """Return mean and inv_std (M, 1) of the rows of x (M, K), in float64."""
    mean = x.mean(-1, keepdim=True)
    return mean, torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps)


def with_mean_square(x: Tensor, lanes: int) -> Statistics:
    """Return statistics whose sums of x and x² are divided by `lanes` in place of K."""
    mean = x.sum(-1, keepdim=True) / lanes
    variance = (x * x).sum(-1, keepdim=True) / lanes - mean * mean
    return mean, torch.rsqrt(variance + EPS)


_ONE_STEP = (
    "A sum is that of one step alone: += adds it up over all steps, from 0 to K, and K divides it."
)


def _of_one_step(x: Tensor, part: Tensor) -> Iterator[Statistics]:
    """Statistics with a sum that is of `part`, some columns of x, and divided by K all the same."""
    k = x.shape[1]

    def over(terms: Tensor) -> Tensor:
        return terms.sum(-1, keepdim=True) / k

    mean, short = over(x), over(part)
    squares, short_squares = over(x * x), over(part * part)
    for variance in (over((x - short) ** 2), over((part - short) ** 2), squares - short**2):
        yield short, torch.rsqrt(variance + EPS)
    yield short, torch.rsqrt(short_squares - short**2 + EPS)
    for variance in (over((part - mean) ** 2), short_squares - mean**2):
        yield mean, torch.rsqrt(variance + EPS)


def faulty_statistics(x: Tensor) -> Iterator[tuple[str, Statistics]]:
    """Statistics of the rows of x (M, K), in float64, with one fault each."""
    k = x.shape[1]
    mean, inv_std = statistics(x)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    none = torch.zeros_like(mean)
    # Where a fault does no harm its model is right, so that a right output doesn't deny it.
    for step in STEPS:
        first = "The statistics are those of the first tile alone: they are the whole row's."
        yield first, statistics(x[:, :step])
        last = (k - 1) // step * step
        yield (
            "The statistics are those of the last tile alone: sums are added up over the steps.",
            statistics(x[:, last:]),
        )
        for part in (x[:, :step], x[:, last:]):
            yield from ((_ONE_STEP, one) for one in _of_one_step(x, part))
        lanes = -(-k // step) * step
        divided = "Sums are divided by the number of lanes: divide by K."
        yield divided, with_mean_square(x, lanes)
        yield divided, (mean, torch.rsqrt(variance * k / lanes + EPS))
        over = mean * mean * (lanes - k) / k
        yield (
            "Masked lanes enter the variance: each holds 0, and (0 - mean)² is added for it. Set "
            "their difference to 0 by tl.where.",
            (mean, torch.rsqrt(variance + over + EPS)),
        )
    if k > 1:
        unbiased = torch.rsqrt(variance * k / (k - 1) + EPS)
        yield "The variance is divided by K - 1: a norm divides by K.", (mean, unbiased)
    yield "eps is missing under the root.", (mean, torch.rsqrt(variance))
    outside = 1 / (variance.sqrt() + EPS)
    yield "eps stands outside the root: inv_std is rsqrt(variance + eps).", (mean, outside)
    about_0 = torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)
    yield (
        "The variance is the mean of x²: that of (x - mean)² is less, by mean².",
        (mean, about_0),
    )
    yield "That is RMSNorm: the mean isn't taken away.", (none, about_0)
    yield "The mean isn't taken away.", (none, inv_std)
    squares = variance * k
    sums = torch.rsqrt(squares + EPS)
    yield "The variance is a mean: the sum of squares is divided by K.", (mean, sums)
    yield "The root is missing: inv_std is 1 / √(variance + eps).", (mean, 1 / (variance + EPS))
    yield "Multiply by inv_std: rsqrt is 1 over the root.", (mean, torch.sqrt(variance + EPS))


def explain_norm(runs: list[Run], models: Models) -> str:
    """Return the fault that wrong outputs of a norm and a product show, or ""."""
    if told := recognised(runs, models):
        return told
    if _only_with(runs, FAR):
        return (
            "It is right where a mean is moderate. Where it is large against the spread, the mean "
            "of x² less the mean's square is a difference of two large numbers, and fp32 leaves "
            "little of it. Take the mean first, then sum (x - mean)²; or merge tiles as in 02."
        )
    if _only_with(runs, SMALL):
        return "It is right where the spread is large against eps: eps is 1e-5, under the root."
    if turned_shape(runs):
        return "That has the shape of the transpose: y is (M, N), rows of x by rows of weight."
    if only_end_missing(runs):
        return "The last rows of y were never stored: the grid has too few programs."
    return explain_sums(runs)


def _only_with(runs: Sequence[Run], trait: str) -> bool:
    """Whether there is a wrong run, and all wrong ones have values and this trait."""
    failed = [r for r in runs if r.fault is not None]
    return bool(failed) and all(r.case.trait == trait and r.wrong.numel() for r in failed)


def length_of(k: int) -> float:
    """How far the error of an fp32 sum of k terms goes, in units of its rounding."""
    return 4 + math.sqrt(k)
