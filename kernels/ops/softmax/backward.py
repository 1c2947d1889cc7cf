"""The backward pass of softmax: dx = y · (dy − Σ dy · y); see `softmax.py`.

It reads y, the saved output, and not x: the derivative of exp is exp.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl

from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import collapse_rows

Tensor = torch.Tensor


@triton.jit(do_not_specialize=["n_inner"])
def softmax_backward_row(
    dy_ptr,
    y_ptr,
    dx_ptr,
    dy_outer_stride,
    dy_inner_stride,
    dy_col_stride,
    n_inner,
    n_groups,
    GROUP: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # One program a row of y and dy, both kept in registers until their sum is known. The rows of
    # y and dx lie one behind the other; those of dy are where autograd put them.
    n_cols = n_groups * GROUP
    row = tl.program_id(0).to(tl.int64)
    dy_row = row // n_inner * dy_outer_stride + row % n_inner * dy_inner_stride
    dy_row_ptr = dy_ptr + dy_row * GROUP
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    dy_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
    y = tl.load(y_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_row_ptr + dy_cols * dy_col_stride, mask=mask, other=0.0).to(tl.float32)

    dx = y * (dy - tl.sum(dy * y, axis=0))
    tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_inner"])
def softmax_backward_tiles(
    dy_ptr,
    y_ptr,
    dx_ptr,
    dy_outer_stride,
    dy_inner_stride,
    dy_col_stride,
    n_inner,
    n_groups,
    GROUP: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # A row too wide for the registers: one loop for Σ dy · y, a sum a lane, and one for dx.
    n_cols = n_groups * GROUP
    row = tl.program_id(0).to(tl.int64)
    dy_row = row // n_inner * dy_outer_stride + row % n_inner * dy_inner_stride
    dy_row_ptr = dy_ptr + dy_row * GROUP
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


# The backward kernel keeps two rows, on every card alike; on an H100 it reaches 0.98 of a copy or
# more in every cell of the suite.
BACKWARD = ((256, 1), (512, 2), (2048, 4), (4096, 8), (16384, 16))
# A wider row goes tile by tile, forward too: some 100 registers a thread, and no width spills on
# any card where columns lie side by side. With 4096 and 8 or 16 warps, or 8192 and 16, a few widths
# do on 8.0, 9.0, 10.0 or 12.0. The tiles have not been timed.
TILES = (8192, 8)


@functools.cache
def first_fit(table: tuple[tuple[int, int], ...], n_cols: int) -> tuple[int, int]:
    """Return the first (BLOCK_COLS, num_warps) of `table` that holds a row, else TILES."""
    block = triton.next_power_of_2(n_cols)
    return next(((block, warps) for largest, warps in table if block <= largest), TILES)


def to_try(n_cols: int) -> dict[str, tuple[int, int]]:
    """Return the (BLOCK_COLS, num_warps) worth timing for a row of `n_cols`, by name."""
    block = triton.next_power_of_2(n_cols)
    found: dict[str, tuple[int, int]] = {}
    for warps in (1, 2, 4, 8, 16, 32):
        for size in sorted({block, 4096, 8192, 16384}):
            if size <= min(block, 32768) and 2 <= size // (32 * warps) <= 128:
                name = "row" if size == block else f"tiles of {size}"
                found[f"{name}, {warps} warps"] = size, warps
    return found


def in_groups(x: Tensor) -> tuple[Tensor, tuple[int, ...], int, bool]:
    """What a kernel is told of the rows of x (..., N).

    Returns (x or a copy, (outer, inner and column stride, n_inner, n_groups), GROUP, WIDE_OFFSETS).
    """
    n_cols = x.shape[-1]
    x, outer_stride, inner_stride, n_inner = collapse_rows(x)
    group = math.gcd(16, n_cols, outer_stride, inner_stride)
    numbers = (outer_stride // group, inner_stride // group, x.stride(-1), n_inner, n_cols // group)
    return x, numbers, group, (n_cols - 1) * x.stride(-1) >= 2**31


def softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    """Return dx (..., N) from the gradient dy of any strides and the output y, unchecked."""
    return launch_backward(dy, y, *first_fit(BACKWARD, y.shape[-1]))


def launch_backward(dy: Tensor, y: Tensor, block_cols: int, num_warps: int) -> Tensor:
    """Launch the backward kernel in a configuration of your own; returns dx.

    dy and y are (..., N) in one dtype on one device; dy has any strides.
    """
    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    rows = y.numel() // y.shape[-1]
    if rows == 0:
        return dx
    dy, numbers, group, wide_offsets = in_groups(dy)
    kernel = softmax_backward_row if y.shape[-1] <= block_cols else softmax_backward_tiles
    with device_guard(y):
        kernel[(rows,)](
            dy,
            y.contiguous(),
            dx,
            *numbers,
            GROUP=group,
            BLOCK_COLS=block_cols,
            WIDE_OFFSETS=wide_offsets,
            num_warps=num_warps,
        )
    return dx
