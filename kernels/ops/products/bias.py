"""The gradient of a product's bias: the sums of dY over its rows.

PyTorch's `sum` over rows shares a long one among many blocks, whose parts it keeps in a buffer of
up to 128 MiB: at 16384 rows that buffer was a seventh of all that a training step of an encoder
layer needs at its peak (H200, by the allocator's own trace; `python -m kernels.lab memory`). Here
the parts are rows of fp32, at most `MOST_PARTS` of them.
"""

from __future__ import annotations

import torch

from kernels.launch import multiprocessors
from kernels.ops.products.bias_kernels import column_sums
from kernels.ops.products.forward import matrix
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor

# Not timed yet: what is known is that the loads of a warp are whole lines of 128 bytes.
BLOCK_ROWS, BLOCK_COLS, NUM_WARPS = 32, 128, 4
LEAST_ROWS = 256  # of a part: fewer are not worth a second launch
PROGRAMS_PER_SM = 4
MOST_PARTS = 64


def parts_of(n_rows: int, n_cols: int, sms: int) -> tuple[int, int]:
    """How many parts the rows are cut into, and rows in each: enough parts to fill the card."""
    across = -(-n_cols // BLOCK_COLS)
    wanted = min(-(-PROGRAMS_PER_SM * sms // across), n_rows // LEAST_ROWS, MOST_PARTS)
    each = -(-n_rows // max(1, wanted))
    each = -(-each // BLOCK_ROWS) * BLOCK_ROWS
    return -(-n_rows // each), each


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
    if parts == 1:
        _sum(rows, dbias, 1, each)
        return dbias
    found = torch.empty((parts, dy.shape[-1]), dtype=torch.float32, device=dy.device)
    _sum(rows, found, parts, each)
    _sum(found, dbias, 1, parts)
    return dbias


def _sum(rows: Tensor, out: Tensor, parts: int, each: int) -> None:
    n_rows, n_cols = rows.shape
    with device_guard(rows):
        column_sums[(-(-n_cols // BLOCK_COLS), parts)](
            *(rows, out, n_rows, n_cols, rows.stride(0), each),
            BLOCK_ROWS=BLOCK_ROWS,
            BLOCK_COLS=BLOCK_COLS,
            num_warps=NUM_WARPS,
        )
