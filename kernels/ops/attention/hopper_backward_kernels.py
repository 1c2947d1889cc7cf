"""Attention backward written by hand for Hopper, in Gluon: dK and dV, and dQ, without atomics.

Two persistent kernels for D = 64 and 128, 16 bits in and out. Each has two groups of four warps,
which `consume` for 64 rows of their own, and one warp, `produce`, that asks the copy engine (TMA):

- `hopper_dkdv` keeps 128 keys while queries pass by in tiles. All is transposed, Sᵀ = K · Qᵀ, so
  that the weights and dS are in registers what the tensor cores take as a left operand;
- `hopper_dq` keeps 128 queries while keys pass by, from the last to the first, as in the forward.

A group asks for dP, makes the weights meanwhile, asks for dV, makes dS, asks for dK. With D = 64
(HELD) the left operands of S and dP, which stay, are in registers: a product of 64 rows and 64
columns with both operands in shared memory takes as long to read them as to multiply. And the next
tile's S is asked for together with dP. With D = 128 registers are short, and it comes behind dK.

dQ's kernel needs nothing of dK's and dV's: its programs start where theirs have ended, one by one,
and so the last tiles of the one and the first of the other fill the card together.

`attention_rows` goes before both: delta = Σ o · do − dL of each row, and its log-sum-exp in units
of log 2. So does `dropped_bits_kernels` with dropout, if no forward left bits. Rows are padded to
whole tiles, with an L of +∞: their weights are 0, as those of a row that sees no key.

Sources: as `hopper_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.ops.attention.forward_kernels import LOG2E
from kernels.ops.attention.hopper_dropout import factors_of_signed, kept_of_signed, signed
from kernels.ops.shared.gluon import meet
from kernels.ops.shared.gluon_grids import let_the_next_start

ROWS = ttgl.constexpr(64)  # of a group of four warps
BOTH = ttgl.constexpr(128)  # of a program
WORDS = ttgl.constexpr(4)  # of 32 bits, for the keys of a program
MASKED = ttgl.constexpr(-(2.0**100))  # a score that gives a weight of 0, whatever its row's L


@triton.jit(do_not_specialize=["n_heads", "n_rows", "padded"])
def attention_rows(
    o_ptr, do_ptr, lse_ptr, d_lse_ptr, row_lse_ptr, row_delta_ptr,
    o_batch_stride, o_head_stride, o_row_stride, do_batch_stride, do_head_stride, do_row_stride,
    stays, n_heads, n_rows, padded, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # A program takes BLOCK of a head's `padded` rows, of which `n_rows` are there.
    tiles = padded // BLOCK
    head, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, h = (head // n_heads).to(tl.int64), (head % n_heads).to(tl.int64)
    rows = tile * BLOCK + tl.arange(0, BLOCK)
    there, far = rows < n_rows, rows.to(tl.int64)[:, None]
    dims = tl.arange(0, D)[None, :]
    o_head = o_ptr + b * o_batch_stride + h * o_head_stride
    do_head = do_ptr + b * do_batch_stride + h * do_head_stride
    o = tl.load(o_head + far * o_row_stride + dims, mask=there[:, None], other=0.0)
    do = tl.load(do_head + far * do_row_stride + dims, mask=there[:, None], other=0.0)
    of_head = head.to(tl.int64) * n_rows
    lse = tl.load(lse_ptr + of_head + rows, mask=there, other=-float("inf"))
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if d_lse_ptr is not None:
        delta -= tl.load(d_lse_ptr + of_head + rows, mask=there, other=0.0)
    nothing = lse == -float("inf")
    places = head.to(tl.int64) * padded + rows
    tl.store(row_lse_ptr + places, tl.where(nothing, float("inf"), lse * LOG2E))
    tl.store(row_delta_ptr + places, tl.where(nothing, 0.0, delta * stays))


# ------------------------------------------------------------------------------------- dK and dV


@gluon.jit
def queries_met(tile, shift, n_queries, BLOCK: ttgl.constexpr, CAUSAL: ttgl.constexpr):
    # The first tile of queries that sees a tile of keys, the first that sees all of it, and the
    # number of tiles there are: query i sees key i + shift and those before.
    tiles = ttgl.cdiv(n_queries, BLOCK)
    first, whole = 0, 0
    if CAUSAL:
        first = ttgl.maximum(tile * BOTH - shift, 0) // BLOCK
        whole = ttgl.cdiv(ttgl.maximum(tile * BOTH + BOTH - 1 - shift, 0), BLOCK)
        first = ttgl.minimum(first, tiles - 1)
    return first, whole, tiles


@gluon.jit
def produce_queries(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, bits_desc, q_stages, k_tiles, v_tiles,
    do_stages, lse_stages, delta_stages, bits_rows, kv_full, kv_empty, q_full, q_empty, shift,
    n_queries, padded, n_words, n_key_heads, table_ptr, table_width, GROUP: ttgl.constexpr,
    BLOCK: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr, CAUSAL: ttgl.constexpr,
):  # fmt: skip
    step = 0  # tiles of queries asked for so far
    row_of_table = table_ptr + ttgl.program_id(0) * table_width
    n_tiles = ttgl.load(row_of_table)
    code = ttgl.load(row_of_table + 1)
    for i in range(n_tiles):
        head, tile = code >> 16, code & 0xFFFF
        code = ttgl.load(row_of_table + i + 2)
        b, hk = head // n_key_heads, head % n_key_heads
        for group in ttgl.static_range(2):
            at = [b, hk, tile * BOTH + group * ROWS, 0]
            full = kv_full.index(group)
            mbarrier.wait(kv_empty.index(group), (i & 1) ^ 1)
            mbarrier.expect(full, 2 * ROWS * D * 2)
            tma.async_copy_global_to_shared(k_desc, at, full, k_tiles.index(group))
            tma.async_copy_global_to_shared(v_desc, at, full, v_tiles.index(group))
        first, _whole, tiles = queries_met(tile, shift, n_queries, BLOCK, CAUSAL)
        for one in range(GROUP):
            h = hk * GROUP + one
            of_head = (b * n_key_heads * GROUP + h) * padded
            for j in range(first, tiles):
                stage = step % STAGES
                full = q_full.index(stage)
                at = [b, h, j * BLOCK, 0]
                mbarrier.wait(q_empty.index(stage), (step // STAGES & 1) ^ 1)
                numbers: ttgl.constexpr = 2 if bits_desc is None else 2 + WORDS
                mbarrier.expect(full, 2 * BLOCK * D * 2 + numbers * BLOCK * 4)
                tma.async_copy_global_to_shared(q_desc, at, full, q_stages.index(stage))
                row = [of_head + j * BLOCK]
                tma.async_copy_global_to_shared(lse_desc, row, full, lse_stages.index(stage))
                tma.async_copy_global_to_shared(do_desc, at, full, do_stages.index(stage))
                tma.async_copy_global_to_shared(delta_desc, row, full, delta_stages.index(stage))
                if bits_desc is not None:
                    word = (b * n_key_heads * GROUP + h) * n_words + tile * WORDS
                    for one_word in ttgl.static_range(WORDS):
                        tma.async_copy_global_to_shared(
                            bits_desc, [(word + one_word) * padded + j * BLOCK], full,
                            bits_rows.index(stage * WORDS + one_word),
                        )  # fmt: skip
                step += 1


@gluon.jit
def transposed_weights(scores, lse, places, key, query, scale, MASK: ttgl.constexpr):
    # Of 64 keys by a tile of queries, that see the keys up to their own place; `key` and `query`
    # are the first ones', the key's less the diagonal's shift. `places`, 0 to 63, come from shared
    # memory: the numbers of `arange` would be kept in registers, and one would spill.
    if MASK:
        layout: ttgl.constexpr = scores.type.layout
        of_queries: ttgl.constexpr = ttgl.SliceLayout(0, layout)
        of_keys: ttgl.constexpr = ttgl.SliceLayout(1, layout)
        keys, queries = key + places.load(of_keys), query + places.load(of_queries)
        seen = ttgl.expand_dims(queries, 0) >= ttgl.expand_dims(keys, 1)
        scores = ttgl.where(seen, scores, MASKED)
    p = ttgl.exp2(scores * scale - ttgl.expand_dims(lse, 0))
    return p


@gluon.jit
def dkdv_step(
    k, v, q_stages, do_stages, lse_stages, delta_stages, bits_stages, q_full, q_empty, step, scores,
    dk, dv, places, key, query, scale, WHICH: ttgl.constexpr, BLOCK: ttgl.constexpr,
    D: ttgl.constexpr, STAGES: ttgl.constexpr, MASK: ttgl.constexpr, NEXT: ttgl.constexpr,
    HELD: ttgl.constexpr, operand: ttgl.constexpr,
):  # fmt: skip
    # S of this step is there; the next one's is asked for behind this one's dP, or behind dK where
    # registers are short. Products end in the order that they were asked for in.
    layout: ttgl.constexpr = scores.type.layout
    of_queries: ttgl.constexpr = ttgl.SliceLayout(0, layout)
    dtype: ttgl.constexpr = q_stages.dtype
    early: ttgl.constexpr = NEXT and HELD
    stage, after = step % STAGES, (step + 1) % STAGES
    q, do = q_stages.index(stage).reshape([BLOCK, D]), do_stages.index(stage).reshape([BLOCK, D])
    q_after = q_stages.index(after).reshape([BLOCK, D]).permute((1, 0))
    zeros = ttgl.zeros([ROWS, BLOCK], ttgl.float32, layout=layout)
    dp = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
    if early:
        mbarrier.wait(q_full.index(after), (step + 1) // STAGES & 1)
        next_scores = warpgroup_mma(k, q_after, zeros, use_acc=False, is_async=True)
    lse = lse_stages.index(stage).load(of_queries)
    p = transposed_weights(scores, lse, places, key, query, scale, MASK)
    if bits_stages is None:
        weights = p.to(dtype)
    else:
        of_keys: ttgl.constexpr = ttgl.SliceLayout(1, layout)
        p = signed(p, bits_stages.index(2 * stage + WHICH), places.load(of_keys))
        weights = kept_of_signed(p, do)
    weights = ttgl.convert_layout(weights, operand)
    dv = warpgroup_mma(weights, do, dv, is_async=True)
    dp = warpgroup_mma_wait(2 if early else 1, deps=[dp])
    delta = delta_stages.index(stage).load(of_queries)
    if bits_stages is not None:
        dp = dp * factors_of_signed(p)
        p = ttgl.abs(p)
    ds = p * (dp - ttgl.expand_dims(delta, 0))
    ds = ttgl.convert_layout(ds.to(dtype), operand)
    dk = warpgroup_mma(ds, q, dk, is_async=True)
    if NEXT:
        if not HELD:
            mbarrier.wait(q_full.index(after), (step + 1) // STAGES & 1)
            next_scores = warpgroup_mma(k, q_after, zeros, use_acc=False, is_async=True)
        scores, dk, dv, weights, ds = warpgroup_mma_wait(0, deps=[next_scores, dk, dv, weights, ds])
    else:
        dk, dv, weights, ds = warpgroup_mma_wait(0, deps=[dk, dv, weights, ds])
    mbarrier.arrive(q_empty.index(stage), count=1)
    return scores, dk, dv


@gluon.jit
def consume_queries(
    WHICH: ttgl.constexpr, dk_desc, dv_desc, q_stages, k_tiles, v_tiles, do_stages, lse_stages,
    delta_stages, bits_stages, places, kv_full, kv_empty, q_full, q_empty, shift, n_queries,
    n_key_heads, table_ptr, table_width, scale, of_dk, of_dv, GROUP: ttgl.constexpr,
    BLOCK: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr, CAUSAL: ttgl.constexpr,
    HELD: ttgl.constexpr,
):  # fmt: skip
    of_scores: ttgl.constexpr = ttgl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    of_sums: ttgl.constexpr = ttgl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: ttgl.constexpr = ttgl.DotOperandLayout(0, of_sums, 2)
    dtype: ttgl.constexpr = dk_desc.dtype
    in_registers: ttgl.constexpr = ttgl.DotOperandLayout(0, of_scores, 2)
    TOGETHER: ttgl.constexpr = 2 if HELD else 1
    step = 0
    row_of_table = table_ptr + ttgl.program_id(0) * table_width
    n_tiles = ttgl.load(row_of_table)
    for i in range(n_tiles):
        tile = ttgl.load(row_of_table + i + 1) & 0xFFFF
        key = tile * BOTH + WHICH * ROWS
        first, whole, tiles = queries_met(tile, shift, n_queries, BLOCK, CAUSAL)
        last = tiles - 1
        stop = ttgl.minimum(ttgl.maximum(whole, first), last)  # the last tile is by itself
        mbarrier.wait(kv_full.index(WHICH), i & 1)
        k = k_tiles.index(WHICH).reshape([ROWS, D])
        v = v_tiles.index(WHICH).reshape([ROWS, D])
        if HELD:
            k, v = k.load(in_registers), v.load(in_registers)
        dk = ttgl.zeros([ROWS, D], ttgl.float32, layout=of_sums)
        dv = ttgl.zeros([ROWS, D], ttgl.float32, layout=of_sums)
        for _ in range(GROUP):
            stage = step % STAGES
            mbarrier.wait(q_full.index(stage), step // STAGES & 1)
            q = q_stages.index(stage).reshape([BLOCK, D]).permute((1, 0))
            zeros = ttgl.zeros([ROWS, BLOCK], ttgl.float32, layout=of_scores)
            scores = warpgroup_mma(k, q, zeros, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, deps=[scores])
            if CAUSAL:
                for j in range(first, stop):
                    scores, dk, dv = dkdv_step(
                        k, v, q_stages, do_stages, lse_stages, delta_stages, bits_stages, q_full,
                        q_empty, step, scores, dk, dv, places, key - shift, j * BLOCK, scale,
                        WHICH, BLOCK, D, STAGES, True, True, HELD, operand,
                    )  # fmt: skip
                    step += 1
            # Two at a time where two S are there: they change places without being moved.
            for _ in range((last - stop) // TOGETHER):
                for _one in ttgl.static_range(TOGETHER):
                    scores, dk, dv = dkdv_step(
                        k, v, q_stages, do_stages, lse_stages, delta_stages, bits_stages, q_full,
                        q_empty, step, scores, dk, dv, places, key, 0, scale, WHICH, BLOCK, D,
                        STAGES, False, True, HELD, operand,
                    )  # fmt: skip
                    step += 1
            if TOGETHER == 2:  # noqa: SIM102 (a constant, and a number)
                if (last - stop) % 2 == 1:
                    scores, dk, dv = dkdv_step(
                        k, v, q_stages, do_stages, lse_stages, delta_stages, bits_stages, q_full,
                        q_empty, step, scores, dk, dv, places, key, 0, scale, WHICH, BLOCK, D,
                        STAGES, False, True, HELD, operand,
                    )  # fmt: skip
                    step += 1
            scores, dk, dv = dkdv_step(
                k, v, q_stages, do_stages, lse_stages, delta_stages, bits_stages, q_full, q_empty,
                step, scores, dk, dv, places, key - shift, last * BLOCK, scale, WHICH, BLOCK, D,
                STAGES, CAUSAL, False, HELD, operand,
            )  # fmt: skip
            step += 1
        code = ttgl.load(row_of_table + i + 1)  # once more: the loops have no register for it
        meet()  # every warp of the group is done with K and V: dK and dV take their place
        k_tiles.index(WHICH).reshape([ROWS, D]).store((dk * of_dk).to(dtype))
        v_tiles.index(WHICH).reshape([ROWS, D]).store((dv * of_dv).to(dtype))
        fence_async_shared()
        meet()
        head, key = code >> 16, (code & 0xFFFF) * BOTH + WHICH * ROWS
        at = [head // n_key_heads, head % n_key_heads, key, 0]
        tma.async_copy_shared_to_global(dk_desc, at, k_tiles.index(WHICH))
        tma.async_copy_shared_to_global(dv_desc, at, v_tiles.index(WHICH))
        tma.store_wait(0)
        mbarrier.arrive(kv_empty.index(WHICH), count=1)


@gluon.jit(
    do_not_specialize=["shift", "n_queries", "padded", "n_words", "n_key_heads", "table_width"]
)
def hopper_dkdv(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, bits_desc, dk_desc, dv_desc, shift,
    n_queries, padded, n_words, n_key_heads, table_ptr, table_width, scale, of_dk, of_dv,
    GROUP: ttgl.constexpr, BLOCK: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr,
    CAUSAL: ttgl.constexpr, HELD: ttgl.constexpr, REGISTERS: ttgl.constexpr,
    OF_PRODUCER: ttgl.constexpr,
):  # fmt: skip
    # A program an SM, which takes the tiles of keys in its row of the table. `scale` has the factor
    # log2 e, `of_dk` has not. With dropout, `bits_desc` are those of `dropped_bits_kernels`, and
    # what stays is scaled once, by `of_dk` and `of_dv`.
    dtype: ttgl.constexpr = q_desc.dtype
    k_tiles = ttgl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, D], k_desc.layout)
    v_tiles = ttgl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, D], v_desc.layout)
    q_stages = ttgl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, D], q_desc.layout)
    do_stages = ttgl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, D], do_desc.layout)
    lse_stages = ttgl.allocate_shared_memory(ttgl.float32, [STAGES, BLOCK], lse_desc.layout)
    delta_stages = ttgl.allocate_shared_memory(ttgl.float32, [STAGES, BLOCK], delta_desc.layout)
    bits_stages, bits_rows = None, None  # so that None stays a constant
    if bits_desc is not None:
        # The copy engine writes a row of words at a time, a group reads its two.
        bits_rows = ttgl.allocate_shared_memory(
            ttgl.int32, [STAGES * WORDS, BLOCK], bits_desc.layout
        )
        bits_stages = bits_rows._reinterpret(
            ttgl.int32, [STAGES * 2, 2, BLOCK], ttgl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        )
    ttgl.static_assert(BLOCK == ROWS, "places number keys and queries alike")
    flat: ttgl.constexpr = ttgl.SwizzledSharedLayout(1, 1, 1, [0])
    places = ttgl.allocate_shared_memory(ttgl.int32, [BLOCK], flat)
    places.store(ttgl.arange(0, BLOCK, layout=ttgl.BlockedLayout([1], [32], [4], [0])))
    layout: ttgl.constexpr = mbarrier.MBarrierLayout()
    kv_full = ttgl.allocate_shared_memory(ttgl.int64, [2, 1], layout)
    kv_empty = ttgl.allocate_shared_memory(ttgl.int64, [2, 1], layout)
    q_full = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    q_empty = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    for group in ttgl.static_range(2):
        mbarrier.init(kv_full.index(group), count=1)
        mbarrier.init(kv_empty.index(group), count=1)
    for stage in ttgl.static_range(STAGES):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(q_empty.index(stage), count=2)
    fence_async_shared()
    let_the_next_start()
    # The tuples stand here: given a name first, their constants would become tensors.
    ttgl.warp_specialize([
        (consume_queries, (0, dk_desc, dv_desc, q_stages, k_tiles, v_tiles, do_stages, lse_stages,
                           delta_stages, bits_stages, places, kv_full, kv_empty, q_full, q_empty,
                           shift, n_queries, n_key_heads, table_ptr, table_width, scale, of_dk,
                           of_dv, GROUP, BLOCK, D, STAGES, CAUSAL, HELD)),
        (consume_queries, (1, dk_desc, dv_desc, q_stages, k_tiles, v_tiles, do_stages, lse_stages,
                           delta_stages, bits_stages, places, kv_full, kv_empty, q_full, q_empty,
                           shift, n_queries, n_key_heads, table_ptr, table_width, scale, of_dk,
                           of_dv, GROUP, BLOCK, D, STAGES, CAUSAL, HELD)),
        (produce_queries, (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, bits_desc,
                           q_stages, k_tiles, v_tiles, do_stages, lse_stages, delta_stages,
                           bits_rows, kv_full, kv_empty, q_full, q_empty, shift, n_queries,
                           padded, n_words, n_key_heads, table_ptr, table_width, GROUP, BLOCK, D,
                           STAGES, CAUSAL)),
    ], [4, 1], [REGISTERS, OF_PRODUCER])  # fmt: skip
