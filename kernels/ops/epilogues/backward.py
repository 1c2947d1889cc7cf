"""Back through what followed a product, to the gradient of its sums, in one launch each.

    dh = dy · act'(h), or of a gate   dgate = dy · up · act'(gate),   dup = dy · act(gate)

of what the forward kept; and from the layout of heads back to rows. What goes on from there are a
product's own gradients (`products/backward.py`), of which dh is the upstream gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.chains.gated import activated_and_slope
from kernels.ops.epilogues.configurations import BACKWARD
from kernels.ops.epilogues.epilogue_kernels import cols_in_heads, rows_in_heads
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import one_row_stride, stride_unit

Tensor = torch.Tensor


@triton.jit
def activation_backward(
    dy_ptr,
    kept_ptr,
    dh_ptr,
    dy_row_stride,
    n_tiles,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A program takes BLOCK_COLS columns of a row; n_tiles programs share a row. What has no gaps is
    # one row. The row stride and the width are counted in STRIDE_UNIT elements, so that the
    # compiler knows what divides every address.
    n_cols = tl.cast(n_col_units, tl.int64) * STRIDE_UNIT
    row = (tl.program_id(0) // n_tiles).to(tl.int64)
    cols = (tl.program_id(0) % n_tiles).to(tl.int64) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    dy_at = row * dy_row_stride * STRIDE_UNIT + cols
    dy = tl.load(dy_ptr + dy_at, mask=mask, other=0.0).to(tl.float32)
    at = row * n_cols * (2 if GATED else 1) + cols
    h = tl.load(kept_ptr + at, mask=mask, other=0.0).to(tl.float32)
    value, slope = activated_and_slope(h, ACTIVATION)
    if GATED:  # up, and its gradient, are the second halves of rows
        up = tl.load(kept_ptr + at + n_cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(dh_ptr + at + n_cols, (dy * value).to(dh_ptr.dtype.element_ty), mask=mask)
        dy *= up
    tl.store(dh_ptr + at, (dy * slope).to(dh_ptr.dtype.element_ty), mask=mask)


def of_activation(dy: Tensor, kept: Tensor, activation: str) -> Tensor:
    """Return dh (..., N), contiguous; dy (..., N) of any strides, kept contiguous; unchecked."""
    return _launched(dy, kept, activation, gated=False)


def of_gate(dy: Tensor, kept: Tensor, activation: str) -> Tensor:
    """Return the gradient of both products, (..., 2N), contiguous; kept is (..., 2N); unchecked."""
    return _launched(dy, kept, activation, gated=True)


def _launched(dy: Tensor, kept: Tensor, activation: str, gated: bool) -> Tensor:
    dh = torch.empty(kept.shape, dtype=kept.dtype, device=kept.device)
    if dh.numel() == 0:
        return dh
    if dy.is_contiguous() and not gated:
        dy_stride = n_cols = dy.numel()
    else:
        dy, dy_stride = one_row_stride(dy)
        n_cols = dy.shape[-1]
    unit = stride_unit(n_cols, dy_stride)
    n_tiles = -(-n_cols // BACKWARD.cols)
    with device_guard(dy):
        activation_backward[(dy.numel() // n_cols * n_tiles,)](
            dy,
            kept,
            dh,
            dy_row_stride=dy_stride // unit,
            n_tiles=n_tiles,
            n_col_units=n_cols // unit,
            STRIDE_UNIT=unit,
            ACTIVATION=activation,
            GATED=gated,
            BLOCK_COLS=BACKWARD.cols,
            num_warps=BACKWARD.num_warps,
        )
    return dh


@triton.jit
def rows_from_heads(
    dy_ptr,
    rows_ptr,
    n_tiles,
    N,
    positions,
    n_heads,
    n_batches,
    HEAD_SIZE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A program copies BLOCK_COLS columns of a row, pieces of as many heads; n_tiles share a row.
    row = tl.program_id(0) // n_tiles
    cols = tl.program_id(0) % n_tiles * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    first = rows_in_heads(row, positions, n_heads, HEAD_SIZE)
    at = first + cols_in_heads(cols, positions, n_heads, n_batches, HEAD_SIZE)
    values = tl.load(dy_ptr + at, mask=cols < N)
    tl.store(rows_ptr + row.to(tl.int64) * N + cols, values, mask=cols < N)


def of_heads(dy: Tensor) -> Tensor:
    """Return dy (T, B, H, S, D) as rows (B, S, T·H·D), contiguous, in one launch; unchecked."""
    n_parts, n_batches, n_heads, positions, head_size = dy.shape
    n_cols = n_parts * n_heads * head_size
    rows = torch.empty((n_batches, positions, n_cols), dtype=dy.dtype, device=dy.device)
    if rows.numel() == 0:
        return rows
    n_tiles = -(-n_cols // BACKWARD.cols)
    with device_guard(dy):
        rows_from_heads[(n_batches * positions * n_tiles,)](
            dy.contiguous(),
            rows,
            n_tiles,
            n_cols,
            positions,
            n_heads,
            n_batches,
            HEAD_SIZE=head_size,
            BLOCK_COLS=BACKWARD.cols,
            num_warps=BACKWARD.num_warps,
        )
    return rows
