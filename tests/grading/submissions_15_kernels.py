"""Answers to 15.8: a kernel with a switch for each fault, and right ones written differently."""

import torch
import triton
import triton.language as tl

from kernels.ops.chains.dropped_operators import backward_composed
from kernels.philox import kept_elements, scale, threshold
from kernels.philox_triton import numbers_at


@triton.jit
def switched_normed(
    dy_ptr,
    dh_ptr,
    h_ptr,
    weight_ptr,
    mean_ptr,
    inv_std_ptr,
    seed_offset_ptr,
    dresidual_ptr,
    dx_ptr,
    n_cols,
    drop_below,
    scale,
    BLOCK: tl.constexpr,
    FAULT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    at = row * n_cols + cols
    if FAULT == "no other":
        dy = tl.load(dy_ptr + at, mask=mask).to(tl.float32)
        h = tl.load(h_ptr + at, mask=mask).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=mask).to(tl.float32)
    else:
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        h = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dh = tl.load(dh_ptr + at, mask=mask, other=0.0).to(tl.float32)
    inv_std = tl.load(inv_std_ptr + row)
    mean = 0.0 if FAULT == "mean again" else tl.load(mean_ptr + row)
    if FAULT == "mean again":
        mean = tl.sum(h, axis=0) / n_cols
    if FAULT == "no mean":
        mean = 0.0
    x_hat = (h - mean) * inv_std
    if FAULT == "h for x_hat":
        x_hat = h
    g = dy * weight
    if FAULT == "no weight":
        g = dy
    if FAULT == "dh first":
        g = g + dh
    count = BLOCK if FAULT == "block" else n_cols
    first = tl.sum(g, axis=0) / count
    along = tl.sum(g * x_hat, axis=0) / count
    if FAULT == "of dy":
        along = tl.sum(dy * x_hat, axis=0) / count
    if FAULT == "no mean of g":
        first = 0.0
    if FAULT == "no projection":
        along = 0.0
    if FAULT == "projection added":
        along = -along
    of_norm = (g - first - x_hat * along) * inv_std
    if FAULT == "no inv_std":
        of_norm = of_norm / inv_std
    dresidual = of_norm + dh
    if FAULT == "dh first" or FAULT == "no dh":
        dresidual = of_norm
    if FAULT == "dh taken away":
        dresidual = of_norm - dh
    if FAULT == "read twice":
        dresidual += 0.0 * tl.load(dh_ptr + at, mask=mask, other=0.0).to(tl.float32)
    element = at
    if FAULT == "place in the row":
        element = cols.to(tl.int64)
    if FAULT == "by blocks":
        element = row * BLOCK + cols
    kept = numbers_at(seed_offset_ptr, element) >= drop_below
    if FAULT == "turned mask":
        kept = numbers_at(seed_offset_ptr, element) < drop_below
    if FAULT == "above":
        kept = numbers_at(seed_offset_ptr, element) > drop_below
    to_drop = of_norm if FAULT == "dx without dh" else dresidual
    if FAULT == "no scale":
        scale = 1.0
    if FAULT == "scale twice":
        scale = scale * scale
    dx = tl.where(kept, to_drop * scale, 0.0)
    if FAULT == "dh behind":
        dx = tl.where(kept, of_norm * scale, 0.0) + dh
    if FAULT == "not dropped":
        dx = dresidual
    if FAULT == "changed places":
        dresidual, dx = dx, dresidual
    dtype = dx_ptr.dtype.element_ty
    if FAULT == "unmasked":
        mask = cols >= 0
    tl.store(dresidual_ptr + at, dresidual.to(dtype), mask=mask)
    tl.store(dx_ptr + at, dx.to(dtype), mask=mask)


def normed_with(fault=""):
    def normed_backward(dy, dh, h, weight, mean, inv_std, seed_offset, p):
        rows, n_cols = h.shape
        dresidual, dx = torch.empty_like(h), torch.empty_like(h)
        sizes = n_cols, threshold(p), scale(p)
        if fault == "p itself":
            sizes = n_cols, p, scale(p)
        if fault == "1 - p":
            sizes = n_cols, threshold(1 - p), scale(p)
        block = triton.next_power_of_2(n_cols)
        grid = (rows - 1 if fault == "a row too few" and rows > 1 else rows,)
        switched_normed[grid](
            dy, dh, h, weight, mean, inv_std, seed_offset, dresidual, dx, *sizes, block, fault
        )
        return dresidual, dx

    return normed_backward


@triton.jit
def rows_kernel(
    dy_ptr,
    dh_ptr,
    h_ptr,
    weight_ptr,
    mean_ptr,
    inv_ptr,
    seed_ptr,
    dres_ptr,
    dx_ptr,
    n_rows,
    n_cols,
    below,
    factor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Two rows a program, the sums by terms that are 0 beyond the row."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    inside = (rows < n_rows) & (cols < n_cols)
    at = rows * n_cols + cols
    weight = tl.load(weight_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + rows, mask=rows < n_rows, other=0.0)
    inv = tl.load(inv_ptr + rows, mask=rows < n_rows, other=0.0)
    h = tl.load(h_ptr + at, mask=inside, other=0.0)
    x_hat = tl.where(inside, (h.to(tl.float32) - mean) * inv, 0.0)
    g = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32) * weight
    first = tl.sum(g, axis=1, keep_dims=True) / n_cols
    second = tl.sum(g * x_hat, axis=1, keep_dims=True) / n_cols
    back = tl.load(dh_ptr + at, mask=inside, other=0.0).to(tl.float32)
    back += inv * (g - (first + x_hat * second))
    rounded = back.to(dres_ptr.dtype.element_ty)
    tl.store(dres_ptr + at, rounded, mask=inside)
    kept = numbers_at(seed_ptr, at) >= below
    dx = tl.where(kept, rounded.to(tl.float32) * factor, 0.0)
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)


def normed_by_rows(dy, dh, h, weight, mean, inv_std, seed_offset, p):
    rows, cols = h.shape
    outputs = [torch.empty(h.shape, dtype=h.dtype, device=h.device) for _ in range(2)]
    given = (dy, dh, h, weight, mean, inv_std, seed_offset)
    sizes = rows, cols, threshold(p), scale(p), 2, triton.next_power_of_2(cols)
    rows_kernel[(triton.cdiv(rows, 2),)](*given, *outputs, *sizes)
    return outputs


def normed_by_pytorch(dy, dh, h, weight, mean, inv_std, seed_offset, p):
    g = dy.float() * weight.float()
    x_hat = (h.float() - mean[:, None]) * inv_std[:, None]
    along = (g * x_hat).mean(-1, keepdim=True)
    back = (g - g.mean(-1, keepdim=True) - x_hat * along) * inv_std[:, None] + dh.float()
    dx = back * kept_elements(tuple(h.shape), p, seed_offset) * scale(p)
    return back.to(h.dtype), dx.to(h.dtype)


def normed_in_two_launches(dy, dh, h, weight, mean, inv_std, seed_offset, p):
    given = (dy, dh, h, weight, mean, inv_std, seed_offset, p)
    return normed_with()(*given)[0], normed_with()(*given)[1]


def normed_dropped_by_pytorch(dy, dh, h, weight, mean, inv_std, seed_offset, p):
    dresidual, _ = normed_with()(dy, dh, h, weight, mean, inv_std, seed_offset, p)
    kept = kept_elements(tuple(h.shape), p, seed_offset)
    return dresidual, torch.where(kept, dresidual.float() * scale(p), 0.0).to(h.dtype)


def normed_by_the_package(dy, dh, h, weight, mean, inv_std, seed_offset, p):
    dresidual, _ = normed_with()(dy, dh, h, weight, mean, inv_std, seed_offset, p)
    return dresidual, backward_composed(dresidual, h, seed_offset, p, "none")
