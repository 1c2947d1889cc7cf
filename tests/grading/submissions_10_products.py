"""Answers to 10.4 and 10.5: products with a switch for each fault, and right ones."""

import torch
import triton
import triton.language as tl

from kernels.ops.products.linear import linear
from tests.grading.submissions import copy_kernel


@triton.jit
def switched_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FAULT: tl.constexpr,
    IEEE: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if FAULT == "fp16 sum":
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float16)
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    upto = K
    if FAULT == "whole steps":
        upto = K // BLOCK_K * BLOCK_K
    if FAULT == "first step":
        upto = min(K, BLOCK_K)
    for start in range(0, upto, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        if FAULT == "same step":
            k = tl.arange(0, BLOCK_K)
        x_at = rows[:, None] * K + k[None, :]
        weight_at = cols[None, :] * K + k[:, None]
        if FAULT == "x by weight":
            weight_at = k[:, None] * N + cols[None, :]
        x_mask = (rows < M)[:, None] & (k < K)[None, :]
        weight_mask = (cols < N)[None, :] & (k < K)[:, None]
        if FAULT == "x unmasked" or FAULT == "unmasked":
            x_mask = (rows < M)[:, None] & (k >= 0)[None, :]
        if FAULT == "weight unmasked" or FAULT == "unmasked":
            weight_mask = (cols < N)[None, :] & (k >= 0)[:, None]
        if FAULT == "flat mask":
            x_mask = x_at < M * K
            weight_mask = weight_at < N * K
        if FAULT == "no other":
            x = tl.load(x_ptr + x_at, mask=x_mask)
            weight = tl.load(weight_ptr + weight_at, mask=weight_mask)
        elif FAULT == "ones":
            x = tl.load(x_ptr + x_at, mask=x_mask, other=1.0)
            weight = tl.load(weight_ptr + weight_at, mask=weight_mask, other=1.0)
        else:
            x = tl.load(x_ptr + x_at, mask=x_mask, other=0.0)
            weight = tl.load(weight_ptr + weight_at, mask=weight_mask, other=0.0)
        if FAULT == "converted":
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        if FAULT == "fp16 sum":
            total += tl.dot(x, weight).to(tl.float16)
        elif FAULT == "replaced":
            total = tl.dot(x, weight)
        elif FAULT == "no dot":
            products = x.to(tl.float32)[:, :, None] * weight.to(tl.float32)[None, :, :]
            total += tl.sum(products, axis=1)
        elif IEEE:
            total = tl.dot(x, weight, total, input_precision="ieee")
        else:
            total = tl.dot(x, weight, total)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    at = rows[:, None] * N + cols[None, :]
    if FAULT == "transposed":
        at = cols[None, :] * M + rows[:, None]
    if FAULT == "mean":
        total = total / K
    if FAULT == "unmasked store":
        mask = (rows >= 0)[:, None] & (cols < N)[None, :]
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=mask)


def product_with(fault="", tile=(64, 64, 32), warps=8, stages=2, ieee=True, down=(False, False)):
    def product(x, weight):
        (m, k), n = x.shape, len(weight)
        y = torch.empty((m, n), dtype=x.dtype, device=x.device)
        if fault == "fp32 output":
            y = y.float()
        tiles = (
            max(1, size // edge) if rounded else triton.cdiv(size, edge)
            for size, edge, rounded in zip((m, n), tile[:2], down, strict=True)
        )
        switched_kernel[tuple(tiles)](
            x, weight, y, m, n, k, *tile, FAULT=fault, IEEE=ieee, num_warps=warps, num_stages=stages
        )
        return y

    return product


# Right, and written otherwise.
@triton.jit
def turned_kernel(
    weight_ptr, x_ptr, out_ptr, m, n, k, EDGE: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr
):
    """One axis of programs in groups, the weight loaded as it lies, pointers that move on."""
    pid = tl.program_id(0)
    wide = tl.cdiv(n, EDGE)
    first = pid // (GROUP * wide) * GROUP
    height = tl.minimum(tl.cdiv(m, EDGE) - first, GROUP)
    inside = pid % (GROUP * wide)
    row = (first + inside % height) * EDGE + tl.arange(0, EDGE)[:, None]
    col = inside // height * EDGE + tl.arange(0, EDGE)[:, None]
    step = tl.arange(0, STEP)[None, :]
    a, b = x_ptr + row * k + step, weight_ptr + col * k + step
    acc = tl.zeros((EDGE, EDGE), dtype=tl.float32)
    left = k
    while left > 0:
        x = tl.load(a, mask=(row < m) & (step < left), other=0)
        w = tl.load(b, mask=(col < n) & (step < left), other=0)
        acc += tl.dot(x, tl.trans(w), input_precision="ieee")
        a += STEP
        b += STEP
        left -= STEP
    across = tl.trans(col)
    tl.store(out_ptr + row * n + across, acc.to(out_ptr.type.element_ty), (row < m) & (across < n))


def turned_product(x, weight):
    m, k = x.shape
    n = weight.shape[0]
    out = x.new_empty(m, n)
    programs = triton.cdiv(m, 64) * triton.cdiv(n, 64)
    turned_kernel[(programs,)](weight, x, out, m, n, k, EDGE=64, STEP=16, GROUP=4, num_warps=8)
    return out


@triton.jit
def wrapping_kernel(
    x_ptr, w_ptr, y_ptr, m, n, k, TALL: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr
):
    """Rows and columns beyond the end begin again at the first: they are loaded, and not stored."""
    wide = tl.cdiv(n, WIDE)
    rows = tl.program_id(0) // wide * TALL + tl.arange(0, TALL)[:, None]
    cols = tl.program_id(0) % wide * WIDE + tl.arange(0, WIDE)[None, :]
    acc = tl.zeros((TALL, WIDE), tl.float32)
    for i in range(tl.cdiv(k, STEP)):
        across = i * STEP + tl.arange(0, STEP)[None, :]
        down = i * STEP + tl.arange(0, STEP)[:, None]
        x = tl.load(x_ptr + rows % m * k + across, mask=across < k, other=0.0)
        w = tl.load(w_ptr + cols % n * k + down, mask=down < k, other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    tl.store(y_ptr + rows * n + cols, acc.to(y_ptr.dtype.element_ty), mask=(rows < m) & (cols < n))


def wrapping_product(x, weight):
    (m, k), n = x.shape, len(weight)
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    programs = triton.cdiv(m, 64) * triton.cdiv(n, 64)
    wrapping_kernel[(programs,)](x, weight, y, m, n, k, TALL=64, WIDE=64, STEP=32, num_warps=8)
    return y


# Hostile, each in its own way.
def by_the_package(x, weight):
    return linear(x, weight)


def into_its_input(x, weight):
    y = product_with()(x, weight)
    weight.copy_(x[:1].expand_as(weight))
    return y


def once_and_for_all():
    """Compute the first product, and return it for every other of the same sizes."""
    kept = {}

    def product(x, weight):
        key = x.shape, weight.shape, x.dtype
        if key not in kept:
            kept[key] = product_with()(x, weight)
        return kept[key]

    return product


def behind_the_dispatcher(x, weight):
    """PyTorch's product, hidden from who looks for operators, and a kernel that copies it."""
    with torch.utils._python_dispatch._disable_current_modes():
        y = (x.float() @ weight.float().T).to(x.dtype)
    out = torch.empty_like(y)
    copy_kernel[(triton.cdiv(y.numel(), 256),)](y, out, y.numel(), BLOCK=256)
    return out


def launched_and_thrown_away(x, weight):
    """Launch the right kernel, and return what PyTorch makes."""
    product_with()(x, weight)
    with torch.utils._python_dispatch._disable_current_modes():
        return (x.float() @ weight.float().T).to(x.dtype)


def product_by_pytorch(x, weight):
    return x @ weight.T


def padded_product(x, weight):
    """Pad K first, by PyTorch."""
    over = -x.shape[1] % 32
    pad = torch.nn.functional.pad
    return product_with("unmasked")(pad(x, (0, over)), pad(weight, (0, over)))


def float_product(x, weight):
    """The product in fp32, converted by PyTorch."""
    return product_with("fp32 output")(x, weight).to(x.dtype)
