"""A product and what follows it, in Triton: one tile of the sums a program, and a grid that stays.

They are the product's kernels (`products/forward_kernels.py`) but for what they do with a finished
tile, whose fp32 sums still stand in registers. By constants, so that a binary has none but its own:

    bias        total + bias
    activation  act(total), `kept` being the total that its backward needs
    gate        act(left) · right, the halves of a tile whose weights are two: gate, and up
    residual    residual + total
    heads       a tile stored as [part][batch][head][position][number] instead of row by row
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernels.ops.chains.activations import LOG2E, gelu, gelu_erf
from kernels.ops.chains.gelu_by_power import gelu_erf_by_power
from kernels.ops.products.forward_kernels import tile_at


@triton.jit
def activated(h, ACTIVATION: tl.constexpr, dtype: tl.constexpr):
    # In few instructions, as the tensor cores wait while a tile is finished; rounded to `dtype`.
    if ACTIVATION == "silu":
        return libdevice.fast_dividef(h, 1.0 + tl.exp2(h * -LOG2E))
    elif ACTIVATION == "gelu_tanh":
        return gelu(h)
    elif dtype == tl.float32:
        return gelu_erf(h)
    else:
        return gelu_erf_by_power(h)


@triton.jit
def halves(total, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    # (BLOCK_M, 2 · BLOCK_N) to its left and its right half.
    return tl.split(tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N]), [0, 2, 1]))


@triton.jit
def rows_in_heads(rows, positions, n_heads, HEAD_SIZE: tl.constexpr):
    # Row b · positions + s of the product begins in head 0 of batch b, at position s.
    batch = (rows // positions).to(tl.int64)
    return (batch * n_heads * positions + rows % positions) * HEAD_SIZE


@triton.jit
def cols_in_heads(cols, positions, n_heads, n_batches, HEAD_SIZE: tl.constexpr):
    # Column (part · heads + head) · HEAD_SIZE + d: so much further on.
    part, head = cols // (n_heads * HEAD_SIZE), cols // HEAD_SIZE % n_heads
    heads_before = part.to(tl.int64) * n_batches * n_heads + head
    return heads_before * positions * HEAD_SIZE + cols % HEAD_SIZE


@triton.jit
def epilogue_tile(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    kept_ptr,
    M,
    N,
    K,
    x_row_stride,
    weight_row_stride,
    residual_row_stride,
    positions,
    n_heads,
    n_batches,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    # A program computes one tile of y, BLOCK_M × BLOCK_N, in steps of BLOCK_K along K. With a gate
    # its sums are twice as wide: those of BLOCK_N rows of gate, then those of as many of up.
    PARTS: tl.constexpr = 2 if GATED else 1
    m, n = tile_at(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = n * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * x_row_stride
    wide = tl.arange(0, PARTS * BLOCK_N)
    of_weight = n * BLOCK_N + wide % BLOCK_N
    weight_cols = wide // BLOCK_N * N + of_weight
    weight_rows = weight_ptr + weight_cols.to(tl.int64)[None, :] * weight_row_stride
    total = tl.zeros([BLOCK_M, PARTS * BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x_mask = (rows < M)[:, None] & (k < K)[None, :]
        weight_mask = (k < K)[:, None] & (of_weight < N)[None, :]
        x = tl.load(x_rows + k[None, :], mask=x_mask, other=0.0)
        weight = tl.load(weight_rows + k[:, None], mask=weight_mask, other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
    if GATED:
        total, second = halves(total, BLOCK_M, BLOCK_N)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    if bias_ptr is not None:
        total += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    at = rows.to(tl.int64)[:, None] * N + cols[None, :]
    if kept_ptr is not None:
        if not GATED:
            tl.store(kept_ptr + at, total.to(kept_ptr.dtype.element_ty), mask=mask)
        else:  # both products, the halves of a row
            kept = kept_ptr + rows.to(tl.int64)[:, None] * 2 * N + cols[None, :]
            tl.store(kept, total.to(kept_ptr.dtype.element_ty), mask=mask)
            tl.store(kept + N, second.to(kept_ptr.dtype.element_ty), mask=mask)
    if ACTIVATION is not None:
        total = activated(total, ACTIVATION, y_ptr.dtype.element_ty)
    if GATED:
        total *= second
    if residual_ptr is not None:
        residual_at = rows.to(tl.int64)[:, None] * residual_row_stride + cols[None, :]
        total += tl.load(residual_ptr + residual_at, mask=mask, other=0.0).to(tl.float32)
    if HEAD_SIZE is not None:
        y_rows = rows_in_heads(rows, positions, n_heads, HEAD_SIZE)
        y_cols = cols_in_heads(cols, positions, n_heads, n_batches, HEAD_SIZE)
        at = y_rows[:, None] + y_cols[None, :]
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def leave(
    total,
    second,
    row,
    col,
    bias_ptr,
    residual_desc,
    y_desc,
    heads_ptr,
    kept_desc,
    M,
    N,
    positions,
    n_heads,
    n_batches,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # What follows the sums of a tile, or of its half, which begins at (row, col).
    cols = col + tl.arange(0, BLOCK_N)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    if kept_desc is not None:
        if GATED:  # (M, 2, N): what lies outside of one half is not the other's
            of_gate = tl.reshape(total.to(kept_desc.dtype), [BLOCK_M, 1, BLOCK_N])
            of_up = tl.reshape(second.to(kept_desc.dtype), [BLOCK_M, 1, BLOCK_N])
            kept_desc.store([row, 0, col], of_gate)
            kept_desc.store([row, 1, col], of_up)
        else:
            kept_desc.store([row, col], total.to(kept_desc.dtype))
    if ACTIVATION is not None:
        total = activated(total, ACTIVATION, y_desc.dtype)
    if GATED:
        total *= second
    if residual_desc is not None:
        total += residual_desc.load([row, col]).to(tl.float32)
    if HEAD_SIZE is not None:
        rows = row + tl.arange(0, BLOCK_M)
        y_rows = rows_in_heads(rows, positions, n_heads, HEAD_SIZE)
        y_cols = cols_in_heads(cols, positions, n_heads, n_batches, HEAD_SIZE)
        y = heads_ptr + y_rows[:, None] + y_cols[None, :]
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        tl.store(y, total.to(heads_ptr.dtype.element_ty), mask=mask)
    else:
        y_desc.store([row, col], total.to(y_desc.dtype))


@triton.jit
def epilogue_persistent(
    x_desc,
    weight_desc,
    bias_ptr,
    residual_desc,
    y_desc,
    heads_ptr,
    kept_desc,
    M,
    N,
    K,
    positions,
    n_heads,
    n_batches,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    # As many programs as SMs, each with one tile of y after another, by descriptors. Gate and up
    # are one tensor of three dimensions: a tile of both comes at once, and is one operand.
    PARTS: tl.constexpr = 2 if GATED else 1
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    programs = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLATTEN):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        row, col = m * BLOCK_M, n * BLOCK_N
        total = tl.zeros([BLOCK_M, PARTS * BLOCK_N], tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            x = x_desc.load([row, step * BLOCK_K])
            if GATED:
                both = weight_desc.load([0, col, step * BLOCK_K])
                weight = tl.reshape(both, [2 * BLOCK_N, BLOCK_K])
            else:
                weight = weight_desc.load([col, step * BLOCK_K])
            total = tl.dot(x, weight.T, total)
        if HALVES:
            # One half after the other leaves through half the shared memory: room for a stage more.
            left, right = halves(total, BLOCK_M, BLOCK_N // 2)
            leave(
                left, left, row, col, bias_ptr, residual_desc, y_desc, heads_ptr, kept_desc, M, N,
                positions, n_heads, n_batches, ACTIVATION, False, HEAD_SIZE, BLOCK_M, BLOCK_N // 2,
            )  # fmt: skip
            leave(
                right, right, row, col + BLOCK_N // 2, bias_ptr, residual_desc, y_desc, heads_ptr,
                kept_desc, M, N, positions, n_heads, n_batches, ACTIVATION, False, HEAD_SIZE,
                BLOCK_M, BLOCK_N // 2,
            )  # fmt: skip
        else:
            second = total
            if GATED:
                total, second = halves(total, BLOCK_M, BLOCK_N)
            leave(
                total, second, row, col, bias_ptr, residual_desc, y_desc, heads_ptr, kept_desc, M,
                N, positions, n_heads, n_batches, ACTIVATION, GATED, HEAD_SIZE, BLOCK_M, BLOCK_N,
            )  # fmt: skip
