"""Submissions to 02.7 and 02.8, right and wrong, as readers write them."""

import torch
import triton
import triton.language as tl

from tests.grading.submissions import with_fault

layer_norm_launch = with_fault("")


# One kernel with a switch for each fault.
@triton.jit
def add_norm_kernel(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, h_ptr, n_cols, eps, BLOCK: tl.constexpr, FAULT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    at = row * n_cols + cols
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(r_ptr + at, mask=mask, other=0.0).to(tl.float32)
    total = x - residual if FAULT == "minus" else x + residual
    stored = total.to(h_ptr.dtype.element_ty)
    if FAULT == "x as h":
        tl.store(h_ptr + at, x.to(h_ptr.dtype.element_ty), mask=mask)
    elif FAULT != "no h":
        tl.store(h_ptr + at, stored, mask=mask)
    h = total if FAULT == "unrounded" else stored.to(tl.float32)
    if FAULT == "x alone":
        h = x
    if FAULT == "h back":
        h = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(h, axis=0) / n_cols
    centred = h - mean if FAULT == "lanes" else tl.where(mask, h - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / n_cols
    if FAULT == "one pass":
        variance = tl.sum(h * h, axis=0) / n_cols - mean * mean
    if FAULT == "residual twice":
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        again = tl.load(r_ptr + at, mask=mask, other=0.0).to(tl.float32)
        centred = (x + again).to(h_ptr.dtype.element_ty).to(tl.float32) - mean
    y = centred * tl.rsqrt(variance + eps)
    y *= tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y += tl.load(b_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


def add_norm_with(fault, returns=lambda y, h: (y, h)):
    def add_norm(x, residual, weight, bias, eps):
        rows, n_cols = x.shape
        y, h = torch.empty_like(x), torch.empty_like(x)
        block = triton.next_power_of_2(n_cols)
        tensors = (x, residual, weight, bias, y, h)
        add_norm_kernel[(rows,)](*tensors, n_cols, eps, BLOCK=block, FAULT=fault)
        return returns(y, h)

    return add_norm


@triton.jit
def add_kernel(x_ptr, r_ptr, h_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    residual = tl.load(r_ptr + at, mask=at < n).to(tl.float32)
    tl.store(h_ptr + at, (x + residual).to(h_ptr.dtype.element_ty), mask=at < n)


def add_norm_in_two_launches(x, residual, weight, bias, eps):
    h = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 256),)](x, residual, h, x.numel(), BLOCK=256)
    return layer_norm_launch(h, weight, bias, eps), h


def add_norm_by_pytorch_and_a_launch(x, residual, weight, bias, eps):
    h = x + residual
    return layer_norm_launch(h, weight, bias, eps), h


def add_norm_in_place(x, residual, weight, bias, eps):
    add_kernel[(triton.cdiv(x.numel(), 256),)](x, residual, residual, x.numel(), BLOCK=256)
    return layer_norm_launch(residual, weight, bias, eps), residual


# Right, and written otherwise: the sum is made in the narrow dtype, or two rows share a program.
@triton.jit
def narrow_sum_kernel(x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, h_ptr, n, eps, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    inside = lane < n
    here = tl.program_id(0) * n + lane
    narrow = tl.load(x_ptr + here, mask=inside, other=0.0) + tl.load(
        r_ptr + here, mask=inside, other=0.0
    )
    tl.store(h_ptr + here, narrow, mask=inside)
    h = narrow.to(tl.float32)
    mean = tl.sum(h) / n
    square = tl.where(inside, (h - mean) * (h - mean), 0.0)
    scale = 1 / tl.sqrt(tl.sum(square) / n + eps)
    w, b = tl.load(w_ptr + lane, mask=inside), tl.load(b_ptr + lane, mask=inside)
    y = (h - mean) * scale * w.to(tl.float32) + b.to(tl.float32)
    tl.store(y_ptr + here, y.to(y_ptr.dtype.element_ty), mask=inside)


def add_norm_of_narrow_sums(x, residual, weight, bias, eps):
    h, y = torch.empty(2, *x.shape, dtype=x.dtype, device=x.device).unbind()
    lanes = triton.next_power_of_2(x.shape[1])
    kernel = narrow_sum_kernel[(len(x),)]
    kernel(x, residual, weight, bias, y, h, x.shape[1], eps, lanes, num_warps=8)
    return [y, h]


@triton.jit
def two_rows_kernel(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, h_ptr, n_rows, n_cols, eps, COLS: tl.constexpr
):
    rows = tl.program_id(0) * 2 + tl.arange(0, 2)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    at = rows * n_cols + cols
    total = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(r_ptr + at, mask=mask, other=0.0).to(tl.float32)
    h = total.to(y_ptr.dtype.element_ty).to(tl.float32)
    mean = tl.sum(h, axis=1, keep_dims=True) / n_cols
    centred = tl.where(mask, h - mean, 0.0)
    variance = tl.sum(centred * centred, axis=1, keep_dims=True) / n_cols
    w = tl.load(w_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    y = centred * tl.rsqrt(variance + eps) * w + b
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(h_ptr + at, h.to(h_ptr.dtype.element_ty), mask=mask)


def add_norm_two_rows(x, residual, weight, bias, eps):
    n_rows, n_cols = x.shape
    y, h = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(n_cols)
    tensors = (x, residual, weight, bias, y, h)
    two_rows_kernel[(triton.cdiv(n_rows, 2),)](*tensors, n_rows, n_cols, eps, COLS=block)
    return y, h


ROWS = {
    "two sums": lambda eps: 1e4 + _normal(4096),
    "idle lanes": lambda eps: 3 + _normal(2049),
    "half squares": lambda eps: 1000 * _normal(4096),
    "n minus one": lambda eps: torch.tensor([-1.0, 1.0]),
    "eps outside": lambda eps: eps**0.5 * _normal(4096),
}


def _normal(n):
    return torch.randn(n, generator=torch.Generator().manual_seed(0))


def counterexample_with(**rows):
    """The right rows, or another where one is given; the keyword two_sums is for "two sums"."""
    others = {name.replace("_", " "): make for name, make in rows.items()}

    def counterexample(fault, eps):
        return (ROWS | others)[fault](eps)

    return counterexample


def counterexample_of_two_values(fault, eps):
    sign = torch.tensor([-1.0, 1.0])
    if fault == "two sums":
        return 2.0**14 + sign.repeat(512)
    if fault == "idle lanes":
        return 1 + sign.repeat(300)
    if fault == "half squares":
        return 300 * sign.repeat(100)
    if fault == "n minus one":
        return sign.repeat(2)
    return sign.repeat(500) * eps**0.5 / 2


def counterexample_by_search(fault, eps):
    from kernels.grading.questions.ch02.counterexamples import errors

    generator = torch.Generator().manual_seed(1)
    for n in (3, 513, 4096):
        for mean in (0.0, 2.0, 3e4):
            for spread in (eps**0.5, 1.0, 2000.0):
                x = mean + spread * torch.randn(n, generator=generator)
                off = errors(x, eps)
                others = [error for name, error in off.items() if name != fault]
                if off[fault] > 0.05 and max(others) < 0.01:
                    return x
    # Few numbers around 0: a width that is no power of two does no harm then.
    x = torch.randn(3, generator=generator)
    return x - x.mean()
