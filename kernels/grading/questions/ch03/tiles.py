"""03.5 and 03.6: the sum of each row, and a transpose in tiles of two dimensions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.diagnosis import only_in_16_bits, only_where_not_square
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.wrong_models import (
    EXACT,
    Tensor,
    as_a_view_lies,
    drawn,
    masked_lanes_named,
    only_end_missing,
    recognised,
    right_or_told,
)
from kernels.registry import Tolerance

_SUM_SHAPES = ((4, 64), (3, 17), (1, 1000), (5, 1), (2, 4096), (3, 2500))
_ROW_MASK = "Columns beyond the row need a mask: cols < n_cols, with other=0.0 in the load."


def _sum_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    rows, n = x.shape
    for block in (2**power for power in range(4, 12)):
        if block < n:
            yield (
                f"Only the first {block} columns are summed: a row may be wider than the block.",
                x[:, :block].sum(-1),
            )
            yield (
                f"Only the last {block} columns or fewer are summed: the loop replaces what it "
                "should add to.",
                x[:, (n - 1) // block * block :].sum(-1),
            )
    yield "The last column is left out: the mask is cols < n_cols.", x[:, :-1].sum(-1)
    yield "That is the mean: a sum is not divided by the number of columns.", x.sum(-1) / n
    lanes = triton.next_power_of_2(n)
    yield (
        "That is a sum divided by BLOCK, and it should not be divided.",
        x.sum(-1) / lanes,
    )
    yield (
        "Masked lanes enter the sum: each adds 1. The neutral element of a sum is 0.",
        x.sum(-1) + (lanes - n),
    )
    yield "That is the largest element of each row, not the sum.", x.amax(-1)
    yield "The squares are summed.", (x * x).sum(-1)
    windows = x.flatten().unfold(0, n, 1)[:rows].sum(-1)
    yield "Row r begins at r · n_cols, and not at r: rows overlap in your sums.", windows
    first = x[:1].sum(-1).expand(rows)
    yield "Every program sums the first row: its row is tl.program_id(0).", first


def _explain_sum(runs: list[Run]) -> str:
    if told := recognised(runs, _sum_models):
        return told
    failed = [r for r in runs if r.fault is not None]
    if any(not r.wrong.numel() for r in failed):
        return ""
    if only_in_16_bits(runs):
        return (
            "It is right in fp32. In fp16 a sum overflows beyond 65504 and loses small summands "
            "long before: convert with .to(tl.float32) before the sum, not after."
        )
    if only_end_missing(runs):
        return "The last rows were never stored: the grid takes one program for every row."
    return ""


def _sum_case(rng: random.Random, rows: int, cols: int, dtype: torch.dtype) -> Case:
    # Near 300, a sum of many columns leaves the range of fp16.
    x = drawn(rng, (rows, cols), dtype, mean=300.0 if cols > 1000 else 1.0)
    total = x.double().sum(-1)
    # A sum in any order: a rounding of the sum of magnitudes at each of log2 or of √n levels,
    # whichever way the columns are added.
    size = float(x.double().abs().sum(-1).max() / total.abs().max())
    near = 2.0**-24 * (4 + math.sqrt(cols)) * size
    held = near * math.sqrt(rows) + near
    return Case({"x": x}, (), total, Tolerance(held, held), dtype=torch.float32)


def grade_row_sum(attempt: Attempt) -> None:
    """Grade `row_sum(x)`: x (rows, cols) in fp32 or fp16, the sums (rows,) in fp32."""
    rng = random.Random(attempt.seed)
    shapes = [*_SUM_SHAPES, (rng.randrange(2, 5), rng.randrange(65, 600))]
    both = (torch.float32, torch.float16)
    cases = [_sum_case(rng, *shape, dtype) for shape in shapes for dtype in both]
    runs = right_or_told(attempt, cases, _explain_sum, _ROW_MASK)
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")

    def ideal(case: Case) -> int:
        return case.x.numel() * case.x.itemsize + 4 * len(case.x)

    within_bytes(attempt, runs, ideal, "x read, a sum a row written")
    masked_lanes_named(attempt, runs)
    compiles(attempt, (r.case for r in runs))


SUM_SPEED = Speed(lambda seed: _sum_case(random.Random(seed), 8192, 2048, torch.float32), 0.85)


_TILE_SHAPES = ((32, 32), (64, 64), (1, 300), (100, 1), (33, 17), (120, 40))
_TILE_MASKS = (
    "A tile has two edges: the mask takes (rows < n_rows)[:, None] & (cols < n_cols)[None, :]. A "
    "row of x has n_cols elements, a row of the output n_rows."
)


_SHAPE_OF_X = (
    "The output has the shape of x. It takes that of the transpose: torch.empty((cols, rows), "
    "dtype=x.dtype, device=x.device)."
)


_COPIED = (
    "The memory of x was copied in its own order: element [i, j] goes to offset j · n_rows + i of "
    "the output."
)


def _tile_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    rows, cols = x.shape
    yield _COPIED, x.reshape(cols, rows)
    if rows == cols:
        yield "The tiles are in place and each is not transposed.", _blockwise(x, 16)
        yield "The tiles are in place and each is not transposed.", _blockwise(x, 32)
        yield "The tiles are transposed each, and stay where they were.", _blockwise(x.T, 16)
        yield "The tiles are transposed each, and stay where they were.", _blockwise(x.T, 32)
    for block in (8, 16, 32, 64):
        for axis, name in ((0, "columns"), (1, "rows")):
            kept = x.T.shape[axis] // block * block
            model = x.T.clone()
            model.narrow(axis, kept, x.T.shape[axis] - kept).fill_(torch.nan)
            yield (
                f"The grid has too few tiles along the {name} of x: each axis takes triton.cdiv.",
                model,
            )
            model = torch.full_like(x.T, torch.nan)
            first = min(block, x.T.shape[axis])
            model.narrow(axis, 0, first).copy_(x.T.narrow(axis, 0, first))
            yield f"The grid has one tile along the {name} of x: each axis takes its own.", model
        model = torch.full_like(x.T, torch.nan)
        model[:block, :block] = x.T[:block, :block]
        yield "The grid has one tile along the rows and one along the columns of x.", model


def _blockwise(x: Tensor, block: int) -> Tensor:
    """Return x.T with each of its square tiles transposed back; x.T itself where none fits."""
    out = x.T.clone()
    size = len(x) // block * block
    for i in range(0, size, block):
        for j in range(0, size, block):
            out[i : i + block, j : j + block] = x.T[i : i + block, j : j + block].T
    return out


def _swapped_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    """What is stored where each axis of the grid has the number of tiles of the other."""
    x = case.x.double()
    rows, cols = x.shape
    for height, width in itertools.product((8, 16, 32, 64, 128), repeat=2):
        model = torch.full_like(x.T, torch.nan)
        first = triton.cdiv(rows, height) * width, triton.cdiv(cols, width) * height
        model[: first[0], : first[1]] = x.T[: first[0], : first[1]]
        yield (
            "Your grid's axes are swapped: the one that the kernel takes along x's rows has as "
            "many programs as there are tiles along its columns, and the other way round.",
            model,
        )


def _explain_tile(runs: list[Run]) -> str:
    if told := as_a_view_lies(runs):
        return told
    # One program alone stores the same where the tiles are large.
    several = any(math.prod(one.grid) > 1 for r in runs if r.fault for one in r.launches.seen)
    if several and (told := recognised(runs, _swapped_models)):
        return told
    if told := recognised(runs, _tile_models):
        return told
    failed = [r for r in runs if r.fault is not None]
    if any(not r.wrong.numel() for r in failed):
        if any(getattr(r.output, "shape", None) != r.case.x.shape for r in failed):
            return ""
        square = [r for r in failed if r.wrong.numel()]
        copied = all(torch.equal(r.output, r.case.x) for r in square)
        return _SHAPE_OF_X if not square else _COPIED if copied else ""
    if only_where_not_square(runs):
        return (
            "It is right where x is square: the row stride of x is n_cols, that of the output is "
            "n_rows."
        )
    return ""


def _tile_case(rng: random.Random, rows: int, cols: int, dtype: torch.dtype) -> Case:
    x = drawn(rng, (rows, cols), dtype)
    return Case({"x": x}, (), x.double().T, EXACT)


def grade_transpose(attempt: Attempt) -> None:
    """Grade `my_transpose(x)`: x (rows, cols) in fp32 or fp16, contiguous x.T in new memory."""
    rng = random.Random(attempt.seed)
    shapes = [*_TILE_SHAPES, (rng.randrange(2, 50), rng.randrange(51, 100))]
    both = (torch.float32, torch.float16)
    cases = [_tile_case(rng, *shape, dtype) for shape in shapes for dtype in both]
    runs = right_or_told(attempt, cases, _explain_tile, _TILE_MASKS)
    for r in runs:
        if not r.output.is_contiguous():
            raise Wrong(
                f"{attempt.name} on {r.case}: the output has the strides {r.output.stride()}.",
                "That is a view of memory in x's order: nothing was transposed. The output takes "
                "torch.empty((cols, rows), dtype=x.dtype, device=x.device), and a kernel that "
                "stores at its offsets.",
            )
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")
    within_bytes(attempt, runs, lambda c: 2 * c.x.numel() * c.x.itemsize, "x read, y written")
    _needs_tiles(attempt, runs)
    compiles(attempt, (r.case for r in runs))


TRANSPOSE_SPEED = Speed(
    lambda seed: _tile_case(random.Random(seed), 4096, 4096, torch.float32), 0.6
)


def _needs_tiles(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if a program covers less than 16 rows of 16 elements, or all of x."""
    programs = [(math.prod(r.launches.seen[0].grid), *r.case.x.shape) for r in runs]
    if all(count == 1 for count, _, _ in programs):
        raise Wrong(
            f"{attempt.name} launches one program, whatever the shape of x.",
            "Tiles are what lets many programs share the work: the grid takes two axes.",
        )
    if all(count in (rows, cols, rows * cols) for count, rows, cols in programs):
        raise Wrong(
            f"{attempt.name} launches a program for every row, column or element of x.",
            "Of rows and columns, one is contiguous in x and the other in the output. A tile of "
            "both, 16 by 16 or more, uses whole sectors on both sides.",
        )
    for r, (count, rows, cols) in zip(runs, programs, strict=True):
        most = math.ceil(rows / 16) * math.ceil(cols / 16)
        if count > most:
            raise Wrong(
                f"{attempt.name} launches {count:,} programs on {r.case}; tiles of 16 by 16 take "
                f"{most:,}.",
                "The tile is smaller than 16 by 16 along one edge or both. In fp16, 16 elements "
                "are one sector of 32 bytes: a shorter edge uses parts of sectors.",
            )
    attempt.held.append("each program covers a tile of 16 by 16 or more")
