"""07.3 and 07.4: dx of LayerNorm, with three faults to mend, and dx of RMSNorm to write."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.gradients import (
    PLAN,
    gradient_tolerance,
    norm_inputs,
    right_gradient,
)
from kernels.grading.questions.kits.rms_gradients import (
    explain_rms_dx,
    right_in_fp32,
    rms_dx_case,
    row_mean,
)
from kernels.grading.questions.kits.row_norms import row_groups
from kernels.grading.questions.kits.wrong_models import Tensor, masked_lanes_named, recognised


def _centred_terms(given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_hat, dy, g (rows, cols) and inv_std (rows, 1) of a LayerNorm, in float64."""
    x, dy, weight, mean, inv_std = (t.double() for t in given.values())
    x_hat = (x - mean[:, None]) * inv_std[:, None]
    return x_hat, dy, dy * weight, inv_std[:, None]


def _layer_norm_case(rng: random.Random, rows: int, cols: int, name: str) -> Case:
    given = norm_inputs(rng, rows, cols, name, centred=True)
    x_hat, _, g, inv_std = _centred_terms(given)
    dx = (g - row_mean(g) - x_hat * row_mean(g * x_hat)) * inv_std
    return Case(given, (), dx, gradient_tolerance(g * inv_std, dx, given["x"].dtype))


def _layer_norm_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    x_hat, dy, g, inv_std = _centred_terms(case.tensors)
    n = x.shape[-1]
    lanes = triton.next_power_of_2(n)
    share = n / lanes

    def made(g: Tensor, first: Tensor, second: Tensor, x_hat: Tensor = x_hat) -> Tensor:
        return (g - first - x_hat * second) * inv_std

    along = row_mean(g * x_hat)
    dy_along = row_mean(dy * x_hat)
    mixed = (
        "The projection takes the mean of dy · x_hat; it is the mean of g · x_hat. Where weight is "
        "1 everywhere the two are one."
    )
    block = "A sum is divided by BLOCK: divide by the number of columns."
    yield mixed, made(g, row_mean(g), dy_along)
    for first, second in ((share, share), (share, 1.0), (1.0, share)):
        yield block, made(g, row_mean(g) * first, along * second)
        yield (
            f"{block} And {mixed[0].lower()}{mixed[1:]}",
            made(g, row_mean(g) * first, dy_along * second),
        )
    over = dy / case.tensors["weight"].double()
    yield (
        "dy is divided by weight: g is dy · weight.",
        made(over, row_mean(over), row_mean(over * x_hat)),
    )
    yield "g is divided by x_hat; it takes a product.", made(g, row_mean(g), row_mean(g / x_hat))
    yield "The projection is added; it is taken away.", made(g, row_mean(g), -along)
    yield "The mean of g is added; it is taken away.", made(g, -row_mean(g), along)
    yield "The mean of dy is taken away; it is the mean of g.", made(g, row_mean(dy), along)
    yield "weight is left out: g is dy · weight.", made(dy, row_mean(dy), dy_along)
    yield "The mean of g is not taken away.", made(g, torch.zeros_like(along), along)
    yield (
        "The projection onto x_hat is not taken away.",
        made(g, row_mean(g), torch.zeros_like(along)),
    )
    yield (
        "A sum of a row is not divided by the number of columns.",
        made(g, n * row_mean(g), n * along),
    )
    yield "dx is not multiplied by inv_std.", made(g, row_mean(g), along) / inv_std
    yield (
        "The mean is not taken from x: x_hat is (x - mean) · inv_std.",
        made(g, row_mean(g), row_mean(g * x * inv_std), x * inv_std),
    )
    yield (
        "x - mean stands for x_hat: it is not multiplied by inv_std.",
        made(g, row_mean(g), along / inv_std, x_hat / inv_std),
    )


def _explain_layer_norm(runs: list[Run]) -> str:
    return recognised(runs, _layer_norm_models) or right_in_fp32(runs)


def _shapes(seed: int) -> tuple[random.Random, list[tuple[int, int, str]]]:
    rng = random.Random(seed)
    shapes = [(rows, cols, name) for rows, cols, names in PLAN for name in names.split()]
    return rng, [*shapes, (rng.randrange(4, 7), rng.randrange(65, 500), "fp32")]


def _of_one_launch(attempt: Attempt, runs: list[Run], statistics: int) -> None:
    """What both questions ask of right runs: one launch, each byte once, lanes with values."""
    computed_by_kernels(attempt, runs, launches=1)
    for name in ("x", "dy"):
        reads_once(attempt, runs, name)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return (3 * rows + 1) * cols * case.x.itemsize + 4 * statistics * rows

    what = "x, dy, weight and the statistics read, dx written"
    within_bytes(attempt, runs, ideal, what)
    enough_programs(attempt, runs, row_groups, "one for every four rows")
    masked_lanes_named(attempt, runs)
    compiles(attempt, (r.case for r in runs))


def grade_layer_norm_dx(attempt: Attempt) -> None:
    """Grade `layer_norm_dx(x, dy, weight, mean, inv_std)`: right, one launch, each byte once."""
    rng, shapes = _shapes(attempt.seed)
    cases = [_layer_norm_case(rng, *shape) for shape in shapes]
    runs = right_gradient(attempt, cases, _explain_layer_norm, "dx")
    _of_one_launch(attempt, runs, statistics=2)


def grade_rms_dx(attempt: Attempt) -> None:
    """Grade `rms_norm_dx(x, dy, weight, inv_rms)`: right, one launch, each byte once."""
    rng, shapes = _shapes(attempt.seed)
    cases = [rms_dx_case(rng, *shape) for shape in shapes]
    runs = right_gradient(attempt, cases, explain_rms_dx, "dx")
    _of_one_launch(attempt, runs, statistics=1)


LAYER_NORM_SPEED = Speed(
    lambda seed: _layer_norm_case(random.Random(seed), 8192, 2048, "fp32"), 0.8
)
RMS_SPEED = Speed(lambda seed: rms_dx_case(random.Random(seed), 8192, 2048, "fp32"), 0.8)
