"""The gradient of attention's bias: ds, summed over what the bias was broadcast along."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.attention.backward_kernels import sizes_of, weights
from kernels.ops.attention.forward_kernels import LOG2E
from kernels.philox_triton import numbers_of_rows


@triton.jit(
    do_not_specialize=[
        *("n_heads", "group", "own_heads", "batches", "heads", "row_tiles", "col_tiles"),
        *("rows_each", "cols_each", "n_queries", "n_keys", "window", "drop_below"),
    ]
)
def attention_dbias(
    q_ptr, k_ptr, v_ptr, do_ptr, row_lse_ptr, row_delta_ptr, bias_ptr, padding_ptr, q_lengths_ptr,
    k_lengths_ptr, seed_offset_ptr, dbias_ptr,
    q_batch_stride, q_head_stride, q_row_stride, k_batch_stride, k_head_stride, k_row_stride,
    v_batch_stride, v_head_stride, v_row_stride, do_batch_stride, do_head_stride, do_row_stride,
    bias_batch_stride, bias_head_stride, bias_row_stride, bias_col_stride,
    padding_batch_stride, padding_col_stride,
    scale, n_heads, group, own_heads, batches, heads, row_tiles, col_tiles, rows_each, cols_each,
    n_queries, n_keys, window, drop_below, drop_scale,
    ONE_ROW: tl.constexpr, ONE_COL: tl.constexpr, CAUSAL: tl.constexpr, TOP_LEFT: tl.constexpr,
    WINDOWED: tl.constexpr, DROPS: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # A program owns a tile of the gradient and adds up, in one order, the tiles of ds that belong
    # to it: of `batches` · `heads` heads, and of rows_each · cols_each tiles of each, where the
    # bias has one row (ONE_ROW) or one column (ONE_COL) for all.
    number = tl.program_id(0)
    col_tile = number % col_tiles
    row_tile = number // col_tiles % row_tiles
    own = number // (col_tiles * row_tiles)
    own_b, own_h = own // own_heads, own % own_heads
    dims = tl.arange(0, BLOCK_D)[None, :]
    n_keys_8 = tl.cdiv(n_keys, 8) * 8
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(batches * heads * rows_each * cols_each):
        tile_n = col_tile * cols_each + step % cols_each
        tile_m = row_tile * rows_each + step // cols_each % rows_each
        of_head = step // (cols_each * rows_each)
        b, h = own_b * batches + of_head // heads, own_h * heads + of_head % heads
        n_q, n_k, shift = sizes_of(q_lengths_ptr, k_lengths_ptr, b, n_queries, n_keys, TOP_LEFT)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        keys = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        b_wide, h_wide = tl.cast(b, tl.int64), tl.cast(h, tl.int64)
        h_keys = (h // group).to(tl.int64)
        there = keys < n_k
        if padding_ptr is not None:
            places = padding_ptr + b_wide * padding_batch_stride
            places += keys.to(tl.int64) * padding_col_stride
            there = there & (tl.load(places, mask=there, other=1) == 0)
        known = rows < n_q
        of_rows, of_keys = known[:, None], there[:, None]
        if D != BLOCK_D:
            of_rows, of_keys = of_rows & (dims < D), of_keys & (dims < D)
        far_rows, far_keys = rows.to(tl.int64)[:, None], keys.to(tl.int64)[:, None]
        q_places = q_ptr + b_wide * q_batch_stride + h_wide * q_head_stride
        do_places = do_ptr + b_wide * do_batch_stride + h_wide * do_head_stride
        k_places = k_ptr + b_wide * k_batch_stride + h_keys * k_head_stride
        v_places = v_ptr + b_wide * v_batch_stride + h_keys * v_head_stride
        q = tl.load(q_places + far_rows * q_row_stride + dims, mask=of_rows, other=0.0)
        do = tl.load(do_places + far_rows * do_row_stride + dims, mask=of_rows, other=0.0)
        k = tl.load(k_places + far_keys * k_row_stride + dims, mask=of_keys, other=0.0)
        v = tl.load(v_places + far_keys * v_row_stride + dims, mask=of_keys, other=0.0)
        head_rows = (b_wide * n_heads + h) * n_queries + rows
        lse = tl.load(row_lse_ptr + head_rows, mask=known, other=float("inf"))
        delta = tl.load(row_delta_ptr + head_rows, mask=known, other=0.0)
        scores = tl.dot(q, k.T, input_precision="ieee")
        dp = tl.dot(do, v.T, input_precision="ieee")
        bias = bias_ptr + b_wide * bias_batch_stride + h_wide * bias_head_stride
        sizes = (n_q, n_k, shift, window, scale * LOG2E)
        p = weights(scores, rows[:, None], keys[None, :], there[None, :], lse[:, None], bias,
                    (bias_row_stride, bias_col_stride), sizes, True, CAUSAL, WINDOWED)  # fmt: skip
        if DROPS:
            blocks = (head_rows * n_keys_8 + tile_n * BLOCK_N) >> 3
            numbers = numbers_of_rows(seed_offset_ptr, blocks[:, None], BLOCK_M, BLOCK_N // 8)
            dp = tl.where(numbers >= drop_below, dp * drop_scale, 0.0)
        acc += p * (dp - delta[:, None])

    # The bias's gradient is contiguous, (own batches, own_heads, rows or 1, keys or 1).
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    keys = col_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    n_rows, n_cols = n_queries, n_keys
    if ONE_ROW:
        acc = tl.sum(acc, axis=0)[None, :]
        rows, n_rows = tl.arange(0, 1), 1
    if ONE_COL:
        acc = tl.sum(acc, axis=1)[:, None]
        keys, n_cols = tl.arange(0, 1), 1
    places = (tl.cast(own, tl.int64) * n_rows + rows)[:, None] * n_cols + keys[None, :]
    stored = (rows < n_rows)[:, None] & (keys < n_cols)[None, :]
    tl.store(dbias_ptr + places, acc.to(dbias_ptr.dtype.element_ty), mask=stored)
