"""The backward pass of softmax: dx = y · (dy − Σ dy · y); see `softmax.py`.

It reads y, the saved output, and not x: the derivative of exp is exp.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.shared.blocks import Block
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import collapse_rows
from kernels.ops.softmax.configurations import backward_block

Tensor = torch.Tensor


@triton.jit(do_not_specialize=["n_inner_rows"])
def softmax_backward_row(
    dy_ptr,
    y_ptr,
    dx_ptr,
    dy_outer_stride,
    dy_inner_stride,
    dy_col_stride,
    n_inner_rows,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # One program a row of y and dy, both kept in registers until their sum is known. The rows of
    # y and dx lie one behind the other; those of dy are where autograd put them, and are told as
    # those of x to `softmax_row`.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    dy_row = row // n_inner_rows * dy_outer_stride + row % n_inner_rows * dy_inner_stride
    dy_row_ptr = dy_ptr + dy_row * STRIDE_UNIT
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    dy_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
    y = tl.load(y_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_row_ptr + dy_cols * dy_col_stride, mask=mask, other=0.0).to(tl.float32)

    dx = y * (dy - tl.sum(dy * y, axis=0))
    tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_inner_rows"])
def softmax_backward_tiles(
    dy_ptr,
    y_ptr,
    dx_ptr,
    dy_outer_stride,
    dy_inner_stride,
    dy_col_stride,
    n_inner_rows,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # A row too wide for the registers: one loop for Σ dy · y, a sum a lane, and one for dx.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    dy_row = row // n_inner_rows * dy_outer_stride + row % n_inner_rows * dy_inner_stride
    dy_row_ptr = dy_ptr + dy_row * STRIDE_UNIT
    sums = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        dy_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
        y = tl.load(y_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_row_ptr + dy_cols * dy_col_stride, mask=mask, other=0.0).to(tl.float32)
        sums += dy * y

    total = tl.sum(sums, axis=0)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        dy_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
        y = tl.load(y_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_row_ptr + dy_cols * dy_col_stride, mask=mask, other=0.0).to(tl.float32)
        dx = y * (dy - total)
        tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def softmax_backward(dy: Tensor, y: Tensor, block: Block | None = None) -> Tensor:
    """Return dx (..., N) from the gradient dy of any strides and the output y, unchecked.

    dy and y are in one dtype on one device. The block is chosen by the width if None.
    """
    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if dx.numel() == 0:
        return dx
    rows = collapse_rows(dy)
    block = block or backward_block(rows.n_cols)
    kernel = softmax_backward_row if rows.n_cols <= block.cols else softmax_backward_tiles
    unit = rows.stride_unit
    with device_guard(y):
        kernel[(rows.n_rows,)](
            rows.x,
            y.contiguous(),
            dx,
            dy_outer_stride=rows.outer_stride // unit,
            dy_inner_stride=rows.inner_stride // unit,
            dy_col_stride=rows.col_stride,
            n_inner_rows=rows.n_inner_rows,
            n_col_units=rows.n_cols // unit,
            STRIDE_UNIT=unit,
            BLOCK_COLS=block.cols,
            WIDE_OFFSETS=rows.wide_offsets,
            num_warps=block.num_warps,
        )
    return dx
