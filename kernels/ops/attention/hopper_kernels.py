"""Attention forward written by hand for Hopper, in Gluon, Triton's lower level.

    o = softmax(scale · q kᵀ) v,     q (B, H, Sq, D), k and v (B, Hk, Sk, D), o (B, H, Sq, D)

One persistent kernel for D = 64 and 128, 16 bits in and out. A program has these kinds of warps:

- one warp, `produce`, asks the copy engine (TMA) for tiles of q, k and v, as many ahead as there
  are stages, or with dropout eight, which draw too (`hopper_producer`);
- two groups of four warps, or three for D = 64 without padding and dropout: each `consume`s keys
  for 64 queries of its own, whose scores, weights and sums stay in its registers.

Within a group the scores of the next tile of keys (q kᵀ) and the sums of this one (weights · v) are
asked of the tensor cores together, and the softmax of the next tile is computed meanwhile. Between
groups barriers of the hardware make them take turns at asking: while one's products run, another
does its exponentials.

Tiles of queries come from a table that the host made (`hopper.schedule`), longest first. Keys run
from the last to the first, so that a causal group meets its diagonal at once, and the tiles that
need no mask follow in one loop. Lengths and padding, RAGGED, stand in `hopper_masks.py`, dropout's
bits in `hopper_dropout.py`.

Sources: Dao and others, "FlashAttention" (arXiv:2205.14135); Shah and others, "FlashAttention-3"
(arXiv:2407.08608); NVIDIA, "PTX ISA".
"""

from __future__ import annotations

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.ops.attention.hopper_dropout import DRAWING_WARPS, DRAWN_ROWS, kept
from kernels.ops.attention.hopper_masks import (
    CLEANING_WARPS,
    MASKED,
    clean,
    first_key,
    keys_of_tile,
    keys_seen,
    masked,
    without_padding,
)
from kernels.ops.attention.hopper_producer import GROUP_ROWS, produce
from kernels.ops.shared.gluon import FREE_BARRIER, meet, named_barrier

LN2 = ttgl.constexpr(math.log(2.0))
SIZES = [
    *("drop_below", "n_words", "padded", "shift", "n_queries", "n_keys", "n_heads", "heads_a_key"),
    "table_width",
]


@gluon.jit
def largest_of_rows(scores):
    # First over the registers of a thread, in four chains, then over the four lanes of a row.
    folded = ttgl.max(ttgl.reshape(scores, [GROUP_ROWS, scores.shape[1] // 8, 8]), 1)
    return ttgl.convert_layout(ttgl.max(folded, 1), ttgl.SliceLayout(1, scores.type.layout))


@gluon.jit
def sums_of_lanes(weights):
    # (64, 8): the part of a row's sum that each lane holds. Lanes are added up once a tile.
    return ttgl.sum(ttgl.reshape(weights, [GROUP_ROWS, weights.shape[1] // 8, 8]), 1)


@gluon.jit
def softmax_step(scores, largest, sums, scale, bits, WHICH: ttgl.constexpr, dtype: ttgl.constexpr,
                 operand: ttgl.constexpr):  # fmt: skip
    # One step of the online softmax. Scores stay as they come from the product: the scale, times
    # log2 e, is part of the exponent's multiply-add.
    new = ttgl.maximum(largest, largest_of_rows(scores))
    shift = new * scale
    factor = ttgl.exp2(largest * scale - shift)
    weights = ttgl.exp2(scores * scale - ttgl.expand_dims(shift, 1))
    of_sums = ttgl.convert_layout(factor, ttgl.SliceLayout(1, sums.type.layout))
    sums = sums * ttgl.expand_dims(of_sums, 1) + sums_of_lanes(weights)
    weights = weights.to(dtype)
    if bits is not None:  # what a dropout drops is dropped from the output alone
        weights = kept(weights, bits, WHICH)
    weights = ttgl.convert_layout(weights, operand)
    return weights, new, sums, factor


@gluon.jit
def step_of(
    q, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step, weights, out, largest, sums, row,
    col, n_keys, shift, scale, words, words_full, bits, bits_full,
    WHICH: ttgl.constexpr, GROUPS: ttgl.constexpr, BLOCK_KEYS: ttgl.constexpr, D: ttgl.constexpr,
    STAGES: ttgl.constexpr, MASK: ttgl.constexpr, RAGGED: ttgl.constexpr,
    of_scores: ttgl.constexpr, operand: ttgl.constexpr, of_out: ttgl.constexpr,
):  # fmt: skip
    # The scores of tile `step` beside the sums of the tile before; then the softmax of `step`.
    stage, parity = step % STAGES, step // STAGES & 1
    before, parity_before = (step - 1) % STAGES, (step - 1) // STAGES & 1
    mbarrier.wait(k_full.index(stage), parity)
    named_barrier("sync", FREE_BARRIER + WHICH, 256)  # this group's turn to ask
    scores = ttgl.zeros([GROUP_ROWS, BLOCK_KEYS], ttgl.float32, layout=of_scores)
    k = k_stages.index(stage).reshape([BLOCK_KEYS, D]).permute((1, 0))
    scores = warpgroup_mma(q, k, scores, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(before), parity_before)
    v = v_stages.index(before).reshape([BLOCK_KEYS, D])
    out = warpgroup_mma(weights, v, out, is_async=True)
    named_barrier("arrive", FREE_BARRIER + (WHICH + 1) % GROUPS, 256)  # the next group's
    own = None
    if bits is not None:
        own = bits.index(stage)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(k_empty.index(stage), count=1)
    if MASK:
        scores = masked(scores, row, col, n_keys, shift, BLOCK_KEYS, RAGGED)
    if words is not None:
        mbarrier.wait(words_full.index(stage), parity)
        scores = without_padding(scores, words.index(stage))
    if bits is not None:
        mbarrier.wait(bits_full.index(stage), parity)
    new_weights, largest, sums, factor = softmax_step(
        scores, largest, sums, scale, own, WHICH, weights.dtype, operand
    )
    out, weights = warpgroup_mma_wait(0, deps=[out, weights])
    mbarrier.arrive(v_empty.index(before), count=1)
    of_rows = ttgl.convert_layout(factor, ttgl.SliceLayout(1, of_out))
    out = out * ttgl.expand_dims(of_rows, 1)
    return new_weights, out, largest, sums


@gluon.jit
def consume(
    WHICH: ttgl.constexpr, o_desc, lse_ptr, q_tiles, k_stages, v_stages, o_tiles, q_full, q_empty,
    k_full, k_empty, v_full, v_empty, words, words_full, bits, bits_full, q_lengths_ptr,
    k_lengths_ptr, drop_scale, shift, n_queries, n_keys, n_heads, table_ptr,
    table_width, scale, GROUPS: ttgl.constexpr,
    BLOCK_KEYS: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr, MASK: ttgl.constexpr,
    CAUSAL: ttgl.constexpr, RAGGED: ttgl.constexpr, HAS_LSE: ttgl.constexpr,
):  # fmt: skip
    dtype: ttgl.constexpr = o_desc.dtype
    of_scores: ttgl.constexpr = ttgl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    of_out: ttgl.constexpr = ttgl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: ttgl.constexpr = ttgl.DotOperandLayout(0, of_out, 2)
    of_rows: ttgl.constexpr = ttgl.SliceLayout(1, of_scores)
    q = q_tiles.index(WHICH).reshape([GROUP_ROWS, D])
    if WHICH == GROUPS - 1:
        named_barrier("arrive", FREE_BARRIER, 256)  # group 0 goes first
    step = 0
    row_of_table = table_ptr + ttgl.program_id(0) * table_width
    n_tiles = ttgl.load(row_of_table)
    code = ttgl.load(row_of_table + 1)
    for i in range(n_tiles):
        head, tile = code >> 16, code & 0xFFFF
        code = ttgl.load(row_of_table + i + 2)
        first_row = tile * GROUP_ROWS * GROUPS
        row = first_row + WHICH * GROUP_ROWS
        b, h = head // n_heads, head % n_heads
        end = first_row + GROUP_ROWS * GROUPS
        seen = keys_seen(end, shift, n_keys, MASK)
        if RAGGED:
            seen, n_q, shift = keys_of_tile(
                first_row, end, b, q_lengths_ptr, k_lengths_ptr, n_queries, n_keys, CAUSAL
            )
        n_blocks = ttgl.maximum(ttgl.cdiv(seen, BLOCK_KEYS), 1)
        # The last tile of keys first: there are no sums to be asked for beside its scores yet.
        stage, parity = step % STAGES, step // STAGES & 1
        mbarrier.wait(q_full.index(WHICH), i & 1)
        mbarrier.wait(k_full.index(stage), parity)
        scores = ttgl.zeros([GROUP_ROWS, BLOCK_KEYS], ttgl.float32, layout=of_scores)
        k = k_stages.index(stage).reshape([BLOCK_KEYS, D]).permute((1, 0))
        scores = warpgroup_mma(q, k, scores, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_empty.index(stage), count=1)
        col = (n_blocks - 1) * BLOCK_KEYS
        if RAGGED:
            col = first_key(n_blocks - 1, n_blocks, seen, BLOCK_KEYS)
        if MASK:
            scores = masked(scores, row, col, n_keys, shift, BLOCK_KEYS, RAGGED)
        if words is not None:
            mbarrier.wait(words_full.index(stage), parity)
            scores = without_padding(scores, words.index(stage))
        largest = largest_of_rows(scores)
        weights = ttgl.exp2(scores * scale - ttgl.expand_dims(largest * scale, 1))
        sums = sums_of_lanes(weights)
        weights = weights.to(dtype)
        if bits is not None:
            mbarrier.wait(bits_full.index(stage), parity)
            weights = kept(weights, bits.index(stage), WHICH)
        weights = ttgl.convert_layout(weights, operand)
        out = ttgl.zeros([GROUP_ROWS, D], ttgl.float32, layout=of_out)
        step += 1
        rest = n_blocks - 1
        if MASK:
            # Tiles before this one lie below the diagonal, and among the keys, as a whole.
            below = ttgl.maximum(ttgl.minimum(row + 1 + shift, n_keys), 0) // BLOCK_KEYS
            if RAGGED:
                above = ttgl.cdiv(ttgl.maximum(seen - (row + 1 + shift), 0), BLOCK_KEYS)
                below = ttgl.maximum(n_blocks - 1 - above, 0)
            for j in range(n_blocks - 2, below - 1, -1):
                col = j * BLOCK_KEYS
                if RAGGED:
                    col = first_key(j, n_blocks, seen, BLOCK_KEYS)
                weights, out, largest, sums = step_of(
                    q, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step, weights, out,
                    largest, sums, row, col, n_keys, shift, scale, words, words_full, bits,
                    bits_full, WHICH, GROUPS, BLOCK_KEYS, D, STAGES, True, RAGGED, of_scores,
                    operand, of_out,
                )  # fmt: skip
                step += 1
            rest = ttgl.minimum(below, n_blocks - 1)
        for j in range(rest):
            weights, out, largest, sums = step_of(
                q, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step, weights, out,
                largest, sums, row, (rest - 1 - j) * BLOCK_KEYS, n_keys, shift, scale, words,
                words_full, bits, bits_full, WHICH, GROUPS, BLOCK_KEYS, D, STAGES, False, RAGGED,
                of_scores, operand, of_out,
            )  # fmt: skip
            step += 1
        mbarrier.arrive(q_empty.index(WHICH), count=1)
        before, parity = (step - 1) % STAGES, (step - 1) // STAGES & 1
        mbarrier.wait(v_full.index(before), parity)
        v = v_stages.index(before).reshape([BLOCK_KEYS, D])
        out = warpgroup_mma(weights, v, out, is_async=True)
        total = ttgl.convert_layout(ttgl.sum(sums, 1), of_rows)
        inverse = 1.0 / total
        if bits is not None:
            inverse = drop_scale / total
        if MASK:  # a row that sees no key gives zeros, and the logarithm of 0
            inverse = ttgl.where(largest == MASKED, 0.0, inverse)
        inverse = ttgl.convert_layout(inverse, ttgl.SliceLayout(1, of_out))
        out, weights = warpgroup_mma_wait(0, deps=[out, weights])
        if bits is not None:
            meet()  # every warp has read its bits, which other ones take the place of
        mbarrier.arrive(v_empty.index(before), count=1)
        out = out * ttgl.expand_dims(inverse, 1)
        if q_lengths_ptr is not None:
            rows = row + ttgl.arange(0, GROUP_ROWS, layout=ttgl.SliceLayout(1, of_out))
            out = ttgl.where(ttgl.expand_dims(rows < n_q, 1), out, 0.0)
        tma.store_wait(0)  # what left from the buffer before has been read
        meet()
        o_tiles.index(WHICH).reshape([GROUP_ROWS, D]).store(out.to(dtype))
        fence_async_shared()  # the copy engine reads what the warps stored
        meet()
        tma.async_copy_shared_to_global(o_desc, [b, h, row, 0], o_tiles.index(WHICH))
        if HAS_LSE:
            lse = largest * (scale * LN2) + ttgl.log(total)
            if MASK:
                lse = ttgl.where(largest == MASKED, -float("inf"), lse)
            rows = row + ttgl.arange(0, GROUP_ROWS, layout=of_rows)
            if q_lengths_ptr is not None:
                lse = ttgl.where(rows < n_q, lse, -float("inf"))
            of_head = lse_ptr + head.to(ttgl.int64) * n_queries
            ttgl.store(of_head + rows, lse, mask=rows < n_queries)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES)  # one binary for all shapes
def hopper_attention(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, q_lengths_ptr, k_lengths_ptr, padding_ptr,
    padding_batch_stride, padding_col_stride, seed_offset_ptr, drop_below, drop_scale, bits_ptr,
    n_words, padded, shift, n_queries, n_keys, n_heads, heads_a_key, table_ptr, table_width, scale,
    GROUPS: ttgl.constexpr, BLOCK_KEYS: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr,
    MASK: ttgl.constexpr, CAUSAL: ttgl.constexpr, RAGGED: ttgl.constexpr, HAS_LSE: ttgl.constexpr,
    REGISTERS: ttgl.constexpr, OF_PRODUCER: ttgl.constexpr,
):  # fmt: skip
    # A program an SM, which takes the tiles of queries in its row of the table. `scale` has the
    # factor log2 e. With MASK, query i sees key i + shift and those before: where attention isn't
    # causal but the keys end within a tile, all of them. `bits_ptr`, if there, gets what a dropout
    # drops.
    dtype: ttgl.constexpr = q_desc.dtype
    q_tiles = ttgl.allocate_shared_memory(dtype, [GROUPS, 1, 1, GROUP_ROWS, D], q_desc.layout)
    k_stages = ttgl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_KEYS, D], k_desc.layout)
    v_stages = ttgl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_KEYS, D], v_desc.layout)
    o_tiles = ttgl.allocate_shared_memory(dtype, [GROUPS, 1, 1, GROUP_ROWS, D], o_desc.layout)
    layout: ttgl.constexpr = mbarrier.MBarrierLayout()
    q_full = ttgl.allocate_shared_memory(ttgl.int64, [GROUPS, 1], layout)
    q_empty = ttgl.allocate_shared_memory(ttgl.int64, [GROUPS, 1], layout)
    k_full = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    k_empty = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    v_full = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    v_empty = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    for group in ttgl.static_range(GROUPS):
        mbarrier.init(q_full.index(group), count=1)
        mbarrier.init(q_empty.index(group), count=1)
    for stage in ttgl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=GROUPS)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=GROUPS)
    fence_async_shared()
    # The tuples stand here: given a name first, their constants would become tensors.
    words, words_full = None, None
    if padding_ptr is not None:
        words = ttgl.allocate_shared_memory(
            ttgl.int32, [STAGES, 4], ttgl.SwizzledSharedLayout(1, 1, 1, order=[0])
        )
        words_full = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
        v_raw = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
        for stage in ttgl.static_range(STAGES):
            mbarrier.init(words_full.index(stage), count=1)
            mbarrier.init(v_raw.index(stage), count=1)
        fence_async_shared()
    bits, bits_full = None, None
    if seed_offset_ptr is not None:
        ttgl.static_assert(GROUPS * GROUP_ROWS == DRAWN_ROWS and BLOCK_KEYS % 64 == 0)
        ttgl.static_assert(not RAGGED, "bits lie by whole tiles of keys")
        bits = ttgl.allocate_shared_memory(
            ttgl.int32,
            [STAGES, BLOCK_KEYS // 32 * DRAWN_ROWS],
            ttgl.SwizzledSharedLayout(1, 1, 1, [0]),
        )
        bits_full = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
        for stage in ttgl.static_range(STAGES):
            mbarrier.init(bits_full.index(stage), count=1)
        fence_async_shared()
    producing: ttgl.constexpr = 1 if seed_offset_ptr is None else DRAWING_WARPS
    if GROUPS == 2 and padding_ptr is None:
        ttgl.warp_specialize([
            (consume, (0, o_desc, lse_ptr, q_tiles, k_stages, v_stages, o_tiles, q_full, q_empty,
                       k_full, k_empty, v_full, v_empty, words, words_full, bits, bits_full,
                       q_lengths_ptr, k_lengths_ptr, drop_scale, shift, n_queries, n_keys,
                       n_heads, table_ptr, table_width, scale, GROUPS, BLOCK_KEYS, D, STAGES, MASK,
                       CAUSAL, RAGGED, HAS_LSE)),
            (consume, (1, o_desc, lse_ptr, q_tiles, k_stages, v_stages, o_tiles, q_full, q_empty,
                       k_full, k_empty, v_full, v_empty, words, words_full, bits, bits_full,
                       q_lengths_ptr, k_lengths_ptr, drop_scale, shift, n_queries, n_keys,
                       n_heads, table_ptr, table_width, scale, GROUPS, BLOCK_KEYS, D, STAGES, MASK,
                       CAUSAL, RAGGED, HAS_LSE)),
            (produce, (q_desc, k_desc, v_desc, q_tiles, k_stages, v_stages, q_full, q_empty, k_full,
                       k_empty, v_full, v_empty, bits, bits_full, bits_ptr, seed_offset_ptr,
                       drop_below, n_words, padded, q_lengths_ptr, k_lengths_ptr, shift, n_queries,
                       n_keys, n_heads, heads_a_key, table_ptr, table_width, GROUPS, BLOCK_KEYS, D,
                       STAGES, MASK, CAUSAL, RAGGED)),
        ], [4, producing], [REGISTERS, OF_PRODUCER])  # fmt: skip
    elif padding_ptr is None:
        ttgl.warp_specialize([
            (consume, (0, o_desc, lse_ptr, q_tiles, k_stages, v_stages, o_tiles, q_full, q_empty,
                       k_full, k_empty, v_full, v_empty, words, words_full, bits, bits_full,
                       q_lengths_ptr, k_lengths_ptr, drop_scale, shift, n_queries, n_keys,
                       n_heads, table_ptr, table_width, scale, GROUPS, BLOCK_KEYS, D, STAGES, MASK,
                       CAUSAL, RAGGED, HAS_LSE)),
            (consume, (1, o_desc, lse_ptr, q_tiles, k_stages, v_stages, o_tiles, q_full, q_empty,
                       k_full, k_empty, v_full, v_empty, words, words_full, bits, bits_full,
                       q_lengths_ptr, k_lengths_ptr, drop_scale, shift, n_queries, n_keys,
                       n_heads, table_ptr, table_width, scale, GROUPS, BLOCK_KEYS, D, STAGES, MASK,
                       CAUSAL, RAGGED, HAS_LSE)),
            (consume, (2, o_desc, lse_ptr, q_tiles, k_stages, v_stages, o_tiles, q_full, q_empty,
                       k_full, k_empty, v_full, v_empty, words, words_full, bits, bits_full,
                       q_lengths_ptr, k_lengths_ptr, drop_scale, shift, n_queries, n_keys,
                       n_heads, table_ptr, table_width, scale, GROUPS, BLOCK_KEYS, D, STAGES, MASK,
                       CAUSAL, RAGGED, HAS_LSE)),
            (produce, (q_desc, k_desc, v_desc, q_tiles, k_stages, v_stages, q_full, q_empty, k_full,
                       k_empty, v_full, v_empty, bits, bits_full, bits_ptr, seed_offset_ptr,
                       drop_below, n_words, padded, q_lengths_ptr, k_lengths_ptr, shift, n_queries,
                       n_keys, n_heads, heads_a_key, table_ptr, table_width, GROUPS, BLOCK_KEYS, D,
                       STAGES, MASK, CAUSAL, RAGGED)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, OF_PRODUCER])  # fmt: skip
    else:  # in two groups
        ttgl.warp_specialize([
            (consume, (0, o_desc, lse_ptr, q_tiles, k_stages, v_stages, o_tiles, q_full, q_empty,
                       k_full, k_empty, v_full, v_empty, words, words_full, bits, bits_full,
                       q_lengths_ptr, k_lengths_ptr, drop_scale, shift, n_queries, n_keys,
                       n_heads, table_ptr, table_width, scale, GROUPS, BLOCK_KEYS, D, STAGES, MASK,
                       CAUSAL, RAGGED, HAS_LSE)),
            (consume, (1, o_desc, lse_ptr, q_tiles, k_stages, v_stages, o_tiles, q_full, q_empty,
                       k_full, k_empty, v_full, v_empty, words, words_full, bits, bits_full,
                       q_lengths_ptr, k_lengths_ptr, drop_scale, shift, n_queries, n_keys,
                       n_heads, table_ptr, table_width, scale, GROUPS, BLOCK_KEYS, D, STAGES, MASK,
                       CAUSAL, RAGGED, HAS_LSE)),
            (produce, (q_desc, k_desc, v_desc, q_tiles, k_stages, v_stages, q_full, q_empty, k_full,
                       k_empty, v_raw, v_empty, bits, bits_full, bits_ptr, seed_offset_ptr,
                       drop_below, n_words, padded, q_lengths_ptr, k_lengths_ptr, shift, n_queries,
                       n_keys, n_heads, heads_a_key, table_ptr, table_width, GROUPS, BLOCK_KEYS, D,
                       STAGES, MASK, CAUSAL, RAGGED)),
            (clean, (v_stages, words, v_raw, v_full, v_empty, words_full, padding_ptr,
                     padding_batch_stride, padding_col_stride, q_lengths_ptr, k_lengths_ptr,
                     n_queries, n_keys, n_heads, table_ptr, table_width, GROUP_ROWS, GROUPS,
                     BLOCK_KEYS, D, STAGES, CAUSAL)),
        ], [4, 1, CLEANING_WARPS], [REGISTERS, OF_PRODUCER, OF_PRODUCER])  # fmt: skip
