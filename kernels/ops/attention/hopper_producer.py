"""The warps that ask for tiles, in the attention written for Hopper: see `hopper_kernels`.

One warp asks the copy engine for queries, keys and values. With dropout eight warps stand there:
one asks, all draw (`hopper_dropout`), as many tiles of keys ahead as there are stages.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.ops.attention.configurations import HOPPER_GROUP_ROWS
from kernels.ops.attention.hopper_dropout import draw
from kernels.ops.attention.hopper_masks import first_key, keys_of_tile, keys_seen
from kernels.ops.shared.gluon import meet

GROUP_ROWS = ttgl.constexpr(HOPPER_GROUP_ROWS)


@gluon.jit
def ask_for_queries(
    q_desc, q_tiles, q_full, q_empty, b, h, first_row, i, GROUPS: ttgl.constexpr, D: ttgl.constexpr
):
    for group in ttgl.static_range(GROUPS):
        mbarrier.wait(q_empty.index(group), (i & 1) ^ 1)
        mbarrier.expect(q_full.index(group), GROUP_ROWS * D * 2)
        at = [b, h, first_row + group * GROUP_ROWS, 0]
        tma.async_copy_global_to_shared(q_desc, at, q_full.index(group), q_tiles.index(group))


@gluon.jit
def ask_for_stage(
    k_desc, v_desc, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step, at,
    BLOCK: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr,
):  # fmt: skip
    # The `step`-th tile of keys, and of values, as soon as their stage is free.
    stage = step % STAGES
    parity = (step // STAGES & 1) ^ 1
    mbarrier.wait(k_empty.index(stage), parity)
    mbarrier.expect(k_full.index(stage), BLOCK * D * 2)
    tma.async_copy_global_to_shared(k_desc, at, k_full.index(stage), k_stages.index(stage))
    mbarrier.wait(v_empty.index(stage), parity)
    mbarrier.expect(v_full.index(stage), BLOCK * D * 2)
    tma.async_copy_global_to_shared(v_desc, at, v_full.index(stage), v_stages.index(stage))


@gluon.jit
def produce(
    q_desc, k_desc, v_desc, q_tiles, k_stages, v_stages, q_full, q_empty, k_full, k_empty, v_full,
    v_empty, bits, bits_full, bits_ptr, seed_offset_ptr, drop_below, n_words, padded, q_lengths_ptr,
    k_lengths_ptr, shift, n_queries, n_keys, n_heads, heads_a_key, table_ptr, table_width,
    GROUPS: ttgl.constexpr, BLOCK_KEYS: ttgl.constexpr, D: ttgl.constexpr, STAGES: ttgl.constexpr,
    MASK: ttgl.constexpr, CAUSAL: ttgl.constexpr, RAGGED: ttgl.constexpr,
):  # fmt: skip
    step = 0  # tiles of keys asked for so far
    if bits is not None:
        seed, offset = ttgl.load(seed_offset_ptr), ttgl.load(seed_offset_ptr + 1)
    row_of_table = table_ptr + ttgl.program_id(0) * table_width
    n_tiles = ttgl.load(row_of_table)
    code = ttgl.load(row_of_table + 1)
    for i in range(n_tiles):
        head, tile = code >> 16, code & 0xFFFF
        code = ttgl.load(row_of_table + i + 2)  # the next tile's, early: a load takes long
        b, h = head // n_heads, head % n_heads
        hk = h // heads_a_key
        first_row = tile * GROUP_ROWS * GROUPS
        end = first_row + GROUP_ROWS * GROUPS
        seen = keys_seen(end, shift, n_keys, MASK)
        if RAGGED:
            seen, _, _ = keys_of_tile(
                first_row, end, b, q_lengths_ptr, k_lengths_ptr, n_queries, n_keys, CAUSAL
            )
        if bits is None:
            ask_for_queries(q_desc, q_tiles, q_full, q_empty, b, h, first_row, i, GROUPS, D)
        n_blocks = ttgl.maximum(ttgl.cdiv(seen, BLOCK_KEYS), 1)
        for j in range(n_blocks - 1, -1, -1):
            stage = step % STAGES
            col = j * BLOCK_KEYS
            if RAGGED:
                col = first_key(j, n_blocks, seen, BLOCK_KEYS)
            ask_for_stage(
                k_desc, v_desc, k_stages, v_stages, k_full, k_empty, v_full, v_empty, step,
                [b, hk, col, 0], BLOCK_KEYS, D, STAGES,
            )  # fmt: skip
            if bits is not None:
                draw(
                    bits.index(stage), bits_ptr, seed, offset, drop_below, head, first_row, col,
                    n_queries, n_keys, n_words, padded, BLOCK_KEYS,
                )  # fmt: skip
                meet()
                mbarrier.arrive(bits_full.index(stage), count=1)
                if j == n_blocks - 1:  # drawn while the queries before are still in use
                    ask_for_queries(q_desc, q_tiles, q_full, q_empty, b, h, first_row, i, GROUPS, D)
            step += 1
