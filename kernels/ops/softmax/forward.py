"""The forward pass of softmax: y = exp(x − max x) / Σ exp(x − max x); see `softmax.py`."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.launch import capability
from kernels.ops.shared.blocks import Block
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import collapse_rows
from kernels.ops.softmax.configurations import forward_block_of

Tensor = torch.Tensor

# A GPU's instruction computes 2^x: exp(x) = 2^(x · log2 e). The largest element is subtracted
# before the factor, not after: the difference of two near fp32 numbers is exact, their products'
# is not.
LOG2E = tl.constexpr(math.log2(math.e))
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


@triton.jit(do_not_specialize=["n_inner_rows"])  # specialized to 1, some wide rows spill
def softmax_row(
    x_ptr,
    y_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner_rows,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # One program a row, which is loaded once and stays in registers. n_inner_rows rows lie
    # x_inner_stride apart, and x_outer_stride leads to the next so many. Row strides, and the width
    # as n_col_units, are counted in STRIDE_UNIT elements: so the compiler knows what divides
    # every address, and loads 16 bytes at a time where the rows allow it. WIDE_OFFSETS says that a
    # column's place in its row takes 64 bits.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    x_row = row // n_inner_rows * x_outer_stride + row % n_inner_rows * x_inner_stride
    x_row_ptr = x_ptr + x_row * STRIDE_UNIT
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
    # Masked lanes hold −inf, which is neither the largest nor adds to the sum.
    x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=-float("inf")).to(tl.float32)

    e = tl.exp2((x - tl.max(x, axis=0)) * LOG2E)
    y = e * (1.0 / tl.sum(e, axis=0))  # one division a row, not one an element
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_inner_rows"])
def softmax_tiles(
    x_ptr,
    y_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner_rows,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # A row too wide for the registers. Each lane keeps the state (m, s) of the elements it has
    # seen, so no tile waits for a reduction over the block; the lanes' states merge at the end, and
    # a second loop reads x again. Rows are told as to `softmax_row`.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    x_row = row // n_inner_rows * x_outer_stride + row % n_inner_rows * x_inner_stride
    x_row_ptr = x_ptr + x_row * STRIDE_UNIT
    # From the lowest finite number, not from −inf: −inf − (−inf) would be NaN, and an element of
    # −inf adds 0 to the sum as it should.
    m = tl.full([BLOCK_COLS], LOWEST, tl.float32)
    s = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
        x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=-float("inf"))
        x = x.to(tl.float32)
        # The state of one element is (x, 1). Of the two factors of the merge one is 1, so a
        # single exponential is enough.
        e = tl.exp2(-tl.abs(x - m) * LOG2E)
        s = tl.where(x > m, s * e + 1.0, s + e)
        m = tl.maximum(m, x)

    largest = tl.max(m, axis=0)
    inverse = 1.0 / tl.sum(s * tl.exp2((m - largest) * LOG2E), axis=0)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
        x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=-float("inf"))
        y = tl.exp2((x.to(tl.float32) - largest) * LOG2E) * inverse
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def softmax_forward(x: Tensor, block: Block | None = None) -> Tensor:
    """Return softmax of x (..., N) of any strides, unchecked; `block` by width and card if None."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    rows = collapse_rows(x)
    block = block or forward_block_of(rows, capability(x.device))
    kernel = softmax_row if rows.n_cols <= block.cols else softmax_tiles
    unit = rows.stride_unit
    with device_guard(x):
        kernel[(rows.n_rows,)](
            rows.x,
            y,
            x_outer_stride=rows.outer_stride // unit,
            x_inner_stride=rows.inner_stride // unit,
            x_col_stride=rows.col_stride,
            n_inner_rows=rows.n_inner_rows,
            n_col_units=rows.n_cols // unit,
            STRIDE_UNIT=unit,
            BLOCK_COLS=block.cols,
            WIDE_OFFSETS=rows.wide_offsets,
            num_warps=block.num_warps,
        )
    return y
