"""A dropout's way back that sums what it writes over rows, in Triton: the kernels.

    dx = dropout(dy) · act'(x),                              Σ dx over rows
    dh += (g − mean(g) − x̂ · mean(g · x̂)) · inv_std,         dx = dropout(dh),     g = dy · weight
    Σ dy · x̂,   Σ dy,   Σ dx over rows

The first is what `dropped.dropped_backward_tile` writes, the second what `norm_backward_rows` and
that one behind it do. A program keeps sums of its rows in registers, in fp32, and leaves a row of
them; `add_parts` adds these up in a fixed order, so that the same inputs give the same bits. The
second can do so by atomics instead, in one launch and in no order: see `layers.stochastic_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.chains.dropout import kept_in_rows
from kernels.ops.chains.gelu_by_power import slope_for


@triton.jit(do_not_specialize=["n_rows", "each", "drop_below"])
def dropped_backward_sums(
    dy_ptr,
    x_ptr,
    seed_offset_ptr,
    dx_ptr,
    parts_ptr,
    n_rows,
    each,
    n_eights,
    drop_below,
    scale,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
):
    # A strip of BLOCK_COLS columns down `each` rows. With STAGES above 1 the next tiles are under
    # way to shared memory while one is computed.
    n_cols = n_eights * 8
    part = tl.program_id(1)
    first_col = tl.program_id(0) * BLOCK_COLS
    cols = first_col + tl.arange(0, BLOCK_COLS)
    stop = tl.minimum(part * each + each, n_rows)
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for start in tl.range(part * each, stop, BLOCK_ROWS, num_stages=STAGES):
        rows = (start + tl.arange(0, BLOCK_ROWS))[:, None]
        mask = (rows < stop) & (cols < n_cols)[None, :]
        first = rows.to(tl.int64) * n_cols
        at = first + cols[None, :]
        # All loads stand before the random numbers, which are made while these are under way.
        dx = tl.load(dy_ptr + at, mask=mask, other=0.0)
        if ACTIVATION != "":
            x = tl.load(x_ptr + at, mask=mask, other=0.0)
        kept = kept_in_rows(
            seed_offset_ptr, first + first_col, drop_below, True, BLOCK_ROWS, BLOCK_COLS
        )
        dx = dx.to(tl.float32)
        if ACTIVATION == "relu":
            dx = tl.where(x <= 0.0, 0.0, dx)  # NaN keeps its gradient, as PyTorch's does
        elif ACTIVATION != "":
            dx *= slope_for(x.to(tl.float32), ACTIVATION, dx_ptr.dtype.element_ty)
        dx = tl.where(kept, dx * scale, 0.0)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        total += dx
    sums = tl.sum(total, axis=0)
    tl.store(parts_ptr + part.to(tl.int64) * n_cols + cols, sums, mask=cols < n_cols)


@triton.jit
def taken(all_ptr, out_ptr, mask, BLOCK_COLS: tl.constexpr):
    # Sums by atomics, rounded to where they go; zeros stay behind. They are read past this
    # program's own cache, which may hold what they were before.
    total = tl.load(all_ptr, mask=mask, other=0.0, volatile=True)
    tl.store(out_ptr, total.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(all_ptr, tl.zeros([BLOCK_COLS], tl.float32), mask=mask)


@triton.jit(do_not_specialize=["drop_below"])
def dropped_norm_backward_sums(
    dy_ptr,
    dh_ptr,
    h_ptr,
    weight_ptr,
    mean_ptr,
    inv_std_ptr,
    seed_offset_ptr,
    through_ptr,
    dx_ptr,
    parts_ptr,
    known_ptr,
    dweight_ptr,
    dbias_ptr,
    sums_ptr,
    n_rows,
    rows_each,
    n_eights,
    drop_below,
    scale,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Whole rows, BLOCK_ROWS at a time; a program takes `rows_each`, and leaves three rows of sums.
    # With known_ptr it adds them to the three there by atomics instead, zeros before and after, a
    # counter behind them; the last program to come writes what they are.
    n_cols = n_eights * 8
    cols = tl.arange(0, BLOCK_COLS)[None, :]
    col_mask = cols < n_cols
    weight = tl.load(weight_ptr + cols, mask=col_mask, other=0.0)
    along_total = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    g_total = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    dx_total = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    begin = tl.program_id(0).to(tl.int64) * rows_each
    stop = tl.minimum(begin + rows_each, n_rows)
    for start in tl.range(begin, stop, BLOCK_ROWS, num_stages=STAGES):
        rows = start + tl.arange(0, BLOCK_ROWS)[:, None]
        row_mask = rows < stop
        mask = row_mask & col_mask
        at = rows * n_cols + cols
        x_hat = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        inv_std = tl.load(inv_std_ptr + rows, mask=row_mask, other=0.0)
        # Masked lanes hold 0 − mean; dy is 0 there, so that no sum sees them.
        x_hat = (x_hat - tl.load(mean_ptr + rows, mask=row_mask, other=0.0)) * inv_std
        along_total += g * x_hat
        g_total += g
        g *= weight.to(tl.float32)
        through = g - x_hat * (tl.sum(g * x_hat, axis=1, keep_dims=True) / n_cols)
        through = (through - tl.sum(g, axis=1, keep_dims=True) / n_cols) * inv_std
        if dh_ptr is not None:
            through += tl.load(dh_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rounded = through.to(through_ptr.dtype.element_ty)
        tl.store(through_ptr + at, rounded, mask=mask)
        kept = kept_in_rows(
            seed_offset_ptr, rows * n_cols, drop_below, True, BLOCK_ROWS, BLOCK_COLS
        )
        # What is dropped is what was stored, as where a launch of its own reads it.
        dx = tl.where(kept & mask, rounded.to(tl.float32) * scale, 0.0)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        dx_total += dx

    col = tl.arange(0, BLOCK_COLS)
    in_row = col < n_cols
    along, total, of_dx = (
        tl.sum(along_total, axis=0), tl.sum(g_total, axis=0), tl.sum(dx_total, axis=0)
    )  # fmt: skip
    if known_ptr is None:
        out = parts_ptr + tl.program_id(0).to(tl.int64) * 3 * n_cols + col
        tl.store(out, along, mask=in_row)
        tl.store(out + n_cols, total, mask=in_row)
        tl.store(out + 2 * n_cols, of_dx, mask=in_row)
    else:
        all_ptr = known_ptr.to(tl.pointer_type(tl.float32), bitcast=True) + col
        tl.atomic_add(all_ptr, along, mask=in_row, sem="relaxed")
        tl.atomic_add(all_ptr + n_cols, total, mask=in_row, sem="relaxed")
        tl.atomic_add(all_ptr + 2 * n_cols, of_dx, mask=in_row, sem="relaxed")
        # All threads' additions stand before the count that tells of them.
        tl.debug_barrier()
        arrived_ptr = known_ptr + 3 * n_cols
        if tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1:
            taken(all_ptr, dweight_ptr + col, in_row, BLOCK_COLS)
            taken(all_ptr + n_cols, dbias_ptr + col, in_row, BLOCK_COLS)
            taken(all_ptr + 2 * n_cols, sums_ptr + col, in_row, BLOCK_COLS)
            tl.store(arrived_ptr, 0)


@triton.jit(do_not_specialize=["n_parts"])
def add_parts(
    parts_ptr,
    first_ptr,
    second_ptr,
    third_ptr,
    n_parts,
    n_cols,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A part is a row of each sum. A program adds up all parts of some columns of one sum.
    which = tl.program_id(1)
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for start in range(0, n_parts, BLOCK_ROWS):
        parts = (start + tl.arange(0, BLOCK_ROWS))[:, None]
        at = (parts.to(tl.int64) * tl.num_programs(1) + which) * n_cols + cols[None, :]
        total += tl.load(parts_ptr + at, mask=(parts < n_parts) & mask[None, :], other=0.0)
    sums = tl.sum(total, axis=0)
    if which == 0:
        tl.store(first_ptr + cols, sums.to(first_ptr.dtype.element_ty), mask=mask)
    if second_ptr is not None:
        if which == 1:
            tl.store(second_ptr + cols, sums.to(second_ptr.dtype.element_ty), mask=mask)
        if which == 2:
            tl.store(third_ptr + cols, sums.to(third_ptr.dtype.element_ty), mask=mask)
