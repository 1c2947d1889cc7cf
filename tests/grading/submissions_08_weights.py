"""Answers to 08.4, softmax and then dropout: right ones, and one with a switch for each fault."""

import torch
import triton
import triton.language as tl

from kernels.philox import scale, threshold
from kernels.philox_triton import numbers_at
from tests.grading.submissions_08_masks import faulty_numbers


@triton.jit
def weights_kernel(
    x_ptr,
    seed_offset_ptr,
    y_ptr,
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
    if FAULT == "no other" or FAULT == "no value":
        x = tl.load(x_ptr + e, mask=mask).to(tl.float32)
        top = tl.max(tl.where(mask, x, -float("inf")), axis=0)
    elif FAULT == "zeros":
        x = tl.load(x_ptr + e, mask=mask, other=0.0).to(tl.float32)
        top = tl.max(x, axis=0)
    else:
        x = tl.load(x_ptr + e, mask=mask, other=-float("inf")).to(tl.float32)
        top = tl.max(x, axis=0)
    if FAULT == "columns":
        element = cols.to(tl.int64)
    elif FAULT == "padded":
        element = row * BLOCK + cols
    else:
        element = e
    kept = faulty_numbers(seed_offset_ptr, element, 0, FAULT, BLOCK) >= drop_below
    if FAULT == "logits":
        x = tl.where(kept, x * scale, tl.where(mask, 0.0, -float("inf")))
        top = tl.max(x, axis=0)
    weight = tl.exp(x) if FAULT == "no maximum" else tl.exp(x - top)
    if FAULT == "given":
        weight = tl.where(kept, weight * scale, 0.0)
        y = weight / tl.sum(weight, axis=0)
    elif FAULT == "given, no nan":
        weight = tl.where(kept, weight, 0.0)
        y = weight / tl.maximum(tl.sum(weight, axis=0), 1e-30)
    elif FAULT == "sum of kept":
        y = tl.where(kept, weight * scale, 0.0)
        y = y / tl.sum(tl.where(kept, weight, 0.0), axis=0)
    elif FAULT == "scaled sum":
        y = tl.where(kept, weight * scale, 0.0) / tl.sum(weight * scale, axis=0)
    elif FAULT == "unscaled":
        y = tl.where(kept, weight / tl.sum(weight, axis=0), 0.0)
    elif FAULT == "logits":
        y = weight / tl.sum(weight, axis=0)
    else:
        if FAULT == "no value":
            weight = tl.exp(tl.where(x > top, top, x) - top) * mask.to(tl.float32)
        y = tl.where(kept, weight / tl.sum(weight, axis=0) * scale, 0.0)
    if FAULT == "twice":
        y += 0.0 * tl.load(x_ptr + e, mask=mask, other=0.0)
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=mask)


def weights_with(fault=""):
    def dropped_softmax(x, seed_offset, p):
        rows, n_cols = x.shape
        y = torch.empty_like(x)
        block = triton.next_power_of_2(n_cols)
        numbers = threshold(p), scale(p)
        weights_kernel[(rows,)](
            x, seed_offset, y, n_cols, *numbers, FAULT=fault, BLOCK=block, num_warps=4
        )
        return y

    return dropped_softmax


@triton.jit
def tiled_weights_kernel(
    x_ptr, so_ptr, y_ptr, n_rows, n_cols, drop_below, scale, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """Some rows a program, and the sum of what is divided last."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    e = rows * n_cols + cols
    x = tl.load(x_ptr + e, mask=mask, other=-1e30).to(tl.float32)
    weight = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    total = tl.sum(tl.where(mask, weight, 0.0), axis=1, keep_dims=True)
    y = tl.where(numbers_at(so_ptr, e) < drop_below, 0.0, weight * (scale / total))
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=mask)


def tiled_weights(x, seed_offset, p):
    n_rows, n_cols = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    cols, rows = triton.next_power_of_2(n_cols), 2
    grid = (triton.cdiv(n_rows, rows),)
    numbers = threshold(p), scale(p)
    tiled_weights_kernel[grid](x, seed_offset, y, n_rows, n_cols, *numbers, ROWS=rows, COLS=cols)
    return y


@triton.jit
def log_weights_kernel(x_ptr, so_ptr, y_ptr, n_cols, drop_below, scale, BLOCK: tl.constexpr):
    """By the logarithm of the sum."""
    cols = tl.arange(0, BLOCK)
    e = tl.program_id(0).to(tl.int64) * n_cols + cols
    x = tl.load(x_ptr + e, mask=cols < n_cols).to(tl.float32)
    x = tl.where(cols < n_cols, x, -float("inf"))
    top = tl.max(x, axis=0)
    x -= top
    lse = tl.log(tl.sum(tl.exp(x), axis=0))
    y = tl.where(numbers_at(so_ptr, e) >= drop_below, scale * tl.exp(x - lse), 0.0)
    tl.store(y_ptr + e, y.to(y_ptr.dtype.element_ty), mask=cols < n_cols)


def log_weights(x, seed_offset, p):
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    numbers = threshold(p), scale(p)
    log_weights_kernel[(len(x),)](x, seed_offset, y, x.shape[1], *numbers, BLOCK=block)
    return y
