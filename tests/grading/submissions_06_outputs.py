"""Submissions to 06.5, 06.6 and 06.7, right and wrong, as readers write them."""

import torch
import triton
import triton.language as tl

# 06.5


@triton.jit
def add_rms_kernel(
    x_ptr, r_ptr, w_ptr, y_ptr, h_ptr, n_cols, eps, BLOCK: tl.constexpr, FAULT: tl.constexpr
):
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    at = tl.program_id(0).to(tl.int64) * n_cols + cols
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(r_ptr + at, mask=mask, other=0.0)
    if FAULT == "narrow residual":
        residual = residual.to(x_ptr.dtype.element_ty).to(tl.float32)
    if FAULT == "narrow sum":
        narrow = x.to(x_ptr.dtype.element_ty) + residual.to(x_ptr.dtype.element_ty)
        x, residual = narrow.to(tl.float32), 0.0
    h = x - residual if FAULT == "minus" else x + residual
    if FAULT == "narrow h":
        h = h.to(x_ptr.dtype.element_ty).to(tl.float32)
    tl.store(h_ptr + at, x if FAULT == "x as h" else h, mask=mask)
    if FAULT == "x alone":
        h = x
    if FAULT == "h back":
        h = tl.load(h_ptr + at, mask=mask, other=0.0)
    squares = tl.sum(h * h, axis=0) / (BLOCK if FAULT == "block" else n_cols)
    weight = tl.load(w_ptr + cols, mask=mask).to(tl.float32)
    y = h * tl.rsqrt(squares + eps) * weight
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


def add_rms_with(fault, returns=lambda y, h: (y, h), warps=8):
    def add_rms_norm(x, residual, weight, eps):
        n_cols = x.shape[1]
        y, h = torch.empty_like(x), torch.empty_like(residual)
        block = triton.next_power_of_2(n_cols)
        grid = (len(x),)
        options = {"BLOCK": block, "FAULT": fault, "num_warps": warps}
        add_rms_kernel[grid](x, residual, weight, y, h, n_cols, eps, **options)
        return returns(y, h)

    return add_rms_norm


def add_rms_by_pytorch(x, residual, weight, eps):
    h = x + residual
    y = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps) * weight
    return y.to(x.dtype), h


@triton.jit
def two_rows_kernel(x_ptr, r_ptr, w_ptr, y_ptr, h_ptr, n_rows, n_cols, eps, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * 2 + tl.arange(0, 2)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    at = rows * n_cols + cols
    h = tl.load(r_ptr + at, mask=mask, other=0.0) + tl.load(x_ptr + at, mask=mask, other=0.0)
    inv_rms = 1.0 / tl.sqrt(tl.sum(h * h, axis=1, keep_dims=True) / n_cols + eps)
    weight = tl.load(w_ptr + cols, mask=cols < n_cols).to(tl.float32)
    tl.store(y_ptr + at, (h * inv_rms * weight).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(h_ptr + at, h, mask=mask)


def add_rms_two_rows(x, residual, weight, eps):
    rows, n_cols = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    tensors = (x, residual, weight, y, h)
    grid, block = (triton.cdiv(rows, 2),), triton.next_power_of_2(n_cols)
    two_rows_kernel[grid](*tensors, rows, n_cols, eps, BLOCK=block, num_warps=16)
    return [y, h]


# 06.6


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * n_cols
    y_ptr += tl.program_id(0).to(tl.int64) * n_cols
    beyond: tl.constexpr = 0.0 if FAULT == "zeros" else -float("inf")
    m = -float("inf") if FAULT == "inf" or FAULT == "guarded" else -3.0e38
    if FAULT == "from 0":
        m = 0.0
    if FAULT == "from -10000":
        m = -10000.0
    s = 0.0
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n_cols, other=beyond).to(tl.float32)
        larger = tl.maximum(m, tl.max(x, axis=0))
        if FAULT == "zeros":
            larger = tl.maximum(m, tl.max(tl.where(cols < n_cols, x, -3.0e38), axis=0))
        if FAULT == "no maximum":
            larger = 0.0
        if FAULT == "guarded":
            # A right answer: about 0 for as long as there was nothing but -inf.
            about = tl.where(larger == -float("inf"), 0.0, larger)
            s = s * tl.exp(m - about) + tl.sum(tl.exp(x - about), axis=0)
        elif FAULT == "tiles":
            s += tl.sum(tl.exp(x - tl.max(x, axis=0)), axis=0)
        elif FAULT == "unscaled":
            s += tl.sum(tl.exp(x - larger), axis=0)
        else:
            s = s * tl.exp(m - larger) + tl.sum(tl.exp(x - larger), axis=0)
        m = larger
    if FAULT == "three loops":
        s = 0.0
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + cols, mask=cols < n_cols, other=beyond).to(tl.float32)
            s += tl.sum(tl.exp(x - m), axis=0)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n_cols).to(tl.float32)
        y = tl.exp(x - m)
        if FAULT != "undivided":
            y = y / s
        tl.store(y_ptr + cols, y.to(y_ptr.dtype.element_ty), mask=cols < n_cols)


def softmax_with(fault, most=4096, warps=8):
    def wide_softmax(x):
        y = torch.empty_like(x)
        block = min(triton.next_power_of_2(x.shape[1]), most)
        grid = (len(x),)
        softmax_kernel[grid](x, y, x.shape[1], BLOCK=block, FAULT=fault, num_warps=warps)
        return y

    return wide_softmax


@triton.jit
def lanes_kernel(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n_cols
    lanes = tl.arange(0, BLOCK)
    m = tl.full([BLOCK], -1.0e38, tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + lanes < n_cols
        x = tl.load(x_ptr + row + start + lanes, mask=mask, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(m, x)
        s = s * tl.exp(m - larger) + tl.exp(x - larger)
        m = larger
    top = tl.max(m, axis=0)
    inverse = 1.0 / tl.sum(s * tl.exp(m - top), axis=0)
    for start in range(0, n_cols, BLOCK):
        mask = start + lanes < n_cols
        x = tl.load(x_ptr + row + start + lanes, mask=mask).to(tl.float32)
        y = tl.exp(x - top) * inverse
        tl.store(y_ptr + row + start + lanes, y.to(y_ptr.dtype.element_ty), mask=mask)


def softmax_by_lane(x):
    y = torch.empty_like(x)
    block = min(triton.next_power_of_2(x.shape[1]), 2048)
    lanes_kernel[(len(x),)](x, y, x.shape[1], BLOCK=block)
    return y


def softmax_by_pytorch(x):
    return torch.softmax(x, -1)


# 06.7


@triton.jit
def order_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, sb, sh, sp, heads, positions, n_cols, eps,
    BLOCK: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position, head, batch = row % positions, row // positions % heads, row // (positions * heads)
    if FAULT == "heads inside":
        position, head = row // heads % positions, row % heads
    x_row = batch * sb + head * sh + position * sp
    if FAULT == "plain":
        x_row = row * n_cols
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + x_row + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    centred = x - mean if FAULT == "lanes" else tl.where(mask, x - mean, 0.0)
    if FAULT == "twice":
        again = tl.load(x_ptr + x_row + cols, mask=mask, other=0.0).to(tl.float32)
        centred = tl.where(mask, again - mean, 0.0)
    y = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    y = y * tl.load(w_ptr + cols, mask=mask) + tl.load(b_ptr + cols, mask=mask)
    at = x_row if FAULT == "as x" else row * n_cols
    tl.store(y_ptr + at + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def order_with(fault, contiguous=True, copies=False):
    def norm_any_order(x, weight, bias, eps):
        batches, heads, positions, n_cols = x.shape
        y = torch.empty(x.shape, dtype=x.dtype) if contiguous else torch.empty_like(x)
        if copies:
            x = x.contiguous()
        sizes = (*x.stride()[:3], heads, positions, n_cols)
        block = triton.next_power_of_2(n_cols)
        grid = (batches * heads * positions,)
        order_kernel[grid](x, weight, bias, y, *sizes, eps, BLOCK=block, FAULT=fault)
        return y

    return norm_any_order


@triton.jit
def cube_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, sb, sh, sp, yb, yh, yp, n_cols, eps, BLOCK: tl.constexpr
):
    b, h, p = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + b * sb + h * sh + p * sp + cols, mask=mask, other=0.0).to(tl.float32)
    x = tl.where(mask, x - tl.sum(x, axis=0) / n_cols, 0.0)
    x /= tl.sqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    y = x * tl.load(w_ptr + cols, mask=mask) + tl.load(b_ptr + cols, mask=mask)
    tl.store(y_ptr + b * yb + h * yh + p * yp + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def order_by_grid(x, weight, bias, eps):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batches, heads, positions, n_cols = x.shape
    strides = (*x.stride()[:3], *y.stride()[:3])
    block = triton.next_power_of_2(n_cols)
    grid = (positions, heads, batches)
    cube_kernel[grid](x, weight, bias, y, *strides, n_cols, eps, BLOCK=block)
    return y


def order_of_memory(x, weight, bias, eps):
    """Walk x as it lies in memory, and store each row where it belongs."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    order = sorted(range(3), key=lambda axis: -x.stride(axis))
    lying, target = x.permute(*order, 3), y.permute(*order, 3)
    strides = (*lying.stride()[:3], *target.stride()[:3])
    outer, middle, inner, n_cols = lying.shape
    block = triton.next_power_of_2(n_cols)
    grid = (inner, middle, outer)
    cube_kernel[grid](lying, weight, bias, target, *strides, n_cols, eps, BLOCK=block)
    return y
