"""What a query sees in the attention written for Hopper: causal, lengths, padding.

A weight of 0 times what stands behind a length may be 0 · inf, which is NaN. So where sequences
have lengths, tiles of keys are laid from the last key that a tile of queries sees to the front: no
key behind it is read, and where the first tile begins before the first key the copy engine writes
zeros. That tile goes first, and the others from the last key on.

A padding mask may have holes, and rows of v there are in the tile. Two warps, `clean`, stand
between the copy engine and the products: they write zeros over such rows, and let tiles without any
pass.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from kernels.ops.shared.gluon import meet

CLEANING_WARPS = ttgl.constexpr(2)
# What a masked score becomes: finite, so that a row of nothing else gives no NaN, and a power of
# two, so that the fused multiply-add of the exponent gives exactly 0 there and never overflows. The
# first tile with a real score makes the factor of such sums 0.
MASKED = ttgl.constexpr(-(2.0**100))


@gluon.jit
def keys_seen(end, shift, n_keys, MASK: ttgl.constexpr):
    # How many keys the queries before `end` may see: query i sees key i + shift and those before.
    seen = n_keys
    if MASK:
        seen = ttgl.maximum(ttgl.minimum(n_keys, end + shift), 0)
    return seen


@gluon.jit
def masked(scores, row, col, n_keys, shift, BLOCK_KEYS: ttgl.constexpr, RAGGED: ttgl.constexpr):
    # Query i sees key i + shift and those before it, of the keys there are.
    layout: ttgl.constexpr = scores.type.layout
    rows = row + ttgl.arange(0, scores.shape[0], layout=ttgl.SliceLayout(1, layout))
    cols = col + ttgl.arange(0, BLOCK_KEYS, layout=ttgl.SliceLayout(0, layout))
    last = ttgl.minimum(rows + shift, n_keys - 1)
    seen = ttgl.expand_dims(last, 1) >= ttgl.expand_dims(cols, 0)
    if RAGGED:  # the tile at the front begins before the first key
        seen = seen & (ttgl.expand_dims(cols, 0) >= 0)
    return ttgl.where(seen, scores, MASKED)


@gluon.jit
def keys_of_tile(first_row, end, b, q_lengths_ptr, k_lengths_ptr, n_queries, n_keys,
                 CAUSAL: ttgl.constexpr):  # fmt: skip
    # How many keys the queries from `first_row` to before `end` may see of sequence b, how many
    # queries it has, and its shift: query i sees key i + shift and those before.
    n_q, n_k = n_queries, n_keys
    if q_lengths_ptr is not None:
        n_q = ttgl.minimum(ttgl.load(q_lengths_ptr + b).to(ttgl.int32), n_queries)
    if k_lengths_ptr is not None:
        n_k = ttgl.minimum(ttgl.load(k_lengths_ptr + b).to(ttgl.int32), n_keys)
    shift = n_k
    if CAUSAL:
        shift = n_k - n_q
    seen = ttgl.maximum(ttgl.minimum(n_k, ttgl.minimum(end, n_q) + shift), 0)
    return ttgl.where(first_row < n_q, seen, 0), n_q, shift


@gluon.jit
def first_key(j, n_blocks, seen, BLOCK_KEYS: ttgl.constexpr):
    # Where the tile of keys begins that has j more behind it: the one at the front is the first.
    turn = n_blocks - 1 - j
    return seen - ttgl.where(turn == 0, n_blocks, turn) * BLOCK_KEYS


@gluon.jit
def write_zeros(v, words, of_values: ttgl.constexpr):
    # Over the rows of a tile of v that are padding, eight at a time: few registers, and whole atoms
    # of the swizzle. Row r of each eight has the bits 2 i + r % 2 of word r // 2.
    of_rows: ttgl.constexpr = ttgl.SliceLayout(1, of_values)
    pairs = ttgl.reshape(ttgl.arange(0, 8, layout=of_rows), [4, 2])
    mine = ttgl.expand_dims(words.load(ttgl.SliceLayout(1, pairs.type.layout)), 1)
    bits = ttgl.convert_layout(ttgl.reshape(mine >> (pairs % 2), [8]), of_rows)
    for i in ttgl.static_range(v.shape[0] // 8):
        there = ttgl.expand_dims((bits >> (2 * i)) & 1, 1) == 0
        for part in ttgl.static_range(v.shape[1] // 64):
            rows = v.slice(i * 8, 8).slice(part * 64, 64, 1)
            rows.store(ttgl.where(there, rows.load(of_values), 0.0))


@gluon.jit
def without_padding(scores, words):
    # Scores of padding become MASKED. A thread holds two neighbouring keys of each eight: the bits
    # of its keys are one word of four.
    layout: ttgl.constexpr = ttgl.SliceLayout(0, scores.type.layout)
    keys = ttgl.arange(0, scores.shape[1], layout=layout)
    keys = ttgl.reshape(keys, [scores.shape[1] // 8, 4, 2])
    bits = keys // 8 * 2 + keys % 2
    of_words: ttgl.constexpr = ttgl.SliceLayout(0, ttgl.SliceLayout(2, keys.type.layout))
    mine = ttgl.expand_dims(ttgl.expand_dims(words.load(of_words), 0), 2)
    there = ttgl.reshape((mine >> bits) & 1, [scores.shape[1]]) == 0
    there = ttgl.convert_layout(there, layout)
    return ttgl.where(ttgl.expand_dims(there, 0), scores, MASKED)


@gluon.jit
def words_of_padding(of_tile, padding_col_stride, col, BLOCK_KEYS: ttgl.constexpr):
    # A bit a key, as `without_padding` takes them.
    lanes: ttgl.constexpr = ttgl.BlockedLayout(
        [1, 1, 2], [8 // CLEANING_WARPS * 2, 4, 1], [CLEANING_WARPS, 1, 1], [2, 1, 0]
    )
    of_k: ttgl.constexpr = ttgl.SliceLayout(1, ttgl.SliceLayout(2, lanes))
    of_lane: ttgl.constexpr = ttgl.SliceLayout(0, ttgl.SliceLayout(2, lanes))
    of_e: ttgl.constexpr = ttgl.SliceLayout(0, ttgl.SliceLayout(1, lanes))
    eight = ttgl.arange(0, BLOCK_KEYS // 8, layout=of_k)[:, None, None]
    lane = ttgl.arange(0, 4, layout=of_lane)[None, :, None]
    e = ttgl.arange(0, 2, layout=of_e)[None, None, :]
    keys = eight * 8 + lane * 2 + e
    padded = ttgl.load(of_tile + keys * padding_col_stride, mask=keys >= -col, other=0)
    return ttgl.sum(ttgl.sum(padded.to(ttgl.int32) << (eight * 2 + e), 2), 0)


@gluon.jit
def clean(
    v_stages, words, v_raw, v_full, v_empty, words_full, padding_ptr, padding_batch_stride,
    padding_col_stride, q_lengths_ptr, k_lengths_ptr, n_queries, n_keys, n_heads, table_ptr,
    table_width,
    GROUP_ROWS: ttgl.constexpr, GROUPS: ttgl.constexpr, BLOCK_KEYS: ttgl.constexpr,
    D: ttgl.constexpr, STAGES: ttgl.constexpr, CAUSAL: ttgl.constexpr,
):  # fmt: skip
    # Tiles of v as they come from the copy engine (`v_raw`), handed on (`v_full`) without padding.
    of_values: ttgl.constexpr = ttgl.BlockedLayout([1, 8], [4, 8], [CLEANING_WARPS, 1], [1, 0])
    step = 0
    row_of_table = table_ptr + ttgl.program_id(0) * table_width
    n_tiles = ttgl.load(row_of_table)
    for i in range(n_tiles):
        code = ttgl.load(row_of_table + i + 1)
        head, tile = code >> 16, code & 0xFFFF
        b = head // n_heads
        first_row = tile * GROUP_ROWS * GROUPS
        end = first_row + GROUP_ROWS * GROUPS
        seen, _, _ = keys_of_tile(
            first_row, end, b, q_lengths_ptr, k_lengths_ptr, n_queries, n_keys, CAUSAL
        )
        padding = padding_ptr + b.to(ttgl.int64) * padding_batch_stride
        n_blocks = ttgl.maximum(ttgl.cdiv(seen, BLOCK_KEYS), 1)
        for j in range(n_blocks - 1, -1, -1):
            stage, parity = step % STAGES, step // STAGES & 1
            col = first_key(j, n_blocks, seen, BLOCK_KEYS)
            of_tile = padding + col.to(ttgl.int64) * padding_col_stride
            found = words_of_padding(of_tile, padding_col_stride, col, BLOCK_KEYS)
            some = ttgl.max((found != 0).to(ttgl.int32), 0)
            mbarrier.wait(v_empty.index(stage), parity ^ 1)  # the words before are done with too
            words.index(stage).store(found)
            meet()
            mbarrier.arrive(words_full.index(stage), count=1)
            mbarrier.wait(v_raw.index(stage), parity)
            if some > 0:
                v = v_stages.index(stage).reshape([BLOCK_KEYS, D])
                write_zeros(v, words.index(stage), of_values)
            fence_async_shared()  # the tensor cores read what the warps stored
            meet()
            mbarrier.arrive(v_full.index(stage), count=1)
            step += 1
