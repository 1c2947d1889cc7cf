"""Which weights of attention a dropout drops, a bit each, for kernels that go back on Hopper.

Two kernels need the mask, each in a layout of its own, where a thread's elements stand in many
blocks of eight: making the numbers there costs each of them the same call several times over. So
one launch makes them, a call of Philox for eight, and what it writes is an eighth of a byte an
element. It is scratch of the backward, for some heads at a time: no mask is kept from the forward.

    bits (heads, words, padded rows) int32: bit c of word w of row i is 1 where key 32 w + c goes

Rows are side by side, so that a thread's rows, or a tile's, are read in one piece. Bits of keys and
rows that are not there say nothing.
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
        four = tl.arange(0, 4)
        head_rows = (first_head + head).to(tl.int64) * n_queries + rows
        within = words[:, None] * 4 + four[None, :]
        block = (head_rows * n_keys_8 >> 3)[:, None, None] + within[None, :, :]
        word_0, word_1, word_2, word_3 = words_by_wide_products(seed_offset_ptr, block)
        dropped = _dropped_of_word(word_0, drop_below, 0) | _dropped_of_word(word_1, drop_below, 2)
        dropped |= _dropped_of_word(word_2, drop_below, 4) | _dropped_of_word(word_3, drop_below, 6)
        bits = tl.sum(dropped << (8 * four)[None, None, :], axis=2)
        places = (head * n_words + words).to(tl.int64)[None, :] * padded + rows[:, None]
        tl.store(bits_ptr + places, bits)


@triton.jit
def _dropped_of_word(word, drop_below, AT: tl.constexpr):
    # The bits of a word's two numbers, at AT and behind it: low half first.
    low = ((word & 0xFFFF) < drop_below).to(tl.int32)
    high = ((word >> 16) < drop_below).to(tl.int32)
    return low << AT | high << (AT + 1)
