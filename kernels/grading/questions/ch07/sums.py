"""07.5 and 07.6: partial sums added up, and RMSNorm's dweight by programs that share the rows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.gradients import (
    OUTSIDE_OF_SHARE,
    enough_to_finish,
    no_atomics,
    norm_inputs,
    programs_as_told,
    right_gradient,
)
from kernels.grading.questions.kits.rms_gradients import (
    WIDEST,
    column_sum_tolerance,
    dweight_of,
    dweight_plan,
    explain_dweight,
)
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    only_end_missing,
    recognised,
)

_SHAPES = ((1, 64), (7, 100), (64, 64), (33, 1), (20, 9), (5, 500))
_EDGES = (
    "A tile of partial sums has two edges: the mask takes (parts < n_parts)[:, None] & "
    "(cols < n_cols)[None, :]."
)


class _PartsCase(Case):
    """A call that sentences name by its partial sums."""

    def __str__(self) -> str:
        return f"parts of shape {tuple(self.x.shape)}"


def _parts_case(rng: random.Random, count: int, cols: int) -> Case:
    parts = drawn(rng, (count, cols), torch.float32, mean=0.5)
    return _PartsCase(
        {"parts": parts}, (), parts.double().sum(0), column_sum_tolerance(parts.double())
    )


def _sums_of_rows(parts: Tensor, size: int) -> Tensor:
    """What stands in the sums' place where tiles of `size` by `size` are summed along rows."""
    count, cols = parts.shape
    whole = parts.new_zeros(triton.cdiv(count, size) * size, triton.cdiv(cols, size) * size)
    whole[:count, :cols] = parts
    tiles = whole.view(-1, size, whole.shape[1] // size, size)  # (loop, row, program, column)
    return tiles.sum((0, 3)).T.flatten()[:cols]


def _parts_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    parts = case.x.double()
    count, cols = parts.shape
    for block in (2**power for power in range(11)):
        if block < count:
            yield (
                f"Only the first {block} row{'s' * (block > 1)} of parts entered the sums: a loop "
                "takes all of them, a tile at a time.",
                parts[:block].sum(0),
            )
            yield (
                f"Only the last {block} row{'s' * (block > 1)} of parts or fewer entered the sums: "
                "the loop replaces what it should add to.",
                parts[(count - 1) // block * block :].sum(0),
            )
        yield (
            "The rows of parts after the last whole tile are missing: a number of tiles that is "
            "rounded down.",
            parts[: count // block * block].sum(0),
        )
        over = triton.cdiv(count, block) * block
        yield (
            "Masked rows enter the sums: each adds 1. The neutral element of a sum is 0.",
            parts.sum(0) + (over - count),
        )
    yield "That is the mean of the partial sums: they are added up, and not divided.", parts.mean(0)
    for size in (8, 16, 32, 64, 128):  # of a square tile, or the two axes would not fit
        yield (
            "A tile is summed along axis 1, its rows: a column's sum goes down axis 0.",
            _sums_of_rows(parts, size),
        )
    if count == cols:
        yield "The sums run along the rows: column c is the sum over all programs.", parts.sum(1)


def _explain_parts(runs: list[Run]) -> str:
    if told := recognised(runs, _parts_models):
        return told
    if only_end_missing(runs):
        return (
            "The last columns were never stored: the grid takes triton.cdiv(n_cols, BLOCK_COLS) "
            "programs."
        )
    return ""


def grade_sum_parts(attempt: Attempt) -> None:
    """Grade `sum_parts(parts)`: parts (P, N) in fp32, their sums over P (N,) in fp32."""
    rng = random.Random(attempt.seed)
    shapes = [*_SHAPES, (rng.randrange(65, 300), rng.randrange(65, 200))]
    cases = [_parts_case(rng, *shape) for shape in shapes]
    runs = right_gradient(attempt, cases, _explain_parts, "sums", _EDGES)
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "parts")

    def ideal(case: Case) -> int:
        return 4 * (case.x.numel() + case.x.shape[-1])

    within_bytes(attempt, runs, ideal, "parts read, a sum a column written")
    enough_to_finish(attempt, runs)
    no_atomics(attempt, cases[1])
    masked_lanes_named(attempt, runs)
    compiles(attempt, (r.case for r in runs))


PARTS_SPEED = Speed(lambda seed: _parts_case(random.Random(seed), 264, 8192), 0.5)


def _dweight_case(rng: random.Random, rows: int, cols: int, name: str, programs: int) -> Case:
    given = norm_inputs(rng, rows, cols, name, centred=False)
    del given["weight"]
    dweight, near = dweight_of(given)
    return Case(given, (programs,), dweight, near, dtype=torch.float32)


def grade_dweight(attempt: Attempt) -> None:
    """Grade `weight_gradient(x, dy, inv_rms, programs)`: dweight (N,) in fp32, in two launches."""
    rng, plan = dweight_plan(attempt.seed)
    cases = [_dweight_case(rng, *call) for call in plan]
    runs = right_gradient(attempt, cases, explain_dweight, "dweight", OUTSIDE_OF_SHARE)
    # An atomic is the more telling fault where the launches are also too few or too many.
    no_atomics(attempt, cases[0])
    computed_by_kernels(attempt, runs, launches=2)
    for name in ("x", "dy"):
        reads_once(attempt, runs, name)
    programs_as_told(attempt, runs)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        matrices = 2 * rows * cols * case.x.itemsize
        return matrices + 4 * rows + 8 * case.options[-1] * cols + 4 * cols

    what = "x, dy and inv_rms read, a row of partial sums a program written and read, dweight"
    within_bytes(attempt, runs, ideal, what)
    enough_to_finish(attempt, runs)
    masked_lanes_named(attempt, runs)
    compiles(attempt, [_dweight_case(rng, *WIDEST)])


DWEIGHT_SPEED = Speed(lambda seed: _dweight_case(random.Random(seed), 8192, 2048, "fp32", 264), 0.6)
