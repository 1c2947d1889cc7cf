"""The kernel that sums over rows: the gradient of a bias."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_rows", "each"])
def column_sums(
    x_ptr,
    out_ptr,
    n_rows,
    n_cols,
    row_stride,
    each,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
):
    # A program sums BLOCK_COLS columns of `each` rows, first to last, and leaves a row of sums.
    # With STAGES above 1 the next tiles are under way to shared memory while one is added.
    part = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    stop = tl.minimum(part * each + each, n_rows)
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for start in tl.range(part * each, stop, BLOCK_ROWS, num_stages=STAGES):
        rows = (start + tl.arange(0, BLOCK_ROWS))[:, None]
        mask = (rows < stop) & (cols < n_cols)[None, :]
        at = rows.to(tl.int64) * row_stride + cols[None, :]
        total += tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    sums = tl.sum(total, axis=0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + part.to(tl.int64) * n_cols + cols, sums, mask=cols < n_cols)
