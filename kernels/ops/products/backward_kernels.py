"""The two products that go back through y = x · wᵀ + b, in Triton.

    dX = dY · W,   dW = dYᵀ · X,   db = the columns of dY, summed

Both are out = A · B with B stored row by row along the sum, (K, N): of dX that is the weight, of dW
it is x. A is dY, as it lies for dX and across for dW. M, N and K are those of the product at hand:
out is (M, N), and K is what is summed over.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.products.forward_kernels import tile_at


@triton.jit
def _tile_by_pointers(
    a_tile,
    b_tile,
    a_step,
    b_step,
    a_mask,
    b_mask,
    first,
    last,
    SUMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # A tile of A · B over K from `first` to `last`. With SUMS also A's rows, summed along K: as
    # A · 1, on the tensor cores, 16 times over. By tl.sum each step would wait for all warps.
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    sums = tl.zeros([BLOCK_M, 16], tl.float32)
    ones = tl.full([BLOCK_K, 16], 1.0, a_tile.dtype.element_ty)
    for start in range(first, last, BLOCK_K):
        inside = start + tl.arange(0, BLOCK_K) < last
        at = tl.cast(start, tl.int64)
        a = tl.load(a_tile + at * a_step, mask=a_mask & inside[None, :], other=0.0)
        b = tl.load(b_tile + at * b_step, mask=b_mask & inside[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        if SUMS:
            sums = tl.dot(a, ones, sums, input_precision="ieee")
    return total, tl.sum(sums, axis=1) * 0.0625  # exact: 16 times the same number


@triton.jit
def gradient_tile(
    a_ptr,
    b_ptr,
    out_ptr,
    sums_ptr,
    M,
    N,
    K,
    k_each,
    a_row_stride,
    b_row_stride,
    ACROSS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    # A program computes one tile of out over k_each of K: the second axis of the grid shares K, and
    # each of its programs has an out, and sums, of its own.
    m, n = tile_at(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    split = tl.program_id(1).to(tl.int64)
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    first = tl.program_id(1) * k_each
    last = tl.minimum(first + k_each, K)
    if ACROSS:
        a_tile = a_ptr + rows[:, None] + k[None, :].to(tl.int64) * a_row_stride
        a_step = a_row_stride
    else:
        a_tile = a_ptr + rows[:, None].to(tl.int64) * a_row_stride + k[None, :]
        a_step = 1
    b_tile = b_ptr + k[:, None].to(tl.int64) * b_row_stride + cols[None, :]
    a_mask, b_mask = (rows < M)[:, None], (cols < N)[None, :]
    if sums_ptr is not None and n == 0:
        total, sums = _tile_by_pointers(
            a_tile, b_tile, a_step, b_row_stride, a_mask, b_mask, first, last, True,
            BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        tl.store(sums_ptr + split * M + rows, sums.to(sums_ptr.dtype.element_ty), mask=rows < M)
    else:
        total, sums = _tile_by_pointers(
            a_tile, b_tile, a_step, b_row_stride, a_mask, b_mask, first, last, False,
            BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    out = out_ptr + (split * M + rows)[:, None] * N + cols[None, :]
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=a_mask & b_mask)


@triton.jit
def _tile_by_descriptors(
    a_desc,
    b_desc,
    row,
    col,
    first,
    last,
    ACROSS: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    sums = tl.zeros([BLOCK_M, 16], tl.float32)
    ones = tl.full([BLOCK_K, 16], 1.0, b_desc.dtype)
    for start in range(first, last, BLOCK_K):
        b = b_desc.load([start, col])
        if ACROSS:
            a = a_desc.load([start, row])
            total = tl.dot(a.T, b, total)
            if SUMS:
                sums = tl.dot(a.T, ones, sums)
        else:
            total = tl.dot(a_desc.load([row, start]), b, total)
    return total, tl.sum(sums, axis=1) * 0.0625


@triton.jit
def gradient_persistent(
    a_desc,
    b_desc,
    out_desc,
    parts_ptr,
    sums_ptr,
    M,
    N,
    K,
    k_each,
    splits,
    ACROSS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    # As many programs as SMs share the tiles, all of one part of K before the next. k_each is a
    # multiple of BLOCK_K. Parts of a sum go out by pointers, in fp32; a whole one by a descriptor.
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    n_tiles = tiles_m * tiles_n
    programs = tl.num_programs(0)
    for job in tl.range(tl.program_id(0), n_tiles * splits, programs, flatten=FLATTEN):
        m, n = tile_at(job % n_tiles, tiles_m, tiles_n, GROUP)
        row, col, split = m * BLOCK_M, n * BLOCK_N, (job // n_tiles).to(tl.int64)
        first, last = 0, K
        if splits > 1:  # the compiler knows a 1: without parts the loops can become one
            first = job // n_tiles * k_each
            last = tl.minimum(first + k_each, K)
        rows, cols = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
        if sums_ptr is not None and n == 0:
            total, sums = _tile_by_descriptors(
                a_desc, b_desc, row, col, first, last, ACROSS, True, BLOCK_M, BLOCK_N, BLOCK_K
            )
            tl.store(sums_ptr + split * M + rows, sums.to(sums_ptr.dtype.element_ty), rows < M)
        else:
            total, sums = _tile_by_descriptors(
                a_desc, b_desc, row, col, first, last, ACROSS, False, BLOCK_M, BLOCK_N, BLOCK_K
            )
        if parts_ptr is not None:
            part = parts_ptr + (split * M + rows)[:, None] * N + cols[None, :]
            tl.store(part, total, mask=(rows < M)[:, None] & (cols < N)[None, :])
        elif HALVES:
            pair = tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1])
            left, right = tl.split(pair)
            out_desc.store([row, col], left.to(out_desc.dtype))
            out_desc.store([row, col + BLOCK_N // 2], right.to(out_desc.dtype))
        else:
            out_desc.store([row, col], total.to(out_desc.dtype))


@triton.jit
def add_splits(parts_ptr, out_ptr, size, splits, BLOCK: tl.constexpr):
    # A program adds up BLOCK elements of the parts, first to last: the same bits in every run.
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        part = parts_ptr + tl.cast(split, tl.int64) * size
        total += tl.load(part + at, mask=at < size, other=0.0)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=at < size)
