"""07.7: RMSNorm's dx and dweight, three launches to be fused into one pass and a finish."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.grading.checks import (
    Case,
    Run,
    call,
    computed_by_kernels,
    reads_once,
    within_bytes,
)
from kernels.grading.hardware import compiles
from kernels.grading.question import Attempt, NotAnswered
from kernels.grading.questions.ch01_answers import pair
from kernels.grading.questions.ch02_add_norm import _Part
from kernels.grading.questions.ch03_models import Tensor, masked_lanes_named, recognised
from kernels.grading.questions.ch07_dx import explain_rms_dx, rms_dx_case
from kernels.grading.questions.ch07_models import (
    enough_to_finish,
    no_atomics,
    programs_as_told,
    right_gradient,
)
from kernels.grading.questions.ch07_sums import dweight_of, dweight_plan, explain_dweight
from kernels.launch import interpreting


def _cases(seed: int) -> tuple[list[Case], list[Case]]:
    """The same calls twice: graded by dx, and by dweight."""
    rng, plan = dweight_plan(seed)
    of_dx = [rms_dx_case(rng, rows, cols, name, (p,)) for rows, cols, name, p in plan]
    of_dweight = []
    for case in of_dx:
        dweight, near = dweight_of(case.tensors)
        of_dweight.append(Case(case.tensors, case.options, dweight, near, dtype=torch.float32))
    return of_dx, of_dweight


def _weighted(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, dy, weight, inv_rms = (t.double() for t in case.tensors.values())
    terms = dy * weight * x * inv_rms[:, None]
    yield "dweight is the sum of dy · x_hat, and not of g · x_hat.", terms.sum(0)


def _explain_sums(runs: list[Run]) -> str:
    return recognised(runs, _weighted) or explain_dweight(runs)


def _is_pair(attempt: Attempt, case: Case) -> None:
    with interpreting():
        told = call(attempt, *(t.clone() for t in case.tensors.values()), *case.options)
    if told is None or told is ...:
        raise NotAnswered
    pair(told, attempt.name, "(dx, dweight)")


def grade_one_pass(attempt: Attempt) -> None:
    """Grade `rms_norm_backward(x, dy, weight, inv_rms, programs)`: (dx, dweight), two launches."""
    of_dx, of_dweight = _cases(attempt.seed)
    _is_pair(attempt, of_dx[0])
    for_dx, for_dweight = (Attempt(_Part(attempt.answer, n), attempt.seed) for n in (0, 1))
    runs = right_gradient(for_dx, of_dx, explain_rms_dx, "dx")
    sums = right_gradient(for_dweight, of_dweight, _explain_sums, "dweight")
    attempt.held.append(f"dx and dweight right on {len(runs)} random inputs")
    no_atomics(attempt, of_dx[0])
    for name in ("x", "dy"):
        reads_once(attempt, runs, name)
    for part, seen in ((for_dx, runs), (for_dweight, sums)):
        computed_by_kernels(part, seen, launches=2)
    programs_as_told(attempt, runs)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        matrices = (3 * rows + 1) * cols * case.x.itemsize
        return matrices + 4 * rows + 8 * case.options[-1] * cols + 4 * cols

    what = (
        "x, dy, weight and inv_rms read, dx written, a row of partial sums a program written and "
        "read, dweight written"
    )
    within_bytes(attempt, runs, ideal, what)
    enough_to_finish(attempt, runs)
    for part, seen in ((for_dx, runs), (for_dweight, sums)):
        masked_lanes_named(part, seen)
    compiles(attempt, of_dx)
    attempt.held.append("two launches of your own; x and dy are read 1.0 times")
