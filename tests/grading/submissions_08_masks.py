"""Answers to 08.3, a dropout with a switch for each fault, and numbers with a faulty counter."""

import torch
import triton
import triton.language as tl

from kernels.philox import scale, threshold
from kernels.philox_triton import numbers_at, numbers_of_blocks, words_of


@triton.jit
def faulty_numbers(seed_offset_ptr, e, tile, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """The numbers of a tile's elements, `tile` being its first, with a fault in the counter."""
    if FAULT == "tile":
        number = numbers_at(seed_offset_ptr, e - tile)
    elif FAULT == "own index":
        number = numbers_at(seed_offset_ptr, 8 * e + e % 8)
    elif FAULT == "first number":
        number = numbers_at(seed_offset_ptr, e // 8 * 8)
    elif FAULT == "a call each":
        word, _, _, _ = words_of(seed_offset_ptr, e.to(tl.int64))
        number = word >> 16
    elif FAULT == "four":
        w0, w1, w2, w3 = words_of(seed_offset_ptr, e.to(tl.int64) // 4)
        place = e % 4
        word = tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3))
        number = word >> 16
    else:
        number = numbers_at(seed_offset_ptr, e)
    return number


@triton.jit
def dropout_kernel(
    x_ptr,
    seed_offset_ptr,
    y_ptr,
    n,
    drop_below,
    scale,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64) * BLOCK
    e = tile + tl.arange(0, BLOCK)
    if FAULT == "unmasked":
        x = tl.load(x_ptr + e).to(tl.float32)
    else:
        x = tl.load(x_ptr + e, mask=e < n).to(tl.float32)
    if FAULT == "twice":
        x = tl.load(x_ptr + e, mask=e < n).to(tl.float32)
    number = faulty_numbers(seed_offset_ptr, e, tile, FAULT, BLOCK)
    kept = number >= drop_below
    if FAULT == "exchanged":
        kept = number < drop_below
    if FAULT == "above":
        kept = number > drop_below
    y = tl.where(kept, x * scale, 0.0)
    if FAULT == "multiplied":
        y = x * scale * kept.to(tl.float32)
    if FAULT == "unscaled" or FAULT == "tile unscaled":
        y = tl.where(kept, x, 0.0)
    if FAULT == "divided":
        y = tl.where(kept, x / scale, 0.0)
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=e < n)


def dropout_with(fault="", eval_="right", block=1024, factor=scale, fewer=0):
    """08.3; `eval_` is what a call without training does."""

    def my_dropout(x, seed_offset, p, training):
        y, n = torch.empty_like(x), x.numel()
        factor_of = factor
        if not training and eval_ != "drops":
            if eval_ == "scales":
                return x * (1 - p)
            p = 0.0
            factor_of = scale
        grid = (max(triton.cdiv(n, block) - fewer, 1),)
        numbers = threshold(p), float(factor_of(p))
        dropout_kernel[grid](x, seed_offset, y, n, *numbers, FAULT=fault, BLOCK=block)
        return y

    return my_dropout


def by_one_minus_p(p):
    return 1 / (1 - p) if p < 1 else 0.0


def by_division(p):
    return 1 / (1 - p)


@triton.jit
def three_faults_kernel(x_ptr, so_ptr, y_ptr, n, drop_below, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    e = tl.program_id(0) * BLOCK + lane
    x = tl.load(x_ptr + e, mask=e < n)
    y = tl.where(numbers_at(so_ptr, lane) >= drop_below, x, 0.0)
    tl.store(y_ptr + e, y, mask=e < n)


def as_given(x, seed_offset, p, training):
    y, n = torch.empty_like(x), x.numel()
    grid = (triton.cdiv(n, 1024),)
    three_faults_kernel[grid](x, seed_offset, y, n, threshold(p), BLOCK=1024)
    return y


@triton.jit
def blocks_kernel(x_ptr, so_ptr, out_ptr, n, drop_below, scale, TILE: tl.constexpr):
    """By blocks of eight, and with a scale that is chosen too."""
    first = tl.program_id(0).to(tl.int64) * (TILE // 8)
    places = first * 8 + tl.arange(0, TILE)
    inside = places < n
    number = numbers_of_blocks(so_ptr, first, TILE // 8)
    x = tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32)
    out = tl.where(number < drop_below, 0.0, x) * scale
    tl.store(out_ptr + places, out.to(x_ptr.dtype.element_ty), mask=inside)


def dropout_by_blocks(x, seed_offset, p, training):
    if not training:
        return x.clone()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(x.numel(), 256),)
    blocks_kernel[grid](x, seed_offset, out, x.numel(), threshold(p), scale(p), TILE=256)
    return out


def dropout_by_cases(x, seed_offset, p, training):
    """No kernel where nothing is dropped, or all is."""
    dropped = round(65536 * p)
    if not training or dropped == 0:
        return x
    if dropped == 65536:
        return torch.zeros_like(x)
    return dropout_with(block=4096)(x, seed_offset, p, True)


def dropout_by_pytorch(x, seed_offset, p, training):
    from kernels.philox import kept_elements

    mask = kept_elements(tuple(x.shape), p if training else 0.0, seed_offset)
    return torch.where(mask, x.float() * scale(p if training else 0.0), 0.0).to(x.dtype)
