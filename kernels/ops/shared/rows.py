"""Where the rows of a tensor lie, as a kernel is told of them."""

from __future__ import annotations

import torch


def collapse_rows(x: torch.Tensor) -> tuple[torch.Tensor, int, int, int]:
    """Describe the rows of x (..., N) by two strides: (x, outer stride, inner stride, n_inner).

    Row r begins at r // n_inner · outer stride + r % n_inner · inner stride, in elements. If the
    leading dimensions need more than two strides, the returned x is a contiguous copy.
    """
    dims: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * stride:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    if len(dims) > 2:
        return collapse_rows(x.contiguous())
    if len(dims) == 2:
        (_, outer_stride), (n_inner, inner_stride) = dims
        return x, outer_stride, inner_stride, n_inner
    n_inner, inner_stride = dims[0] if dims else (1, 0)
    return x, 0, inner_stride, n_inner


def one_row_stride(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return (x, the elements from one row to the next), columns side by side.

    A contiguous copy of x (..., N) if its rows need more than one stride or its columns one.
    """
    rows = x.numel() // x.shape[-1]
    x, _, stride, n_inner = collapse_rows(x)
    if n_inner < rows or (x.stride(-1) != 1 and x.shape[-1] > 1):
        return x.contiguous(), x.shape[-1]
    return x, stride
