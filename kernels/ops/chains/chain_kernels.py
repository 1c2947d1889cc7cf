"""The chains' forward kernels in Triton, from the one everybody writes first to the fastest.

    y = residual + dropout(gelu(x + bias))            bias_gelu_…: simple, then by tiles
    y = residual + dropout(gelu(LayerNorm(x)))        norm_gelu_…: simple, by rows, wide rows

Residual and dropout may be left out of the second. Arithmetic is in fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.chains.activations import gelu, widened
from kernels.ops.chains.dropout import kept_along
from kernels.philox_triton import words_of


@triton.jit
def uniform(seed_offset_ptr, element):
    # A number from 0 to 1 for each element: four words of 32 bits are made, and 24 bits used.
    word, _, _, _ = words_of(seed_offset_ptr, element)
    return (word >> 8).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def bias_gelu_simple(
    x_ptr,
    bias_ptr,
    residual_ptr,
    seed_offset_ptr,
    y_ptr,
    x_row_stride,
    residual_row_stride,
    n_tiles,
    n_cols,
    p,
    BLOCK_COLS: tl.constexpr,
):
    # The chain in one launch: nothing between the steps goes to memory. Each element calls Philox.
    row = (tl.program_id(0) // n_tiles).to(tl.int64)
    cols = tl.program_id(0) % n_tiles * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * residual_row_stride + cols, mask=mask, other=0.0)
    active = gelu(x + bias)
    kept = uniform(seed_offset_ptr, row * n_cols + cols) >= p
    y = tl.where(kept, active / (1.0 - p), 0.0) + residual.to(tl.float32)
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["drop_below"])
def bias_gelu_tile(
    x_ptr,
    bias_ptr,
    residual_ptr,
    seed_offset_ptr,
    y_ptr,
    x_row_stride,
    residual_row_stride,
    n_tiles,
    n_col_units,
    drop_below,
    scale,
    STRIDE_UNIT: tl.constexpr,
    DROPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A call of Philox for eight elements. n_tiles programs share a row. Row strides, and the width
    # as n_col_units, are counted in STRIDE_UNIT elements: the compiler knows what divides every
    # address, and loads 16 bytes at a time.
    n_cols = n_col_units * STRIDE_UNIT
    row = (tl.program_id(0) // n_tiles).to(tl.int64)
    start = tl.program_id(0) % n_tiles * BLOCK_COLS
    cols = start + tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x_row = row * x_row_stride * STRIDE_UNIT
    residual_row = row * residual_row_stride * STRIDE_UNIT
    # All loads stand before the random numbers, which are made while these are under way.
    x = tl.load(x_ptr + x_row + cols, mask=mask, other=0.0)
    residual = tl.load(residual_ptr + residual_row + cols, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)
    if DROPS:
        kept = kept_along(seed_offset_ptr, row * n_cols + start, drop_below, ALIGNED, BLOCK_COLS)
    y = gelu(x.to(tl.float32) + bias.to(tl.float32))
    if DROPS:
        y = tl.where(kept, y * scale, 0.0)
    y += residual.to(tl.float32)
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def norm_gelu_simple(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    seed_offset_ptr,
    y_ptr,
    x_row_stride,
    residual_row_stride,
    n_cols,
    eps,
    p,
    BLOCK_COLS: tl.constexpr,
):
    # A row in one block, as in LayerNorm; the rest of the chain follows in registers. Each element
    # calls Philox.
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    centred = tl.where(mask, x - mean, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = gelu(y)
    if seed_offset_ptr is not None:
        kept = uniform(seed_offset_ptr, row * n_cols + cols) >= p
        y = tl.where(kept, y / (1.0 - p), 0.0)
    if residual_ptr is not None:
        residual_row = row * residual_row_stride
        y += tl.load(residual_ptr + residual_row + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["drop_below"])
def norm_gelu_row(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    seed_offset_ptr,
    y_ptr,
    mean_ptr,
    inv_std_ptr,
    x_row_stride,
    residual_row_stride,
    n_col_units,
    eps,
    drop_below,
    scale,
    STRIDE_UNIT: tl.constexpr,
    DROPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    LOAD_WEIGHTS_EARLY: tl.constexpr,
    DRAW_EARLY: tl.constexpr,
):
    # A call of Philox for eight elements; the thread that loads them makes it, while x and the
    # residual are under way, or with DRAW_EARLY off behind the sums, when fewer registers are
    # taken. FULL says that the row fills its block: no lane is masked. Strides and the width are
    # told as to `bias_gelu_tile`.
    n_cols = BLOCK_COLS if FULL else n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * x_row_stride * STRIDE_UNIT + cols, mask=mask, other=0.0)
    if residual_ptr is not None:
        residual_row = row * residual_row_stride * STRIDE_UNIT
        residual = tl.load(residual_ptr + residual_row + cols, mask=mask, other=0.0)
    if LOAD_WEIGHTS_EARLY:
        if weight_ptr is not None:
            weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)
    if DROPS and DRAW_EARLY:
        kept = kept_along(seed_offset_ptr, row * n_cols, drop_below, ALIGNED, BLOCK_COLS)
    x = widened(x)
    mean = tl.sum(x, axis=0) / n_cols
    x -= mean
    if not FULL:
        x = tl.where(mask, x, 0.0)
    inv_std = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
        tl.store(inv_std_ptr + row, inv_std)
    y = x * inv_std
    if weight_ptr is not None:
        if not LOAD_WEIGHTS_EARLY:
            weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
        y *= widened(weight)
    if bias_ptr is not None:
        if not LOAD_WEIGHTS_EARLY:
            bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)
        y += widened(bias)
    y = gelu(y)
    if DROPS:
        if not DRAW_EARLY:
            kept = kept_along(seed_offset_ptr, row * n_cols, drop_below, ALIGNED, BLOCK_COLS)
        y *= tl.where(kept, scale, 0.0)
    if residual_ptr is not None:
        y += widened(residual)
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["drop_below"])
def norm_gelu_tiles(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    seed_offset_ptr,
    y_ptr,
    mean_ptr,
    inv_std_ptr,
    x_row_stride,
    residual_row_stride,
    n_col_units,
    eps,
    drop_below,
    scale,
    STRIDE_UNIT: tl.constexpr,
    DROPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A row too wide for the registers: the state (count, mean, sum of squares) merges tile by tile,
    # and a second loop reads x again for the rest of the chain.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride * STRIDE_UNIT
    residual_row = row * residual_row_stride * STRIDE_UNIT
    mean = 0.0
    squares = 0.0
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x = tl.load(x_row_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        size = tl.minimum(n_cols - start, BLOCK_COLS).to(tl.float32)
        tile_mean = tl.sum(x, axis=0) / size
        x = tl.where(mask, x - tile_mean, 0.0)
        # Chan's merge of the tile's state into the row's.
        delta = tile_mean - mean
        share = size / (start + size)
        mean += delta * share
        squares += delta * delta * start * share + tl.sum(x * x, axis=0)
    inv_std = tl.rsqrt(squares / n_cols + eps)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
        tl.store(inv_std_ptr + row, inv_std)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x = tl.load(x_row_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean) * inv_std
        if weight_ptr is not None:
            y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        y = gelu(y)
        if DROPS:
            first = row * n_cols + start
            kept = kept_along(seed_offset_ptr, first, drop_below, ALIGNED, BLOCK_COLS)
            y = tl.where(kept, y * scale, 0.0)
        if residual_ptr is not None:
            residual = tl.load(residual_ptr + residual_row + cols, mask=mask, other=0.0)
            y += residual.to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)
