"""Answers to 08.6, dx of the chain: right ones, and one with a switch for each fault."""

import torch
import triton
import triton.language as tl

from kernels.philox import scale, threshold
from kernels.philox_triton import numbers_at, numbers_of_blocks
from tests.grading.submissions_08_masks import faulty_numbers


@triton.jit
def slope_of(h):
    u2 = 1.5957691216057308 * (h + 0.044715 * h * h * h)
    share = 1.0 / (1.0 + tl.exp(-u2))
    return share + h * share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * h * h)


@triton.jit
def dx_kernel(
    dy_ptr,
    x_ptr,
    bias_ptr,
    seed_offset_ptr,
    dx_ptr,
    n_cols,
    drop_below,
    scale,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    e = row * n_cols + cols
    dy = tl.load(dy_ptr + e, mask=mask).to(tl.float32)
    x = tl.load(x_ptr + e, mask=mask).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask).to(tl.float32)
    if FAULT == "columns":
        element = cols.to(tl.int64)
    elif FAULT == "padded":
        element = row * BLOCK + cols
    else:
        element = e
    kept = faulty_numbers(seed_offset_ptr, element, 0, FAULT, BLOCK) >= drop_below
    if FAULT == "exchanged":
        kept = kept == 0
    h = x + bias
    g = dy * slope_of(h)
    if FAULT == "no slope":
        g = dy
    if FAULT == "gelu":
        g = dy * h / (1.0 + tl.exp(-1.5957691216057308 * (h + 0.044715 * h * h * h)))
    if FAULT == "no bias":
        g = dy * slope_of(x)
    if FAULT == "no dy":
        g = slope_of(h)
    if FAULT == "of dy":
        g = dy * slope_of(dy)
    dx = tl.where(kept, g * scale, 0.0)
    if FAULT == "unscaled":
        dx = tl.where(kept, g, 0.0)
    if FAULT == "residual":
        dx += dy
    if FAULT == "everything":
        dx = g
    if FAULT == "twice":
        dx += 0.0 * tl.load(dy_ptr + e, mask=mask, other=0.0)
    tl.store(dx_ptr + e, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def dx_with(fault="", later=0):
    """`later` is added to the offset by the host, as by a call of its own."""

    def chain_dx(dy, x, bias, seed_offset, p):
        dx = torch.empty_like(x)
        rows, n_cols = x.shape
        if later:
            seed_offset = seed_offset + torch.tensor([0, later])
        block = triton.next_power_of_2(n_cols)
        numbers = threshold(p), scale(p)
        dx_kernel[(rows,)](dy, x, bias, seed_offset, dx, n_cols, *numbers, FAULT=fault, BLOCK=block)
        return dx

    return chain_dx


@triton.jit
def flat_dx_kernel(
    dy_ptr, x_ptr, bias_ptr, so_ptr, dx_ptr, n, n_cols, drop_below, scale, BLOCK: tl.constexpr
):
    """Flat, with a remainder for the column."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    e = first + tl.arange(0, BLOCK)
    inside = e < n
    h = tl.load(x_ptr + e, mask=inside, other=0.0).to(tl.float32)
    h += tl.load(bias_ptr + e % n_cols, mask=inside, other=0.0).to(tl.float32)
    kept = numbers_of_blocks(so_ptr, first // 8, BLOCK // 8) >= drop_below
    dh = tl.where(kept, tl.load(dy_ptr + e, mask=inside, other=0.0).to(tl.float32), 0.0)
    dx = dh * scale * slope_of(h)
    tl.store(dx_ptr + e, dx.to(dx_ptr.dtype.element_ty), mask=inside)


def flat_dx(dy, x, bias, seed_offset, p):
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n = x.numel()
    grid = (triton.cdiv(n, 64),)
    numbers = threshold(p), scale(p)
    flat_dx_kernel[grid](dy, x, bias, seed_offset, dx, n, x.shape[1], *numbers, BLOCK=64)
    return dx


@triton.jit
def tiled_dx_kernel(
    dy_ptr,
    x_ptr,
    bias_ptr,
    so_ptr,
    dx_ptr,
    n_rows,
    n_cols,
    drop_below,
    scale,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """A tile of rows and columns; the slope by tanh's square."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    e = rows * n_cols + cols
    bias = tl.load(bias_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    h = tl.load(x_ptr + e, mask=mask, other=0.0).to(tl.float32) + bias
    u = 0.7978845608 * (h + 0.044715 * h * h * h)
    tanh = 2.0 / (1.0 + tl.exp(-2.0 * u)) - 1.0
    slope = 0.5 * (1.0 + tanh)
    slope += 0.5 * h * (1.0 - tanh * tanh) * 0.7978845608 * (1.0 + 0.134145 * h * h)
    dy = tl.load(dy_ptr + e, mask=mask, other=0.0).to(tl.float32)
    dx = tl.where(numbers_at(so_ptr, e) < drop_below, 0.0, dy * slope * scale)
    tl.store(dx_ptr + e, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def tiled_dx(dy, x, bias, seed_offset, p):
    dx = torch.empty_like(dy)
    rows, n_cols = x.shape
    grid = (triton.cdiv(rows, 2), triton.cdiv(n_cols, 512))
    numbers = threshold(p), scale(p)
    tiled_dx_kernel[grid](dy, x, bias, seed_offset, dx, rows, n_cols, *numbers, ROWS=2, COLS=512)
    return dx


def dx_by_operators(dy, x, bias, seed_offset, p):
    # Not by y.backward(): autograd's engine may have threads that a fork, in which a check runs,
    # does not have. PyTorch's own formula launches as little of the reader's.
    from kernels.philox import kept_elements

    dy = dy * kept_elements(tuple(x.shape), p, seed_offset) * scale(p)
    return torch.ops.aten.gelu_backward(dy, x + bias, approximate="tanh")
