"""Which weights of attention a dropout drops, a bit each, for kernels that go back on Hopper.

Two kernels need the mask, each in a layout of its own, where a thread's elements stand in many
blocks of eight: making the numbers there costs each of them the same call several times over. So a
forward leaves bits for them where it can (`dropped_bits.left_by_forward`), and where it can't, one
launch makes them, for some heads at a time: a call of Philox for eight weights, and what it writes
is an eighth of a byte a weight.

    bits (heads, words, padded rows) int32: word w of row i is for the keys 32 w to 32 w + 31

A bit is 1 where a weight goes, bit 16 e + 4 q + n for the 8 n + 2 q + e-th key of a word's: see
`hopper_dropout`. Rows are side by side, so that a thread's rows, or a tile's, are read in one
piece. Bits of keys and rows that are not there say nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.philox_wide import words_by_wide_products


@triton.jit(
    do_not_specialize=["first_head", "shift", "n_queries", "n_keys_8", "padded", "drop_below"]
)
def attention_dropped_bits(
    seed_offset_ptr, bits_ptr, first_head, shift, n_queries, n_keys_8, padded, n_words, drop_below,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    # A program takes ROWS rows of a head, by WORDS · 32 keys. Heads count from `first_head`: an
    # element's number is that of its place among all heads.
    row_tiles, word_tiles = padded // ROWS, n_words // WORDS
    number = tl.program_id(0)
    tile, of_head = number % row_tiles, number // row_tiles
    word_tile, head = of_head % word_tiles, of_head // word_tiles
    last = tile * ROWS + ROWS - 1 + shift
    if not CAUSAL or word_tile * WORDS * 32 <= last:  # above the diagonal no bit is read
        rows = tile * ROWS + tl.arange(0, ROWS)
        words = word_tile * WORDS + tl.arange(0, WORDS)
        head_rows = (first_head + head).to(tl.int64) * n_queries + rows
        first = (head_rows * n_keys_8 >> 3)[None, :] + 4 * words[:, None]
        low = ((drop_below & 0x7FFF) * 0x10001).to(tl.uint32)
        top = (0 - (drop_below >> 15)).to(tl.uint32)
        bits = tl.zeros([WORDS, ROWS], tl.uint32)
        for n in tl.static_range(4):
            word_0, word_1, word_2, word_3 = words_by_wide_products(seed_offset_ptr, first + n)
            found = _behind(tl.zeros([WORDS, ROWS], tl.uint32), word_0, low, top)
            found = _behind(_behind(found, word_1, low, top), word_2, low, top)
            bits |= _behind(found, word_3, low, top) >> (3 - n)
        places = (head * n_words + words).to(tl.int64)[:, None] * padded + rows[None, :]
        tl.store(bits_ptr + places, bits.to(tl.int32, bitcast=True))


@triton.jit
def _behind(found, word, low, top):
    # `found`, four places down, and at bits 15 and 31 whether each half of `word` is below the
    # threshold: both halves are compared at once. With its top bit set, a half less the threshold's
    # lower 15 bits (`low`) borrows from no other, and its top bit says which is larger; the top
    # bits themselves decide before that, and `top` is all ones where the threshold's is set.
    larger = (word | 0x80008000) - low
    below = (~word & ~larger) | ((~word | ~larger) & top)
    return (found >> 4) | (below & 0x80008000)
