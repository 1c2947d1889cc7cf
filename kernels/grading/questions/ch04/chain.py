"""04.10: a residual addition and an RMSNorm as a chain of three launches, to a byte budget."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.cuda.cuda_launch import CudaLaunch
from kernels.grading.cases import Case, Run
from kernels.grading.checks import reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.cuda_checks import in_cuda
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.cuda_cases import (
    Tensor,
    right_in_cuda,
    sum_tolerance,
    unstored,
)
from kernels.grading.questions.kits.row_norms import inverse_rms
from kernels.grading.questions.kits.wrong_models import drawn, recognised
from kernels.registry import Tolerance

_SHAPES = ((4, 64), (3, 17), (2, 1000), (5, 1), (1, 2048), (40, 24))
_GUARD = "Each of the three kernels is right alone: give it the sizes of its own tensors."


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, residual, weight = (tensor.double() for tensor in case.tensors.values())
    (eps,) = case.options
    h = x + residual

    def scaled(what: Tensor, by: Tensor) -> Tensor:
        return what * inverse_rms(by, eps)[:, None] * weight

    yield "residual is not added.", scaled(x, x)
    yield "The rms is that of x; it takes the sum, x + residual.", scaled(h, x)
    yield "The rms is right, and x is scaled by it; the sum has to be.", scaled(x, h)
    yield "weight is missing.", h * inverse_rms(h, eps)[:, None]
    yield "eps is not passed on.", h * inverse_rms(h, 1e-5)[:, None] * weight
    yield "That is the sum, which nobody normalised.", h
    root = (h * h).mean(-1, keepdim=True).sqrt()
    yield "eps is added to the root; it belongs under it.", h / (root + eps) * weight
    yield (
        "eps is added to the reciprocal of the root; it belongs under the root.",
        h * (1 / root + eps) * weight,
    )


def _case(rng: random.Random, rows: int, cols: int, eps: float) -> Case:
    x, residual = (drawn(rng, (rows, cols), torch.float32) for _ in range(2))
    weight = 1 + drawn(rng, (cols,), torch.float32)
    h = x.double() + residual.double()
    reference = h * inverse_rms(h, eps)[:, None] * weight.double()
    # A rounding of each step, and half the error of the sum of squares.
    near = 6 * 2.0**-23 + sum_tolerance((x + residual) ** 2) / 2
    inputs = {"x": x, "residual": residual, "weight": weight}
    return Case(inputs, (eps,), reference, Tolerance(near, near))


def _explain(runs: list[Run]) -> str:
    if unstored(runs):
        return (
            "Elements that are nan were never stored: one of the three launches got sizes that "
            "are not those of its tensors."
        )
    return recognised(runs, _models)


def grade_chain(attempt: Attempt) -> None:
    """Grade `add_rms_norm(x, residual, weight, eps)`: three launches, each byte once in each."""
    rng = random.Random(attempt.seed)
    shapes = [*_SHAPES, (rng.randrange(2, 6), rng.randrange(65, 900))]
    cases = [_case(rng, *shape, rng.choice((0.25, 1e-3))) for shape in shapes]
    runs = right_in_cuda(attempt, cases, _explain, _GUARD)
    in_cuda(attempt, runs, launches=3)
    for name in ("x", "residual"):
        reads_once(attempt, runs, name)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return 4 * (6 * rows * cols + 2 * rows + cols)

    within_bytes(
        attempt,
        runs,
        ideal,
        "x and residual read, their sum written, read and read again, the output written; with "
        "weight, and a number a row written and read",
    )
    _moved(attempt, max(runs, key=lambda r: len(r.case.x)))
    compiles(attempt, (r.case for r in runs))


def _moved(attempt: Attempt, run: Run) -> None:
    """Note what the chain moved on one input, and what one kernel would have to move."""
    unit = 4 * run.case.x.numel()
    chain = sum(
        one.arena.bytes_unique for one in run.launches if isinstance(one, CudaLaunch) and one.arena
    )
    weight = 4 * run.case.x.shape[1]
    alone = 2 * unit + weight + 4 * run.case.reference.numel()
    attempt.held.append(
        f"the chain moves {chain // unit} times 4n bytes, one kernel that did it all would move "
        f"{alone // unit} times; weight and a number a row come on top"
    )


# The chain moves twice the bytes of its inputs and output, so half of the copy's rate is the most;
# an H100 reached 0.39.
SPEED = Speed(lambda seed: _case(random.Random(seed), 8192, 2048, 1e-5), 0.35)
