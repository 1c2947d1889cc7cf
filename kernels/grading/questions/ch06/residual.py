"""06.5: a residual sum kept in fp32 and its RMSNorm, in one launch with two outputs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, right_everywhere, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt
from kernels.grading.questions.ch06.kit import faulty_rms, rms_near
from kernels.grading.questions.kits.row_norms import rms_normalised, row_groups
from kernels.grading.questions.kits.two_outputs import (
    Part,
    graded_h,
    is_pair,
    reads_no_h,
    residual_rounded,
)
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    recognised,
)
from kernels.registry import DTYPES, Tolerance

_PLAN: tuple[tuple[int, int, str], ...] = (
    (4, 64, "fp32 fp16 bf16"),
    (3, 17, "fp32 fp16 bf16"),
    (2, 3, "fp32 bf16"),
    (1, 1000, "fp16 bf16"),
    (4, 1, "fp32"),
    (1, 8192, "fp32 fp16"),
)


def _cases(seed: int) -> tuple[list[Case], list[Case]]:
    """The same calls twice: graded by h, and by y."""
    rng = random.Random(seed)
    of_h, of_y = [], []

    def add(rows: int, cols: int, name: str, trait: str = "", **how: float) -> None:
        dtype, eps, scale = DTYPES[name], how.get("eps", 1e-5), how.get("scale", 1.0)
        given = {
            "x": (scale * drawn(rng, (rows, cols), torch.float32, 0.4)).to(dtype),
            "residual": scale * drawn(rng, (rows, cols), torch.float32, -0.9),
            "weight": drawn(rng, (cols,), dtype, 1.0),
        }
        h = given["x"].float() + given["residual"]
        unit = 2.0**-24
        held = Tolerance(unit, unit)
        of_h.append(Case(given, (eps,), h.double(), held, trait, dtype=torch.float32))
        exact = rms_normalised(h, given["weight"], eps)
        of_y.append(Case(given, (eps,), exact, rms_near(dtype, cols), trait))

    for rows, cols, names in _PLAN:
        for name in names.split():
            add(rows, cols, name)
    add(rng.randrange(13, 17), rng.randrange(65, 600), "bf16")
    add(2, 128, "fp32", eps=0.5)
    add(2, 100, "fp32", eps=1e-3, scale=0.03)
    for cols in (64, 300):
        add(2, cols, "fp16", "values near 1000", scale=1000.0)
    return of_h, of_y


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, residual, weight = case.tensors.values()
    (eps,) = case.options
    h, weight = x.double() + residual.double(), weight.double()
    yield "y is the sum, not its RMSNorm. The order is (y, h).", h
    of_x = rms_normalised(x, weight, eps)
    yield "y is the RMSNorm of x alone: normalise the sum.", of_x
    yield "y is the RMSNorm of the residual alone.", rms_normalised(residual, weight, eps)
    yield "y is the RMSNorm of x - residual.", rms_normalised(x - residual.double(), weight, eps)
    yield from faulty_rms(h, weight, eps)


def grade_add_rms_norm(attempt: Attempt) -> None:
    """Grade `add_rms_norm(x, residual, weight, eps)`: (y, h), one launch, each byte once."""
    of_h, of_y = _cases(attempt.seed)
    is_pair(attempt, of_h[0])
    part = Part(attempt.answer, 0)

    def explain(runs: list[Run]) -> str:
        pairs = part.returned[: len(of_h)]
        told = recognised(runs, _models)
        if told or not all(type(two) in (tuple, list) and len(two) == 2 for two in pairs):
            return told
        # Few elements of y show that residual was rounded; each of h does.
        return residual_rounded(of_h, [h for _, h in pairs])

    y_runs = right_everywhere(Attempt(part, attempt.seed), of_y, explain)
    h_runs = graded_h(attempt, of_h, y_runs, part.returned)
    # What became of h is judged by the case whose tensors the launches had.
    h_runs = [replace(h, case=y.case) for h, y in zip(h_runs, y_runs, strict=True)]
    attempt.held.append(f"y and h right on {len(of_h)} random inputs")
    reads_no_h(attempt, h_runs)
    computed_by_kernels(Attempt(part, attempt.seed), h_runs, launches=1)
    computed_by_kernels(attempt, y_runs, launches=1)
    for name in ("x", "residual"):
        reads_once(attempt, y_runs, name)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return rows * cols * (2 * case.x.itemsize + 8) + cols * case.x.itemsize

    what = "x, residual and weight read, y and h written"
    within_bytes(attempt, y_runs, ideal, what)
    enough_programs(attempt, y_runs, row_groups, "one for every four rows")
    given = Attempt(part, attempt.seed)
    masked_lanes_named(given, y_runs)
    attempt.held += given.held
    compiles(attempt, of_y)
