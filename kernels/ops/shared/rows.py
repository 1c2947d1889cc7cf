"""Where the rows of a tensor lie, as a kernel is told of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from kernels.hardware import VECTOR_BYTES


class Rows(NamedTuple):  # made at every launch: a frozen dataclass takes longer
    """The rows of x (..., N) by two strides, in elements; `x` is a copy where two don't do.

    Row r begins at r // n_inner_rows · outer_stride + r % n_inner_rows · inner_stride, and its
    columns lie `col_stride` apart.
    """

    x: torch.Tensor
    n_rows: int
    n_cols: int
    outer_stride: int
    inner_stride: int
    col_stride: int
    n_inner_rows: int

    @property
    def stride_unit(self) -> int:
        """The unit of the strides and of the width for a kernel; see `stride_unit`."""
        return stride_unit(self.n_cols, self.outer_stride, self.inner_stride)

    @property
    def wide_offsets(self) -> bool:
        """Whether the place of a column in its row takes more than 32 bits."""
        return (self.n_cols - 1) * self.col_stride >= 2**31

    @property
    def loaded_by_vectors(self) -> bool:
        """Whether a kernel can load 16 bytes at a time, and not an element at a time."""
        return self.col_stride == 1 and fill_vectors(self.stride_unit, self.x.element_size())


def stride_unit(*numbers: int) -> int:
    """Return the largest power of two, 16 at most, that divides strides and widths.

    A kernel gets them as multiples of it, since Triton sees of a run-time number at most that 16
    divides it: so it knows what divides every address.
    """
    return math.gcd(16, *numbers)


def fill_vectors(unit: int, itemsize: int) -> bool:
    """Whether `unit` elements of `itemsize` bytes fill a load of 16 bytes, one or several."""
    return unit * itemsize >= VECTOR_BYTES


def collapse_rows(x: torch.Tensor) -> Rows:
    """Describe the rows of x (..., N); a contiguous copy's if x needs more than two strides."""
    (*sizes, n_cols), (*strides, col_stride) = x.shape, x.stride()
    dims: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * stride:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    if len(dims) > 2:
        return collapse_rows(x.contiguous())
    n_inner_rows, inner_stride = dims[-1] if dims else (1, 0)
    outer_stride = dims[0][1] if len(dims) == 2 else 0
    return Rows(
        x=x,
        n_rows=math.prod(sizes),
        n_cols=n_cols,
        outer_stride=outer_stride,
        inner_stride=inner_stride,
        col_stride=col_stride,
        n_inner_rows=n_inner_rows,
    )


def one_row_stride(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return (x, the elements from one row to the next), columns side by side.

    A contiguous copy of x (..., N) if its rows need more than one stride or its columns one.
    """
    rows = collapse_rows(x)
    if rows.n_inner_rows < rows.n_rows or (rows.col_stride != 1 and rows.n_cols > 1):
        return x.contiguous(), rows.n_cols
    return rows.x, rows.inner_stride
