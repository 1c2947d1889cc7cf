"""Submissions to set 06, right and wrong, as readers write them."""

import math

import torch
import triton
import triton.language as tl

# 06.1


def bytes_by_tensor(rows, cols, itemsize):
    x = y = rows * cols * itemsize
    residual = h = rows * cols * 4
    weight = cols * itemsize
    return (x + residual + h) + (h + weight + y), x + residual + weight + y + h


def bytes_an_element(rows, cols, itemsize):
    two, one = (rows * (2 * itemsize + wide) for wide in (12, 8))
    return cols * (two + itemsize), cols * (one + itemsize)


def bytes_by_list(rows, cols, itemsize):
    add = [itemsize, 4, 4]
    norm = [4, itemsize]
    one = [itemsize, 4, 4, itemsize]
    small = cols * itemsize
    return sum(rows * cols * n for n in add + norm) + small, sum(
        rows * cols * n for n in one
    ) + small


# 06.2


def illness_by_steps(examine):
    if not examine(4, 128).right:
        return "wrong axis"
    trial = examine(4, 300)
    if trial.stored != 1:
        return "stale tail"
    if trial.error > 1e-3:
        return "powers of two"
    if examine(4, 300, "fp32", 5.0).error > 1e-3:
        return "missing mask"
    if examine(8, 1024, "fp32", 5000.0).error > 1e-2:
        return "one pass"
    return "healthy" if examine(4, 4096, "fp16", 40.0).right else "low precision"


def illness_by_table(examine):
    shown = (
        examine(8, 64).right,
        examine(8, 200).right,
        examine(8, 200, mean=4).right,
        examine(8, 64, mean=2000).right,
        examine(4, 8192, "fp16", 25).right,
    )
    stored = examine(4, 500, "bf16").stored
    table = {
        (True, True, True, True, True): "healthy",
        (True, True, True, True, False): "low precision",
        (True, True, True, False, True): "one pass",
        (True, True, False, True, True): "missing mask",
        (True, False, False, True, True): "powers of two",
    }
    return "stale tail" if stored < 1 else table.get(shown, "wrong axis")


def illness_by_error(examine):
    ragged = examine(6, 96, "fp32", 0.0)
    if math.isinf(ragged.error):
        return "stale tail"
    if ragged.error > 0.3:
        return "wrong axis"
    if ragged.error > 1e-4:
        # 96 of 128 lanes: the output is too large by the root of 4 / 3.
        return "powers of two"
    if examine(6, 96, "fp32", -2.0).error > 1e-4:
        return "missing mask"
    if examine(8, 256, "fp32", -4000.0).error > 1e-2:
        return "one pass"
    return "low precision" if not examine(2, 16384, "fp16", -20.0).right else "healthy"


def illness_without_mean_zero(examine):
    if not examine(8, 64).right:
        return "wrong axis"
    trial = examine(8, 100, mean=3.0)
    if trial.stored < 1:
        return "stale tail"
    if not trial.right:
        return "missing mask"
    if not examine(8, 64, mean=3000.0).right:
        return "one pass"
    return "healthy" if examine(8, 8192, "fp16", 30.0).right else "low precision"


def illness_far_and_ragged(examine):
    if not examine(8, 64).right:
        return "wrong axis"
    trial = examine(8, 100)
    if trial.stored < 1:
        return "stale tail"
    if not trial.right:
        return "powers of two"
    if not examine(8, 100, mean=3000.0).right:
        return "one pass"
    return "healthy" if examine(8, 8192, "fp16", 30.0).right else "low precision"


def illness_blind_to_the_ledger(examine):
    return illness_by_steps(lambda *args: examine(*args)._replace(stored=1))


def illness_in_fp32(examine):
    told = illness_by_steps(examine)
    return "healthy" if told == "low precision" else told


def illness_by_many(examine):
    for cols in range(20, 40):
        examine(4, cols)
    return illness_by_steps(examine)


# 06.3


@triton.jit
def wide_kernel(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * n_cols
    mean = 0.0
    squares = 0.0
    tiles = 0.0
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + begin + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        size = tl.minimum(n_cols - start, BLOCK)
        if FAULT == "one pass":
            mean += tl.sum(x, axis=0) / n_cols
            squares += tl.sum(x * x, axis=0)
        else:
            tile_mean = tl.sum(x, axis=0) / size
            centred = x - tile_mean
            if FAULT != "lanes":
                centred = tl.where(cols < n_cols, centred, 0.0)
            delta = tile_mean - mean
            squares += tl.sum(centred * centred, axis=0)
            if FAULT != "as they are":
                squares += delta * delta * start * size / (start + size)
            tiles += 1.0
            if FAULT == "mean of means":
                mean += delta / tiles
            else:
                mean += delta * size / (start + size)
    variance = squares / n_cols
    if FAULT == "one pass":
        variance = squares / n_cols - mean * mean
    if FAULT == "n - 1":
        variance = squares / (n_cols - 1)
    if FAULT == "three loops":
        squares = 0.0
        for start in range(0, n_cols, BLOCK):
            cols = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + begin + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
            centred = tl.where(cols < n_cols, x - mean, 0.0)
            squares += tl.sum(centred * centred, axis=0)
        variance = squares / n_cols
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + begin + cols, mask=cols < n_cols).to(tl.float32)
        y = (x - mean) * tl.rsqrt(variance + eps)
        tl.store(y_ptr + begin + cols, y.to(y_ptr.dtype.element_ty), mask=cols < n_cols)


def wide_with(fault, most=4096, warps=8):
    def wide_normalize(x, eps):
        y = torch.empty_like(x)
        block = min(triton.next_power_of_2(x.shape[1]), most)
        grid = (len(x),)
        wide_kernel[grid](x, y, x.shape[1], eps, BLOCK=block, FAULT=fault, num_warps=warps)
        return y

    return wide_normalize


@triton.jit
def shifted_kernel(x_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):
    x_ptr += tl.program_id(0).to(tl.int64) * n_cols
    y_ptr += tl.program_id(0).to(tl.int64) * n_cols
    shift = 0.0
    total = 0.0
    squares = 0.0
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        if start == 0:
            shift = tl.sum(x, axis=0) / tl.minimum(n_cols, BLOCK)
        x = tl.where(mask, x - shift, 0.0)
        total += tl.sum(x, axis=0)
        squares += tl.sum(x * x, axis=0)
    off = total / n_cols
    inv_std = tl.rsqrt(squares / n_cols - off * off + eps)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n_cols).to(tl.float32)
        y = (x - shift - off) * inv_std
        tl.store(y_ptr + cols, y.to(y_ptr.dtype.element_ty), mask=cols < n_cols)


def wide_shifted(x, eps):
    y = torch.empty_like(x)
    block = min(triton.next_power_of_2(x.shape[1]), 2048)
    shifted_kernel[(len(x),)](x, y, x.shape[1], eps, BLOCK=block)
    return y


# 06.4


@triton.jit
def heads_kernel(
    x_ptr, w_ptr, y_ptr, n_rows, n_cols, eps, R: tl.constexpr, C: tl.constexpr, FAULT: tl.constexpr
):
    rows = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    cols = tl.arange(0, C)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    if FAULT == "rows":
        mask = (rows >= 0) & (cols < n_cols)
    if FAULT == "cols":
        mask = (rows < n_rows) & (cols >= 0)
    if FAULT == "no other":
        x = tl.load(x_ptr + rows * n_cols + cols, mask=mask).to(tl.float32)
    else:
        x = tl.load(x_ptr + rows * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    squares = tl.sum(x * x, axis=1, keep_dims=True)
    if FAULT == "all":
        squares = tl.sum(squares, axis=0, keep_dims=True)
    if FAULT == "axis":
        squares = tl.sum(x * x, axis=0, keep_dims=True)
    inv_rms = tl.rsqrt(squares / (C if FAULT == "block" else n_cols) + eps)
    if FAULT == "weight a row":
        weight = tl.load(w_ptr + cols + rows * 0, mask=mask).to(tl.float32)
    else:
        weight = tl.load(w_ptr + cols, mask=cols < n_cols).to(tl.float32)
    y = x * inv_rms
    if FAULT != "no weight":
        y = y * weight
    tl.store(y_ptr + rows * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def heads_with(fault, rows=16, warps=4, few=0):
    def head_norm(x, weight, eps):
        n_rows, n_cols = x.shape
        y = torch.empty_like(x)
        grid = (max(triton.cdiv(n_rows, rows) - few, 1),)
        block = triton.next_power_of_2(n_cols)
        sizes = {"R": rows, "C": block, "FAULT": fault, "num_warps": warps}
        heads_kernel[grid](x, weight, y, n_rows, n_cols, eps, **sizes)
        return y

    return head_norm


@triton.jit
def looped_heads_kernel(x_ptr, w_ptr, y_ptr, n_rows, n_cols, eps, R: tl.constexpr, C: tl.constexpr):
    cols = tl.arange(0, C)
    mask = cols < n_cols
    weight = tl.load(w_ptr + cols, mask=mask).to(tl.float32)
    first = tl.program_id(0) * R
    for row in range(first, tl.minimum(first + R, n_rows)):
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        y = x / tl.sqrt(tl.sum(x * x, axis=0) / n_cols + eps) * weight
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def looped_heads(x, weight, eps):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    block = triton.next_power_of_2(n_cols)
    grid = (triton.cdiv(n_rows, 8),)
    looped_heads_kernel[grid](x, weight, y, n_rows, n_cols, eps, R=8, C=block, num_warps=1)
    return y


# 06.8


def limit_by_floor(row, far=1.4, extra=None, **ignore):
    moved = row.bytes_dram / row.bytes_ideal if extra is None else extra
    host = 0.0 if ignore.get("host") else row.host_us
    graph = row.host_us if ignore.get("graph") else row.graph_us
    if host > far * graph:
        return "launch"
    least = moved if ignore.get("cache") else max(moved, 1.0)
    if graph > far * row.copy_us * least:
        return "neither"
    return "extra bytes" if row.bytes_dram > far * row.bytes_ideal else "memory"


def limit_by_rate(row):
    if row.graph_us / row.host_us < 1 / 1.3:
        return "launch"
    rate = row.bytes_ideal / row.copy_us
    busy = max(row.bytes_dram, row.bytes_ideal) / row.graph_us / rate
    if busy < 1 / 1.3:
        return "neither"
    return "memory" if row.bytes_dram / row.bytes_ideal < 1.3 else "extra bytes"


def limit_by_times(row):
    dram_us = row.copy_us * row.bytes_dram / row.bytes_ideal
    waits = {
        "launch": row.host_us - 1.35 * row.graph_us,
        "neither": row.graph_us - 1.35 * max(dram_us, row.copy_us),
        "extra bytes": dram_us - 1.35 * row.copy_us,
    }
    return next((word for word, late in waits.items() if late > 0), "memory")
