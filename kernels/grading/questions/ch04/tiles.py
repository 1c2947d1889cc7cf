"""04.9: a transpose through a tile in shared memory, whole sectors on both sides."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.cuda_checks import in_cuda, no_conflicts, within_sectors
from kernels.grading.diagnosis import only_where_not_square
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.cuda_cases import (
    SECTOR_FLOATS,
    Tensor,
    blocks_enough,
    right_in_cuda,
    unstored,
)
from kernels.grading.questions.kits.wrong_models import EXACT, drawn, recognised

_SHAPES = ((32, 32), (64, 96), (1, 100), (50, 1), (33, 17), (40, 8), (72, 120))
_GUARD = (
    "A tile at the edge is not full. The load is guarded by the rows and columns of x, the store "
    "by those of the output, each with its own two indices."
)


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    rows, cols = x.shape
    yield (
        "The memory of x was copied in its own order: element [i, j] goes to offset "
        "j * n_rows + i of the output.",
        x.reshape(cols, rows),
    )
    if rows == cols and rows % 32 == 0:
        tiles = x.reshape(rows // 32, 32, cols // 32, 32)
        yield (
            "The tiles are in place, and none is transposed: read the tile with its two indices "
            "exchanged.",
            tiles.permute(2, 1, 0, 3).reshape(rows, cols),
        )
        yield (
            "Each tile is transposed, and stays where it was: the block's two indices change "
            "places in the store.",
            tiles.permute(0, 3, 2, 1).reshape(rows, cols),
        )


def _explain(runs: list[Run]) -> str:
    failed = [r for r in runs if r.fault is not None]
    if all(r.wrong.numel() and not r.output.is_contiguous() for r in failed):
        return (
            "Your output isn't contiguous: empty_like of a transposed view keeps the view's "
            "strides. Allocate with torch.empty((cols, rows), device=x.device)."
        )
    if told := recognised(runs, _models):
        return told
    if unstored(runs):
        return (
            "Elements that are nan were never stored: look at the number of tiles along each axis, "
            "rounded up, at the rows that each thread of a tile takes, and at the store's guard."
        )
    if only_where_not_square(runs):
        return (
            "It is right where x is square: a row of x has n_cols elements, a row of the output "
            "n_rows."
        )
    return ""


def _case(rng: random.Random, rows: int, cols: int) -> Case:
    x = drawn(rng, (rows, cols), torch.float32)
    return Case({"x": x}, (), x.double().T, EXACT)


def grade_transpose(attempt: Attempt) -> None:
    """Grade `my_transpose(x)`: x (rows, cols) in fp32, contiguous x.T, in whole sectors."""
    rng = random.Random(attempt.seed)
    shapes = [*_SHAPES, (96, 96), (rng.randrange(2, 40), rng.randrange(41, 80)), (130, 72)]
    cases = [_case(rng, *shape) for shape in shapes]
    runs = right_in_cuda(attempt, cases, _explain, _GUARD, _GUARD)
    for r in runs:
        if not r.output.is_contiguous():
            raise Wrong(
                f"{attempt.name} on {r.case}: the output has the strides {r.output.stride()}.",
                "That is a view of memory in x's order: nothing was transposed. Allocate with "
                "torch.empty((cols, rows), device=x.device), and store at its offsets.",
            )
    in_cuda(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")
    within_bytes(attempt, runs, lambda c: 8 * c.x.numel(), "x read, the output written")
    whole = [r for r in runs if all(size % SECTOR_FLOATS == 0 for size in r.case.x.shape)]
    within_sectors(attempt, whole, "x")
    within_sectors(attempt, whole, "the output")
    no_conflicts(attempt, runs)
    blocks_enough(attempt, runs)
    compiles(attempt, (r.case for r in runs))


SPEED = Speed(lambda seed: _case(random.Random(seed), 4096, 4096), 0.6)
