"""The gradient of a product's bias: the sums of dY over its rows.

PyTorch's `sum` over rows shares a long one among many blocks, whose parts it keeps in a buffer of
up to 128 MiB: at 16384 rows that buffer was a seventh of all that a training step of an encoder
layer needs at its peak (H200, by the allocator's own trace; `python -m kernels.lab memory`). Here
the parts are rows of fp32, at most `MOST_PARTS` of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.launch import multiprocessors
from kernels.ops.products.bias_kernels import column_sums
from kernels.ops.products.forward import matrix
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor


class Tile(NamedTuple):
    """How `column_sums` runs: a tile's rows and columns, its warps, stages of the pipeline."""

    rows: int
    cols: int
    num_warps: int
    stages: int


# H200, bf16, µs of 16384 rows of 1024 / 3072 / 4096 columns, both launches:
#   32×64, 2 warps, 8 programs an SM, 4 stages: 9.7 / 28.7 / 36.0; 16×128, 3: 10.4 / 29.3 / 36.9
#   32×128, 4, 4, 3: 11.3 / 30.4 / 38.2; without a pipeline: 11.6 / 36.6 / 46.5
WIDE = Tile(32, 64, num_warps=2, stages=4)
# Where a program has all rows of its columns: fewer steps. Not timed yet.
TALL = Tile(128, 32, num_warps=4, stages=1)
MOST_AT_ONCE = 1024  # rows that one launch sums: a second would take longer than it saves
LEAST_ROWS = 256  # of a part
PROGRAMS_PER_SM = 8
MOST_PARTS = 64


def parts_of(n_rows: int, n_cols: int, sms: int) -> tuple[int, int]:
    """How many parts the rows are cut into, and rows in each: enough parts to fill the card."""
    if n_rows <= MOST_AT_ONCE:
        return 1, n_rows
    across = programs_across(n_cols, WIDE)
    wanted = min(-(-PROGRAMS_PER_SM * sms // across), n_rows // LEAST_ROWS, MOST_PARTS)
    each = -(-n_rows // wanted)
    each = -(-each // WIDE.rows) * WIDE.rows
    return -(-n_rows // each), each


def programs_across(n_cols: int, tile: Tile) -> int:
    """How many programs of a tile stand beside each other."""
    return -(-n_cols // tile.cols)


def grad_bias(dy: Tensor) -> Tensor:
    """Launch db = Σ dY over rows, in fp32 and rounded once; one launch, or two from many rows.

    dy (..., N). Returns (N,) of dy's dtype, the same bits in every run. Nothing is checked here.
    """
    dbias = torch.empty(dy.shape[-1], dtype=dy.dtype, device=dy.device)
    if not dy.numel():
        return dbias.zero_()
    rows = matrix(dy)
    n_rows, n_cols = rows.shape
    parts, each = parts_of(n_rows, n_cols, multiprocessors(dy.device))
    if parts > 1:
        found = torch.empty((parts, n_cols), dtype=torch.float32, device=dy.device)
        _sum(rows, found, each, WIDE)
        rows = found
    _sum(rows, dbias, len(rows), TALL)
    return dbias


def _sum(rows: Tensor, out: Tensor, each: int, tile: Tile) -> None:
    n_rows, n_cols = rows.shape
    with device_guard(rows):
        column_sums[(programs_across(n_cols, tile), -(-n_rows // each))](
            *(rows, out, n_rows, n_cols, rows.stride(0), each),
            BLOCK_ROWS=tile.rows,
            BLOCK_COLS=tile.cols,
            STAGES=tile.stages,
            num_warps=tile.num_warps,
        )
