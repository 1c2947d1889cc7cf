"""The forward pass of every norm in Triton: LayerNorm and RMSNorm, with or without a residual.

    h = x + residual                      (rounded to x's dtype and stored, if there is a residual)
    LayerNorm:  y = (h − mean) · inv_std · weight + bias,   inv_std = 1 / √(mean((h − mean)²) + eps)
    RMSNorm:    y = h · inv_std · weight + bias,            inv_std = 1 / √(mean(h²) + eps)

One program normalises one row. A row that fits into the registers is read once; a wider one goes
tile by tile, and is read twice. For the backward pass mean and inv_std of each row are stored too,
8 bytes a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import capability
from kernels.ops.norms.configurations import WEIGHTS_EARLY_UP_TO, forward_block_of
from kernels.ops.shared.blocks import Block
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import collapse_rows

Tensor = torch.Tensor


@triton.jit
def load_summed(x_ptr, residual_ptr, h_ptr, x_row, h_row, x_cols, cols, mask):
    # A part of a row in fp32; with a residual the rounded sum, which is stored too.
    x = tl.load(x_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
        h = x.to(h_ptr.dtype.element_ty)
        tl.store(h_ptr + h_row + cols, h, mask=mask)
        x = h.to(tl.float32)  # what is normalised is what is stored: backward starts from it
    return x


@triton.jit
def store_scaled(x_hat, weight_ptr, bias_ptr, y_ptr, y_row, cols, mask):
    # The part's output from x̂.
    y = x_hat
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + y_row + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_inner_rows"])  # specialized to 1, a wide fp32 row spills
def norm_row(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    h_ptr,
    mean_ptr,
    inv_std_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner_rows,
    n_col_units,
    eps,
    CENTRED: tl.constexpr,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    REST_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    TWO_ROW_STRIDES: tl.constexpr,
    LOAD_WEIGHTS_EARLY: tl.constexpr,
):
    # One program a row. The row is loaded once and stays in registers: that is the fusion.
    # A row a little wider than a power of two is held as two blocks, the second of REST_COLS: 5000
    # columns in 4096 + 1024 lanes, where one block would have 8192.
    # n_inner_rows rows lie x_inner_stride apart, and x_outer_stride leads to the next so many. With
    # one distance between all rows TWO_ROW_STRIDES is false. Row strides, and the width as
    # n_col_units, are counted in STRIDE_UNIT elements: so the compiler knows what divides every
    # address, and a row of 5000 is loaded 16 bytes at a time like one of 8192. WIDE_OFFSETS says
    # that a column's place in its row takes 64 bits.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    x_row = row * x_inner_stride
    if TWO_ROW_STRIDES:  # a division of 64 bits, on the way to the first load: only where needed
        x_row = row // n_inner_rows * x_outer_stride + row % n_inner_rows * x_inner_stride
    x_row *= STRIDE_UNIT
    y_row = row * n_cols
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x_cols = (cols.to(tl.int64) if WIDE_OFFSETS else cols) * x_col_stride
    x = load_summed(x_ptr, residual_ptr, h_ptr, x_row, y_row, x_cols, cols, mask)
    if REST_COLS > 0:
        rest = BLOCK_COLS + tl.arange(0, REST_COLS)
        rest_mask = rest < n_cols
        x_rest = (rest.to(tl.int64) if WIDE_OFFSETS else rest) * x_col_stride
        x2 = load_summed(x_ptr, residual_ptr, h_ptr, x_row, y_row, x_rest, rest, rest_mask)
    if LOAD_WEIGHTS_EARLY:  # under way with the row; later they would be waited for once more
        if weight_ptr is not None:
            weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)

    if CENTRED:
        total = tl.sum(x, axis=0)
        if REST_COLS > 0:
            total += tl.sum(x2, axis=0)
        mean = total / n_cols
        # Masked lanes hold 0, not the mean: without the select each would add mean² to the sum.
        x = tl.where(mask, x - mean, 0.0)
        if REST_COLS > 0:
            x2 = tl.where(rest_mask, x2 - mean, 0.0)
        if mean_ptr is not None:
            tl.store(mean_ptr + row, mean)
    squares = tl.sum(x * x, axis=0)
    if REST_COLS > 0:
        squares += tl.sum(x2 * x2, axis=0)
    inv_std = tl.rsqrt(squares / n_cols + eps)
    if inv_std_ptr is not None:
        tl.store(inv_std_ptr + row, inv_std)
    if LOAD_WEIGHTS_EARLY:
        y = x * inv_std
        if weight_ptr is not None:
            y *= weight.to(tl.float32)
        if bias_ptr is not None:
            y += bias.to(tl.float32)
        tl.store(y_ptr + y_row + cols, y.to(y_ptr.dtype.element_ty), mask=mask)
    else:
        store_scaled(x * inv_std, weight_ptr, bias_ptr, y_ptr, y_row, cols, mask)
    if REST_COLS > 0:
        store_scaled(x2 * inv_std, weight_ptr, bias_ptr, y_ptr, y_row, rest, rest_mask)


@triton.jit
def norm_tiles(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    h_ptr,
    mean_ptr,
    inv_std_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner_rows,
    n_col_units,
    eps,
    CENTRED: tl.constexpr,
    STRIDE_UNIT: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    TWO_ROW_STRIDES: tl.constexpr,
):
    # A row too wide for the registers: the state (count, mean, sum of squares) merges tile by
    # tile, and a second loop reads the row again to normalise it. Rows are told as to `norm_row`.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    x_row = row * x_inner_stride
    if TWO_ROW_STRIDES:
        x_row = row // n_inner_rows * x_outer_stride + row % n_inner_rows * x_inner_stride
    x_row *= STRIDE_UNIT
    mean = 0.0
    squares = 0.0
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_cols = (cols.to(tl.int64) if WIDE_OFFSETS else cols) * x_col_stride
        x = tl.load(x_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
        if residual_ptr is not None:
            x += tl.load(residual_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
            h = x.to(h_ptr.dtype.element_ty)
            tl.store(h_ptr + row * n_cols + cols, h, mask=mask)
            x = h.to(tl.float32)
        if CENTRED:
            size = tl.minimum(n_cols - start, BLOCK_COLS).to(tl.float32)
            tile_mean = tl.sum(x, axis=0) / size
            x = tl.where(mask, x - tile_mean, 0.0)
            # Chan's merge of the tile's state into the row's.
            delta = tile_mean - mean
            share = size / (start + size)
            mean += delta * share
            squares += delta * delta * start * share
        squares += tl.sum(x * x, axis=0)

    inv_std = tl.rsqrt(squares / n_cols + eps)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
    if inv_std_ptr is not None:
        tl.store(inv_std_ptr + row, inv_std)
    if residual_ptr is not None:
        tl.debug_barrier()  # the sum is read back by other threads than those that stored it
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        if residual_ptr is not None:
            x = tl.load(h_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        else:
            x_cols = (cols.to(tl.int64) if WIDE_OFFSETS else cols) * x_col_stride
            x = tl.load(x_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean) * inv_std
        if weight_ptr is not None:
            y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    centred: bool,
    statistics: bool = False,
    configured: Block | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Launch the kernel; return (y, h, mean, inv_std), h being x where there is no residual.

    x, residual: (..., N); weight, bias: (N,). y and h are contiguous; mean and inv_std are fp32,
    one a row, and None unless `statistics`, as is the mean unless `centred`. The block is
    `configured`, or chosen by width and card if None. Nothing is checked here.
    """
    n_rows = x.numel() // x.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = x if residual is None else torch.empty_like(y)
    inv_std = torch.empty(n_rows, device=x.device) if statistics else None
    mean = torch.empty(n_rows, device=x.device) if statistics and centred else None
    if n_rows == 0:
        return y, h, mean, inv_std
    if residual is not None and residual.stride() != x.stride():
        x, residual = x.contiguous(), residual.contiguous()
    rows = collapse_rows(x)
    if residual is not None:
        residual = collapse_rows(residual).x
    block = configured or forward_block_of(rows, capability(x.device))
    held = rows.n_cols <= block.held
    parts: dict[str, int | bool] = {}
    if held:
        early = block.cols <= WEIGHTS_EARLY_UP_TO and block.rest == 0
        parts = {"REST_COLS": block.rest, "LOAD_WEIGHTS_EARLY": early}
    kernel, unit = norm_row if held else norm_tiles, rows.stride_unit
    with device_guard(x):
        kernel[(n_rows,)](
            rows.x,
            residual,
            None if weight is None else weight.contiguous(),
            None if bias is None else bias.contiguous(),
            y,
            None if residual is None else h,
            mean,
            inv_std,
            x_outer_stride=rows.outer_stride // unit,
            x_inner_stride=rows.inner_stride // unit,
            x_col_stride=rows.col_stride,
            n_inner_rows=rows.n_inner_rows,
            n_col_units=rows.n_cols // unit,
            eps=eps,
            CENTRED=centred,
            STRIDE_UNIT=unit,
            BLOCK_COLS=block.cols,
            WIDE_OFFSETS=rows.wide_offsets,
            TWO_ROW_STRIDES=rows.n_inner_rows < n_rows,
            **parts,
            num_warps=block.num_warps,
        )
    return y, h, mean, inv_std
