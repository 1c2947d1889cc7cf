"""The kernels of a norm and a product in one launch, in Triton: the simplest first.

- `norm_linear_tile` normalises each tile of x on its way into the product (a prologue). It must
  know the rows' statistics before, so it reads its rows of x twice.
- `folded_tile` and `folded_persistent` multiply x as it is with weights that hold the norm's weight
  already (`folding`), gather the statistics from the tiles that the product reads anyway (on
  Hopper from tiles of their own), and put mean and inv_std right in the finished sums (an
  epilogue).
- `fold_rows` makes these weights.

Each may have GELU behind it, an epilogue of the finished sums: ACTIVATION.

The statistics of a folded product are sums of x − shift and of its square, the shift being the mean
of the row's first BLOCK_K elements. Those are part of the row, so that its mean can lie at most
√(K / BLOCK_K) standard deviations away from the shift: the variance is a difference of two numbers,
the larger at most 1 + K / BLOCK_K times the result, and fp32 is enough whatever the mean is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.epilogues.epilogue_kernels import activated
from kernels.ops.products.forward_kernels import tile_at


@triton.jit
def norm_linear_tile(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    M,
    N,
    K,
    x_row_stride,
    weight_row_stride,
    eps,
    CENTRED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    # A program computes one tile of y: first the statistics of its rows of x, then the product of
    # the normalised rows. Every column of tiles does the first anew.
    m, n = tile_at(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = n * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * x_row_stride
    weight_rows = weight_ptr + cols.to(tl.int64)[None, :] * weight_row_stride
    mean = tl.zeros([BLOCK_M], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = (k < K)[None, :]
        x = tl.load(x_rows + k[None, :], mask=(rows < M)[:, None] & inside, other=0.0)
        x = x.to(tl.float32)
        if CENTRED:  # the state (count, mean, sum of squares) of a tile merged into the row's
            size = tl.minimum(K - start, BLOCK_K).to(tl.float32)
            tile_mean = tl.sum(x, axis=1) / size
            x = tl.where(inside, x - tile_mean[:, None], 0.0)
            delta = tile_mean - mean
            share = size / (start + size)
            mean += delta * share
            squares += delta * delta * start * share
        squares += tl.sum(x * x, axis=1)
    inv_std = tl.rsqrt(squares / K + eps)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < K
        x = tl.load(x_rows + k[None, :], mask=(rows < M)[:, None] & inside[None, :], other=0.0)
        weight_mask = inside[:, None] & (cols < N)[None, :]
        weight = tl.load(weight_rows + k[:, None], mask=weight_mask, other=0.0)
        h = (x.to(tl.float32) - mean[:, None]) * inv_std[:, None]
        if norm_weight_ptr is not None:
            h *= tl.load(norm_weight_ptr + k, mask=inside, other=0.0).to(tl.float32)[None, :]
        if norm_bias_ptr is not None:
            h += tl.load(norm_bias_ptr + k, mask=inside, other=0.0).to(tl.float32)[None, :]
        total = tl.dot(h.to(x.dtype), weight, total, input_precision="ieee")
    if bias_ptr is not None:
        total += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION is not None:
        total = activated(total, ACTIVATION, y_ptr.dtype.element_ty)
    y = y_ptr + rows.to(tl.int64)[:, None] * N + cols[None, :]
    tl.store(y, total.to(y_ptr.dtype.element_ty), mask=(rows < M)[:, None] & (cols < N)[None, :])


@triton.jit
def lane_sums(x, PARTS: tl.constexpr):
    # The elements of a row, added up in PARTS parts: eight neighbours lie in one thread, so that no
    # thread waits for another. The parts are added up once, after the last step.
    rows: tl.constexpr = x.shape[0]
    return tl.sum(tl.reshape(x, [rows, PARTS, x.shape[1] // PARTS]), axis=2)


@triton.jit
def corrected(
    total, sums, squares, shift, sums_ptr, bias_ptr, cols, N, K, eps, CENTRED: tl.constexpr
):
    # (x · fᵀ − mean · Σf) · inv_std + bias of a tile, from the sums of x − shift and its square.
    d = tl.sum(sums, axis=1) / K
    variance = tl.maximum(tl.sum(squares, axis=1) / K - d * d, 0.0)
    inv_std = tl.rsqrt(variance + eps)[:, None]
    bias = tl.load(bias_ptr + cols, mask=cols < N, other=0.0)[None, :]
    if CENTRED:
        mean = (shift + d)[:, None]
        total -= mean * tl.load(sums_ptr + cols, mask=cols < N, other=0.0)[None, :]
    return total * inv_std + bias


@triton.jit
def folded_tile(
    x_ptr,
    weight_ptr,
    sums_ptr,
    bias_ptr,
    y_ptr,
    M,
    N,
    K,
    x_row_stride,
    eps,
    CENTRED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    APART: tl.constexpr,
):
    # A program computes one tile of y, as `linear_tile` does, and beside it its rows' statistics.
    # They take the very tile of x that is multiplied, but with APART one of their own, from the
    # last tile of the row to its first. Hopper needs that: where a tile goes to registers too,
    # Triton (3.6, 3.7) keeps a buffer fewer of it than its asynchronous products need, and writes a
    # later tile over one that is still multiplied.
    m, n = tile_at(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = n * BLOCK_N + tl.arange(0, BLOCK_N)
    x_rows = x_ptr + rows.to(tl.int64)[:, None] * x_row_stride
    weight_rows = weight_ptr + cols.to(tl.int64)[None, :] * K
    shift = tl.zeros([BLOCK_M], tl.float32)
    if CENTRED:
        k = tl.arange(0, BLOCK_K)
        mask = (rows < M)[:, None] & (k < K)[None, :]
        first = tl.load(x_rows + k[None, :], mask=mask, other=0.0).to(tl.float32)
        shift = tl.sum(first, axis=1) / tl.minimum(K, BLOCK_K)
    sums = tl.zeros([BLOCK_M, BLOCK_K // 8], tl.float32)
    squares = tl.zeros([BLOCK_M, BLOCK_K // 8], tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    steps = tl.cdiv(K, BLOCK_K)
    for step in tl.range(0, steps, num_stages=STAGES):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = k < K
        x = tl.load(x_rows + k[None, :], mask=(rows < M)[:, None] & inside[None, :], other=0.0)
        weight_mask = inside[:, None] & (cols < N)[None, :]
        weight = tl.load(weight_rows + k[:, None], mask=weight_mask, other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
        if APART:
            inside = (steps - 1 - step) * BLOCK_K + tl.arange(0, BLOCK_K) < K
            at = x_rows + ((steps - 1 - step) * BLOCK_K + tl.arange(0, BLOCK_K))[None, :]
            x = tl.load(at, mask=(rows < M)[:, None] & inside[None, :], other=0.0)
        d = x.to(tl.float32)
        if CENTRED:
            d = tl.where(inside[None, :], d - shift[:, None], 0.0)
            sums += lane_sums(d, BLOCK_K // 8)
        squares += lane_sums(d * d, BLOCK_K // 8)
    total = corrected(total, sums, squares, shift, sums_ptr, bias_ptr, cols, N, K, eps, CENTRED)
    if ACTIVATION is not None:
        total = activated(total, ACTIVATION, y_ptr.dtype.element_ty)
    y = y_ptr + rows.to(tl.int64)[:, None] * N + cols[None, :]
    tl.store(y, total.to(y_ptr.dtype.element_ty), mask=(rows < M)[:, None] & (cols < N)[None, :])


@triton.jit
def folded_persistent(
    x_desc,
    weight_desc,
    sums_ptr,
    bias_ptr,
    y_desc,
    M,
    N,
    K,
    eps,
    CENTRED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HALVES: tl.constexpr,
    FLATTEN: tl.constexpr,
    STAGES: tl.constexpr,
    APART: tl.constexpr,
):
    # The same as a grid that stays, through descriptors, as `linear_persistent`.
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    programs = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLATTEN):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        row, col = m * BLOCK_M, n * BLOCK_N
        shift = tl.zeros([BLOCK_M], tl.float32)
        if CENTRED:
            first = x_desc.load([row, 0]).to(tl.float32)
            shift = tl.sum(first, axis=1) / tl.minimum(K, BLOCK_K)
        sums = tl.zeros([BLOCK_M, BLOCK_K // 8], tl.float32)
        squares = tl.zeros([BLOCK_M, BLOCK_K // 8], tl.float32)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        steps = tl.cdiv(K, BLOCK_K)
        for step in tl.range(0, steps, num_stages=STAGES):
            x = x_desc.load([row, step * BLOCK_K])
            weight = weight_desc.load([col, step * BLOCK_K])
            total = tl.dot(x, weight.T, total)
            at = step * BLOCK_K
            if APART:
                at = (steps - 1 - step) * BLOCK_K
                x = x_desc.load([row, at])
            d = x.to(tl.float32)
            if CENTRED:
                inside = at + tl.arange(0, BLOCK_K) < K
                d = tl.where(inside[None, :], d - shift[:, None], 0.0)
                sums += lane_sums(d, BLOCK_K // 8)
            squares += lane_sums(d * d, BLOCK_K // 8)
        cols = col + tl.arange(0, BLOCK_N)
        total = corrected(total, sums, squares, shift, sums_ptr, bias_ptr, cols, N, K, eps, CENTRED)
        if ACTIVATION is not None:
            total = activated(total, ACTIVATION, y_desc.dtype)
        if HALVES:
            pair = tl.permute(tl.reshape(total, [BLOCK_M, 2, BLOCK_N // 2]), [0, 2, 1])
            left, right = tl.split(pair)
            y_desc.store([row, col], left.to(y_desc.dtype))
            y_desc.store([row, col + BLOCK_N // 2], right.to(y_desc.dtype))
        else:
            y_desc.store([row, col], total.to(y_desc.dtype))


@triton.jit
def fold_rows(
    weight_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    bias_ptr,
    folded_ptr,
    sums_ptr,
    folded_bias_ptr,
    K,
    weight_row_stride,
    CENTRED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # A program folds the weights of one column of y. What is summed for the mean's correction are
    # the weights as they are stored: then rounding them does no harm.
    n = tl.program_id(0).to(tl.int64)
    row = weight_ptr + n * weight_row_stride
    total = tl.zeros([BLOCK], tl.float32)
    moved = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        weight = tl.load(row + k, mask=k < K, other=0.0).to(tl.float32)
        if norm_bias_ptr is not None:
            moved += weight * tl.load(norm_bias_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        if norm_weight_ptr is not None:
            weight *= tl.load(norm_weight_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        total += weight
    average = tl.sum(total, axis=0) / K
    if not CENTRED:
        average = 0.0
    kept = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        weight = tl.load(row + k, mask=k < K, other=0.0).to(tl.float32)
        if norm_weight_ptr is not None:
            weight *= tl.load(norm_weight_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        folded = tl.where(k < K, weight - average, 0.0).to(folded_ptr.dtype.element_ty)
        tl.store(folded_ptr + n * K + k, folded, mask=k < K)
        kept += folded.to(tl.float32)
    if CENTRED:
        tl.store(sums_ptr + n, tl.sum(kept, axis=0))
    bias = tl.sum(moved, axis=0)
    if bias_ptr is not None:
        bias += tl.load(bias_ptr + n).to(tl.float32)
    tl.store(folded_bias_ptr + n, bias)
