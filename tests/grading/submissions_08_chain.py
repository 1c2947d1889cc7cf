"""Answers to 08.8, eight numbers a call, and 08.9, the chain behind a norm: right and wrong."""

import torch
import triton
import triton.language as tl

from kernels.philox import scale, threshold
from kernels.philox_triton import numbers_at, numbers_of_blocks, words_of
from tests.grading.submissions_08_masks import faulty_numbers


# 08.8
@triton.jit
def eight_kernel(
    x_ptr, seed_offset_ptr, y_ptr, n, drop_below, scale, FAULT: tl.constexpr, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    e = start + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + e, mask=e < n)
    if FAULT == "at":
        number = numbers_at(seed_offset_ptr, e)
    elif FAULT == "library":
        number = numbers_of_blocks(seed_offset_ptr, start // 8, BLOCK // 8)
    elif FAULT == "a call each" or FAULT == "four":
        number = faulty_numbers(seed_offset_ptr, e, start, FAULT, BLOCK)
    else:
        first = tl.program_id(0).to(tl.int64) * 0 if FAULT == "tile" else start // 8
        if FAULT == "elements":
            first = start
        block = first + tl.arange(0, BLOCK // 8)
        w0, w1, w2, w3 = words_of(seed_offset_ptr, block)
        words = tl.join(tl.join(w0, w1), tl.join(w2, w3))
        if FAULT != "turned":
            words = tl.permute(words, (0, 2, 1))
        low, high = words & 0xFFFF, words >> 16
        if FAULT == "high first":
            number = tl.reshape(tl.join(high, low), (BLOCK,))
        elif FAULT == "low halves":
            halves = tl.permute(tl.join(low, high), (0, 3, 1, 2))
            number = tl.reshape(halves, (BLOCK,))
        else:
            number = tl.reshape(tl.join(low, high), (BLOCK,))
    y = tl.where(number >= drop_below, x * scale, 0.0)
    if FAULT == "unscaled":
        y = tl.where(number >= drop_below, x, 0.0)
    if FAULT == "above":
        y = tl.where(number > drop_below, x * scale, 0.0)
    tl.store(y_ptr + e, y, mask=e < n)


def eight_with(fault="", block=2048, num_warps=4):
    def eight_dropout(x, seed_offset, p):
        y, n = torch.empty_like(x), x.numel()
        grid = (triton.cdiv(n, block),)
        numbers = threshold(p), scale(p)
        eight_kernel[grid](
            x, seed_offset, y, n, *numbers, FAULT=fault, BLOCK=block, num_warps=num_warps
        )
        return y

    return eight_dropout


@triton.jit
def looping_kernel(x_ptr, so_ptr, y_ptr, n, drop_below, scale, BLOCK: tl.constexpr):
    """Four blocks a program, in a loop, and few numbers a call."""
    for start in range(
        tl.program_id(0) * 4 * BLOCK, tl.program_id(0) * 4 * BLOCK + 4 * BLOCK, BLOCK
    ):
        e = start + tl.arange(0, BLOCK)
        number = numbers_at(so_ptr, e)
        x = tl.load(x_ptr + e, mask=e < n)
        tl.store(y_ptr + e, tl.where(number >= drop_below, x * scale, 0.0), mask=e < n)


def looping_dropout(x, seed_offset, p):
    y, n = torch.empty_like(x), x.numel()
    grid = (triton.cdiv(n, 4096),)
    looping_kernel[grid](x, seed_offset, y, n, threshold(p), scale(p), BLOCK=1024)
    return y


@triton.jit
def shifting_kernel(x_ptr, so_ptr, y_ptr, n, drop_below, scale, BLOCK: tl.constexpr):
    """As a matrix of blocks, eight columns each, with a shift for the half."""
    block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    e = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    w0, w1, w2, w3 = words_of(so_ptr, block)
    place = tl.arange(0, 8)[None, :]
    early = tl.where(place < 2, w0[:, None], w1[:, None])
    late = tl.where(place < 6, w2[:, None], w3[:, None])
    word = tl.where(place < 4, early, late)
    number = (word >> (place % 2 * 16).to(tl.uint32)) & 0xFFFF
    x = tl.load(x_ptr + e, mask=e < n, other=0.0)
    tl.store(y_ptr + e, tl.where(number >= drop_below, x * scale, 0.0), mask=e < n)


def eight_by_matrix(x, seed_offset, p):
    y, n = torch.empty_like(x), x.numel()
    grid = (triton.cdiv(n, 4096),)
    shifting_kernel[grid](x, seed_offset, y, n, threshold(p), scale(p), BLOCK=512, num_warps=4)
    return y


# 08.9
@triton.jit
def chain_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    seed_offset_ptr,
    y_ptr,
    n_cols,
    eps,
    drop_below,
    scale,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    e = row * n_cols + cols
    if FAULT == "no other":
        x = tl.load(x_ptr + e, mask=mask).to(tl.float32)
    else:
        x = tl.load(x_ptr + e, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + e, mask=mask).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=mask).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask).to(tl.float32)
    if FAULT == "columns":
        number = numbers_at(seed_offset_ptr, cols)
    elif FAULT == "padded":
        number = numbers_of_blocks(seed_offset_ptr, row * (BLOCK // 8), BLOCK // 8)
    elif FAULT == "row":
        number = numbers_of_blocks(seed_offset_ptr, row, BLOCK // 8)
    else:
        number = numbers_of_blocks(seed_offset_ptr, row * n_cols // 8, BLOCK // 8)
    kept = number >= drop_below
    count = n_cols
    if FAULT == "block":
        count = BLOCK
    mean = tl.sum(x, axis=0) / count
    if FAULT == "twice":
        x = tl.load(x_ptr + e, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, x - mean, 0.0)
    if FAULT == "lanes":
        centred = x - mean
    variance = tl.sum(centred * centred, axis=0) / count
    if FAULT == "one pass":
        variance = tl.sum(x * x, axis=0) / n_cols - mean * mean
    if FAULT == "eps":
        eps = 1e-5
    h = centred * tl.rsqrt(variance + eps) * weight + bias
    if FAULT == "no weight":
        h = centred * tl.rsqrt(variance + eps) + bias
    if FAULT == "no bias":
        h = centred * tl.rsqrt(variance + eps) * weight
    if FAULT == "no norm":
        h = x
    if FAULT == "dropout first":
        h = tl.where(kept, h * scale, 0.0)
    if FAULT == "silu":
        active = h * tl.sigmoid(h)
    else:
        active = h * tl.sigmoid(1.5957691216 * h * (1.0 + 0.044715 * h * h))
    if FAULT == "no gelu":
        active = h
    dropped = tl.where(kept, active * scale, 0.0)
    if FAULT == "dropout first":
        dropped = active
    if FAULT == "unscaled":
        dropped = tl.where(kept, active, 0.0)
    y = residual + dropped
    if FAULT == "no residual":
        y = dropped
    if FAULT == "all dropped":
        y = tl.where(kept, (residual + active) * scale, 0.0)
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=mask)


def chain_with(fault="", num_warps=8):
    def norm_chain(x, weight, bias, residual, seed_offset, p, eps):
        y = torch.empty_like(x)
        rows, n_cols = x.shape
        block = triton.next_power_of_2(n_cols)
        given = (x, weight, bias, residual, seed_offset, y, n_cols, eps, threshold(p), scale(p))
        chain_kernel[(rows,)](*given, FAULT=fault, BLOCK=block, num_warps=num_warps)
        return y

    return norm_chain


@triton.jit
def tiled_chain_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    r_ptr,
    so_ptr,
    y_ptr,
    n_rows,
    n_cols,
    eps,
    drop_below,
    scale,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Two rows a program; GELU by tanh."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    inside = cols < n_cols
    mask = (rows < n_rows) & inside
    e = rows * n_cols + cols
    x = tl.load(x_ptr + e, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1, keep_dims=True) / n_cols
    x = tl.where(mask, x - mean, 0.0)
    x *= tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / n_cols + eps)
    w = tl.load(w_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    h = x * w + tl.load(b_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    u = 0.7978845608 * (h + 0.044715 * h * h * h)
    active = 0.5 * h * (2.0 - 2.0 / (tl.exp(2.0 * u) + 1.0))
    y = tl.where(numbers_at(so_ptr, e) < drop_below, 0.0, active * scale)
    y += tl.load(r_ptr + e, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=mask)


def tiled_chain(x, weight, bias, residual, seed_offset, p, eps):
    n_rows, n_cols = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    cols = triton.next_power_of_2(n_cols)
    grid = (triton.cdiv(n_rows, 2),)
    numbers = n_rows, n_cols, eps, threshold(p), scale(p)
    tiled_chain_kernel[grid](
        x, weight, bias, residual, seed_offset, y, *numbers, ROWS=2, COLS=cols, num_warps=16
    )
    return y


@triton.jit
def add_kernel(x_ptr, residual_ptr, y_ptr, n, BLOCK: tl.constexpr):
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + e, mask=e < n).to(tl.float32)
    x += tl.load(residual_ptr + e, mask=e < n).to(tl.float32)
    tl.store(y_ptr + e, x.to(y_ptr.dtype.element_ty), mask=e < n)


def in_two_launches(x, weight, bias, residual, seed_offset, p, eps):
    """The residual by itself, behind the rest."""
    dropped = chain_with("no residual")(x, weight, bias, residual, seed_offset, p, eps)
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 1024),)
    add_kernel[grid](dropped, residual, y, x.numel(), BLOCK=1024)
    return y


def chain_by_pytorch(x, weight, bias, residual, seed_offset, p, eps):
    from kernels.philox import kept_elements

    wide = torch.nn.functional.layer_norm(
        x.float(), x.shape[-1:], weight.float(), bias.float(), eps
    )
    active = torch.nn.functional.gelu(wide, approximate="tanh")
    kept = kept_elements(tuple(x.shape), p, seed_offset)
    return (residual + torch.where(kept, active * scale(p), 0.0)).to(x.dtype)


def one_program_chain(x, weight, bias, residual, seed_offset, p, eps):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    cols, rows = triton.next_power_of_2(n_cols), triton.next_power_of_2(n_rows)
    numbers = n_rows, n_cols, eps, threshold(p), scale(p)
    tiled_chain_kernel[(1,)](
        x, weight, bias, residual, seed_offset, y, *numbers, ROWS=rows, COLS=cols, num_warps=16
    )
    return y
