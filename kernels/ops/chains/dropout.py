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
from kernels.philox_triton import numbers_at, words_of
from kernels.philox_wide import words_by_wide_products


@triton.jit
def last_dropped(drop_below):
    # The largest word whose upper half is a number that is dropped. Where any is, T is 1 to 65536.
    return (drop_below.to(tl.uint32) << 16) - 1


@triton.jit
def kept_along(seed_offset_ptr, first, drop_below, ALIGNED: tl.constexpr, COLS: tl.constexpr):
    # Which of COLS neighbours are kept; `first`, int64, is the first one's row-major index.
    if ALIGNED:
        # A word is compared with its two numbers in its upper half, one after the other: that takes
        # a shift for the low one, and nothing for the high one.
        block = (tl.cast(first, tl.int64) >> 3) + tl.arange(0, COLS // 8)
        word_0, word_1, word_2, word_3 = words_of(seed_offset_ptr, block)
        words = tl.permute(tl.join(tl.join(word_0, word_1), tl.join(word_2, word_3)), (0, 2, 1))
        last = last_dropped(drop_below)
        return tl.reshape(tl.join(words << 16 > last, words > last), (COLS,))
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
    # The same of COLS neighbours in each of ROWS rows; `first` is (ROWS, 1). What instructions bind
    # takes it: backwards, and what goes element by element.
    if ALIGNED:
        block = (tl.cast(first, tl.int64) >> 3) + tl.arange(0, COLS // 8)[None, :]
        word_0, word_1, word_2, word_3 = words_by_wide_products(seed_offset_ptr, block)
        words = tl.permute(tl.join(tl.join(word_0, word_1), tl.join(word_2, word_3)), (0, 1, 3, 2))
        last = last_dropped(drop_below)
        return tl.reshape(tl.join(words << 16 > last, words > last), (ROWS, COLS))
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
