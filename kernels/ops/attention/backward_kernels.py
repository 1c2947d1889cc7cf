"""The kernels of attention backward in Triton: weights computed again tile by tile, no atomics.

With L the log-sum-exp that forward kept of each row, the weights of any tile come back from its
scores alone, p = exp(scale · q · kᵀ + bias − L), and with them

    dp = do · vᵀ,   ds = p · (dp − delta),   delta = Σ o · do − dL   of each row
    dq = scale · ds · k,   dk = scale · dsᵀ · q,   dv = pᵀ · do,   dbias = ds

A sum over keys belongs to a tile of queries, a sum over queries to a tile of keys: each pass gives
a program the tile whose sums it keeps in registers, and walks along the other. Both compute the
scores and dp, seven products where five would do, and no two programs add to one address: the same
bits every time. `attention_dq` goes first; it has o and do at hand, and writes what it makes of
them for each row, L in units of log 2 and delta, for `attention_dkdv` and `attention_dbias`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.attention.forward_kernels import LOG2E
from kernels.philox_triton import numbers_of_rows


@triton.jit
def sizes_of(q_lengths_ptr, k_lengths_ptr, b, n_queries, n_keys, TOP_LEFT: tl.constexpr):
    # How many queries and keys a sequence has, and how far its diagonal is shifted.
    n_q, n_k = n_queries, n_keys
    if q_lengths_ptr is not None:
        n_q = tl.minimum(tl.load(q_lengths_ptr + b).to(tl.int32), n_queries)
    if k_lengths_ptr is not None:
        n_k = tl.minimum(tl.load(k_lengths_ptr + b).to(tl.int32), n_keys)
    return n_q, n_k, 0 if TOP_LEFT else n_k - n_q


@triton.jit
def weights(scores, rows, keys, there, lse, bias_ptr, bias_strides, sizes,
            MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):  # fmt: skip
    # p of a tile from q · kᵀ. `rows`, `keys`, `there` (the keys that are no padding, or None) and
    # `lse` broadcast to the tile, which may lie either way round.
    n_q, n_k, shift, window, scale = sizes
    if bias_ptr is None:
        p = tl.exp2(scores * scale - lse)
    else:
        bias_row_stride, bias_col_stride = bias_strides
        places = bias_ptr + rows.to(tl.int64) * bias_row_stride
        places += keys.to(tl.int64) * bias_col_stride
        bias = tl.load(places, mask=(rows < n_q) & (keys < n_k), other=0)
        if bias_ptr.dtype.element_ty == tl.int1:
            p = tl.where(bias, tl.exp2(scores * scale - lse), 0.0)
        else:
            p = tl.exp2(scores * scale + bias.to(tl.float32) * LOG2E - lse)
    if MASKED:
        if CAUSAL:
            there = there & (keys <= rows + shift)
        if WINDOWED:
            there = there & (keys > rows + shift - window)
            if not CAUSAL:
                there = there & (keys < rows + shift + window)
    if there is not None:
        p = tl.where(there, p, 0.0)
    return p


@triton.jit
def dq_over_keys(
    dq, q, do, lse, delta, k_head, v_head, bias_ptr, padding_ptr, seed_offset_ptr, strides, rows,
    head_rows, n_keys_8, sizes, drop_below, drop_scale, begin, end,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, DROPS: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # The keys from `begin`, a multiple of BLOCK_N, to `end`, added to a tile of dq.
    k_row_stride, v_row_stride, bias_strides, padding_stride = strides
    n_k = sizes[1]
    dims = tl.arange(0, BLOCK_D)[None, :]
    lanes = tl.arange(0, BLOCK_N)
    k_within = lanes.to(tl.int64)[:, None] * k_row_stride + dims
    v_within = lanes.to(tl.int64)[:, None] * v_row_stride + dims
    for start in range(begin, end, BLOCK_N):
        keys = start + lanes
        there, keep = None, None
        if MASKED or padding_ptr is not None:
            known = keys < n_k
            if padding_ptr is not None:
                places = padding_ptr + keys.to(tl.int64) * padding_stride
                known = known & (tl.load(places, mask=known, other=1) == 0)
            there = known[None, :]
            keep = known[:, None]
            if D != BLOCK_D:
                keep = keep & (dims < D)
        elif D != BLOCK_D:
            keep = dims < D
        first = tl.cast(start, tl.int64)
        if keep is None:
            k = tl.load(k_head + first * k_row_stride + k_within)
            v = tl.load(v_head + first * v_row_stride + v_within)
        else:
            k = tl.load(k_head + first * k_row_stride + k_within, mask=keep, other=0.0)
            v = tl.load(v_head + first * v_row_stride + v_within, mask=keep, other=0.0)
        scores = tl.dot(q, k.T, input_precision="ieee")
        dp = tl.dot(do, v.T, input_precision="ieee")
        p = weights(scores, rows[:, None], keys[None, :], there, lse[:, None], bias_ptr,
                    bias_strides, sizes, MASKED, CAUSAL, WINDOWED)  # fmt: skip
        if DROPS:
            blocks = (head_rows * n_keys_8 + start) >> 3
            numbers = numbers_of_rows(seed_offset_ptr, blocks[:, None], BLOCK_M, BLOCK_N // 8)
            dp = tl.where(numbers >= drop_below, dp * drop_scale, 0.0)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    return dq


# A length that Triton takes for a constant, as 1, or sees a divisor of, would be another binary.
_SIZES = ["n_heads", "n_tiles", "n_queries", "n_keys", "window", "drop_below"]


@triton.jit(do_not_specialize=[*_SIZES, "group"])
def attention_dq(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, dq_ptr, lse_ptr, d_lse_ptr, row_lse_ptr, row_delta_ptr,
    bias_ptr, padding_ptr, q_lengths_ptr, k_lengths_ptr, seed_offset_ptr,
    q_batch_stride, q_head_stride, q_row_stride, k_batch_stride, k_head_stride, k_row_stride,
    v_batch_stride, v_head_stride, v_row_stride, o_batch_stride, o_head_stride, o_row_stride,
    do_batch_stride, do_head_stride, do_row_stride, dq_batch_stride, dq_head_stride, dq_row_stride,
    bias_batch_stride, bias_head_stride, bias_row_stride, bias_col_stride,
    padding_batch_stride, padding_col_stride,
    scale, n_heads, group, n_tiles, n_queries, n_keys, window, drop_below, drop_scale,
    CAUSAL: tl.constexpr, TOP_LEFT: tl.constexpr, WINDOWED: tl.constexpr, RAGGED: tl.constexpr,
    SPLIT: tl.constexpr, DROPS: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # As in the forward: one axis of programs, tiles of a head side by side, the longest first.
    number = tl.program_id(0)
    tile = number % n_tiles
    if CAUSAL:
        tile = n_tiles - 1 - tile
    head = number // n_tiles
    b, h = head // n_heads, head % n_heads
    b_wide, h_wide = tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    h_keys = (h // group).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    far = rows.to(tl.int64)[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    n_q, n_k, shift = sizes_of(q_lengths_ptr, k_lengths_ptr, b, n_queries, n_keys, TOP_LEFT)

    # Keys from `begin` to `end` are seen by some row, those from `whole` to `whole_end` by all.
    lowest = tile * BLOCK_M + shift
    highest = tl.minimum(tile * BLOCK_M + BLOCK_M, n_q) - 1 + shift
    begin, end, whole, whole_end = 0, n_k, 0, n_k
    if CAUSAL:
        end = tl.minimum(end, highest + 1)
        whole_end = tl.minimum(whole_end, lowest + 1)
    if WINDOWED:
        begin = tl.maximum(lowest - window + 1, 0) // BLOCK_N * BLOCK_N
        whole = tl.cdiv(tl.maximum(highest - window + 1, 0), BLOCK_N) * BLOCK_N
        if not CAUSAL:
            end = tl.minimum(end, highest + window)
            whole_end = tl.minimum(whole_end, lowest + window)
    if q_lengths_ptr is not None:
        end = tl.where(tile * BLOCK_M < n_q, end, 0)
    whole_end = tl.maximum(tl.minimum(whole_end, end), 0) // BLOCK_N * BLOCK_N

    keep = (rows < n_q)[:, None]
    if D != BLOCK_D:
        keep = keep & (dims < D)
    q_head = q_ptr + b_wide * q_batch_stride + h_wide * q_head_stride
    o_head = o_ptr + b_wide * o_batch_stride + h_wide * o_head_stride
    do_head = do_ptr + b_wide * do_batch_stride + h_wide * do_head_stride
    q = tl.load(q_head + far * q_row_stride + dims, mask=keep, other=0.0)
    o = tl.load(o_head + far * o_row_stride + dims, mask=keep, other=0.0)
    do = tl.load(do_head + far * do_row_stride + dims, mask=keep, other=0.0)

    # A row that sees no key has L = −inf. As +inf, and with a delta of 0, it gives zeros.
    head_rows = tl.cast(head, tl.int64) * n_queries + rows
    lse = tl.load(lse_ptr + head_rows, mask=rows < n_q, other=-float("inf"))
    nothing = lse == -float("inf")
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if d_lse_ptr is not None:
        delta -= tl.load(d_lse_ptr + head_rows, mask=rows < n_q, other=0.0)
    lse = tl.where(nothing, float("inf"), lse * LOG2E)
    delta = tl.where(nothing, 0.0, delta)
    tl.store(row_lse_ptr + head_rows, lse, mask=rows < n_queries)
    tl.store(row_delta_ptr + head_rows, delta, mask=rows < n_queries)

    k_head = k_ptr + b_wide * k_batch_stride + h_keys * k_head_stride
    v_head = v_ptr + b_wide * v_batch_stride + h_keys * v_head_stride
    bias = bias_ptr
    if bias_ptr is not None:
        bias = bias_ptr + b_wide * bias_batch_stride + h_wide * bias_head_stride
    padding = padding_ptr
    if padding_ptr is not None:
        padding = padding_ptr + b_wide * padding_batch_stride
    strides = (k_row_stride, v_row_stride, (bias_row_stride, bias_col_stride), padding_col_stride)
    sizes = (n_q, n_k, shift, window, scale * LOG2E)
    n_keys_8 = tl.cdiv(n_keys, 8) * 8
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Without SPLIT one loop masks all: on old cards two take registers that are short there.
    if WINDOWED or not SPLIT:
        dq = dq_over_keys(
            dq, q, do, lse, delta, k_head, v_head, bias, padding, seed_offset_ptr, strides, rows,
            head_rows, n_keys_8, sizes, drop_below, drop_scale,
            begin, tl.minimum(whole, end) if SPLIT else end,
            True, CAUSAL, WINDOWED, DROPS, D, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    if SPLIT:
        dq = dq_over_keys(
            dq, q, do, lse, delta, k_head, v_head, bias, padding, seed_offset_ptr, strides, rows,
            head_rows, n_keys_8, sizes, drop_below, drop_scale, whole, whole_end,
            False, CAUSAL, WINDOWED, DROPS, D, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    if SPLIT and (CAUSAL or WINDOWED or RAGGED):
        dq = dq_over_keys(
            dq, q, do, lse, delta, k_head, v_head, bias, padding, seed_offset_ptr, strides, rows,
            head_rows, n_keys_8, sizes, drop_below, drop_scale, tl.maximum(whole, whole_end), end,
            True, CAUSAL, WINDOWED, DROPS, D, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip

    dq *= scale
    stored = (rows < n_queries)[:, None]
    if D != BLOCK_D:
        stored = stored & (dims < D)
    dq_head = dq_ptr + b_wide * dq_batch_stride + h_wide * dq_head_stride
    tl.store(dq_head + far * dq_row_stride + dims, dq.to(dq_ptr.dtype.element_ty), mask=stored)


@triton.jit
def dkdv_over_queries(
    dk, dv, k, v, q_head, do_head, lse_head, delta_head, bias_ptr, seed_offset_ptr, strides, keys,
    first_key, head, n_queries, n_keys_8, sizes, drop_below, drop_scale, begin, end,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, DROPS: tl.constexpr,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # The queries from `begin`, a multiple of BLOCK_M, to `end`, added to a tile of dk and dv. The
    # tile of weights lies with the keys as its rows, so that neither product transposes it. What
    # a key that isn't there adds up, it adds to its own row, which nobody stores.
    q_row_stride, do_row_stride, bias_strides = strides
    n_q = sizes[0]
    dims = tl.arange(0, BLOCK_D)[None, :]
    lanes = tl.arange(0, BLOCK_M)
    q_within = lanes.to(tl.int64)[:, None] * q_row_stride + dims
    do_within = lanes.to(tl.int64)[:, None] * do_row_stride + dims
    for start in range(begin, end, BLOCK_M):
        rows = start + lanes
        there, keep = None, None
        if MASKED:
            known = rows < n_q
            there = known[None, :]
            keep = known[:, None]
            if D != BLOCK_D:
                keep = keep & (dims < D)
            lse = tl.load(lse_head + rows, mask=known, other=float("inf"))
            delta = tl.load(delta_head + rows, mask=known, other=0.0)
        else:
            if D != BLOCK_D:
                keep = dims < D
            lse = tl.load(lse_head + rows)
            delta = tl.load(delta_head + rows)
        first = tl.cast(start, tl.int64)
        if keep is None:
            q = tl.load(q_head + first * q_row_stride + q_within)
            do = tl.load(do_head + first * do_row_stride + do_within)
        else:
            q = tl.load(q_head + first * q_row_stride + q_within, mask=keep, other=0.0)
            do = tl.load(do_head + first * do_row_stride + do_within, mask=keep, other=0.0)
        scores = tl.dot(k, q.T, input_precision="ieee")
        p = weights(scores, rows[None, :], keys[:, None], there, lse[None, :], bias_ptr,
                    bias_strides, sizes, MASKED, CAUSAL, WINDOWED)  # fmt: skip
        dp = tl.dot(v, do.T, input_precision="ieee")
        kept = p
        if DROPS:
            head_rows = tl.cast(head, tl.int64) * n_queries + rows
            blocks = (head_rows * n_keys_8 + first_key) >> 3
            numbers = numbers_of_rows(seed_offset_ptr, blocks[:, None], BLOCK_M, BLOCK_N // 8)
            stays = tl.trans(numbers) >= drop_below
            dp = tl.where(stays, dp * drop_scale, 0.0)
            kept = tl.where(stays, p, 0.0)
        dv = tl.dot(kept.to(do.dtype), do, dv, input_precision="ieee")
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=_SIZES)
def attention_dkdv(
    q_ptr, k_ptr, v_ptr, do_ptr, dk_ptr, dv_ptr, row_lse_ptr, row_delta_ptr,
    bias_ptr, padding_ptr, q_lengths_ptr, k_lengths_ptr, seed_offset_ptr,
    q_batch_stride, q_head_stride, q_row_stride, k_batch_stride, k_head_stride, k_row_stride,
    v_batch_stride, v_head_stride, v_row_stride, do_batch_stride, do_head_stride, do_row_stride,
    dk_batch_stride, dk_head_stride, dk_row_stride, dv_batch_stride, dv_head_stride, dv_row_stride,
    bias_batch_stride, bias_head_stride, bias_row_stride, bias_col_stride,
    padding_batch_stride, padding_col_stride,
    scale, n_heads, n_tiles, n_queries, n_keys, window, drop_below, drop_scale,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, TOP_LEFT: tl.constexpr, WINDOWED: tl.constexpr,
    RAGGED: tl.constexpr, SPLIT: tl.constexpr, DROPS: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # A program keeps one tile of keys and values of a head, `n_heads` being the keys', and adds up
    # the queries of the GROUP heads that share it. Causal, the first tile has the most to do.
    number = tl.program_id(0)
    tile, head = number % n_tiles, number // n_tiles
    b, h_keys = head // n_heads, head % n_heads
    b_wide, h_wide = tl.cast(b, tl.int64), tl.cast(h_keys, tl.int64)
    keys = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    far = keys.to(tl.int64)[:, None]
    dims = tl.arange(0, BLOCK_D)[None, :]
    n_q, n_k, shift = sizes_of(q_lengths_ptr, k_lengths_ptr, b, n_queries, n_keys, TOP_LEFT)

    # Queries from `begin` to `end` see some key, those from `whole` to `whole_end` all.
    lowest = tile * BLOCK_N - shift
    highest = tl.minimum(tile * BLOCK_N + BLOCK_N, n_k) - 1 - shift
    begin, end, whole, whole_end = 0, n_q, 0, n_q
    if CAUSAL:
        begin = tl.maximum(lowest, 0) // BLOCK_M * BLOCK_M
        whole = tl.cdiv(tl.maximum(highest, 0), BLOCK_M) * BLOCK_M
    if WINDOWED:
        end = tl.minimum(end, highest + window)
        whole_end = tl.minimum(whole_end, lowest + window)
        if not CAUSAL:
            begin = tl.maximum(lowest - window + 1, 0) // BLOCK_M * BLOCK_M
            whole = tl.cdiv(tl.maximum(highest - window + 1, 0), BLOCK_M) * BLOCK_M
    if k_lengths_ptr is not None:
        end = tl.where(tile * BLOCK_N < n_k, end, 0)
    whole_end = tl.maximum(tl.minimum(whole_end, end), 0) // BLOCK_M * BLOCK_M

    there = keys < n_k
    if padding_ptr is not None:
        places = padding_ptr + b_wide * padding_batch_stride
        places += keys.to(tl.int64) * padding_col_stride
        there = there & (tl.load(places, mask=there, other=1) == 0)
    keep = there[:, None]
    if D != BLOCK_D:
        keep = keep & (dims < D)
    k_head = k_ptr + b_wide * k_batch_stride + h_wide * k_head_stride
    v_head = v_ptr + b_wide * v_batch_stride + h_wide * v_head_stride
    k = tl.load(k_head + far * k_row_stride + dims, mask=keep, other=0.0)
    v = tl.load(v_head + far * v_row_stride + dims, mask=keep, other=0.0)
    strides = (q_row_stride, do_row_stride, (bias_row_stride, bias_col_stride))
    sizes = (n_q, n_k, shift, window, scale * LOG2E)
    n_keys_8 = tl.cdiv(n_keys, 8) * 8
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for one in range(GROUP):
        h = h_keys * GROUP + one
        h_wide_q = tl.cast(h, tl.int64)
        head_q = b * (n_heads * GROUP) + h
        q_head = q_ptr + b_wide * q_batch_stride + h_wide_q * q_head_stride
        do_head = do_ptr + b_wide * do_batch_stride + h_wide_q * do_head_stride
        of_rows = tl.cast(head_q, tl.int64) * n_queries
        lse_head, delta_head = row_lse_ptr + of_rows, row_delta_ptr + of_rows
        bias = bias_ptr
        if bias_ptr is not None:
            bias = bias_ptr + b_wide * bias_batch_stride + h_wide_q * bias_head_stride
        if CAUSAL or WINDOWED or not SPLIT:
            dk, dv = dkdv_over_queries(
                dk, dv, k, v, q_head, do_head, lse_head, delta_head, bias, seed_offset_ptr,
                strides, keys, tile * BLOCK_N, head_q, n_queries, n_keys_8, sizes, drop_below,
                drop_scale, begin, tl.minimum(whole, end) if SPLIT else end,
                True, CAUSAL, WINDOWED, DROPS, D, BLOCK_M, BLOCK_N, BLOCK_D,
            )  # fmt: skip
        if SPLIT:
            dk, dv = dkdv_over_queries(
                dk, dv, k, v, q_head, do_head, lse_head, delta_head, bias, seed_offset_ptr,
                strides, keys, tile * BLOCK_N, head_q, n_queries, n_keys_8, sizes, drop_below,
                    drop_scale, whole, whole_end,
                False, CAUSAL, WINDOWED, DROPS, D, BLOCK_M, BLOCK_N, BLOCK_D,
            )  # fmt: skip
        if SPLIT and (WINDOWED or RAGGED):
            dk, dv = dkdv_over_queries(
                dk, dv, k, v, q_head, do_head, lse_head, delta_head, bias, seed_offset_ptr,
                strides, keys, tile * BLOCK_N, head_q, n_queries, n_keys_8, sizes, drop_below,
                drop_scale, tl.maximum(whole, whole_end), end,
                True, CAUSAL, WINDOWED, DROPS, D, BLOCK_M, BLOCK_N, BLOCK_D,
            )  # fmt: skip

    # Keys that are padding, or behind their length, get zeros.
    dk = tl.where(there[:, None], dk * scale, 0.0)
    dv = tl.where(there[:, None], dv * drop_scale, 0.0)
    stored = (keys < n_keys)[:, None]
    if D != BLOCK_D:
        stored = stored & (dims < D)
    dk_head = dk_ptr + b_wide * dk_batch_stride + h_wide * dk_head_stride
    dv_head = dv_ptr + b_wide * dv_batch_stride + h_wide * dv_head_stride
    tl.store(dk_head + far * dk_row_stride + dims, dk.to(dk_ptr.dtype.element_ty), mask=stored)
    tl.store(dv_head + far * dv_row_stride + dims, dv.to(dv_ptr.dtype.element_ty), mask=stored)
