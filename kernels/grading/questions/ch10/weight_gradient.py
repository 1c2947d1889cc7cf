"""10.8: the gradients of a product's weight and of its bias, in one launch."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.gradients import no_atomics, right_gradient
from kernels.grading.questions.kits.products import (
    LONG,
    ProductCase,
    explain_sums,
    sum_tolerance,
    tiles,
    turned_shape,
    within_requests,
)
from kernels.grading.questions.kits.tensor_cores import compiles_in_both, on_tensor_cores
from kernels.grading.questions.kits.two_outputs import Part, are_two, graded_second
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    recognised,
)
from kernels.registry import DTYPES

_EDGE = 64
_PLAN: tuple[tuple[int, int, int, str, str], ...] = (
    (64, 64, 64, "fp32", ""),
    (50, 17, 33, "fp16", ""),
    (130, 70, 96, "bf16", ""),
    (1, 40, 100, "fp32", ""),
    (33, 192, 128, "fp16", ""),
    (40, 40, 40, "bf16", ""),
    (5, 1, 3, "fp16", ""),
    (64, 64, 64, "fp32", ""),
    (2600, 9, 20, "fp16", LONG),
    (2600, 9, 20, "bf16", LONG),
)
_TURNED = (
    "That is xᵀ · dy, the gradient of a weight of shape (K, N): dweight is (N, K), like weight."
)
_OUTSIDE = (
    "The sum runs along M: a tile of dy takes (m < M) & (n < N), one of x (m < M) & (k < K), "
    "dweight (n < N)[:, None] & (k < K)[None, :], and dbias n < N."
)


def _cases(seed: int) -> tuple[list[Case], list[Case]]:
    """The same calls twice: graded by dweight, and by dbias."""
    rng = random.Random(seed)
    plan = [
        *_PLAN,
        (rng.randrange(65, 200), rng.randrange(3, 90), rng.randrange(65, 128), "fp32", ""),
    ]
    of_weight: list[Case] = []
    of_bias: list[Case] = []
    for m, n, k, name, trait in plan:
        dtype = DTYPES[name]
        dy, x = drawn(rng, (m, n), torch.float32), drawn(rng, (m, k), torch.float32)
        dy, x = (1 + 0.1 * dy, 1 + 0.1 * x) if trait else (0.5 + dy, 0.3 + x)
        given = {"dy": dy.to(dtype), "x": x.to(dtype)}
        wide_dy, wide_x = given["dy"].double(), given["x"].double()
        dweight, dbias = wide_dy.T @ wide_x, wide_dy.sum(0)
        near = sum_tolerance(wide_dy.abs().T @ wide_x.abs(), dweight, m, dtype)
        of_weight.append(ProductCase(given, (), dweight, near, trait))
        near = sum_tolerance(wide_dy.abs().sum(0), dbias, m, dtype)
        of_bias.append(ProductCase(given, (), dbias, near, trait))
    return of_weight, of_bias


def _along_m(dy: Tensor, x: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Gradients of weight and bias with a fault along M."""
    m = len(dy)
    # Where a fault does no harm its model is right, so that a right output doesn't deny it.
    for step in (8, 16, 32, 64, 128):
        parts = (
            (
                "The rows behind the last whole step along M are missing.",
                slice(0, m // step * step),
                1,
            ),
            ("Only the first step along M is in the sum.", slice(0, step), 1),
            (
                "Only the last step along M is in the sum: the loop replaces what it should "
                "add to.",
                slice((m - 1) // step * step, m),
                1,
            ),
            ("Every step takes the first BLOCK_M rows.", slice(0, step), -(-m // step)),
        )
        for what, rows, times in parts:
            yield what, dy[rows].T @ x[rows] * times, dy[rows].sum(0) * times


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    dy, x = (case.tensors[name].double() for name in ("dy", "x"))
    (m, n), k = dy.shape, x.shape[1]
    right = case.reference
    yield _TURNED, (x.T @ dy).reshape(n, k)
    if n == m == k:
        yield "That is dy · x: the sum runs along the rows, dyᵀ · x.", dy @ x
        yield "That is dy · xᵀ: the sum runs along the rows, dyᵀ · x.", dy @ x.T
    yield "That is the mean over the rows: a gradient is their sum.", right / m
    for what, dweight, _ in _along_m(dy, x):
        yield what, dweight
    for edge in (16, 32, 64, 128):
        for wide in (16, 32, 64, 128):
            model = torch.full_like(right, torch.nan)
            model[: n // edge * edge, : k // wide * wide] = right[
                : n // edge * edge, : k // wide * wide
            ]
            yield "Edges of dweight were never stored: both axes take triton.cdiv.", model


def _bias_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    dy, x = (case.tensors[name].double() for name in ("dy", "x"))
    m, n = dy.shape
    right = case.reference
    yield "That is the mean over the rows: a gradient is their sum.", right / m
    for what, _, dbias in _along_m(dy, x):
        yield what, dbias
    if x.shape[1] == n:
        yield "That is the sum of x: the bias is added to y, so its gradient is dy's sum.", x.sum(0)
    if m == n:
        yield "Each row of dy is summed: dbias has an element for each column.", dy.sum(1)
    for edge in (16, 32, 64, 128):
        yield (
            f"Only the first {edge} elements of dbias were stored: each block of columns of dy "
            "has a program that stores its sums.",
            torch.cat([right[:edge], torch.full_like(right[edge:], torch.nan)]),
        )


def _explain(runs: list[Run]) -> str:
    if turned_shape(runs):
        return _TURNED
    return explain_sums(runs) or recognised(runs, _models) or _nan(runs, "dweight")


def _explain_bias(runs: list[Run]) -> str:
    return explain_sums(runs) or recognised(runs, _bias_models) or _nan(runs, "dbias")


def _nan(runs: list[Run], what: str) -> str:
    failed = [r for r in runs if r.fault is not None]
    if failed and all(r.wrong.numel() and bool(r.output.isnan().any()) for r in failed):
        return f"Elements of {what} that are nan were never stored."
    return ""


def _stored_once(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if more than one program stores an element of dbias."""
    for r in runs:
        moved = r.traffic(r.output)
        if moved.write_requested > moved.write_unique:
            times = moved.write_requested / moved.write_unique
            raise Wrong(
                f"{attempt.name} stores dbias {times:.1f} times on {r.case}.",
                "Every program of a row of tiles has the same columns of dy, and so the same sums. "
                "One of them stores them: the one whose tile is the first along K.",
            )
    attempt.held.append("dbias is stored once")


def _budget(case: Case) -> int:
    rows = len(case.x)
    return tiles(case, _EDGE, _EDGE) * 2 * _EDGE * rows * case.x.itemsize


def grade_weight_gradient(attempt: Attempt) -> None:
    """Grade `weight_gradient(dy, x)`: (dweight, dbias) in one launch, from one load of dy."""
    of_weight, of_bias = _cases(attempt.seed)
    are_two(attempt, of_weight[0], "(dweight, dbias)")
    part = Part(attempt.answer, 0)
    named = Attempt(part, attempt.seed)
    runs = right_gradient(named, of_weight, _explain, "dweight", _OUTSIDE)
    alone = Attempt(Part(attempt.answer, 1), attempt.seed)
    sums = graded_second(
        of_bias,
        runs,
        part.returned,
        lambda: right_gradient(alone, of_bias, _explain_bias, "dbias", _OUTSIDE),
    )
    attempt.held.append(f"dweight and dbias right on {len(runs)} random inputs")
    no_atomics(attempt, of_weight[1])
    computed_by_kernels(attempt, runs, launches=1)
    computed_by_kernels(named, sums, launches=1)
    what = "64 columns of each for a tile of 64 × 64 of dweight, and nothing more for dbias"
    within_requests(attempt, runs, ("dy", "x"), _budget, what)
    _stored_once(attempt, sums)

    def least(case: Case) -> int:
        return tiles(case, 2 * _EDGE, 2 * _EDGE)

    enough_programs(attempt, runs, least, "one for every 128 × 128 elements of dweight")
    for place, seen in enumerate((runs, sums)):
        one = Attempt(Part(attempt.answer, place), attempt.seed)
        masked_lanes_named(one, [r for r in seen if r.case.x.shape == (50, 17)])
    on_tensor_cores(attempt, [r.case for r in runs])
    compiles_in_both(attempt, [r.case for r in runs])
