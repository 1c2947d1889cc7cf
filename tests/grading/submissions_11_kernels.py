"""Answers to 11.3 to 11.6 and 11.9 that are right and written otherwise, and hostile ones."""

import torch
import triton
import triton.language as tl

from kernels.ops.epilogues.linear_bias_gelu import linear_bias_gelu as by_the_package


@triton.jit
def begins_with_bias(
    x_ptr, w_ptr, b_ptr, y_ptr, m, n, k, TALL: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr
):
    """The sum begins with the bias, one axis of programs, pointers that move on."""
    across = tl.cdiv(n, WIDE)
    row = tl.program_id(0) // across * TALL + tl.arange(0, TALL)[:, None]
    col = tl.program_id(0) % across * WIDE + tl.arange(0, WIDE)[None, :]
    bias = tl.load(b_ptr + col, mask=col < n, other=0).to(tl.float32)
    acc = tl.zeros((TALL, WIDE), tl.float32) + bias
    step, down = tl.arange(0, STEP)[None, :], tl.arange(0, STEP)[:, None]
    a, b = x_ptr + row * k + step, w_ptr + col * k + down
    left = k
    while left > 0:
        x = tl.load(a, mask=(row < m) & (step < left), other=0)
        w = tl.load(b, mask=(col < n) & (down < left), other=0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
        a += STEP
        b += STEP
        left -= STEP
    h = acc * 0.5
    y = h + h * tl.erf(acc * 0.7071067811865476)
    tl.store(y_ptr + row * n + col, y.to(y_ptr.dtype.element_ty), (row < m) & (col < n))


def gelu_from_the_bias(tile=(64, 64, 16), warps=8):
    def linear_bias_gelu(x, weight, bias):
        (m, k), n = x.shape, len(weight)
        y = x.new_empty(m, n)
        grid = (triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1]),)
        begins_with_bias[grid](x, weight, bias, y, m, n, k, *tile, num_warps=warps)
        return y

    return linear_bias_gelu


@triton.jit
def two_sums(
    x_ptr, w_ptr, y_ptr, m, n, k, TALL: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr
):
    """Two tiles of weights, of every other row, and a sum for each."""
    row = tl.program_id(1) * TALL + tl.arange(0, TALL)[:, None]
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)[None, :]
    gate, up = tl.zeros((TALL, WIDE), tl.float32), tl.zeros((TALL, WIDE), tl.float32)
    for start in range(0, k, STEP):
        across, down = start + tl.arange(0, STEP)[None, :], start + tl.arange(0, STEP)[:, None]
        x = tl.load(x_ptr + row * k + across, mask=(row < m) & (across < k), other=0.0)
        mask = (col < n) & (down < k)
        first = tl.load(w_ptr + 2 * col * k + down, mask=mask, other=0.0)
        second = tl.load(w_ptr + (2 * col + 1) * k + down, mask=mask, other=0.0)
        gate = tl.dot(x, first, gate, input_precision="ieee")
        up = tl.dot(x, second, up, input_precision="ieee")
    y = gate / (1 + tl.exp(-gate)) * up
    tl.store(y_ptr + row * n + col, y.to(y_ptr.dtype.element_ty), mask=(row < m) & (col < n))


def swiglu_of_two_sums(x, weight):
    (m, k), n = x.shape, len(weight) // 2
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(n, 32), triton.cdiv(m, 64))
    two_sums[grid](x, weight, y, m, n, k, TALL=64, WIDE=32, STEP=32, num_warps=8)
    return y


@triton.jit
def merging_kernel(
    x_ptr, g_ptr, b_ptr, w_ptr, y_ptr, m, n, k, eps, EDGE: tl.constexpr, STEP: tl.constexpr
):
    """The states of tiles are merged, in one pass before the product."""
    row = tl.program_id(0) * EDGE + tl.arange(0, EDGE)[:, None]
    col = tl.program_id(1) * EDGE + tl.arange(0, EDGE)[None, :]
    mean, squares = tl.zeros((EDGE, 1), tl.float32), tl.zeros((EDGE, 1), tl.float32)
    for start in range(0, k, STEP):
        at = start + tl.arange(0, STEP)[None, :]
        mask = (row < m) & (at < k)
        x = tl.load(x_ptr + row * k + at, mask=mask, other=0.0).to(tl.float32)
        size = tl.minimum(k - start, STEP).to(tl.float32)
        own = tl.sum(x, axis=1)[:, None] / size
        off = tl.where(mask, x - own, 0.0)
        delta, share = own - mean, size / (start + size)
        squares += tl.sum(off * off, axis=1)[:, None] + delta * delta * start * share
        mean += delta * share
    inverse = 1.0 / tl.sqrt(squares / k + eps)
    acc = tl.zeros((EDGE, EDGE), tl.float32)
    for start in range(0, k, STEP):
        at, down = start + tl.arange(0, STEP)[None, :], start + tl.arange(0, STEP)[:, None]
        x = tl.load(x_ptr + row * k + at, mask=(row < m) & (at < k), other=0.0)
        g = tl.load(g_ptr + at, mask=at < k, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + at, mask=at < k, other=0.0).to(tl.float32)
        h = ((x.to(tl.float32) - mean) * inverse * g + b).to(x.dtype)
        w = tl.load(w_ptr + col * k + down, mask=(col < n) & (down < k), other=0.0)
        acc += tl.dot(h, w, input_precision="ieee")
    tl.store(y_ptr + row * n + col, acc.to(y_ptr.dtype.element_ty), mask=(row < m) & (col < n))


def norm_by_merging(x, norm_weight, norm_bias, weight):
    (m, k), n = x.shape, len(weight)
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 32))
    merging_kernel[grid](
        x, norm_weight, norm_bias, weight, y, m, n, k, 1e-5, EDGE=32, STEP=16, num_warps=4
    )
    return y


@triton.jit
def shifted_kernel(
    x_ptr, w_ptr, c_ptr, b_ptr, y_ptr, m, n, k, EDGE: tl.constexpr, STEP: tl.constexpr
):
    """The square of the sum is taken off before it is divided; scale and bias by one fma."""
    row = tl.program_id(0) * EDGE + tl.arange(0, EDGE)
    col = tl.program_id(1) * EDGE + tl.arange(0, EDGE)
    acc = tl.zeros((EDGE, EDGE), tl.float32)
    one, two = tl.zeros((EDGE,), tl.float32), tl.zeros((EDGE,), tl.float32)
    for start in range(0, k, STEP):
        at = start + tl.arange(0, STEP)
        x_mask, w_mask = (row < m)[:, None] & (at < k)[None, :], (at < k)[:, None] & (col < n)
        x = tl.load(x_ptr + row[:, None] * k + at[None, :], mask=x_mask, other=0.0)
        w = tl.load(w_ptr + col[None, :] * k + at[:, None], mask=w_mask, other=0.0)
        wide = x.to(tl.float32)
        one += tl.sum(wide, 1)
        two += tl.sum(wide * wide, 1)
        acc += tl.dot(x, w, input_precision="ieee")
    inverse = tl.rsqrt((two - one * one / k) / k + 1e-5)[:, None]
    c = tl.load(c_ptr + col, mask=col < n, other=0.0)[None, :]
    b = tl.load(b_ptr + col, mask=col < n, other=0.0)[None, :]
    y = inverse * acc - inverse * (one[:, None] / k) * c + b
    mask = (row < m)[:, None] & (col < n)[None, :]
    tl.store(y_ptr + row[:, None] * n + col[None, :], y.to(y_ptr.dtype.element_ty), mask=mask)


def folded_by_shares(x, folded, sums, bias):
    (m, k), n = x.shape, len(folded)
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
    shifted_kernel[grid](x, folded, sums, bias, y, m, n, k, EDGE=64, STEP=16, num_warps=8)
    return y


# Hostile, each in its own way.
def gelu_by_the_package(x, weight, bias):
    return by_the_package(x, weight, bias)


def gelu_by_pytorch(x, weight, bias):
    return torch.nn.functional.gelu(x.float() @ weight.float().T + bias.float()).to(x.dtype)


def bias_by_pytorch(answer):
    """The product with GELU by a kernel, of a bias that PyTorch turned into fp32."""

    def linear_bias_gelu(x, weight, bias):
        return answer(x, weight, bias.float().to(x.dtype))

    return linear_bias_gelu


def into_its_input(answer):
    def linear_bias_gelu(x, weight, bias):
        y = answer(x, weight, bias)
        bias.zero_()
        return y

    return linear_bias_gelu


def swiglu_by_pytorch(x, weight):
    gate, up = (x.float() @ weight[i::2].float().T for i in (0, 1))
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def norm_by_pytorch(x, norm_weight, norm_bias, weight):
    given = [t.float() for t in (norm_weight, norm_bias)]
    h = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], *given)
    return (h.to(x.dtype).float() @ weight.float().T).to(x.dtype)


def folded_by_pytorch(x, folded, sums, bias):
    wide = x.float()
    mean, var = wide.mean(1, keepdim=True), wide.var(1, keepdim=True, unbiased=False)
    y = (wide @ folded.float().T - mean * sums) * torch.rsqrt(var + 1e-5) + bias
    return y.to(x.dtype)
