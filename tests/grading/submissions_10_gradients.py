"""Answers to 10.8: the gradients of weight and bias, with a switch for each fault."""

import torch
import triton
import triton.language as tl


@triton.jit
def switched_kernel(
    dy_ptr,
    x_ptr,
    dweight_ptr,
    dbias_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FAULT: tl.constexpr,
    IEEE: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    if FAULT == "fp16 sum":
        total = tl.zeros([BLOCK_N, BLOCK_K], tl.float16)
    else:
        total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    if FAULT == "narrow bias":
        sums = tl.zeros([BLOCK_N], dy_ptr.dtype.element_ty)
    else:
        sums = tl.zeros([BLOCK_N], tl.float32)
    upto = M
    if FAULT == "whole steps":
        upto = M // BLOCK_M * BLOCK_M
    for start in range(0, upto, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        dy_mask = (n < N)[:, None] & (m < M)[None, :]
        x_mask = (m < M)[:, None] & (k < K)[None, :]
        if FAULT == "unmasked":
            dy_mask = (n < N)[:, None] & (m >= 0)[None, :]
        if FAULT == "no other":
            dy = tl.load(dy_ptr + m[None, :] * N + n[:, None], mask=dy_mask)
            x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=x_mask)
        elif FAULT == "ones":
            dy = tl.load(dy_ptr + m[None, :] * N + n[:, None], mask=dy_mask, other=1.0)
            x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=x_mask, other=0.0)
        else:
            dy = tl.load(dy_ptr + m[None, :] * N + n[:, None], mask=dy_mask, other=0.0)
            x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=x_mask, other=0.0)
        if FAULT == "fp16 sum":
            total += tl.dot(dy, x).to(tl.float16)
        elif FAULT == "replaced":
            total = tl.dot(dy, x)
        elif IEEE:
            total = tl.dot(dy, x, total, input_precision="ieee")
        else:
            total = tl.dot(dy, x, total)
        if FAULT == "read again":
            dy = tl.load(dy_ptr + m[None, :] * N + n[:, None], mask=dy_mask, other=0.0)
        if FAULT == "narrow bias":
            sums = (sums + tl.sum(dy.to(tl.float32), axis=1)).to(dy_ptr.dtype.element_ty)
        elif FAULT == "bias replaced":
            sums = tl.sum(dy.to(tl.float32), axis=1)
        else:
            sums += tl.sum(dy.to(tl.float32), axis=1)
    if FAULT == "mean":
        total, sums = total / M, sums / M
    if FAULT == "bias mean":
        sums = sums / M
    mask = (n < N)[:, None] & (k < K)[None, :]
    at = n[:, None] * K + k[None, :]
    if FAULT == "transposed":
        at = k[None, :] * N + n[:, None]
    tl.store(dweight_ptr + at, total.to(dweight_ptr.dtype.element_ty), mask=mask)
    sums = sums.to(dbias_ptr.dtype.element_ty)
    if FAULT == "atomic":
        if tl.program_id(1) == 0:
            tl.atomic_add(dbias_ptr + n, sums, mask=n < N)
    elif FAULT == "everybody":
        tl.store(dbias_ptr + n, sums, mask=n < N)
    elif FAULT == "first only":
        if tl.program_id(0) + tl.program_id(1) == 0:
            tl.store(dbias_ptr + n, sums, mask=n < N)
    elif tl.program_id(1) == 0:
        tl.store(dbias_ptr + n, sums, mask=n < N)


def gradients_with(fault="", tile=(32, 64, 64), warps=8, ieee=True, dtype=None):
    def weight_gradient(dy, x):
        (m, n), k = dy.shape, x.shape[1]
        dweight = torch.empty((n, k), dtype=x.dtype, device=x.device)
        make = torch.zeros if fault == "atomic" else torch.empty
        dbias = make(n, dtype=torch.float32 if fault == "atomic" else x.dtype, device=x.device)
        grid = (triton.cdiv(n, tile[1]), triton.cdiv(k, tile[2]))
        switched_kernel[grid](
            dy, x, dweight, dbias, m, n, k, *tile, FAULT=fault, IEEE=ieee, num_warps=warps
        )
        return dweight, dbias.to(x.dtype)

    return weight_gradient


# Right, and written otherwise: dy as it lies, and turned; the bias by the last block along K.
@triton.jit
def turned_kernel(
    dy_ptr,
    x_ptr,
    dw_ptr,
    db_ptr,
    m,
    n,
    k,
    STEP: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
):
    left = tl.program_id(1) * TALL + tl.arange(0, TALL)[None, :]
    right = tl.program_id(0) * WIDE + tl.arange(0, WIDE)[None, :]
    step = tl.arange(0, STEP)[:, None]
    acc = tl.zeros((TALL, WIDE), tl.float32)
    bias = tl.zeros((TALL,), tl.float32)
    for i in range(tl.cdiv(m, STEP)):
        row = i * STEP + step
        dy = tl.load(dy_ptr + row * n + left, mask=(row < m) & (left < n), other=0.0)
        x = tl.load(x_ptr + row * k + right, mask=(row < m) & (right < k), other=0.0)
        acc = tl.dot(tl.trans(dy), x, acc, input_precision="ieee")
        bias += tl.sum(dy.to(tl.float32), axis=0)
    down = tl.trans(left)
    tl.store(dw_ptr + down * k + right, acc.to(dw_ptr.type.element_ty), (down < n) & (right < k))
    if tl.program_id(0) == tl.num_programs(0) - 1:
        cols = tl.program_id(1) * TALL + tl.arange(0, TALL)
        tl.store(db_ptr + cols, bias.to(db_ptr.type.element_ty), cols < n)


def turned_gradients(dy, x):
    (m, n), k = dy.shape, x.shape[1]
    dweight, dbias = x.new_empty(n, k), x.new_empty(n)
    grid = (triton.cdiv(k, 64), triton.cdiv(n, 64))
    turned_kernel[grid](dy, x, dweight, dbias, m, n, k, STEP=16, TALL=64, WIDE=64, num_warps=8)
    return [dweight, dbias]


def gradients_by_pytorch(dy, x):
    return dy.T @ x, dy.sum(0)


def bias_by_pytorch(dy, x):
    return gradients_with()(dy, x)[0], dy.sum(0)


def alone(dy, x):
    return gradients_with()(dy, x)[0]


def other_way_round(dy, x):
    dweight, dbias = gradients_with()(dy, x)
    return dbias, dweight


def of_a_turned_weight(dy, x):
    dweight, _ = gradients_with()(x, dy)
    return dweight, gradients_with()(dy, x)[1]


@triton.jit
def sums_kernel(dy_ptr, dbias_ptr, M, N, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, M, 64):
        m = start + tl.arange(0, 64)[:, None]
        dy = tl.load(dy_ptr + m * N + n[None, :], mask=(m < M) & (n < N)[None, :], other=0.0)
        total += tl.sum(dy.to(tl.float32), axis=0)
    tl.store(dbias_ptr + n, total.to(dbias_ptr.dtype.element_ty), mask=n < N)


def in_two_launches(dy, x):
    dweight, _ = gradients_with()(dy, x)
    dbias = torch.empty(dy.shape[1], dtype=x.dtype, device=x.device)
    sums_kernel[(triton.cdiv(len(dbias), 64),)](dy, dbias, *dy.shape, BLOCK=64)
    return dweight, dbias
