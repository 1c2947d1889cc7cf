"""Answers to the questions of set 03: right ones written differently, and known-wrong ones."""

import torch
import triton
import triton.language as tl


# The element-wise kernel, with a switch for each fault.
@triton.jit
def element_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    offsets = start + lanes
    mask = offsets < n
    if FAULT == "lanes":
        mask = lanes < n
    if FAULT == "beyond":
        mask = offsets <= n
    if FAULT == "strict":
        mask = offsets < n - 1
    out = tl.load(x_ptr + offsets, mask=mask)
    if FAULT == "twice":
        out = tl.load(x_ptr + offsets, mask=mask)
    if FAULT == "half":
        out = out.to(tl.float16)
    if FAULT == "x again":
        out += tl.load(x_ptr + offsets, mask=mask)
    elif FAULT == "minus":
        out -= tl.load(y_ptr + offsets, mask=mask)
    elif FAULT == "times":
        out *= tl.load(y_ptr + offsets, mask=mask)
    elif y_ptr is not None:
        out += tl.load(y_ptr + offsets, mask=mask)
    if FAULT == "reverse":
        tl.store(out_ptr + n - 1 - offsets, out, mask=mask)
    elif FAULT == "unmasked":
        tl.store(out_ptr + offsets, out)
    elif FAULT == "one block":
        tl.store(out_ptr + lanes, out, mask=mask)
    else:
        tl.store(out_ptr + offsets, out, mask=mask)


def copy_with(fault, grid=triton.cdiv, block=256, warps=4):
    def my_copy(x):
        out, n = torch.empty_like(x), x.numel()
        programs = (grid(n, block),)
        element_kernel[programs](x, None, out, n, BLOCK=block, FAULT=fault, num_warps=warps)
        return out

    return my_copy


def add_with(fault, grid=triton.cdiv, block=256):
    def my_add(x, y):
        out, n = torch.empty_like(x), x.numel()
        element_kernel[(grid(n, block),)](x, y, out, n, BLOCK=block, FAULT=fault)
        return out

    return my_add


def rounded_down(n, block):
    return n // block


def one_program(n, block):
    return 1


@triton.jit
def strided_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """64 programs share all blocks: each steps over the others' by the size of the grid."""
    step = tl.num_programs(0) * BLOCK
    for start in range(tl.program_id(0) * BLOCK, n, step):
        offsets = start + tl.arange(0, BLOCK)
        out = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
        if y_ptr is not None:
            out = out.to(tl.float32) + tl.load(y_ptr + offsets, mask=offsets < n, other=0.0)
        tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=offsets < n)


def strided_copy(x):
    out = torch.empty_like(x)
    strided_kernel[(64,)](x, None, out, x.numel(), BLOCK=128)
    return out


def strided_add(x, y):
    out = torch.empty_like(x)
    strided_kernel[(64,)](x, y, out, x.numel(), BLOCK=128)
    return out


def whole_copy(x):
    """One program and a block as wide as x: right, and no use of a GPU."""
    n = x.numel()
    return copy_with("", one_program, triton.next_power_of_2(n))(x)


@triton.jit
def tiled_kernel(x_ptr, y_ptr, out_ptr, n, TILES: tl.constexpr, BLOCK: tl.constexpr):
    """Several blocks a program, as a tile of offsets in two dimensions."""
    first = tl.program_id(0) * TILES * BLOCK
    tile = tl.arange(0, TILES)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = first + tile < n
    out = tl.load(x_ptr + first + tile, mask=inside)
    if y_ptr is not None:
        out += tl.load(y_ptr + first + tile, mask=inside)
    tl.store(out_ptr + first + tile, out, mask=inside)


def tiled_copy(x):
    out = torch.empty_like(x)
    tiled_kernel[(triton.cdiv(x.numel(), 1024),)](x, None, out, x.numel(), TILES=4, BLOCK=256)
    return out


def tiled_add(x, y):
    out = torch.empty_like(x)
    tiled_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), TILES=4, BLOCK=256)
    return out


# The row sum, with a switch for each fault.
@triton.jit
def sum_kernel(x_ptr, sum_ptr, n_cols, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    start = row if FAULT == "stride" else row * n_cols
    if FAULT == "first row":
        start = 0
    if FAULT == "unmasked":
        x = tl.load(x_ptr + start + cols)
    elif FAULT == "ones":
        x = tl.load(x_ptr + start + cols, mask=mask, other=1.0)
    elif FAULT == "no other":
        x = tl.load(x_ptr + start + cols, mask=mask)
    else:
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0)
    if FAULT == "twice":
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0)
    if FAULT != "half":
        x = x.to(tl.float32)
    total = tl.max(x) if FAULT == "max" else tl.sum(x, axis=0)
    if FAULT == "mean":
        total /= n_cols
    tl.store(sum_ptr + row, total.to(sum_ptr.dtype.element_ty))


def sum_with(fault, block=None, fewer_rows=0, dtype=torch.float32):
    def row_sum(x):
        rows, n_cols = x.shape
        sums = torch.empty(rows, dtype=dtype, device=x.device)
        lanes = block or triton.next_power_of_2(n_cols)
        grid = (max(rows - fewer_rows, 1),)
        sum_kernel[grid](x, sums, n_cols, BLOCK=lanes, FAULT=fault)
        return sums

    return row_sum


@triton.jit
def looped_sum_kernel(x_ptr, sum_ptr, n_cols, BLOCK: tl.constexpr, REPLACE: tl.constexpr):
    start = tl.program_id(0) * n_cols
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, n_cols, BLOCK):
        x = tl.load(x_ptr + start + first + lanes, mask=first + lanes < n_cols, other=0.0)
        total = x.to(tl.float32) if REPLACE else total + x
    tl.store(sum_ptr + tl.program_id(0), tl.sum(total))


def looped_sum(x, replace=False):
    sums = torch.empty(len(x), dtype=torch.float32, device=x.device)
    looped_sum_kernel[(len(x),)](x, sums, x.shape[1], BLOCK=512, REPLACE=replace)
    return sums


@triton.jit
def tiled_sum_kernel(x_ptr, sum_ptr, n_rows, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    x = tl.load(x_ptr + rows[:, None] * n_cols + cols[None, :], mask=mask)
    total = tl.sum(tl.where(mask, x.to(tl.float32), 0.0), axis=1)
    tl.store(sum_ptr + rows, total, mask=rows < n_rows)


def tiled_sum(x):
    n_rows, n_cols = x.shape
    sums = torch.empty((n_rows,), dtype=torch.float32, device=x.device)
    lanes = triton.next_power_of_2(n_cols)
    tiled_sum_kernel[(triton.cdiv(n_rows, 2),)](x, sums, n_rows, n_cols, ROWS=2, COLS=lanes)
    return sums


# The transpose, with a switch for each fault.
@triton.jit
def transpose_kernel(
    x_ptr, y_ptr, n_rows, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr, FAULT: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    if FAULT == "row mask alone":
        mask = (rows < n_rows) & (cols >= 0)
    if FAULT == "column mask alone":
        mask = (rows >= 0) & (cols < n_cols)
    x = tl.load(x_ptr + rows * n_cols + cols, mask=mask)
    if FAULT == "twice":
        x = tl.load(x_ptr + rows * n_cols + cols, mask=mask)
    if FAULT == "straight":
        tl.store(y_ptr + rows * n_cols + cols, x, mask=mask)
    elif FAULT == "stride":
        tl.store(y_ptr + cols * n_cols + rows, x, mask=mask)
    else:
        tl.store(y_ptr + cols * n_rows + rows, x, mask=mask)


def transpose_with(fault, tile=(32, 32), grid=triton.cdiv, swapped=False, like_view=False):
    def my_transpose(x):
        n_rows, n_cols = x.shape
        y = torch.empty((n_cols, n_rows), dtype=x.dtype, device=x.device)
        y = torch.empty_like(x.T) if like_view else y
        sizes = zip(tile, x.shape, strict=True)
        height, width = (size or triton.next_power_of_2(n) for size, n in sizes)
        tiles = (grid(n_rows, height), grid(n_cols, width))
        tiles = tiles[::-1] if swapped else tiles
        transpose_kernel[tiles](x, y, n_rows, n_cols, height, width, FAULT=fault)
        return y

    return my_transpose


def few_tiles_of_columns(x):
    n_rows, n_cols = x.shape
    y = torch.empty((n_cols, n_rows), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n_rows, 32), n_cols // 32)
    transpose_kernel[grid](x, y, n_rows, n_cols, 32, 32, FAULT="")
    return y


@triton.jit
def turned_kernel(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    """The tile is turned in registers, and the tiles are numbered in one axis."""
    across = tl.cdiv(n_cols, BLOCK)
    rows = tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(0) % across * BLOCK + tl.arange(0, BLOCK)
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    x = tl.load(x_ptr + rows[:, None] * n_cols + cols[None, :], mask=mask, other=0.0)
    tl.store(y_ptr + cols[:, None] * n_rows + rows[None, :], tl.trans(x), mask=tl.trans(mask))


def turned(x):
    n_rows, n_cols = x.shape
    y = torch.empty(n_cols, n_rows, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n_rows, 16) * triton.cdiv(n_cols, 16),)
    turned_kernel[grid](x, y, n_rows, n_cols, BLOCK=16)
    return y


# The normalisation, with a switch for each fault; and the one with loops that is handed out.
@triton.jit
def normalize_kernel(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    start = tl.program_id(0) * n_cols
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    if FAULT == "no other":
        x = tl.load(x_ptr + start + cols, mask=mask)
    else:
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0)
    if FAULT != "half":
        x = x.to(tl.float32)
    count = BLOCK if FAULT == "block" else n_cols
    mean = tl.sum(x, axis=0) / count
    centred = x - mean if FAULT == "lanes" else tl.where(mask, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / count
    if FAULT == "one pass":
        variance = tl.sum(x * x, axis=0) / n_cols - mean * mean
    if FAULT == "unbiased":
        variance = variance * n_cols / tl.maximum(n_cols - 1, 1)
    if FAULT == "twice":
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
    centred = x if FAULT == "mean" else x - mean
    y = centred * tl.rsqrt(variance if FAULT == "eps" else variance + eps)
    if FAULT == "square root":
        y = centred / (variance + eps)
    tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def normalize_with(fault, block=None):
    def my_normalize(x, eps):
        rows, n_cols = x.shape
        y = torch.empty_like(x)
        lanes = block or triton.next_power_of_2(n_cols)
        normalize_kernel[(rows,)](x, y, n_cols, eps, BLOCK=lanes, FAULT=fault)
        return y

    return my_normalize


@triton.jit
def three_pass_kernel(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):
    begin = tl.program_id(0) * n_cols
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        total += tl.load(x_ptr + begin + start + lanes, mask=start + lanes < n_cols, other=0.0)
    mean = tl.sum(total) / n_cols
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + lanes < n_cols
        x = tl.load(x_ptr + begin + start + lanes, mask=mask, other=0.0)
        centred = tl.where(mask, x - mean, 0.0)
        squares += centred * centred
    inv_std = tl.rsqrt(tl.sum(squares) / n_cols + eps)
    for start in range(0, n_cols, BLOCK):
        mask = start + lanes < n_cols
        y = (tl.load(x_ptr + begin + start + lanes, mask=mask, other=0.0) - mean) * inv_std
        tl.store(y_ptr + begin + start + lanes, y.to(y_ptr.dtype.element_ty), mask=mask)


def three_passes(x, eps):
    y = torch.empty_like(x)
    three_pass_kernel[(len(x),)](x, y, x.shape[1], eps, BLOCK=256)
    return y


@triton.jit
def masked_square_kernel(x_ptr, y_ptr, width, eps, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    inside = lane < width
    x = tl.load(x_ptr + tl.program_id(0) * width + lane, mask=inside, other=0.0).to(tl.float32)
    centred = x - tl.sum(x) / width
    variance = tl.sum(tl.where(inside, centred * centred, 0.0)) / width
    y = centred / tl.sqrt(variance + eps)
    tl.store(y_ptr + tl.program_id(0) * width + lane, y.to(x_ptr.dtype.element_ty), mask=inside)


def masked_square(x, eps):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    lanes = triton.next_power_of_2(x.shape[1])
    masked_square_kernel[(len(x),)](x, y, x.shape[1], eps, LANES=lanes, num_warps=8)
    return y


@triton.jit
def two_rows_kernel(x_ptr, y_ptr, n_rows, n_cols, eps, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    x = tl.load(x_ptr + rows * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, x - tl.sum(x, axis=1, keep_dims=True) / n_cols, 0.0)
    variance = tl.sum(centred * centred, axis=1, keep_dims=True) / n_cols
    y = (centred * tl.rsqrt(variance + eps)).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + rows * n_cols + cols, y, mask=mask)


def two_rows(x, eps):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    lanes = triton.next_power_of_2(n_cols)
    grid = (triton.cdiv(n_rows, 2),)
    two_rows_kernel[grid](x, y, n_rows, n_cols, eps, ROWS=2, COLS=lanes)
    return y
