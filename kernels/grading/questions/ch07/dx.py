"""07.3 and 07.4: dx of LayerNorm, with three faults to mend, and dx of RMSNorm to write."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.hardware import compiles, enough_programs
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.ch02.rms_norm import row_groups
from kernels.grading.questions.ch07.kit import PLAN, gradient_tolerance, norm_inputs, right_gradient
from kernels.grading.questions.kits.wrong_models import Tensor, masked_lanes_named, recognised

_HALF = (
    "It is right in fp32: convert x, dy and weight to fp32 behind their loads, and dx only when "
    "you store it."
)


def _mean(values: Tensor) -> Tensor:
    return values.mean(-1, keepdim=True)


def _centred_terms(given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_hat, dy, g (rows, cols) and inv_std (rows, 1) of a LayerNorm, in float64."""
    x, dy, weight, mean, inv_std = (t.double() for t in given.values())
    x_hat = (x - mean[:, None]) * inv_std[:, None]
    return x_hat, dy, dy * weight, inv_std[:, None]


def _layer_norm_case(rng: random.Random, rows: int, cols: int, name: str) -> Case:
    given = norm_inputs(rng, rows, cols, name, centred=True)
    x_hat, _, g, inv_std = _centred_terms(given)
    dx = (g - _mean(g) - x_hat * _mean(g * x_hat)) * inv_std
    return Case(given, (), dx, gradient_tolerance(g * inv_std, dx, given["x"].dtype))


def _layer_norm_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    x_hat, dy, g, inv_std = _centred_terms(case.tensors)
    n = x.shape[-1]
    lanes = triton.next_power_of_2(n)
    share = n / lanes

    def made(g: Tensor, first: Tensor, second: Tensor, x_hat: Tensor = x_hat) -> Tensor:
        return (g - first - x_hat * second) * inv_std

    along = _mean(g * x_hat)
    dy_along = _mean(dy * x_hat)
    mixed = (
        "The projection takes the mean of dy · x_hat; it is the mean of g · x_hat. Where weight is "
        "1 everywhere the two are one."
    )
    block = f"A sum is divided by BLOCK, here {lanes}, where the row has {n} elements."
    yield mixed, made(g, _mean(g), dy_along)
    if lanes > n:
        for first, second in ((share, share), (share, 1.0), (1.0, share)):
            yield block, made(g, _mean(g) * first, along * second)
            yield (
                f"{block} And {mixed[0].lower()}{mixed[1:]}",
                made(g, _mean(g) * first, dy_along * second),
            )
    yield "The mean of dy is taken away; it is the mean of g.", made(g, _mean(dy), along)
    yield "weight is left out: g is dy · weight.", made(dy, _mean(dy), dy_along)
    yield "The mean of g is not taken away.", made(g, torch.zeros_like(along), along)
    yield "The projection onto x_hat is not taken away.", made(g, _mean(g), torch.zeros_like(along))
    yield (
        "A sum of a row is not divided by the number of columns.",
        made(g, n * _mean(g), n * along),
    )
    yield "dx is not multiplied by inv_std.", made(g, _mean(g), along) / inv_std
    yield (
        "The mean is not taken from x: x_hat is (x - mean) · inv_std.",
        made(g, _mean(g), _mean(g * x * inv_std), x * inv_std),
    )
    yield (
        "x - mean stands for x_hat: it is not multiplied by inv_std.",
        made(g, _mean(g), along / inv_std, x_hat / inv_std),
    )


def _explain_layer_norm(runs: list[Run]) -> str:
    return recognised(runs, _layer_norm_models) or _narrow(runs)


def _narrow(runs: list[Run]) -> str:
    """What it says that no fp32 input fails, or "" if one does."""
    dtypes = {r.case.x.dtype for r in runs if r.fault is not None and r.wrong.numel()}
    return _HALF if dtypes and torch.float32 not in dtypes else ""


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
    dx = (g - x_hat * _mean(g * x_hat)) * inv_rms
    near = gradient_tolerance(g * inv_rms, dx, given["x"].dtype)
    return Case(given, options, dx, near)


def _rms_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x_hat, dy, g, inv_rms = _rms_terms(case.tensors)
    n = x_hat.shape[-1]
    lanes = triton.next_power_of_2(n)

    def made(g: Tensor, along: Tensor, x_hat: Tensor = x_hat) -> Tensor:
        return (g - x_hat * along) * inv_rms

    along = _mean(g * x_hat)
    if lanes > n:
        yield (
            f"The sum of g · x_hat is divided by BLOCK, here {lanes}; the row has {n} elements.",
            made(g, along * n / lanes),
        )
    yield (
        "That is LayerNorm's dx: RMSNorm has no mean, and its dx takes no mean of g away.",
        made(g - _mean(g), along),
    )
    yield "weight is left out: g is dy · weight.", made(dy, _mean(dy * x_hat))
    yield (
        "The projection takes the mean of dy · x_hat; it is the mean of g · x_hat.",
        made(g, _mean(dy * x_hat)),
    )
    yield "The projection onto x_hat is not taken away.", made(g, torch.zeros_like(along))
    yield "The projection is added; it is taken away.", made(g, -along)
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
    return recognised(runs, _rms_models) or _narrow(runs)


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
