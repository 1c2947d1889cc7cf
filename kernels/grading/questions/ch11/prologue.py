"""11.6: a product whose prologue normalises with the statistics of the tile at hand."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt
from kernels.grading.questions.ch11.normed import (
    FAR,
    SMALL,
    STEPS,
    explain_norm,
    faulty_statistics,
    length_of,
    statistics,
)
from kernels.grading.questions.kits.products import (
    OUTSIDE,
    ProductCase,
    along_k,
    unstored,
)
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    right_or_told,
)
from kernels.registry import DTYPES, Tolerance

_PLAN: tuple[tuple[int, int, int, str, str], ...] = (
    (32, 32, 32, "fp32", ""),
    (17, 33, 50, "fp16", ""),
    (1, 40, 130, "fp32", ""),
    (40, 24, 96, "fp16", ""),
    (9, 20, 300, "fp32", ""),
    (5, 3, 7, "fp32", ""),
    (12, 10, 200, "fp32", FAR),
    (12, 33, 70, "fp32", SMALL),
)
_OUTSIDE = f"{OUTSIDE} norm_weight and norm_bias take k < K."
_OWN_TILE = (
    "Each tile is normalised with statistics of its own. A row has one mean and one variance, "
    "those of all K elements: they are known behind a loop over all of them, so x is read again."
)


def _case(rng: random.Random, m: int, n: int, k: int, name: str, trait: str) -> Case:
    dtype = DTYPES[name]
    mean, spread = {FAR: (1000.0, 1.0), SMALL: (0.002, 0.003)}.get(trait, (0.7, 1.5))
    x = mean + spread * drawn(rng, (m, k), torch.float32)
    if not trait:
        # Tiles differ: those of one row have other means, and other spreads.
        x = x * (1 + torch.arange(k) / k) + torch.arange(k) / k
    given = {
        "x": x.to(dtype),
        "norm_weight": (1 + 0.5 * drawn(rng, (k,), torch.float32)).to(dtype),
        "norm_bias": (0.3 * drawn(rng, (k,), torch.float32)).to(dtype),
        "weight": (drawn(rng, (n, k), torch.float32) / k**0.5).to(dtype),
    }
    wide, gamma, beta, weight = (t.double() for t in given.values())
    mu, inv_std = statistics(wide)
    hat = (wide - mu) * inv_std
    h = hat * gamma + beta
    y = h @ weight.T
    # What rounding h to the dtype makes of a sum, and fp32 sums; the mean's own error moves all
    # of a row.
    rounded = float((h.square() @ weight.square().T).sqrt().max() / y.abs().max())
    unit = torch.finfo(dtype).eps / 2
    moved = (mu.abs() * inv_std) @ (gamma * weight).sum(1).abs()[None, :]
    terms = h.abs() @ weight.abs().T + moved
    sums = 2.0**-24 * length_of(k) * max(1.0, float(terms.max() / y.abs().max()))
    near = Tolerance(unit * (1 + 1.5 * rounded) + sums, unit * (2 + 4 * rounded) + 2 * sums)
    return ProductCase(given, (), y, near, trait)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    plan = [*_PLAN, (rng.randrange(3, 40), rng.randrange(3, 40), rng.randrange(65, 96), "fp16", "")]
    return [_case(rng, *one) for one in (*plan, plan[0])]


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, gamma, beta, weight = (t.double() for t in case.tensors.values())
    mean, inv_std = statistics(x)
    hat = (x - mean) * inv_std
    h, y = hat * gamma + beta, case.reference
    for step in STEPS:
        tiles = []
        running = []
        for first in range(0, x.shape[1], step):
            tile = x[:, first : first + step]
            mu, inv = statistics(tile)
            tiles.append((tile - mu) * inv)
            mu, inv = statistics(x[:, : first + step])
            running.append((tile - mu) * inv)
        yield _OWN_TILE, (torch.cat(tiles, 1) * gamma + beta) @ weight.T
        yield (
            "Each tile is normalised with the statistics of the row up to it: those of the whole "
            "row are known only behind the loop.",
            (torch.cat(running, 1) * gamma + beta) @ weight.T,
        )
    for what, (mu, inv) in faulty_statistics(x):
        yield what, ((x - mu) * inv * gamma + beta) @ weight.T
    yield "norm_bias is not added.", (hat * gamma) @ weight.T
    yield "norm_weight is missing.", (hat + beta) @ weight.T
    yield "norm_weight and norm_bias have changed places.", (hat * beta + gamma) @ weight.T
    yield "norm_bias is added before the scale: h is x̂ · γ + β.", ((hat + beta) * gamma) @ weight.T
    yield "That is the product of x as it is: normalise the tile first.", x @ weight.T
    for what, faulty in along_k(h, weight):
        yield what, faulty
    yield from unstored(y)


def _explain(runs: list[Run]) -> str:
    return explain_norm(runs, _models)


def grade_statistics(attempt: Attempt) -> None:
    """Grade `my_norm_linear(x, norm_weight, norm_bias, weight)`: the row's own statistics."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    masked_lanes_named(attempt, [r for r in runs if r.case.x.shape[-1] % 16])
    compiles(attempt, (r.case for r in runs))
