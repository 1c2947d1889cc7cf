"""The random numbers of `kernels/philox.py` in Triton, to call from a kernel.

`tl.philox` is the same generator and gives the same four words. What is added here is which counter
an element has and which 16 bits are its own. Element e is kept where its number is T or more.

    number = numbers_of_blocks(seed_offset_ptr, first_block, BLOCKS)  # 8 · BLOCKS neighbours
    number = numbers_of_rows(seed_offset_ptr, first_blocks, ROWS, BLOCKS)  # as many in each row
    number = numbers_at(seed_offset_ptr, element)                     # any elements

The first two cost one call of Philox for eight elements, and a thread that loads eight neighbours
at a time keeps the eight numbers that it made. The third costs one for each, unless the
compiler can see that a thread's elements share a block, as where a row's width is a multiple of 16:
take it where a tile need not begin at a multiple of eight. `seed_offset_ptr` points at the seed and
the offset, int64 both, in device memory.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def words_of(seed_offset_ptr, block):  # type: ignore[no-untyped-def]
    """The four uint32 words of each block, int64 of any shape."""
    seed = tl.load(seed_offset_ptr)
    offset = tl.load(seed_offset_ptr + 1)
    low = (block & 0xFFFFFFFF).to(tl.uint32)
    high = (block >> 32).to(tl.uint32)
    offset_low = tl.zeros_like(low) + (offset & 0xFFFFFFFF).to(tl.uint32)
    offset_high = tl.zeros_like(low) + (offset >> 32 & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, low, high, offset_low, offset_high)


@triton.jit
def numbers_of_blocks(  # type: ignore[no-untyped-def]
    seed_offset_ptr, first_block, BLOCKS: tl.constexpr
):
    """The numbers, uint32 below 65536, of the 8 · BLOCKS elements from 8 · first_block on."""
    block = tl.cast(first_block, tl.int64) + tl.arange(0, BLOCKS)
    word_0, word_1, word_2, word_3 = words_of(seed_offset_ptr, block)
    # A join adds a last axis, so the words stand as (block, word % 2, word // 2) until the turn.
    words = tl.join(tl.join(word_0, word_1), tl.join(word_2, word_3))
    words = tl.permute(words, (0, 2, 1))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (8 * BLOCKS,))


@triton.jit
def numbers_of_rows(  # type: ignore[no-untyped-def]
    seed_offset_ptr, first_blocks, ROWS: tl.constexpr, BLOCKS: tl.constexpr
):
    """The numbers, (ROWS, 8 · BLOCKS), of the elements from 8 · first_blocks on in each row.

    `first_blocks` is (ROWS, 1), int64.
    """
    block = first_blocks + tl.arange(0, BLOCKS)[None, :]
    word_0, word_1, word_2, word_3 = words_of(seed_offset_ptr, block)
    words = tl.join(tl.join(word_0, word_1), tl.join(word_2, word_3))
    words = tl.permute(words, (0, 1, 3, 2))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (ROWS, 8 * BLOCKS))


@triton.jit
def numbers_at(seed_offset_ptr, element):  # type: ignore[no-untyped-def]
    """The number, uint32 below 65536, of each row-major index in `element`, of any shape."""
    element = tl.cast(element, tl.int64)
    word_0, word_1, word_2, word_3 = words_of(seed_offset_ptr, element // 8)
    place = element % 8
    early = tl.where(place < 2, word_0, word_1)
    late = tl.where(place < 6, word_2, word_3)
    word = tl.where(place < 4, early, late)
    return tl.where(place % 2 == 0, word & 0xFFFF, word >> 16)
