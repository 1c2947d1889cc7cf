"""The backward pass of every norm in Triton: gradients of x, weight and bias.

With x̂ = (x − mean) · inv_std, g = dy · weight, and means over the N elements of a row,

    LayerNorm:  dx = (g − mean(g) − x̂ · mean(g · x̂)) · inv_std
    RMSNorm:    dx = (g − x̂ · mean(g · x̂)) · inv_std          where x̂ = x · inv_std
    dweight = Σ dy · x̂,   dbias = Σ dy                        over all rows

A gradient that reaches the sum of x and residual from elsewhere, dh, is added to dx. A row's dx
needs that row alone; dweight and dbias need every row. So a fixed number of programs share the
rows: each keeps its sums over its own rows in registers, in fp32, and stores them once at its end;
a second kernel adds up these partial sums, in a fixed order. No atomics, no locks: the same inputs
give the same bits. x and dy are read once, dx is written once.

Where the registers can't hold a row and its sums, other programs of the same launch take the sums.
They ask for x and dy again, but so soon that the L2 cache answers, not DRAM. Where the registers
can't hold a row either, dx goes tile by tile.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_backward_rows(
    dy_ptr,
    dh_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    inv_std_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    dy_row_stride,
    x_row_stride,
    n_rows,
    rows_each,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
    HOLD_WEIGHT: tl.constexpr,
):
    # A program takes `rows_each` rows, a tile of BLOCK_ROWS whole rows at a time. Its sums have a
    # place for each element of the tile, and are added up over the tile's rows once, at the end.
    # With STAGES above 1 the next tiles are under way to shared memory while one is computed.
    # Strides of rows, and the width as n_col_units, are counted in STRIDE_UNIT elements, so that
    # the compiler knows what divides every address. HOLD_WEIGHT keeps weight in registers.
    n_cols = n_col_units * STRIDE_UNIT
    cols = tl.arange(0, BLOCK_COLS)[None, :]
    col_mask = cols < n_cols
    if HOLD_WEIGHT and weight_ptr is not None:
        weight = tl.load(weight_ptr + cols, mask=col_mask, other=0.0)
    dweight = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    dbias = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    first = tl.program_id(0).to(tl.int64) * rows_each
    last = tl.minimum(first + rows_each, n_rows)
    for start in tl.range(first, last, BLOCK_ROWS, num_stages=STAGES):
        rows = start + tl.arange(0, BLOCK_ROWS)[:, None]
        row_mask = rows < last
        mask = row_mask & col_mask
        x = tl.load(x_ptr + rows * x_row_stride * STRIDE_UNIT + cols, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + rows * dy_row_stride * STRIDE_UNIT + cols, mask=mask, other=0.0)
        inv_std = tl.load(inv_std_ptr + rows, mask=row_mask, other=0.0)
        x_hat = x.to(tl.float32)
        if mean_ptr is not None:
            # Masked lanes hold 0 − mean; dy is 0 there, so that no sum sees them.
            x_hat -= tl.load(mean_ptr + rows, mask=row_mask, other=0.0)
        x_hat *= inv_std
        g = dy.to(tl.float32)
        if dweight_ptr is not None:
            dweight += g * x_hat
        if dbias_ptr is not None:
            dbias += g
        if weight_ptr is not None:
            if not HOLD_WEIGHT:  # from a cache, once a row, where the registers are full
                weight = tl.load(weight_ptr + cols, mask=col_mask, other=0.0)
            g *= weight.to(tl.float32)
        dx = g - x_hat * (tl.sum(g * x_hat, axis=1, keep_dims=True) / n_cols)
        if mean_ptr is not None:
            dx -= tl.sum(g, axis=1, keep_dims=True) / n_cols
        dx *= inv_std
        if dh_ptr is not None:
            dx += tl.load(dh_ptr + rows * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + rows * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)

    out = tl.program_id(0).to(tl.int64) * n_cols + tl.arange(0, BLOCK_COLS)
    out_mask = tl.arange(0, BLOCK_COLS) < n_cols
    if dweight_ptr is not None:
        tl.store(dweight_ptr + out, tl.sum(dweight, axis=0), mask=out_mask)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + out, tl.sum(dbias, axis=0), mask=out_mask)


@triton.jit
def dx_by_tiles(
    dy_ptr,
    dh_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    inv_std_ptr,
    dx_ptr,
    dy_row_stride,
    x_row_stride,
    row,
    n_cols,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A row of any width: the first loop takes the two means, the second reads again.
    x_row_ptr = x_ptr + row * x_row_stride * STRIDE_UNIT
    dy_row_ptr = dy_ptr + row * dy_row_stride * STRIDE_UNIT
    inv_std = tl.load(inv_std_ptr + row)
    mean = 0.0
    if mean_ptr is not None:
        mean = tl.load(mean_ptr + row)
    along = tl.zeros([BLOCK_COLS], tl.float32)
    total = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_hat = tl.load(x_row_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        x_hat = (x_hat - mean) * inv_std
        g = tl.load(dy_row_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        if weight_ptr is not None:
            g *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        along += g * x_hat
        total += g
    along_mean = tl.sum(along, axis=0) / n_cols
    g_mean = 0.0
    if mean_ptr is not None:
        g_mean = tl.sum(total, axis=0) / n_cols
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_hat = tl.load(x_row_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        x_hat = (x_hat - mean) * inv_std
        g = tl.load(dy_row_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        if weight_ptr is not None:
            g *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        dx = (g - g_mean - x_hat * along_mean) * inv_std
        if dh_ptr is not None:
            dx += tl.load(dh_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def sum_columns(
    dy_ptr,
    x_ptr,
    mean_ptr,
    inv_std_ptr,
    dweight_ptr,
    dbias_ptr,
    dy_row_stride,
    x_row_stride,
    n_rows,
    n_cols,
    out_cols,
    STRIDE_UNIT: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    SUM_COLS: tl.constexpr,
):
    # The sums of the columns `out_cols` over `n_rows` rows; pointers are to the first of them.
    cols = out_cols[None, :]
    col_mask = cols < n_cols
    dweight = tl.zeros([SUM_ROWS, SUM_COLS], tl.float32)
    dbias = tl.zeros([SUM_ROWS, SUM_COLS], tl.float32)
    for start in range(0, n_rows, SUM_ROWS):
        rows = start + tl.arange(0, SUM_ROWS)[:, None]
        row_mask = rows < n_rows
        mask = row_mask & col_mask
        dy_row = rows.to(tl.int64) * (dy_row_stride * STRIDE_UNIT)
        dy = tl.load(dy_ptr + dy_row + cols, mask=mask, other=0.0).to(tl.float32)
        if dweight_ptr is not None:
            x_row = rows.to(tl.int64) * (x_row_stride * STRIDE_UNIT)
            x_hat = tl.load(x_ptr + x_row + cols, mask=mask, other=0.0).to(tl.float32)
            if mean_ptr is not None:
                x_hat -= tl.load(mean_ptr + rows, mask=row_mask, other=0.0)
            dweight += dy * x_hat * tl.load(inv_std_ptr + rows, mask=row_mask, other=0.0)
        if dbias_ptr is not None:
            dbias += dy
    # Partial sums of a team in fp32; where one team takes all rows, gradients in their own dtype.
    if dweight_ptr is not None:
        out = tl.sum(dweight, axis=0).to(dweight_ptr.dtype.element_ty)
        tl.store(dweight_ptr + out_cols, out, mask=out_cols < n_cols)
    if dbias_ptr is not None:
        out = tl.sum(dbias, axis=0).to(dbias_ptr.dtype.element_ty)
        tl.store(dbias_ptr + out_cols, out, mask=out_cols < n_cols)


@triton.jit
def norm_backward_wide(
    dy_ptr,
    dh_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    inv_std_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    dy_row_stride,
    x_row_stride,
    n_rows,
    rows_per_team,
    sum_programs,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    SUM_COLS: tl.constexpr,
):
    # Rows that leave no room for their sums. Programs start in the order of their numbers (which
    # CUDA does not promise, but only the speed depends on it), so they come in teams: of a team
    # rows_per_team programs write dx, a row each, and right behind them sum_programs others sum up
    # the same rows, SUM_COLS columns each, while the L2 cache still has x and dy. Few rows are one
    # team, whose sums are the gradients: no second kernel.
    n_cols = n_col_units * STRIDE_UNIT
    team = (tl.program_id(0) // (rows_per_team + sum_programs)).to(tl.int64)
    member = tl.program_id(0) % (rows_per_team + sum_programs)
    first = team * rows_per_team
    last = tl.minimum(first + rows_per_team, n_rows)
    if member < rows_per_team:
        if first + member < last:
            dx_by_tiles(
                dy_ptr, dh_ptr, x_ptr, weight_ptr, mean_ptr, inv_std_ptr, dx_ptr, dy_row_stride,
                x_row_stride, first + member, n_cols, STRIDE_UNIT, BLOCK_COLS,
            )  # fmt: skip
    else:
        sum_columns(
            dy_ptr + first * dy_row_stride * STRIDE_UNIT,
            x_ptr + first * x_row_stride * STRIDE_UNIT,
            None if mean_ptr is None else mean_ptr + first, inv_std_ptr + first,
            None if dweight_ptr is None else dweight_ptr + team * n_cols,
            None if dbias_ptr is None else dbias_ptr + team * n_cols,
            dy_row_stride, x_row_stride, (last - first).to(tl.int32), n_cols,
            (member - rows_per_team) * SUM_COLS + tl.arange(0, SUM_COLS),
            STRIDE_UNIT, SUM_ROWS, SUM_COLS,
        )  # fmt: skip


@triton.jit
def sum_partials(
    dweight_parts_ptr,
    dbias_parts_ptr,
    dweight_ptr,
    dbias_ptr,
    n_parts,
    n_cols,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # The finishing kernel: a program adds up all partial sums of its columns.
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    dweight = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    dbias = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    for start in range(0, n_parts, BLOCK_ROWS):
        parts = start + tl.arange(0, BLOCK_ROWS)[:, None]
        mask = (parts < n_parts) & (cols < n_cols)[None, :]
        offsets = parts.to(tl.int64) * n_cols + cols[None, :]
        if dweight_ptr is not None:
            dweight += tl.load(dweight_parts_ptr + offsets, mask=mask, other=0.0)
        if dbias_ptr is not None:
            dbias += tl.load(dbias_parts_ptr + offsets, mask=mask, other=0.0)
    if dweight_ptr is not None:
        out = tl.sum(dweight, axis=0).to(dweight_ptr.dtype.element_ty)
        tl.store(dweight_ptr + cols, out, mask=cols < n_cols)
    if dbias_ptr is not None:
        out = tl.sum(dbias, axis=0).to(dbias_ptr.dtype.element_ty)
        tl.store(dbias_ptr + cols, out, mask=cols < n_cols)
