"""Answers to 08.5, a dropout for a captured graph: right ones, and frozen ones."""

import torch
import triton
import triton.language as tl

from kernels.philox import scale, threshold
from tests.grading.submissions_08_masks import blocks_kernel, dropout_kernel


@triton.jit
def host_kernel(
    x_ptr,
    y_ptr,
    n,
    drop_below,
    scale,
    seed,
    offset,
    BLOCK: tl.constexpr,
):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + e, mask=e < n).to(tl.float32)
    block, place = e // 8, e % 8
    call = tl.zeros_like(block) + offset
    low, high = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32)
    call_low, call_high = (call & 0xFFFFFFFF).to(tl.uint32), (call >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, low, high, call_low, call_high)
    word = tl.where(place < 4, tl.where(place < 2, w0, w1), tl.where(place < 6, w2, w3))
    number = tl.where(place % 2 == 0, word & 0xFFFF, word >> 16)
    y = tl.where(number >= drop_below, x * scale, 0.0)
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=e < n)


@triton.jit
def half_host_kernel(x_ptr, seed_ptr, y_ptr, n, drop_below, scale, offset, BLOCK: tl.constexpr):
    """The seed from memory, the offset from the host."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + e, mask=e < n).to(tl.float32)
    seed = tl.load(seed_ptr)
    block, place = e // 8, e % 8
    call = tl.zeros_like(block) + offset
    low, high = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32)
    call_low, call_high = (call & 0xFFFFFFFF).to(tl.uint32), (call >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, low, high, call_low, call_high)
    word = tl.where(place < 4, tl.where(place < 2, w0, w1), tl.where(place < 6, w2, w3))
    number = tl.where(place % 2 == 0, word & 0xFFFF, word >> 16)
    y = tl.where(number >= drop_below, x * scale, 0.0)
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=e < n)


def frozen(x, seed_offset, p):
    y, n = torch.empty_like(x), x.numel()
    numbers = threshold(p), scale(p), *seed_offset.tolist()
    host_kernel[(triton.cdiv(n, 1024),)](x, y, n, *numbers, BLOCK=1024)
    return y


def frozen_item(x, seed_offset, p):
    y, n = torch.empty_like(x), x.numel()
    numbers = threshold(p), scale(p), seed_offset[0].item(), int(seed_offset[1])
    host_kernel[(triton.cdiv(n, 1024),)](x, y, n, *numbers, BLOCK=1024)
    return y


def half_frozen(x, seed_offset, p):
    y, n = torch.empty_like(x), x.numel()
    numbers = threshold(p), scale(p), seed_offset.tolist()[1]
    half_host_kernel[(triton.cdiv(n, 1024),)](x, seed_offset, y, n, *numbers, BLOCK=1024)
    return y


def copied_state(x, seed_offset, p):
    return pointing(x, seed_offset.clone(), p)


def remade_state(x, seed_offset, p):
    return pointing(x, torch.tensor(seed_offset.tolist()), p)


_KEPT = {}


def kept_state(x, seed_offset, p):
    """The numbers of the first call of all, whatever comes later."""
    return pointing(x, _KEPT.setdefault("state", seed_offset.clone()), p)


def pointing(x, seed_offset, p, fault="", block=1024):
    y, n = torch.empty_like(x), x.numel()
    numbers = threshold(p), scale(p)
    grid = (triton.cdiv(n, block),)
    dropout_kernel[grid](x, seed_offset, y, n, *numbers, FAULT=fault, BLOCK=block)
    return y


def pointing_with(fault, block=1024):
    return lambda x, seed_offset, p: pointing(x, seed_offset, p, fault, block)


def pointing_by_blocks(x, seed_offset, p):
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 512),)
    blocks_kernel[grid](x, seed_offset, y, x.numel(), threshold(p), scale(p), TILE=512)
    return y


@triton.jit
def parts_kernel(x_ptr, seed_ptr, call_ptr, y_ptr, n, drop_below, scale, BLOCK: tl.constexpr):
    """Seed and offset by a pointer each."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    block = e // 8
    call = tl.load(call_ptr)
    zero = tl.zeros_like(block)
    w0, w1, w2, w3 = tl.philox(
        tl.load(seed_ptr),
        (block & 0xFFFFFFFF).to(tl.uint32),
        (block >> 32).to(tl.uint32),
        (zero + (call & 0xFFFFFFFF)).to(tl.uint32),
        (zero + (call >> 32)).to(tl.uint32),
    )
    word = tl.where(e % 8 < 4, tl.where(e % 8 < 2, w0, w1), tl.where(e % 8 < 6, w2, w3))
    number = (word >> (e % 2 * 16).to(tl.uint32)) & 0xFFFF
    x = tl.load(x_ptr + e, mask=e < n, other=0.0)
    y = tl.where(number >= drop_below, x.to(tl.float32) * scale, 0.0)
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=e < n)


def pointing_twice(x, seed_offset, p):
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 256),)
    seed, call = seed_offset[:1], seed_offset[1:]
    numbers = threshold(p), scale(p)
    parts_kernel[grid](x, seed, call, y, x.numel(), *numbers, BLOCK=256)
    return y
