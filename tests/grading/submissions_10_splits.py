"""Answers to 10.9: a sum that several programs share, with a switch for each fault."""

import torch
import triton
import triton.language as tl


@triton.jit
def share_kernel(
    x_ptr,
    weight_ptr,
    parts_ptr,
    M,
    N,
    K,
    k_each,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FAULT: tl.constexpr,
    IEEE: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    first = split * k_each
    last = min(first + k_each, K)
    if FAULT == "same share":
        first, last = 0, min(k_each, K)
    if FAULT == "all of K":
        first, last = 0, K
    if FAULT == "past K":
        last = first + k_each
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(first, last, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < last
        if FAULT == "overlap":
            inside = k < K
        x_mask = (rows < M)[:, None] & inside[None, :]
        weight_mask = inside[:, None] & (cols < N)[None, :]
        x_at = x_ptr + rows[:, None] * K + k[None, :]
        weight_at = weight_ptr + cols[None, :] * K + k[:, None]
        if FAULT == "no other":
            x, weight = tl.load(x_at, mask=x_mask), tl.load(weight_at, mask=weight_mask)
        else:
            x = tl.load(x_at, mask=x_mask, other=0.0)
            weight = tl.load(weight_at, mask=weight_mask, other=0.0)
        if IEEE:
            total = tl.dot(x, weight, total, input_precision="ieee")
        else:
            total = tl.dot(x, weight, total)
    at = rows[:, None] * N + cols[None, :]
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    if FAULT == "empty left out":
        if first < K:
            tl.store(parts_ptr + split * M * N + at, total, mask=mask)
    elif FAULT == "one place":
        tl.store(parts_ptr + at, total, mask=mask)
    elif FAULT == "atomic":
        tl.atomic_add(parts_ptr + at, total, mask=mask)
    else:
        tl.store(parts_ptr + split * M * N + at, total.to(parts_ptr.dtype.element_ty), mask=mask)


@triton.jit
def finish_kernel(parts_ptr, y_ptr, n, splits, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        part = tl.load(parts_ptr + split * n + at, mask=at < n, other=0.0).to(tl.float32)
        if FAULT == "last":
            total = part
        elif FAULT == "first":
            total += tl.load(parts_ptr + at, mask=at < n, other=0.0) * (split == 0)
        else:
            total += part
    if FAULT == "mean":
        total = total / splits
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=at < n)


def product_with(fault="", finish="", edge=64, warps=8, block=1024, ieee=True, narrow=False):
    """The right product, or one with faults; a share is a multiple of 32 unless it overlaps."""

    def split_product(x, weight, splits):
        (m, k), n = x.shape, len(weight)
        y = torch.empty((m, n), dtype=x.dtype, device=x.device)
        make = torch.zeros if fault == "atomic" else torch.empty
        count = 1 if fault in ("one place", "atomic") else splits
        kind = x.dtype if narrow else torch.float32
        parts = make((count, m, n), dtype=kind, device=x.device)
        k_each = triton.cdiv(triton.cdiv(k, splits), 32) * 32
        if fault in ("overlap", "ragged shares"):
            k_each = triton.cdiv(k, splits)
        if fault == "rounded down":
            k_each = max(k // splits, 1)
        grid = (triton.cdiv(m, edge), triton.cdiv(n, edge), splits)
        share_kernel[grid](
            x, weight, parts, m, n, k, k_each, edge, edge, 32, fault, ieee, num_warps=warps
        )
        finish_kernel[(triton.cdiv(m * n, block),)](parts, y, m * n, count, block, finish)
        return y

    return split_product


# Right, and written otherwise: splits take every splits-th step, and a program adds up a row's
# outputs as a tile.
@triton.jit
def striding_kernel(
    x_ptr, w_ptr, parts_ptr, m, n, k, splits, EDGE: tl.constexpr, STEP: tl.constexpr
):
    wide = tl.cdiv(n, EDGE)
    tile, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    row = tile // wide * EDGE + tl.arange(0, EDGE)[:, None]
    col = tile % wide * EDGE + tl.arange(0, EDGE)[None, :]
    acc = tl.zeros((EDGE, EDGE), tl.float32)
    for i in range(split, tl.cdiv(k, STEP), splits):
        across = i * STEP + tl.arange(0, STEP)[None, :]
        down = i * STEP + tl.arange(0, STEP)[:, None]
        x = tl.load(x_ptr + row * k + across, mask=(row < m) & (across < k), other=0.0)
        w = tl.load(w_ptr + col * k + down, mask=(col < n) & (down < k), other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    tl.store(parts_ptr + (row * n + col) * splits + split, acc, mask=(row < m) & (col < n))


@triton.jit
def rows_kernel(parts_ptr, y_ptr, n, splits, LANES: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    parts = tl.load(parts_ptr + at * splits + lane, mask=(at < n) & (lane < splits), other=0.0)
    sums = tl.sum(parts, axis=1, keep_dims=True)
    tl.store(y_ptr + at, sums.to(y_ptr.dtype.element_ty), mask=at < n)


def striding_product(x, weight, splits):
    (m, k), n = x.shape, len(weight)
    y, parts = x.new_empty(m, n), torch.empty(m, n, splits, device=x.device)
    programs = triton.cdiv(m, 64) * triton.cdiv(n, 64) * splits
    striding_kernel[(programs,)](x, weight, parts, m, n, k, splits, EDGE=64, STEP=16, num_warps=8)
    lanes = triton.next_power_of_2(splits)
    rows_kernel[(triton.cdiv(m * n, 64),)](parts, y, m * n, splits, LANES=lanes, BLOCK=64)
    return y


def whole_sum(x, weight, splits):
    """One program a tile, as it is given out."""
    return product_with()(x, weight, 1)


def summed_by_pytorch(x, weight, splits):
    (m, k), n = x.shape, len(weight)
    parts = torch.empty((splits, m, n), device=x.device)
    k_each = triton.cdiv(triton.cdiv(k, splits), 32) * 32
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64), splits)
    share_kernel[grid](x, weight, parts, m, n, k, k_each, 64, 64, 32, "", True, num_warps=8)
    return parts.sum(0).to(x.dtype)


def product_by_pytorch(x, weight, splits):
    return x @ weight.T
