"""The kernel of attention forward in Triton: a tile of queries a program, a loop over the keys.

Each row of a tile has the state (m, l, acc) of the keys it has seen: the largest score, Σ 2^(s − m)
and Σ 2^(s − m) · v, with scores s in units of log 2. A tile of keys changes it by

    m' = max(m, max s),   l' = l · 2^(m − m') + Σ 2^(s − m'),   acc' = acc · 2^(m − m') + p · v

Most tiles of keys are seen whole by all rows of a program: their loop tests no element. What stands
before it (a window) and behind it (the diagonal, the end of the keys) goes by a loop that does.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.philox_triton import numbers_of_rows

LOG2E = tl.constexpr(math.log2(math.e))
LN2 = tl.constexpr(math.log(2))
# A row's maximum begins at the lowest finite number, not at −inf: −inf − (−inf) would be NaN, and
# a score of −inf adds 2^−inf = 0 to a row that has seen nothing else, as it should.
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


@triton.jit
def load_rows(source, b, h, start, base, within, keep, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
              DESCRIPTORS: tl.constexpr):  # fmt: skip
    # Rows `start` and on of one head, BLOCK × BLOCK_D; what lies outside of the tensor is 0.
    if DESCRIPTORS:
        return tl.reshape(source.load([b, h, start, 0]), [BLOCK, BLOCK_D])
    elif keep is None:
        return tl.load(base + within)
    else:
        return tl.load(base + within, mask=keep, other=0.0)


@triton.jit
def over_keys(
    state,
    q,
    k_source,
    v_source,
    bias_ptr,
    padding_ptr,
    seed_offset_ptr,
    strides,
    at,
    sizes,
    begin,
    end,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    DROPS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    # The keys from `begin`, a multiple of BLOCK_N, to `end`. Only a MASKED loop asks which of them
    # a row sees; the other takes whole tiles that all rows see.
    largest, total, acc = state
    k_row_stride, v_row_stride, bias_row_stride, bias_col_stride, padding_stride = strides
    b, h_keys, rows, head_rows = at
    n_queries, n_keys, n_keys_8, shift, window, scale, drop_below = sizes
    dims = tl.arange(0, BLOCK_D)[None, :]
    lanes = tl.arange(0, BLOCK_N)
    k_within = lanes.to(tl.int64)[:, None] * k_row_stride + dims
    v_within = lanes.to(tl.int64)[:, None] * v_row_stride + dims
    for start in range(begin, end, BLOCK_N):
        keys = start + lanes
        keep = None
        if MASKED or padding_ptr is not None:
            there = keys < n_keys
            if padding_ptr is not None:
                places = padding_ptr + keys.to(tl.int64) * padding_stride
                padding = tl.load(places, mask=there, other=1)
                there = there & (padding == 0)
            keep = there[:, None]
            if D != BLOCK_D:
                keep = keep & (dims < D)
        elif D != BLOCK_D:
            keep = dims < D
        first = tl.cast(start, tl.int64)
        if DESCRIPTORS:
            k_base, v_base = k_source, v_source
        else:
            k_base, v_base = k_source + first * k_row_stride, v_source + first * v_row_stride
        k = load_rows(k_source, b, h_keys, start, k_base, k_within, keep, BLOCK_N, BLOCK_D,
                      DESCRIPTORS)  # fmt: skip
        scores = tl.dot(q, k.T, input_precision="ieee")
        if bias_ptr is not None:
            places = bias_ptr + rows.to(tl.int64)[:, None] * bias_row_stride
            places += keys.to(tl.int64)[None, :] * bias_col_stride
            inside = (rows < n_queries)[:, None] & (keys < n_keys)[None, :]
            bias = tl.load(places, mask=inside, other=0)
            if bias_ptr.dtype.element_ty == tl.int1:
                scores = tl.where(bias, scores * scale, -float("inf"))
            else:
                scores = scores * scale + bias.to(tl.float32) * LOG2E
        if MASKED:
            seen = there[None, :]
            if CAUSAL:
                seen = seen & (keys[None, :] <= rows[:, None] + shift)
            if WINDOWED:
                seen = seen & (keys[None, :] > rows[:, None] + shift - window)
                if not CAUSAL:
                    seen = seen & (keys[None, :] < rows[:, None] + shift + window)
            scores = tl.where(seen, scores, -float("inf"))
        elif padding_ptr is not None:
            scores = tl.where(there[None, :], scores, -float("inf"))

        # The scale goes into one multiply-add with the subtraction, but for a bias, which it
        # must not reach.
        if bias_ptr is not None:
            new = tl.maximum(largest, tl.max(scores, axis=1))
            p = tl.exp2(scores - new[:, None])
        else:
            new = tl.maximum(largest, tl.max(scores, axis=1) * scale)
            p = tl.exp2(scores * scale - new[:, None])
        correction = tl.exp2(largest - new)
        total = total * correction + tl.sum(p, axis=1)
        if DROPS:
            # The sum is of all of them: what is dropped is dropped from the output alone.
            blocks = (head_rows * n_keys_8 + start) >> 3
            numbers = numbers_of_rows(seed_offset_ptr, blocks[:, None], BLOCK_M, BLOCK_N // 8)
            p = tl.where(numbers >= drop_below, p, 0.0)
        v = load_rows(v_source, b, h_keys, start, v_base, v_within, keep, BLOCK_N, BLOCK_D,
                      DESCRIPTORS)  # fmt: skip
        acc = tl.dot(p.to(v.dtype), v, acc * correction[:, None], input_precision="ieee")
        largest = new
    return largest, total, acc


# A length that Triton takes for a constant, as 1, or sees a divisor of, would be another binary.
@triton.jit(
    do_not_specialize=[
        *("n_heads", "group", "n_tiles", "n_queries", "n_keys", "window", "drop_below"),
    ]
)
def attention_forward(
    q_source,
    k_source,
    v_source,
    o_ptr,
    lse_ptr,
    bias_ptr,
    padding_ptr,
    q_lengths_ptr,
    k_lengths_ptr,
    seed_offset_ptr,
    q_batch_stride,
    q_head_stride,
    q_row_stride,
    k_batch_stride,
    k_head_stride,
    k_row_stride,
    v_batch_stride,
    v_head_stride,
    v_row_stride,
    o_batch_stride,
    o_head_stride,
    o_row_stride,
    bias_batch_stride,
    bias_head_stride,
    bias_row_stride,
    bias_col_stride,
    padding_batch_stride,
    padding_col_stride,
    scale,
    n_heads,
    group,
    n_tiles,
    n_queries,
    n_keys,
    window,
    drop_below,
    drop_scale,
    CAUSAL: tl.constexpr,
    TOP_LEFT: tl.constexpr,
    WINDOWED: tl.constexpr,
    RAGGED: tl.constexpr,
    DROPS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    # One axis of programs, since the others end at 65,535: tiles of a head side by side, and with
    # CAUSAL the longest first, so that none is left alone at the end.
    number = tl.program_id(0)
    tile = number % n_tiles
    if CAUSAL:
        tile = n_tiles - 1 - tile
    head = number // n_tiles
    b, h = head // n_heads, head % n_heads
    h_keys = h // group
    b_wide, h_wide, h_keys_wide = tl.cast(b, tl.int64), tl.cast(h, tl.int64), h_keys.to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)[None, :]

    # How many queries and keys this sequence has; the tensors may hold more.
    n_q, n_k = n_queries, n_keys
    if q_lengths_ptr is not None:
        n_q = tl.minimum(tl.load(q_lengths_ptr + b).to(tl.int32), n_queries)
    if k_lengths_ptr is not None:
        n_k = tl.minimum(tl.load(k_lengths_ptr + b).to(tl.int32), n_keys)
    shift = 0 if TOP_LEFT else n_k - n_q  # the last query stands at the last key

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

    if DESCRIPTORS:
        q = tl.reshape(q_source.load([b, h, tile * BLOCK_M, 0]), [BLOCK_M, BLOCK_D])
        k_head, v_head = k_source, v_source
    else:
        keep = (rows < n_q)[:, None]
        if D != BLOCK_D:
            keep = keep & (dims < D)
        places = q_source + b_wide * q_batch_stride + h_wide * q_head_stride
        q = tl.load(places + rows.to(tl.int64)[:, None] * q_row_stride + dims, mask=keep, other=0.0)
        k_head = k_source + b_wide * k_batch_stride + h_keys_wide * k_head_stride
        v_head = v_source + b_wide * v_batch_stride + h_keys_wide * v_head_stride
    bias_head = bias_ptr
    if bias_ptr is not None:
        bias_head = bias_ptr + b_wide * bias_batch_stride + h_wide * bias_head_stride
    padding = padding_ptr
    if padding_ptr is not None:
        padding = padding_ptr + b_wide * padding_batch_stride

    largest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    state = (largest, total, acc)
    strides = (k_row_stride, v_row_stride, bias_row_stride, bias_col_stride, padding_col_stride)
    head_rows = tl.cast(head, tl.int64) * n_queries + rows
    at = (b, h_keys, rows, head_rows)
    sizes = (n_q, n_k, tl.cdiv(n_keys, 8) * 8, shift, window, scale * LOG2E, drop_below)
    if WINDOWED:
        state = over_keys(
            state, q, k_head, v_head, bias_head, padding, seed_offset_ptr, strides, at,
            sizes, begin, tl.minimum(whole, end), True, CAUSAL, WINDOWED, DROPS,
            D, BLOCK_M, BLOCK_N, BLOCK_D, DESCRIPTORS,
        )  # fmt: skip
    state = over_keys(
        state, q, k_head, v_head, bias_head, padding, seed_offset_ptr, strides, at,
        sizes, whole, whole_end, False, CAUSAL, WINDOWED, DROPS,
        D, BLOCK_M, BLOCK_N, BLOCK_D, DESCRIPTORS,
    )  # fmt: skip
    if CAUSAL or WINDOWED or RAGGED:
        state = over_keys(
            state, q, k_head, v_head, bias_head, padding, seed_offset_ptr, strides, at,
            sizes, tl.maximum(whole, whole_end), end, True, CAUSAL, WINDOWED, DROPS,
            D, BLOCK_M, BLOCK_N, BLOCK_D, DESCRIPTORS,
        )  # fmt: skip
    largest, total, acc = state

    # A row that sees no key has a sum of 0, and gives zeros.
    inverse = tl.where(total == 0, 0.0, drop_scale / total)
    out = acc * inverse[:, None]
    if q_lengths_ptr is not None:
        out = tl.where((rows < n_q)[:, None], out, 0.0)
        total = tl.where(rows < n_q, total, 0.0)
    stored = (rows < n_queries)[:, None]
    if D != BLOCK_D:
        stored = stored & (dims < D)
    places = o_ptr + b_wide * o_batch_stride + h_wide * o_head_stride
    places += rows.to(tl.int64)[:, None] * o_row_stride + dims
    tl.store(places, out.to(o_ptr.dtype.element_ty), mask=stored)
    if lse_ptr is not None:
        lse = tl.where(total == 0, -float("inf"), (largest + tl.log2(total)) * LN2)
        tl.store(lse_ptr + head_rows, lse, mask=rows < n_queries)
