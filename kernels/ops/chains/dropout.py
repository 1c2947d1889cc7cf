"""Dropout inside a kernel in Triton: which elements of a tile are kept, by `kernels/philox.py`.

A mask is never stored: the backward makes it again from the seed, the offset and each element's
place. Where rows begin at multiples of eight elements (ALIGNED), a call of Philox serves eight
neighbours; elsewhere each element has a call of its own.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernels.philox import scale, threshold
from kernels.philox_triton import numbers_at, numbers_of_blocks, numbers_of_rows


@triton.jit
def kept_along(seed_offset_ptr, first, drop_below, ALIGNED: tl.constexpr, COLS: tl.constexpr):
    # Which of COLS neighbours are kept; `first`, int64, is the first one's row-major index.
    if ALIGNED:
        number = numbers_of_blocks(seed_offset_ptr, first >> 3, COLS // 8)
    else:
        number = numbers_at(seed_offset_ptr, first + tl.arange(0, COLS))
    return number >= drop_below


@triton.jit
def kept_in_rows(
    seed_offset_ptr,
    first,
    drop_below,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    # The same of COLS neighbours in each of ROWS rows; `first` is (ROWS, 1).
    if ALIGNED:
        number = numbers_of_rows(seed_offset_ptr, first >> 3, ROWS, COLS // 8)
    else:
        number = numbers_at(seed_offset_ptr, first + tl.arange(0, COLS)[None, :])
    return number >= drop_below


def dropping(p: float, n_cols: int) -> dict[str, Any]:
    """What a kernel is told of a dropout of rows of `n_cols`; ValueError unless p is from 0 to 1.

    With p = 0 it draws no numbers.
    """
    return {
        "drop_below": threshold(p),
        "scale": scale(p),
        "DROPS": threshold(p) > 0,
        "ALIGNED": n_cols % 8 == 0,
    }
