"""A LayerNorm's backward in one launch, its parameters' gradients added up by atomics.

The equations are those of `norms.backward_kernels`. There each program stores its partial sums and
a second kernel adds them up in a fixed order. Here each program adds its own to one row of sums by
atomics, in whatever order programs come to their end: addition in fp32 rounds, so the last bits of
the sums differ from run to run. The last program to arrive, which a counter tells, takes the sums,
rounds them to the gradients' dtype, and leaves zeros behind for the next launch.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_rows", "rows_each"])
def norm_backward_adding(
    dy_ptr,
    dh_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    inv_std_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    sums_ptr,
    arrived_ptr,
    n_rows,
    rows_each,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A program takes `rows_each` rows, one after the other; its sums stay in registers until then.
    n_cols = n_col_units * STRIDE_UNIT
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dweight = tl.zeros([BLOCK_COLS], tl.float32)
    dbias = tl.zeros([BLOCK_COLS], tl.float32)
    first = tl.program_id(0).to(tl.int64) * rows_each
    for row in range(first, tl.minimum(first + rows_each, n_rows)):
        at = row * n_cols + cols
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        inv_std = tl.load(inv_std_ptr + row)
        # Masked lanes hold 0 − mean; g is 0 there, so that no sum sees them.
        x_hat = (x - tl.load(mean_ptr + row)) * inv_std
        dweight += g * x_hat
        dbias += g
        g *= weight
        dx = g - tl.sum(g, axis=0) / n_cols - x_hat * (tl.sum(g * x_hat, axis=0) / n_cols)
        dx *= inv_std
        if dh_ptr is not None:
            dx += tl.load(dh_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.atomic_add(sums_ptr + cols, dweight, mask=mask, sem="relaxed")
    tl.atomic_add(sums_ptr + n_cols + cols, dbias, mask=mask, sem="relaxed")
    # All threads' additions stand before the count that tells of them.
    tl.debug_barrier()
    if tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        nothing = tl.zeros([BLOCK_COLS], tl.float32)
        # Past this program's own cache, which may hold what the sums were before.
        total = tl.load(sums_ptr + cols, mask=mask, other=0.0, volatile=True)
        tl.store(dweight_ptr + cols, total.to(dweight_ptr.dtype.element_ty), mask=mask)
        total = tl.load(sums_ptr + n_cols + cols, mask=mask, other=0.0, volatile=True)
        if dbias_ptr is not None:
            tl.store(dbias_ptr + cols, total.to(dbias_ptr.dtype.element_ty), mask=mask)
        tl.store(sums_ptr + cols, nothing, mask=mask)
        tl.store(sums_ptr + n_cols + cols, nothing, mask=mask)
        tl.store(arrived_ptr, 0)
