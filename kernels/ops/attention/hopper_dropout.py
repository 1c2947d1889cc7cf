"""Dropout in the attention written for Hopper: warps that draw, and warps that look at bits.

The numbers are those of `kernels/philox.py`, eight neighbouring keys a call. The warps that ask for
tiles draw them too, ahead of the others, and hand on a bit a weight, in shared memory and, for a
backward, in memory. It hides nothing: a launch that writes bits before this one, and one that only
reads them, take as long together (H200). But it is one launch, and the bits are there.

    bits (heads, words, padded rows) int32: word w of row i is for the keys 32 w to 32 w + 31

How bits stand in a word follows from the numbers. Of the 8 n + 2 q + e-th of its keys the number is
half e of word q of call n, and the bit is 16 e + 4 q + n: halves are compared two at a time, and in
the layout that tensor cores leave weights in, a thread of four has the q-th numbers of every call.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl

DRAWING_WARPS = ttgl.constexpr(8)
DRAWN_ROWS = ttgl.constexpr(128)  # of two groups of four warps
_ROWS = ttgl.constexpr(64)
_DRAWN_WORDS = ttgl.constexpr(256)  # at once, one for each thread that draws: two of every row


@gluon.constexpr_function
def _wide_instructions(factor):
    return f"{{ .reg .b64 t; mul.wide.u32 t, $2, {factor}; mov.b64 {{$0, $1}}, t; }}"


@gluon.jit
def _wide(x, factor: ttgl.constexpr):
    # Low and high half of the 64 bits of a product. Written as one of 64 bits, the compiler makes
    # three instructions of some, and two of the halves by themselves.
    instructions: ttgl.constexpr = _wide_instructions(factor)
    return ttgl.inline_asm_elementwise(
        instructions, "=r,=r,r", [x], dtype=(ttgl.uint32, ttgl.uint32), is_pure=True, pack=1
    )


@gluon.jit
def words_of(block, seed, offset):
    # Philox4x32-10 of int64 blocks; seed and offset are scalars of 64 bits.
    c0, c1 = block.to(ttgl.uint32), (block >> 32).to(ttgl.uint32)
    c3 = (offset >> 32).to(ttgl.uint32)
    low, high = seed.to(ttgl.uint32), (seed >> 32).to(ttgl.uint32)
    # In the first round a counter's second half is a scalar still.
    low_0, high_0 = _wide(c0, 0xD2511F53)
    product = (offset & 0xFFFFFFFF).to(ttgl.uint64) * 0xCD9E8D57
    c0, c1 = (product >> 32).to(ttgl.uint32) ^ c1 ^ low, product.to(ttgl.uint32)
    c2, c3 = high_0 ^ c3 ^ high, low_0
    for _ in ttgl.static_range(9):
        low, high = low + 0x9E3779B9, high + 0xBB67AE85
        low_0, high_0 = _wide(c0, 0xD2511F53)
        low_1, high_1 = _wide(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high_1 ^ c1 ^ low, low_1, high_0 ^ c3 ^ high, low_0
    return c0, c1, c2, c3


@gluon.jit
def _behind(found, word, low, top):
    # `found`, four places down, and at bits 15 and 31 whether each half of `word` is below the
    # threshold: both halves are compared at once. With its top bit set, a half less the threshold's
    # lower 15 bits (`low`) borrows from no other, and its top bit says which is larger; the top
    # bits themselves decide before that, and `top` is all ones where the threshold's is set.
    larger = (word | 0x80008000) - low
    below = (~word & ~larger) | ((~word | ~larger) & top)
    return (found >> 4) | (below & 0x80008000)


@gluon.jit
def dropped_of_words(first, seed, offset, drop_below):
    # The bits of 32 keys each, whose four blocks begin with `first`, int64. A thread makes all four
    # calls at once: none waits for another.
    layout: ttgl.constexpr = ttgl.BlockedLayout([1, 4], [32, 1], [DRAWING_WARPS, 1], [1, 0])
    four = ttgl.expand_dims(ttgl.arange(0, 4, layout=ttgl.SliceLayout(0, layout)), 0)
    low = ((drop_below & 0x7FFF) * 0x10001).to(ttgl.uint32)
    top = (0 - (drop_below >> 15)).to(ttgl.uint32)
    first = ttgl.expand_dims(ttgl.convert_layout(first, ttgl.SliceLayout(1, layout)), 1)
    word_0, word_1, word_2, word_3 = words_of(first + four, seed, offset)
    found = ttgl.zeros_like(word_0)
    found = _behind(_behind(found, word_0, low, top), word_1, low, top)
    found = _behind(_behind(found, word_2, low, top), word_3, low, top)
    found = found >> (3 - four).to(ttgl.uint32)
    return ttgl.sum(found.to(ttgl.int32, bitcast=True), 1)


@gluon.jit
def draw(
    stage, bits_ptr, seed, offset, drop_below, head, row, col, n_queries, n_keys, n_words, padded,
    BLOCK_KEYS: ttgl.constexpr,
):  # fmt: skip
    # The bits of 128 rows from `row` on by a tile of keys from `col` on: in `stage` all rows' first
    # words, then their second ones, and so on.
    layout: ttgl.constexpr = ttgl.BlockedLayout([1], [32], [DRAWING_WARPS], [0])
    place = ttgl.arange(0, _DRAWN_WORDS, layout=layout)
    # As if it could change: else what follows from it is kept in registers, and two would spill.
    place = ttgl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [place], dtype=ttgl.int32, is_pure=False, pack=1
    )
    rows = row + place % DRAWN_ROWS
    of_row = (head.to(ttgl.int64) * n_queries + rows) * ((n_keys + 7) // 8)
    for part in ttgl.static_range(BLOCK_KEYS // 64):
        word = col // 32 + 2 * part + place // DRAWN_ROWS
        bits = dropped_of_words(of_row + 4 * word, seed, offset, drop_below)
        bits = ttgl.convert_layout(bits, layout)
        stage.slice(part * _DRAWN_WORDS, _DRAWN_WORDS).store(bits)
        if bits_ptr is not None:
            places = (head.to(ttgl.int64) * n_words + word) * padded + rows
            ttgl.store(bits_ptr + places, bits)  # whose rows are padded to whole tiles


@gluon.jit
def _of_thread(words, keys):
    # Each row's word (64,), shifted so that the keys 8 n + 2 q + e of its thread, the q-th of four,
    # stand at the bits 16 e + n.
    return ttgl.expand_dims(words, 1) >> (2 * (keys & 6)).to(ttgl.uint32)


@gluon.jit
def _keys_of(x):
    of_keys: ttgl.constexpr = ttgl.SliceLayout(0, x.type.layout)
    return ttgl.expand_dims(ttgl.arange(0, x.shape[1], layout=of_keys), 0)


@gluon.jit
def kept(weights, stage, WHICH: ttgl.constexpr):
    # A group's weights (64, BLOCK_KEYS) of 16 bits with 0 for what is dropped, by what `draw` left.
    # Of two neighbouring keys the bits are moved to the top of two halves, and those spread out.
    layout: ttgl.constexpr = weights.type.layout
    keys = _keys_of(weights)
    tops = ttgl.zeros(weights.shape, ttgl.uint32, layout=layout)
    for word in ttgl.static_range(weights.shape[1] // 32):
        of_rows = stage.slice(word * DRAWN_ROWS + WHICH * _ROWS, _ROWS)
        words = of_rows.load(ttgl.SliceLayout(1, layout)).to(ttgl.uint32, bitcast=True)
        tops = ttgl.where(keys // 32 == word, _of_thread(words, keys), tops)
    tops = tops << (15 - keys % 32 // 8).to(ttgl.uint32)
    return ttgl.inline_asm_elementwise(
        "{ .reg .b32 m; prmt.b32 m, $2, 0, 0xbb99; not.b32 m, m; and.b32 $0, $1, m; }",
        "=r,r,r,r", [weights, tops], dtype=weights.dtype, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def kept_factors(x, first_bits, second_bits):
    # 1.0 where a weight is kept, else 0.0, as x (64, 64): a bit times the right number is 1.0. With
    # an infinite dP 0.0 gives NaN, as it does by the formula.
    keys = _keys_of(x)
    bit = keys % 2 * 16 + keys % 32 // 8
    first = (~first_bits).to(ttgl.uint32, bitcast=True)
    second = (~second_bits).to(ttgl.uint32, bitcast=True)
    kept_bits = ttgl.where(keys < 32, _of_thread(first, keys), _of_thread(second, keys))
    return ttgl.inline_asm_elementwise(
        "{ .reg .b32 t; and.b32 t, $1, $2; mul.lo.u32 t, t, $3; mov.b32 $0, t; }",
        "=f,r,r,r", [kept_bits, 1 << bit, (bit * 0 + 0x3F800000) >> bit],
        dtype=ttgl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def signed(p, bits, keys):
    # Weights (64 keys, N queries), negative where they are dropped: a sign costs no register, where
    # bits kept until dP is there would. `bits` (2, N) has a word of 32 keys for each query, `keys`
    # are 0 to 63, along the first dimension of p.
    layout: ttgl.constexpr = p.type.layout
    nothing = ttgl.reshape(ttgl.zeros(p.shape, ttgl.int32, layout=layout), [2, 32, p.shape[1]])
    of_words: ttgl.constexpr = ttgl.SliceLayout(1, nothing.type.layout)
    words = ttgl.reshape(ttgl.expand_dims(bits.load(of_words), 1) | nothing, p.shape)
    bit = keys % 2 * 16 + keys % 8 // 2 * 4 + keys % 32 // 8
    return ttgl.inline_asm_elementwise(
        "{ .reg .b32 t, s; mul.lo.u32 t, $2, $3; and.b32 t, t, 0x80000000; mov.b32 s, $1; "
        "xor.b32 s, s, t; mov.b32 $0, s; }",
        "=f,f,r,r", [p, ttgl.convert_layout(words, layout), ttgl.expand_dims(1 << (31 - bit), 1)],
        dtype=ttgl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.constexpr_function
def _positive_instruction(dtype):
    name = "bf16x2" if dtype == ttgl.bfloat16 else "f16x2"
    return f"cvt.rn.relu.{name}.f32 $0, $2, $1;"


@gluon.jit
def kept_of_signed(p, like):
    # In `like`'s 16 bits, 0 for what is negative, by the instruction that rounds anyway; NaN stays.
    instruction: ttgl.constexpr = _positive_instruction(like.dtype)
    return ttgl.inline_asm_elementwise(
        instruction, "=r,f,f", [p], dtype=like.dtype, is_pure=True, pack=2
    )


@gluon.jit
def factors_of_signed(p):
    # 1.0 for what is positive, 0.0 for what is not.
    return ttgl.inline_asm_elementwise(
        "set.gt.f32.f32 $0, $1, 0f00000000;", "=f,f", [p],
        dtype=ttgl.float32, is_pure=True, pack=1,
    )  # fmt: skip
