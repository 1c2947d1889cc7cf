"""07.7: RMSNorm's dx and dweight, three launches to be fused into one pass and a finish."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.gradients import (
    OUTSIDE_OF_SHARE,
    enough_to_finish,
    no_atomics,
    programs_as_told,
    right_gradient,
)
from kernels.grading.questions.kits.rms_gradients import (
    WIDEST,
    dweight_of,
    dweight_plan,
    explain_dweight,
    explain_rms_dx,
    rms_dx_case,
)
from kernels.grading.questions.kits.two_outputs import Part, are_two, graded_second
from kernels.grading.questions.kits.wrong_models import Tensor, masked_lanes_named, recognised


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


def _read_again(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if more than one launch reads x."""
    for r in runs:
        x = r.case.x
        times = r.traffic(x).read_unique / (x.numel() * x.element_size())
        if times > 1 and not r.operators:
            kernels = ", ".join(launch.name for launch in r.launches)
            raise Wrong(
                f"{attempt.name} makes {len(r.launches)} launches ({kernels}) on {r.case}, and "
                f"{times:.0f} of them read x.",
                "dx and dweight need the same rows of x and dy. A program that has a row in "
                "registers can make both: the row's dx, and its term of the sums.",
            )


def grade_one_pass(attempt: Attempt) -> None:
    """Grade `rms_norm_backward(x, dy, weight, inv_rms, programs)`: (dx, dweight), two launches."""
    of_dx, of_dweight = _cases(attempt.seed)
    are_two(attempt, of_dx[4], "(dx, dweight)")
    part = Part(attempt.answer, 0)
    runs = right_gradient(
        Attempt(part, attempt.seed), of_dx, explain_rms_dx, "dx", OUTSIDE_OF_SHARE
    )
    alone = Attempt(Part(attempt.answer, 1), attempt.seed)
    sums = graded_second(
        of_dweight,
        runs,
        part.returned,
        lambda: right_gradient(alone, of_dweight, _explain_sums, "dweight", OUTSIDE_OF_SHARE),
    )
    attempt.held.append(f"dx and dweight right on {len(runs)} random inputs")
    no_atomics(attempt, of_dx[0])
    _read_again(attempt, runs)
    computed_by_kernels(Attempt(part, attempt.seed), sums, launches=2)
    computed_by_kernels(attempt, runs, launches=2)
    for name in ("x", "dy"):
        reads_once(attempt, runs, name)
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
    for place, seen in enumerate((runs, sums)):
        one = Attempt(Part(attempt.answer, place), attempt.seed)
        masked_lanes_named(one, [r for r in seen if r.case.x.shape[-1] == 17][:1])
    attempt.held.append("no result depends on a masked lane that has no value")
    rows, cols, name, programs = WIDEST
    compiles(attempt, [rms_dx_case(random.Random(attempt.seed), rows, cols, name, (programs,))])
