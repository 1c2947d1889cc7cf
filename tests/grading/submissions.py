"""Answers to the questions of set 02: right ones written differently, and known-wrong ones."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.ops.norms.layernorm import layer_norm


# One kernel with a switch for each fault, so that every submission is the given one but for it.
@triton.jit
def row_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr, FAULT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols - (1 if FAULT == "short mask" else 0)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0)
    if FAULT != "half":
        x = x.to(tl.float32)
    count = BLOCK if FAULT == "block" else n_cols
    mean = tl.sum(x, axis=0) / count
    if FAULT == "half":
        mean = mean.to(x.dtype)
    if FAULT == "twice":
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    centred = x - mean if FAULT == "given" else tl.where(mask, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / count
    if FAULT == "one pass":
        variance = tl.sum(x * x, axis=0) / n_cols - mean * mean
    if FAULT == "lanes off twice":
        variance -= (BLOCK - n_cols) * mean * mean / n_cols
    if FAULT == "unbiased":
        variance = variance * n_cols / tl.maximum(n_cols - 1, 1)
    if FAULT == "eps":
        eps = 1e-5
    if FAULT == "sum":
        variance = variance * n_cols
    y = centred * tl.rsqrt(variance + eps)
    if FAULT == "no root":
        y = centred
    if FAULT == "eps outside":
        y = centred / (tl.sqrt(variance) + eps)
    if FAULT == "eps beside":
        y = centred * (tl.rsqrt(variance) + eps)
    if FAULT == "nan":
        y = y + tl.sqrt(-1.0 - mean * mean)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = y * bias + weight if FAULT == "swapped" else y * weight + bias
    y = y.to(y_ptr.dtype.element_ty)
    if FAULT == "shifted":
        tl.store(y_ptr + row * n_cols + cols + 1, y, mask=mask)
    elif FAULT == "last column":
        tl.store(y_ptr + row * n_cols + cols, y, mask=cols < n_cols - 1)
    elif FAULT == "unmasked":
        tl.store(y_ptr + row * n_cols + cols, y)
    else:
        tl.store(y_ptr + row * n_cols + cols, y, mask=mask)
    if FAULT == "input":
        tl.store(x_ptr + row * n_cols + cols, y, mask=mask)


def with_fault(fault, dtype=None, fewer_rows=0):
    def my_layer_norm(x, weight, bias, eps):
        rows, n_cols = x.shape
        y = torch.empty_like(x, dtype=dtype)
        block = triton.next_power_of_2(n_cols)
        grid = (max(rows - fewer_rows, 1),)
        row_kernel[grid](x, weight, bias, y, n_cols, eps, BLOCK=block, FAULT=fault)
        return y

    return my_layer_norm


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=places < n), mask=places < n)


def copied(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y


def eager(x, weight, bias, eps):
    """The package's own steps, written down once more: a function of the package earns nothing."""
    x32 = x.float()
    mean = x32.mean(-1, keepdim=True)
    centred = x32 - mean
    variance = (centred * centred).mean(-1, keepdim=True)
    return (centred * torch.rsqrt(variance + eps) * weight + bias).to(x.dtype)


def pytorch_alone(x, weight, bias, eps):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def pytorch_then_a_copy(x, weight, bias, eps):
    return copied(eager(x, weight, bias, eps))


def numpy_then_a_copy(x, weight, bias, eps):
    # bf16 has no NumPy dtype; hidden from PyTorch's dispatcher all the same.
    with torch.utils._python_dispatch._disable_current_modes():
        y = eager(x, weight, bias, eps)
    return copied(y)


def own_operator(x, weight, bias, eps):
    return layer_norm(x, weight, bias, eps)


def zeroed_first(x, weight, bias, eps):
    y = torch.zeros_like(x)
    block = triton.next_power_of_2(x.shape[1])
    row_kernel[(len(x),)](x, weight, bias, y, x.shape[1], eps, BLOCK=block, FAULT="")
    return y


def two_launches(x, weight, bias, eps):
    return copied(with_fault("")(x, weight, bias, eps))


class AlwaysEqual:
    def __eq__(self, other):
        return True

    __hash__ = None

    def __call__(self, *args):
        return self


# Right, and written otherwise: the square is masked, or a program takes two rows.
@triton.jit
def masked_square_kernel(x_ptr, w_ptr, b_ptr, out_ptr, width, eps, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    inside = lane < width
    start = tl.program_id(0) * width
    x = tl.load(x_ptr + start + lane, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x) / width
    square = tl.where(inside, (x - mean) * (x - mean), 0.0)
    scale = 1 / tl.sqrt(tl.sum(square) / width + eps)
    w = tl.load(w_ptr + lane, mask=inside)
    b = tl.load(b_ptr + lane, mask=inside)
    out = (x - mean) * scale * w.to(tl.float32) + b.to(tl.float32)
    tl.store(out_ptr + start + lane, out.to(x_ptr.dtype.element_ty), mask=inside)


def masked_square(x, weight, bias, eps):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = x.shape[-1]
    lanes = triton.next_power_of_2(width)
    masked_square_kernel[(x.shape[0],)](x, weight, bias, out, width, eps, lanes, num_warps=8)
    return out


@triton.jit
def two_rows_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, n_rows, n_cols, eps, ROWS: tl.constexpr, COLS: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    places = rows * n_cols + cols
    x = tl.load(x_ptr + places, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1, keep_dims=True) / n_cols
    centred = tl.where(mask, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=1, keep_dims=True) / n_cols
    w = tl.load(w_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    y = centred * tl.rsqrt(variance + eps) * w + b
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=mask)


def two_rows(x, weight, bias, eps):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    lanes = triton.next_power_of_2(n_cols)
    grid = (triton.cdiv(n_rows, 2),)
    two_rows_kernel[grid](x, weight, bias, y, n_rows, n_cols, eps, ROWS=2, COLS=lanes)
    return y


def merge(a, b, *, mean_of=None, m2_of=None):
    """The right merge, or one with its mean or m2 computed by a faulty function."""
    (na, ma, sa), (nb, mb, sb) = a, b
    n = na + nb
    if n == 0:
        return (0, 0.0, 0.0)
    delta = mb - ma
    mean = mean_of(na, ma, nb, mb) if mean_of else ma + delta * nb / n
    m2 = m2_of(na, ma, sa, nb, mb, sb) if m2_of else sa + sb + delta * delta * na * nb / n
    return (n, mean, m2)


def merge_by_identity(a, b):
    (na, ma, sa), (nb, mb, sb) = a, b
    if not na:
        return b
    if not nb:
        return a
    mean = (na * ma + nb * mb) / (na + nb)
    return [na + nb, mean, sa + na * (ma - mean) ** 2 + sb + nb * (mb - mean) ** 2]


def merge_one_way(a, b):
    if a[0] < b[0]:
        a, b = b, a
    if b[0] == 0:
        return a
    share = b[0] / (a[0] + b[0])
    delta = b[1] - a[1]
    return (a[0] + b[0], a[1] + share * delta, a[2] + b[2] + delta**2 * a[0] * share)


def merge_naively(a, b):
    (na, ma, sa), (nb, mb, sb) = a, b
    n = na + nb
    if n == 0:
        return (0, 0.0, 0.0)
    mean = (na * ma + nb * mb) / n
    return (n, mean, sa + na * ma**2 + sb + nb * mb**2 - n * mean**2)


def merge_without_empty(a, b):
    (na, ma, sa), (nb, mb, sb) = a, b
    n = na + nb
    return (n, ma + (mb - ma) * nb / n, sa + sb + (mb - ma) ** 2 * na * nb / n)


def bytes_by_operator(rows, cols, itemsize):
    big, column, row = rows * cols, rows, cols
    steps = [
        (big, column), (big + column, big), (big, big), (big, column), (column, column),
        (column, column), (big + column, big), (big, big), (big, big),
    ]  # fmt: skip
    total = sum(4 * (read + written) for read, written in steps) + 2 * row * itemsize
    return total + (12 * big if itemsize != 4 else 0)


def bytes_in_one_formula(r, c, s):
    return 48 * r * c + 32 * r + 2 * c * s + 6 * r * c * (4 - s)
