"""Dropout's numbers in the attention written for Hopper: Philox where the weights are.

The numbers are those of `kernels/philox.py`, eight neighbouring keys a call. In the layout that
tensor cores leave weights in, four threads hold a row, each two of every eight neighbours, that is
one word of each call. So each of the four makes the calls of other blocks, whole, and then they
exchange words: a call for eight elements, and within a warp.

    calls   thread q of the four: blocks q, q + 4, …, words 0 to 3 of each
    then    thread q of the four: word q of blocks 0, 1, 2, …
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl

BLOCK_KEYS = ttgl.constexpr(64)  # of a tile
_ROWS = ttgl.constexpr(64)  # of four warps
# Where rows go, as those of the products: lanes 4 and on, a second row of a thread, then warps.
_LANES = ttgl.constexpr([[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]])
_WARPS = ttgl.constexpr([[16, 0], [32, 0]])
OF_CALLS = ttgl.constexpr(
    ttgl.DistributedLinearLayout([[8, 0], [0, 4]], _LANES.value, _WARPS.value, [], [64, 8])
)
OF_WORDS = ttgl.constexpr(
    ttgl.DistributedLinearLayout(
        [[8, 0], [0, 4], [0, 8], [0, 16]], _LANES.value, _WARPS.value, [], [64, 32]
    )
)


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
def drawn(seed, offset, head, row, col, n_queries, n_keys_8):
    # The words of 64 rows from `row` on by 64 keys from `col` on, as `OF_WORDS` lays them.
    rows = row + ttgl.arange(0, _ROWS, layout=ttgl.SliceLayout(1, OF_CALLS))
    blocks = ttgl.arange(0, BLOCK_KEYS // 8, layout=ttgl.SliceLayout(0, OF_CALLS))
    first = (head.to(ttgl.int64) * n_queries + rows) * n_keys_8 + col
    block = ttgl.expand_dims(first >> 3, 1) + ttgl.expand_dims(blocks, 0)
    word_0, word_1, word_2, word_3 = words_of(block, seed, offset)
    words = ttgl.join(ttgl.join(word_0, word_1), ttgl.join(word_2, word_3))
    words = ttgl.reshape(ttgl.permute(words, (0, 1, 3, 2)), [_ROWS, BLOCK_KEYS // 2])
    return ttgl.convert_layout(words, OF_WORDS)


@gluon.jit
def kept(weights, words, drop_below):
    # Weights (64, 64) with 0 for what is dropped. A number stands in the upper half of 32 bits:
    # what is below it changes no comparison with one whose lower half is 0.
    numbers = ttgl.reshape(ttgl.join(words << 16, words), [_ROWS, BLOCK_KEYS])
    numbers = ttgl.convert_layout(numbers, weights.type.layout)
    return ttgl.where(numbers >= drop_below.to(ttgl.uint32) << 16, weights, 0.0)
