"""The chains' backward kernels in Triton: gradients of x, weight and bias.

With h what GELU is taken of, dh = dropout(dy) · gelu'(h), where dropout keeps what it kept forward
and scales it as then:

    h = x + bias                  dx = dh,                                        dbias = Σ dh
    h = x̂ · weight + bias         dx = (g − mean(g) − x̂ · mean(g · x̂)) · inv_std,  g = dh · weight
                                  dweight = Σ dh · x̂,  dbias = Σ dh               over all rows

The residual's gradient is dy itself. x̂, h, gelu'(h) and the mask are made again; nothing of them
was stored. Each program keeps the sums over its rows in fp32 and stores them once; another kernel
adds these up in a fixed order (`sum_partials` of the norms): no atomics, so the same inputs give
the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.chains.activations import gelu_and_slope, gelu_slope, widened
from kernels.ops.chains.dropout import kept_along, kept_in_rows


@triton.jit
def add_both(along, total, other_along, other_total):
    return along + other_along, total + other_total


@triton.jit(do_not_specialize=["drop_below"])
def norm_gelu_backward_rows(
    dy_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    mean_ptr,
    inv_std_ptr,
    seed_offset_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    dy_row_stride,
    x_row_stride,
    n_rows,
    rows_each,
    n_col_units,
    drop_below,
    scale,
    STRIDE_UNIT: tl.constexpr,
    DROPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
    HOLD_WEIGHT: tl.constexpr,
):
    # Whole rows, BLOCK_ROWS at a time; a program takes `rows_each`. With STAGES above 1 the next
    # tiles are under way to shared memory. HOLD_WEIGHT keeps weight and bias in registers. FULL
    # says that every tile is: no lane is masked.
    n_cols = BLOCK_COLS if FULL else n_col_units * STRIDE_UNIT
    cols = tl.arange(0, BLOCK_COLS)[None, :]
    col_mask = cols < n_cols
    if HOLD_WEIGHT:
        if weight_ptr is not None:
            weight = tl.load(weight_ptr + cols, mask=col_mask, other=0.0)
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + cols, mask=col_mask, other=0.0)
    dweight = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    dbias = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    # Places within a tile are the same in every turn; what moves on are the tile's pointers.
    first = tl.program_id(0).to(tl.int64) * rows_each
    n_mine = tl.minimum(n_rows - first, rows_each).to(tl.int32)
    x_step = (x_row_stride * STRIDE_UNIT).to(tl.int64)
    dy_step = (dy_row_stride * STRIDE_UNIT).to(tl.int64)
    tile_rows = tl.arange(0, BLOCK_ROWS)[:, None]
    x_places = tile_rows * x_step + cols
    dy_places = tile_rows * dy_step + cols
    for start in tl.range(0, n_mine, BLOCK_ROWS, num_stages=STAGES):
        row = first + start
        row_mask = tile_rows < (BLOCK_ROWS if FULL else n_mine - start)
        mask = row_mask & col_mask
        x = tl.load(x_ptr + row * x_step + x_places, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + row * dy_step + dy_places, mask=mask, other=0.0)
        inv_std = tl.load(inv_std_ptr + row + tile_rows, mask=row_mask, other=0.0)
        shift = tl.load(mean_ptr + row + tile_rows, mask=row_mask, other=0.0) * inv_std
        # Masked lanes hold 0 − mean; dy is 0 there, so that no sum sees them.
        x_hat = widened(x) * inv_std - shift
        h = x_hat
        if weight_ptr is not None:
            if not HOLD_WEIGHT:
                weight = tl.load(weight_ptr + cols, mask=col_mask, other=0.0)
            h *= widened(weight)
        if bias_ptr is not None:
            if not HOLD_WEIGHT:
                bias = tl.load(bias_ptr + cols, mask=col_mask, other=0.0)
            h += widened(bias)
        # What dropout scales by comes behind the sums: one product for each of them.
        g = widened(dy) * gelu_slope(h)
        if DROPS:
            first_ones = (row + tile_rows) * n_cols
            kept = kept_in_rows(
                seed_offset_ptr, first_ones, drop_below, ALIGNED, BLOCK_ROWS, BLOCK_COLS
            )
            g = tl.where(kept, g, 0.0)
        if dweight_ptr is not None:
            dweight += g * x_hat
        if dbias_ptr is not None:
            dbias += g
        if weight_ptr is not None:
            g *= widened(weight)
        # Both sums in one exchange between the warps.
        along, total = tl.reduce((g * x_hat, g), 1, add_both, keep_dims=True)
        inv_std_scaled = inv_std * scale if DROPS else inv_std
        along *= inv_std_scaled / n_cols
        total *= inv_std_scaled / n_cols
        dx = g * inv_std_scaled - (x_hat * along + total)
        places = tile_rows * n_cols + cols
        tl.store(dx_ptr + row * n_cols + places, dx.to(dx_ptr.dtype.element_ty), mask=mask)

    if DROPS:
        dweight *= scale
        dbias *= scale
    out = tl.program_id(0).to(tl.int64) * n_cols + tl.arange(0, BLOCK_COLS)
    out_mask = tl.arange(0, BLOCK_COLS) < n_cols
    if dweight_ptr is not None:
        tl.store(dweight_ptr + out, tl.sum(dweight, axis=0), mask=out_mask)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + out, tl.sum(dbias, axis=0), mask=out_mask)


@triton.jit(do_not_specialize=["drop_below"])
def norm_gelu_backward_means(
    dy_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    mean_ptr,
    inv_std_ptr,
    seed_offset_ptr,
    along_mean_ptr,
    g_mean_ptr,
    dy_row_stride,
    x_row_stride,
    n_col_units,
    drop_below,
    scale,
    STRIDE_UNIT: tl.constexpr,
    DROPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A row too wide for the registers: first the means of g · x̂ and of g, a program a row. Then
    # `gelu_backward_strips` needs no other element for an element of dx.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride * STRIDE_UNIT
    dy_row_ptr = dy_ptr + row * dy_row_stride * STRIDE_UNIT
    mean = tl.load(mean_ptr + row)
    inv_std = tl.load(inv_std_ptr + row)
    along = tl.zeros([BLOCK_COLS], tl.float32)
    total = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_hat = tl.load(x_row_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        x_hat = (x_hat - mean) * inv_std
        h = x_hat
        if weight_ptr is not None:
            weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
            h *= weight
        if bias_ptr is not None:
            h += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        _, slope = gelu_and_slope(h)
        g = tl.load(dy_row_ptr + cols, mask=mask, other=0.0).to(tl.float32) * slope
        if DROPS:
            first = row * n_cols + start
            kept = kept_along(seed_offset_ptr, first, drop_below, ALIGNED, BLOCK_COLS)
            g = tl.where(kept, g * scale, 0.0)
        if weight_ptr is not None:
            g *= weight
        along += g * x_hat
        total += g
    tl.store(along_mean_ptr + row, tl.sum(along, axis=0) / n_cols)
    tl.store(g_mean_ptr + row, tl.sum(total, axis=0) / n_cols)


@triton.jit(do_not_specialize=["drop_below"])
def gelu_backward_strips(
    dy_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    mean_ptr,
    inv_std_ptr,
    along_mean_ptr,
    g_mean_ptr,
    seed_offset_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    dy_row_stride,
    x_row_stride,
    n_rows,
    rows_each,
    n_strips,
    n_col_units,
    drop_below,
    scale,
    STRIDE_UNIT: tl.constexpr,
    DROPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    STAGES: tl.constexpr,
):
    # A program takes BLOCK_COLS columns of `rows_each` rows: its bias and its sums stay in
    # registers, whatever the width. Programs that follow one another share rows. Without mean_ptr
    # the chain has no norm.
    n_cols = n_col_units * STRIDE_UNIT
    chunk = (tl.program_id(0) // n_strips).to(tl.int64)
    first_col = tl.program_id(0) % n_strips * BLOCK_COLS
    cols = first_col + tl.arange(0, BLOCK_COLS)[None, :]
    col_mask = cols < n_cols
    if weight_ptr is not None:
        weight = widened(tl.load(weight_ptr + cols, mask=col_mask, other=0.0))
    if bias_ptr is not None:
        bias = widened(tl.load(bias_ptr + cols, mask=col_mask, other=0.0))
    dweight = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    dbias = tl.zeros([BLOCK_ROWS, BLOCK_COLS], tl.float32)
    first = chunk * rows_each
    last = tl.minimum(first + rows_each, n_rows)
    for start in tl.range(first, last, BLOCK_ROWS, num_stages=STAGES):
        rows = (start + tl.arange(0, BLOCK_ROWS)[:, None]).to(tl.int64)
        row_mask = rows < last
        mask = row_mask & col_mask
        x = tl.load(x_ptr + rows * x_row_stride * STRIDE_UNIT + cols, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + rows * dy_row_stride * STRIDE_UNIT + cols, mask=mask, other=0.0)
        h = widened(x)
        if mean_ptr is not None:
            inv_std = tl.load(inv_std_ptr + rows, mask=row_mask, other=0.0)
            x_hat = (h - tl.load(mean_ptr + rows, mask=row_mask, other=0.0)) * inv_std
            h = x_hat
        if weight_ptr is not None:
            h *= weight
        if bias_ptr is not None:
            h += bias
        _, slope = gelu_and_slope(h)
        g = widened(dy) * slope  # masked lanes hold 0
        if DROPS:
            kept = kept_in_rows(
                seed_offset_ptr,
                rows * n_cols + first_col,
                drop_below,
                ALIGNED,
                BLOCK_ROWS,
                BLOCK_COLS,
            )
            g = tl.where(kept, g * scale, 0.0)
        if dweight_ptr is not None:
            dweight += g * x_hat
        if dbias_ptr is not None:
            dbias += g
        if weight_ptr is not None:
            g *= weight
        if mean_ptr is not None:
            g -= tl.load(g_mean_ptr + rows, mask=row_mask, other=0.0)
            g -= x_hat * tl.load(along_mean_ptr + rows, mask=row_mask, other=0.0)
            g *= inv_std
        tl.store(dx_ptr + rows * n_cols + cols, g.to(dx_ptr.dtype.element_ty), mask=mask)

    out_cols = first_col + tl.arange(0, BLOCK_COLS)
    out = chunk * n_cols + out_cols
    if dweight_ptr is not None:
        tl.store(dweight_ptr + out, tl.sum(dweight, axis=0), mask=out_cols < n_cols)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + out, tl.sum(dbias, axis=0), mask=out_cols < n_cols)
