"""The six kernels of the clinic of set 06, each a LayerNorm without weight that is ill in one way.

All of them normalise each row of x (rows, cols), and all pass the weak test of the page: on a
square of normal numbers in fp32, 64 by 64, the output has mean 0 and spread 1. Don't read on before
you have answered 06.2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor

# Rows a program, of the kernel that takes a tile of rows.
_ROWS = 4
# The widest block of the kernel that goes over the row in whole blocks.
_WIDEST = 256


@triton.jit
def narrow_sums(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum the row in the dtype that x has; only then convert."""
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + cols, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0).to(tl.float32) / n_cols
    centred = tl.where(mask, x.to(tl.float32) - mean, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def block_for_width(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Divide the sum of squares by the width of the block, not by that of the row."""
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / n_cols, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / BLOCK + eps)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def lanes_beyond(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Let the lanes beyond the row, which hold -mean once the mean is gone, into the variance."""
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    centred = x - tl.sum(x, axis=0) / n_cols
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def two_sums(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Take the variance as the mean of the squares less the square of the mean."""
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    variance = tl.sum(x * x, axis=0) / n_cols - mean * mean
    y = (x - mean) * tl.rsqrt(variance + eps)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def down_the_columns(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, n_rows, n_cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Sum a tile of rows along the wrong axis."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    count = tl.minimum(n_rows - tl.program_id(0) * ROWS, ROWS)
    x = tl.load(x_ptr + rows * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, x - tl.sum(x, axis=0, keep_dims=True) / count, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0, keep_dims=True) / count + eps)
    tl.store(y_ptr + rows * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def whole_blocks(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Go over the row in whole blocks, and leave what is behind the last of them as it was."""
    begin = tl.program_id(0) * n_cols
    end = n_cols // BLOCK * BLOCK
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, end, BLOCK):
        total += tl.load(x_ptr + begin + start + lanes).to(tl.float32)
    mean = tl.sum(total, axis=0) / end
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, end, BLOCK):
        centred = tl.load(x_ptr + begin + start + lanes).to(tl.float32) - mean
        squares += centred * centred
    inv_std = tl.rsqrt(tl.sum(squares, axis=0) / end + eps)
    for start in range(0, end, BLOCK):
        y = (tl.load(x_ptr + begin + start + lanes).to(tl.float32) - mean) * inv_std
        tl.store(y_ptr + begin + start + lanes, y.to(y_ptr.dtype.element_ty))


@triton.jit
def healthy(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Normalise the row as it should be."""
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + tl.program_id(0) * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / n_cols, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    tl.store(y_ptr + tl.program_id(0) * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


Launch = Callable[[Tensor, Tensor, float], None]


def _by_row(kernel: triton.JITFunction) -> Launch:
    def launch(x: Tensor, y: Tensor, eps: float) -> None:
        n_rows, n_cols = x.shape
        kernel[(n_rows,)](x, y, n_cols, eps, BLOCK=triton.next_power_of_2(n_cols))

    return launch


def _in_tiles(x: Tensor, y: Tensor, eps: float) -> None:
    n_rows, n_cols = x.shape
    block = triton.next_power_of_2(n_cols)
    grid = (triton.cdiv(n_rows, _ROWS),)
    down_the_columns[grid](x, y, n_rows, n_cols, eps, ROWS=_ROWS, BLOCK=block)


def _in_blocks(x: Tensor, y: Tensor, eps: float) -> None:
    n_rows, n_cols = x.shape
    # The largest power of two that the row holds.
    block = min(1 << (n_cols.bit_length() - 1), _WIDEST)
    whole_blocks[(n_rows,)](x, y, n_cols, eps, BLOCK=block)


# Each illness, with the kernel that has it; a new y is handed in.
PATIENTS: dict[str, Launch] = {
    "low precision": _by_row(narrow_sums),
    "powers of two": _by_row(block_for_width),
    "missing mask": _by_row(lanes_beyond),
    "one pass": _by_row(two_sums),
    "wrong axis": _in_tiles,
    "stale tail": _in_blocks,
    "healthy": _by_row(healthy),
}
