"""Answers to 14.6 and 14.7: kernels with a switch for each fault, and right ones."""

import torch
import triton
import triton.language as tl

from kernels.ops.chains.dropout_add_layernorm import dropout_add_layer_norm
from kernels.ops.epilogues.linear_bias_residual import linear_bias_residual
from kernels.philox import keeps, scale, threshold
from kernels.philox_triton import numbers_at, numbers_of_rows


@triton.jit
def switched_linear(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FAULT: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = (m < M)[:, None] & (n < N)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    bias = tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if FAULT == "begins":
        # No fault: a sum may begin with what is added to it.
        total += tl.load(residual_ptr + at, mask=there, other=0.0).to(tl.float32)
        total += bias[None, :]
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x = tl.load(
            x_ptr + m.to(tl.int64)[:, None] * K + k[None, :],
            mask=(m < M)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_ptr + n.to(tl.int64)[:, None] * K + k[None, :],
            mask=(n < N)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        total = tl.dot(x, weight.T, total, input_precision="ieee")
        if FAULT == "in the loop":
            total += tl.load(residual_ptr + at, mask=there, other=0.0).to(tl.float32)
        if FAULT == "bias in the loop":
            total += bias[None, :]
    if FAULT != "bias in the loop" and FAULT != "no bias" and FAULT != "begins":
        total += bias[None, :]
    if FAULT == "rounded":
        total = total.to(y_ptr.dtype.element_ty).to(tl.float32)
    place = at
    if FAULT == "rows of K":
        place = m.to(tl.int64)[:, None] * K + n[None, :]
    if FAULT == "first rows":
        place = tl.arange(0, BLOCK_M)[:, None] * N + n[None, :]
    if FAULT == "transposed":
        place = n.to(tl.int64)[None, :] * M + m[:, None]
    if FAULT != "in the loop" and FAULT != "none" and FAULT != "begins":
        residual = tl.load(residual_ptr + place, mask=there, other=0.0).to(tl.float32)
        if FAULT == "taken away":
            residual = -residual
        if FAULT == "half residual":
            residual = residual.to(tl.float16).to(tl.float32)
        if FAULT == "twice loaded":
            residual = 0.5 * residual
            residual += 0.5 * tl.load(residual_ptr + place, mask=there, other=0.0).to(tl.float32)
        total += residual
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=there)


def linear_with(fault="", edges=(32, 32, 32)):
    def linear_residual(x, weight, bias, residual):
        (m, k), n = x.shape, len(weight)
        y = torch.empty_like(residual)
        block_m, block_n, block_k = edges
        switched_linear[(triton.cdiv(m, block_m), triton.cdiv(n, block_n))](
            *(x, weight, bias, residual, y, m, n, k),
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            FAULT=fault,
        )
        return y

    return linear_residual


def linear_then_added(x, weight, bias, residual):
    """Two steps, the second by PyTorch."""
    y = linear_with("none")(x, weight, bias, residual)
    return (y.float() + residual.float()).to(y.dtype)


def linear_by_pytorch(x, weight, bias, residual):
    wide = x.double() @ weight.double().T + bias.double() + residual.double()
    return wide.to(x.dtype)


def linear_by_the_packages_kernel(x, weight, bias, residual):
    return linear_bias_residual(x, weight, bias, residual)


@triton.jit
def switched_between(
    y_ptr,
    bias_ptr,
    residual_ptr,
    weight_ptr,
    norm_bias_ptr,
    seed_ptr,
    n_ptr,
    h_ptr,
    n_cols,
    eps,
    drop_below,
    factor,
    BLOCK: tl.constexpr,
    FAULT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    e = row * n_cols + cols
    drawn = e
    if FAULT == "column alone":
        drawn = cols.to(tl.int64)
    if FAULT == "padded rows":
        drawn = row * BLOCK + cols
    number = numbers_at(seed_ptr, drawn)
    kept = number >= drop_below
    if FAULT == "dropped kept":
        kept = number < drop_below
    if FAULT == "beyond":
        kept = number > drop_below
    y = tl.load(y_ptr + e, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + e, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    norm_bias = tl.load(norm_bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    if FAULT == "no scale":
        factor = 1.0
    x = y + bias
    if FAULT == "no bias" or FAULT == "bias behind":
        x = y
    if FAULT == "all dropped":
        x = x + residual
    if FAULT == "the norm's bias":
        x = y + norm_bias
    if FAULT == "rounded sum":
        x = x.to(h_ptr.dtype.element_ty).to(tl.float32)
    if FAULT == "dropped as it is":
        x = tl.where(kept, x * factor, x)
    else:
        x = tl.where(kept, x * factor, 0.0)
    if FAULT == "rounded branch":
        x = x.to(h_ptr.dtype.element_ty).to(tl.float32)
    if FAULT == "bias behind":
        x = x + bias
    h = x + residual
    if FAULT == "all dropped":
        h = x
    if FAULT == "no residual":
        h = x
    tl.store(h_ptr + e, h.to(h_ptr.dtype.element_ty), mask=mask)
    if FAULT == "rounded h":
        # No fault: h as it is stored.
        h = h.to(h_ptr.dtype.element_ty).to(tl.float32)
    if FAULT == "norm of x":
        h = x
    if FAULT == "norm of the residual":
        h = residual
    if FAULT == "read back":
        h = tl.load(h_ptr + e, mask=mask, other=0.0).to(tl.float32)
    count = n_cols
    if FAULT == "by BLOCK":
        count = BLOCK
    mean = tl.sum(tl.where(mask, h, 0.0), axis=0) / count
    centred = h - mean
    if FAULT != "masked lanes":
        centred = tl.where(mask, centred, 0.0)
    variance = tl.sum(centred * centred, axis=0) / count
    if FAULT == "squares":
        variance = tl.sum(tl.where(mask, h * h, 0.0), axis=0) / count - mean * mean
    if FAULT == "eps outside":
        inverse = 1.0 / (tl.sqrt(variance) + eps)
    else:
        inverse = tl.rsqrt(variance + eps)
    if FAULT == "own bias":
        norm_bias = bias
    n = centred * inverse * weight + norm_bias
    if FAULT == "no weight":
        n = centred * inverse + norm_bias
    if FAULT == "no norm bias":
        n = centred * inverse * weight
    if FAULT == "no norm":
        n = h
    tl.store(n_ptr + e, n.to(n_ptr.dtype.element_ty), mask=mask)


def between_with(fault=""):
    def bias_dropout_add_norm(y, bias, residual, weight, norm_bias, seed_offset, p, eps):
        rows, n_cols = y.shape
        n, h = torch.empty_like(y), torch.empty_like(y)
        switched_between[(rows,)](
            *(y, bias, residual, weight, norm_bias, seed_offset, n, h, n_cols, eps),
            *(threshold(p), scale(p)),
            BLOCK=triton.next_power_of_2(n_cols),
            FAULT=fault,
            num_warps=8,
        )
        return (h, n) if fault == "changed places" else (n, h)

    return bias_dropout_add_norm


@triton.jit
def two_rows_kernel(
    y_ptr,
    bias_ptr,
    residual_ptr,
    weight_ptr,
    norm_bias_ptr,
    seed_ptr,
    n_ptr,
    h_ptr,
    n_rows,
    n_cols,
    eps,
    drop_below,
    factor,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Some rows a program, eight neighbours' numbers at a time; the norm's sums at once."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, 8 * BLOCKS)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    at = rows * n_cols + cols
    number = numbers_of_rows(seed_ptr, rows * (n_cols // 8), ROWS, BLOCKS)
    of_columns = tl.load(bias_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    x = tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32) + of_columns
    h = tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
    h += tl.where(number < drop_below, 0.0, x * factor)
    tl.store(h_ptr + at, h.to(h_ptr.dtype.element_ty), mask=mask)
    centred = tl.where(mask, h - tl.sum(h, axis=1)[:, None] / n_cols, 0.0)
    variance = tl.sum(centred * centred, axis=1)[:, None] / n_cols
    weight = tl.load(weight_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    shift = tl.load(norm_bias_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    n = centred / tl.sqrt(variance + eps) * weight + shift
    tl.store(n_ptr + at, n.to(n_ptr.dtype.element_ty), mask=mask)


def between_with_two_rows(y, bias, residual, weight, norm_bias, seed_offset, p, eps, rows_each=2):
    rows, n_cols = y.shape
    n, h = (torch.empty(y.shape, dtype=y.dtype, device=y.device) for _ in range(2))
    two_rows_kernel[(triton.cdiv(rows, rows_each),)](
        *(y, bias, residual, weight, norm_bias, seed_offset, n, h, rows, n_cols, eps),
        *(threshold(p), scale(p)),
        ROWS=rows_each,
        BLOCKS=triton.next_power_of_2(n_cols) // 8,
        num_warps=8,
    )
    return [n, h]


def between_with_eight_rows(*args):
    return between_with_two_rows(*args, rows_each=8)


def between_by_pytorch(y, bias, residual, weight, norm_bias, seed_offset, p, eps):
    kept = torch.from_numpy(keeps(tuple(y.shape), p, *seed_offset.tolist()))
    h = residual.float() + torch.where(kept, (y.float() + bias.float()) * scale(p), 0.0)
    n = torch.nn.functional.layer_norm(h, h.shape[-1:], weight.float(), norm_bias.float(), eps)
    return n.to(y.dtype), h.to(y.dtype)


def between_by_the_packages_kernel(y, bias, residual, weight, norm_bias, seed_offset, p, eps):
    return dropout_add_layer_norm(y + bias, residual, weight, norm_bias, p, seed_offset, eps)


def between_in_two_launches(*args):
    between_with()(*args)
    return between_with()(*args)
