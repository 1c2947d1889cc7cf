"""The gradient of attention's queries, by hand for Hopper: see `hopper_backward_kernels`."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.ops.attention.hopper_backward_kernels import BOTH, ROWS
from kernels.ops.attention.hopper_dropout import kept_factors
from kernels.ops.attention.hopper_producer import ask_for_stage
from kernels.ops.shared.gluon import meet
from kernels.ops.shared.gluon_grids import wait_for_the_last


@gluon.jit
def keys_met(tile, shift, n_keys, BLOCK: ttgl.constexpr, CAUSAL: ttgl.constexpr):
    # How many tiles of keys some query of a tile sees, one at least, and how many all of them do.
    seen, whole = n_keys, n_keys
    if CAUSAL:
        seen = ttgl.minimum(n_keys, tile * BOTH + BOTH + shift)
        whole = ttgl.maximum(ttgl.minimum(n_keys, tile * BOTH + 1 + shift), 0)
    return ttgl.maximum(ttgl.cdiv(ttgl.maximum(seen, 0), BLOCK), 1), whole // BLOCK


@gluon.jit
def produce_keys(
    q_desc, k_desc, v_desc, do_desc, q_tiles, k_stages, v_stages, do_tiles, q_full, q_empty,
    k_full, k_empty, v_full, v_empty, shift, n_keys, n_heads, heads_a_key, table_ptr, table_width,
    BLOCK: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr, CAUSAL: ttgl.constexpr,
):  # fmt: skip
    step = 0
    row_of_table = table_ptr + ttgl.program_id(0) * table_width
    n_tiles = ttgl.load(row_of_table)
    code = ttgl.load(row_of_table + 1)
    for i in range(n_tiles):
        head, tile = code >> 16, code & 0xFFFF
        code = ttgl.load(row_of_table + i + 2)
        b, h = head // n_heads, head % n_heads
        hk = h // heads_a_key
        for group in ttgl.static_range(2):
            at = [b, h, tile * BOTH + group * ROWS, 0]
            full = q_full.index(group)
            mbarrier.wait(q_empty.index(group), (i & 1) ^ 1)
            mbarrier.expect(full, 2 * ROWS * D * 2)
            tma.async_copy_global_to_shared(q_desc, at, full, q_tiles.index(group))
            tma.async_copy_global_to_shared(do_desc, at, full, do_tiles.index(group))
        tiles, _whole = keys_met(tile, shift, n_keys, BLOCK, CAUSAL)
        for j in range(tiles - 1, -1, -1):
            ask_for_stage(
                k_desc, v_desc, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step,
                [b, hk, j * BLOCK, 0], BLOCK, D, STAGES,
            )  # fmt: skip
            step += 1


@gluon.jit
def bits_of_tile(bits_ptr, n_words, padded, head, rows, j, BLOCK: ttgl.constexpr):
    # The two words that each row of a head has for a tile of 64 keys; before the first tile, any.
    ttgl.static_assert(BLOCK == 64, "two words")
    word = head.to(ttgl.int64) * n_words + 2 * ttgl.maximum(j, 0)
    places = bits_ptr + word * padded + rows
    return ttgl.load(places), ttgl.load(places + padded)


@gluon.jit
def ds_of(
    scores, dp, lse, delta, first_bits, second_bits, row, col, n_keys, scale,
    dtype: ttgl.constexpr, MASK: ttgl.constexpr, operand: ttgl.constexpr,
):  # fmt: skip
    # `row` has the diagonal's shift: query i sees key i + shift and those before, of those there.
    p = ttgl.exp2(scores * scale - ttgl.expand_dims(lse, 1))
    if MASK:
        layout: ttgl.constexpr = scores.type.layout
        rows = row + ttgl.arange(0, ROWS, layout=ttgl.SliceLayout(1, layout))
        cols = col + ttgl.arange(0, scores.shape[1], layout=ttgl.SliceLayout(0, layout))
        last = ttgl.minimum(rows, n_keys - 1)
        p = ttgl.where(ttgl.expand_dims(last, 1) >= ttgl.expand_dims(cols, 0), p, 0.0)
    if first_bits is not None:
        dp = dp * kept_factors(dp, first_bits, second_bits)
    ds = p * (dp - ttgl.expand_dims(delta, 1))
    return ttgl.convert_layout(ds.to(dtype), operand)


@gluon.jit
def dq_step(
    q, do, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step, scores, dp, dq, ds, lse,
    delta, first_bits, second_bits, row, col, n_keys, scale, BLOCK: ttgl.constexpr,
    D: ttgl.constexpr, STAGES: ttgl.constexpr, MASK: ttgl.constexpr, BEHIND: ttgl.constexpr,
    LEAVE: ttgl.constexpr, operand: ttgl.constexpr,
):  # fmt: skip
    # S and dP of tile `step` are there; those of the next are asked for, then dS is made. LEAVE
    # ends before dS · K has, which the step BEHIND waits for, with `ds` kept until then.
    layout: ttgl.constexpr = scores.type.layout
    stage, after = step % STAGES, (step + 1) % STAGES
    parity = (step + 1) // STAGES & 1
    zeros = ttgl.zeros([ROWS, BLOCK], ttgl.float32, layout=layout)
    mbarrier.wait(k_full.index(after), parity)
    k_after = k_stages.index(after).reshape([BLOCK, D]).permute((1, 0))
    next_scores = warpgroup_mma(q, k_after, zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_full.index(after), parity)
    v_after = v_stages.index(after).reshape([BLOCK, D]).permute((1, 0))
    next_dp = warpgroup_mma(do, v_after, zeros, use_acc=False, is_async=True)
    if BEHIND:
        dq, ds = warpgroup_mma_wait(2, deps=[dq, ds])
        mbarrier.arrive(k_empty.index((step + STAGES - 1) % STAGES), count=1)
    ds = ds_of(
        scores, dp, lse, delta, first_bits, second_bits, row, col, n_keys, scale, k_stages.dtype,
        MASK, operand,
    )  # fmt: skip
    k = k_stages.index(stage).reshape([BLOCK, D])
    dq = warpgroup_mma(ds, k, dq, is_async=True)
    scores, dp, dq, ds = warpgroup_mma_wait(1 if LEAVE else 0, deps=[next_scores, next_dp, dq, ds])
    if not LEAVE:
        mbarrier.arrive(k_empty.index(stage), count=1)
    mbarrier.arrive(v_empty.index(after), count=1)
    return scores, dp, dq, ds


@gluon.jit
def consume_keys(
    WHICH: ttgl.constexpr, dq_desc, row_lse_ptr, row_delta_ptr, bits_ptr, q_tiles, k_stages,
    v_stages, do_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty, shift, n_keys, padded,
    n_words, n_heads, table_ptr, table_width, scale, of_dq, BLOCK: ttgl.constexpr,
    D: ttgl.constexpr, STAGES: ttgl.constexpr, CAUSAL: ttgl.constexpr, MASK: ttgl.constexpr,
    HELD: ttgl.constexpr,
):  # fmt: skip
    of_scores: ttgl.constexpr = ttgl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    of_sums: ttgl.constexpr = ttgl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: ttgl.constexpr = ttgl.DotOperandLayout(0, of_sums, 2)
    dtype: ttgl.constexpr = dq_desc.dtype
    in_registers: ttgl.constexpr = ttgl.DotOperandLayout(0, of_scores, 2)
    step = 0
    row_of_table = table_ptr + ttgl.program_id(0) * table_width
    n_tiles = ttgl.load(row_of_table)
    code = ttgl.load(row_of_table + 1)
    for i in range(n_tiles):
        head, tile = code >> 16, code & 0xFFFF
        code = ttgl.load(row_of_table + i + 2)
        b, h = head // n_heads, head % n_heads
        first_row = tile * BOTH + WHICH * ROWS
        rows = first_row + ttgl.arange(0, ROWS, layout=ttgl.SliceLayout(1, of_scores))
        of_head = head.to(ttgl.int64) * padded
        lse = ttgl.load(row_lse_ptr + of_head + rows)
        delta = ttgl.load(row_delta_ptr + of_head + rows)
        row = first_row + shift
        tiles, whole = keys_met(tile, shift, n_keys, BLOCK, CAUSAL)
        # The bits of a tile of keys are asked for a tile ahead.
        first_bits, second_bits = None, None
        if bits_ptr is not None:
            first_bits, second_bits = bits_of_tile(
                bits_ptr, n_words, padded, head, rows, tiles - 1, BLOCK
            )
        stage, parity = step % STAGES, step // STAGES & 1
        mbarrier.wait(q_full.index(WHICH), i & 1)
        q = q_tiles.index(WHICH).reshape([ROWS, D])
        do = do_tiles.index(WHICH).reshape([ROWS, D])
        if HELD:
            q, do = q.load(in_registers), do.load(in_registers)
        zeros = ttgl.zeros([ROWS, BLOCK], ttgl.float32, layout=of_scores)
        mbarrier.wait(k_full.index(stage), parity)
        k = k_stages.index(stage).reshape([BLOCK, D]).permute((1, 0))
        scores = warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(stage), parity)
        v = v_stages.index(stage).reshape([BLOCK, D]).permute((1, 0))
        dp = warpgroup_mma(do, v, zeros, use_acc=False, is_async=True)
        scores, dp = warpgroup_mma_wait(0, deps=[scores, dp])
        mbarrier.arrive(v_empty.index(stage), count=1)
        dq = ttgl.zeros([ROWS, D], ttgl.float32, layout=of_sums)
        ds = ttgl.zeros([ROWS, BLOCK], dtype, layout=operand)
        # All tiles but that of the first keys, which is by itself; what isn't whole comes first.
        rest = tiles - 1
        if MASK:
            begin = ttgl.maximum(ttgl.minimum(whole, rest), 1)
            for j in range(rest, begin - 1, -1):
                if bits_ptr is not None:
                    next_first, next_second = bits_of_tile(
                        bits_ptr, n_words, padded, head, rows, j - 1, BLOCK
                    )
                scores, dp, dq, ds = dq_step(
                    q, do, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step, scores, dp,
                    dq, ds, lse, delta, first_bits, second_bits, row, j * BLOCK, n_keys, scale,
                    BLOCK, D, STAGES, True, False, False, operand,
                )  # fmt: skip
                if bits_ptr is not None:
                    first_bits, second_bits = next_first, next_second
                step += 1
            rest = ttgl.minimum(begin - 1, rest)
        # Two at a time: S and dP change places with the next ones without being moved.
        for two in range(rest // 2):
            for one in ttgl.static_range(2):
                if bits_ptr is not None:
                    next_first, next_second = bits_of_tile(
                        bits_ptr, n_words, padded, head, rows, rest - 2 * two - one - 1, BLOCK
                    )
                scores, dp, dq, ds = dq_step(
                    q, do, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step, scores, dp,
                    dq, ds, lse, delta, first_bits, second_bits, row, 0, n_keys, scale,
                    BLOCK, D, STAGES, False, HELD and one == 1, HELD and one == 0, operand,
                )  # fmt: skip
                if bits_ptr is not None:
                    first_bits, second_bits = next_first, next_second
                step += 1
        if rest % 2 == 1:
            if bits_ptr is not None:
                next_first, next_second = bits_of_tile(
                    bits_ptr, n_words, padded, head, rows, 0, BLOCK
                )
            scores, dp, dq, ds = dq_step(
                q, do, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step, scores, dp,
                dq, ds, lse, delta, first_bits, second_bits, row, 0, n_keys, scale,
                BLOCK, D, STAGES, False, False, False, operand,
            )  # fmt: skip
            if bits_ptr is not None:
                first_bits, second_bits = next_first, next_second
            step += 1
        ds = ds_of(
            scores, dp, lse, delta, first_bits, second_bits, row, 0, n_keys, scale, dtype, MASK,
            operand,
        )  # fmt: skip
        stage = step % STAGES
        dq = warpgroup_mma(ds, k_stages.index(stage).reshape([BLOCK, D]), dq, is_async=True)
        dq, ds = warpgroup_mma_wait(0, deps=[dq, ds])
        mbarrier.arrive(k_empty.index(stage), count=1)
        step += 1
        meet()
        q_tiles.index(WHICH).reshape([ROWS, D]).store((dq * of_dq).to(dtype))  # in the place of Q
        fence_async_shared()
        meet()
        tma.async_copy_shared_to_global(dq_desc, [b, h, first_row, 0], q_tiles.index(WHICH))
        tma.store_wait(0)
        mbarrier.arrive(q_empty.index(WHICH), count=1)


SIZES = ["shift", "n_keys", "padded", "n_words", "n_heads", "heads_a_key", "table_width"]


@gluon.jit(do_not_specialize=SIZES)
def hopper_dq(
    q_desc, k_desc, v_desc, do_desc, dq_desc, row_lse_ptr, row_delta_ptr, bits_ptr, shift, n_keys,
    padded, n_words, n_heads, heads_a_key, table_ptr, table_width, scale, of_dq,
    BLOCK: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr, CAUSAL: ttgl.constexpr,
    MASK: ttgl.constexpr, HELD: ttgl.constexpr, REGISTERS: ttgl.constexpr,
    OF_PRODUCER: ttgl.constexpr,
):  # fmt: skip
    # A program an SM, which takes the tiles of queries in its row of the table; `scale` has the
    # factor log2 e, `of_dq` has not. With MASK some tile of keys isn't whole: CAUSAL, or where the
    # keys end within one. With dropout, `bits_ptr` are those of `dropped_bits_kernels`.
    dtype: ttgl.constexpr = q_desc.dtype
    q_tiles = ttgl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, D], q_desc.layout)
    do_tiles = ttgl.allocate_shared_memory(dtype, [2, 1, 1, ROWS, D], do_desc.layout)
    k_stages = ttgl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, D], k_desc.layout)
    v_stages = ttgl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, D], v_desc.layout)
    layout: ttgl.constexpr = mbarrier.MBarrierLayout()
    q_full = ttgl.allocate_shared_memory(ttgl.int64, [2, 1], layout)
    q_empty = ttgl.allocate_shared_memory(ttgl.int64, [2, 1], layout)
    k_full = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    k_empty = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    v_full = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    v_empty = ttgl.allocate_shared_memory(ttgl.int64, [STAGES, 1], layout)
    for group in ttgl.static_range(2):
        mbarrier.init(q_full.index(group), count=1)
        mbarrier.init(q_empty.index(group), count=1)
    for stage in ttgl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=2)
    fence_async_shared()
    ttgl.warp_specialize([
        (consume_keys, (0, dq_desc, row_lse_ptr, row_delta_ptr, bits_ptr, q_tiles, k_stages,
                        v_stages, do_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                        shift, n_keys, padded, n_words, n_heads, table_ptr, table_width, scale,
                        of_dq, BLOCK, D, STAGES, CAUSAL, MASK, HELD)),
        (consume_keys, (1, dq_desc, row_lse_ptr, row_delta_ptr, bits_ptr, q_tiles, k_stages,
                        v_stages, do_tiles, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                        shift, n_keys, padded, n_words, n_heads, table_ptr, table_width, scale,
                        of_dq, BLOCK, D, STAGES, CAUSAL, MASK, HELD)),
        (produce_keys, (q_desc, k_desc, v_desc, do_desc, q_tiles, k_stages, v_stages, do_tiles,
                        q_full, q_empty, k_full, k_empty, v_full, v_empty, shift, n_keys, n_heads,
                        heads_a_key, table_ptr, table_width, BLOCK, D, STAGES, CAUSAL)),
    ], [4, 1], [REGISTERS, OF_PRODUCER])  # fmt: skip
    wait_for_the_last()
