"""The kernels of y = x · wᵀ + b in Triton: one tile of y a program, and a grid that stays."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_at(number, tiles_m, tiles_n, GROUP: tl.constexpr):
    # Tile `number` as (block of rows, block of columns). GROUP blocks of rows go together, down a
    # column of them, then down the next: neighbours share rows of x and of the weight in the L2.
    # With GROUP = 1 it is row-major.
    in_group = GROUP * tiles_n
    first = number // in_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    inside = number % in_group
    return first + inside % height, inside // height


@triton.jit
def linear_tile(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    M,
    N,
    K,
    x_row_stride,
    weight_row_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    # A program computes one tile of y, BLOCK_M × BLOCK_N, in steps of BLOCK_K along K.
    m, n = tile_at(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = n * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * x_row_stride
    weight_rows = weight_ptr + cols.to(tl.int64)[None, :] * weight_row_stride
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x_mask = (rows < M)[:, None] & (k < K)[None, :]
        weight_mask = (k < K)[:, None] & (cols < N)[None, :]
        x = tl.load(x_rows + k[None, :], mask=x_mask, other=0.0)
        weight = tl.load(weight_rows + k[:, None], mask=weight_mask, other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
    if bias_ptr is not None:
        total += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    y = y_ptr + rows.to(tl.int64)[:, None] * N + cols[None, :]
    y_mask = (rows < M)[:, None] & (cols < N)[None, :]
    tl.store(y, total.to(y_ptr.dtype.element_ty), mask=y_mask)


@triton.jit
def linear_persistent(
    x_desc,
    weight_desc,
    bias_ptr,
    y_desc,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    # As many programs as SMs, each with one tile of y after another. A descriptor knows shape,
    # strides and tile of its tensor: the copy engine computes the addresses, and what lies outside
    # is 0 when it is loaded and dropped when it is stored.
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    programs = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLATTEN):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        row, col = m * BLOCK_M, n * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            x = x_desc.load([row, step * BLOCK_K])
            weight = weight_desc.load([col, step * BLOCK_K])
            total = tl.dot(x, weight.T, total)
        if bias_ptr is not None:
            cols = col + tl.arange(0, BLOCK_N)
            total += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        if HALVES:
            # One half after the other leaves through half the shared memory: room for a stage more.
            pair = tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1])
            left, right = tl.split(pair)
            y_desc.store([row, col], left.to(y_desc.dtype))
            y_desc.store([row, col + BLOCK_N // 2], right.to(y_desc.dtype))
        else:
            y_desc.store([row, col], total.to(y_desc.dtype))
