"""Split-K with atomics, a dropout chain, a linear recurrence by a scan, a sort and its best k."""

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.philox import philox
from tests.launch.catalogue.proof import every_dtype, filled, prove


@triton.jit
def split_k(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
            stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
            SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr):  # fmt: skip
    pid_m, pid_n, pid_z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = pid_z * BLOCK_K + tl.arange(0, BLOCK_K)
    A = a_ptr + (rm[:, None] * stride_am + rk[None, :] * stride_ak)
    B = b_ptr + (rk[:, None] * stride_bk + rn[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K * SPLIT_K)):
        if EVEN_K:
            a = tl.load(A, mask=rm[:, None] < M, other=0.0)
            b = tl.load(B, mask=rn[None, :] < N, other=0.0)
        else:
            k_remaining = K - k * (BLOCK_K * SPLIT_K)
            a = tl.load(A, mask=(rm[:, None] < M) & (rk[None, :] < k_remaining), other=0.0)
            b = tl.load(B, mask=(rk[:, None] < k_remaining) & (rn[None, :] < N), other=0.0)
        acc += tl.dot(a, b, out_dtype=tl.float32)
        A += BLOCK_K * SPLIT_K * stride_ak
        B += BLOCK_K * SPLIT_K * stride_bk
    C = c_ptr + (rm[:, None] * stride_cm + rn[None, :] * stride_cn)
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    if SPLIT_K == 1:
        tl.store(C, acc, mask=mask)
    else:
        tl.atomic_add(C, acc, mask=mask, sem="relaxed")


@every_dtype
def test_split_k_adds_atomically(dtype):
    m, n, k, split = 19, 21, 67, 3
    a, b = filled((m, k), dtype), filled((k, n), dtype, 1)
    c = torch.zeros(m, n)
    size, rows, columns = a.element_size(), triton.cdiv(m, 16), triton.cdiv(n, 16)
    prove(
        lambda: split_k[(rows, columns, split)](
            a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(),
            BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, SPLIT_K=split, EVEN_K=False,
        ),
        dtype,
        [(c, a.double() @ b.double())],
        {"a": (m * k * size, columns * m * k * size), "b": (k * n * size, rows * k * n * size),
         "c": (m * n * 4, split * m * n * 4)},
        {"c": (m * n * 4, split * m * n * 4)},
        units=8,
    )  # fmt: skip


@triton.jit
def bias_dropout_add(x_ptr, bias_ptr, residual_ptr, mask_ptr, out_ptr, n_rows, n_cols, p, seed,
                     BLOCK: tl.constexpr):  # fmt: skip
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n_rows * n_cols
    x = tl.load(x_ptr + offsets, mask=inside) + tl.load(bias_ptr + offsets % n_cols, mask=inside)
    random = tl.rand(seed, offsets)
    keep = random >= p
    x = tl.where(keep, x.to(tl.float32) * (1 / (1 - p)), 0.0)
    tl.store(mask_ptr + offsets, keep, mask=inside)
    x += tl.load(residual_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, x, mask=inside)


@every_dtype
def test_a_bias_a_dropout_and_a_residual(dtype):
    rows, cols, p, seed = 9, 31, 0.25, 2**40 + 7
    x, residual = filled((rows, cols), dtype), filled((rows, cols), dtype, 1)
    bias, out = filled((cols,), dtype, 2), torch.empty(rows, cols, dtype=dtype)
    mask = torch.empty(rows, cols, dtype=torch.bool)
    n = rows * cols
    counters = np.zeros((n, 4), dtype=np.uint32)
    counters[:, 0] = np.arange(n)
    word = philox(seed, counters)[:, 0].view(np.int32).astype(np.int64)
    uniform = torch.from_numpy(np.where(word < 0, -word - 1, word) * 4.6566127342e-10)
    keep = (uniform >= p).reshape(rows, cols)
    before = (x + bias).double()  # rounded to the dtype, as the kernel does
    size = n * x.element_size()
    prove(
        lambda: bias_dropout_add[(triton.cdiv(n, 128),)](
            x, bias, residual, mask, out, rows, cols, p, seed, BLOCK=128
        ),
        dtype,
        [(out, torch.where(keep, before / (1 - p), 0.0) + residual.double())],
        {"x": size, "residual": size, "bias": (cols * x.element_size(), size)},
        {"out": size, "mask": n},
        units=4,
    )
    assert torch.equal(mask, keep)


@triton.jit
def recurrence(a_left, b_left, a_right, b_right):
    return a_left * a_right, b_left * a_right + b_right


@triton.jit
def selective_scan(a_ptr, b_ptr, h_ptr, total_ptr, length, channels, BLOCK_T: tl.constexpr,
                   BLOCK_C: tl.constexpr):  # fmt: skip
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    carry = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for start in range(0, length, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        at = t[:, None] * channels + c[None, :]
        inside = (t[:, None] < length) & (c[None, :] < channels)
        a = tl.load(a_ptr + at, mask=inside, other=1.0).to(tl.float32)
        b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
        decay, h = tl.associative_scan((a, b), 0, recurrence)
        h += decay * carry[None, :]
        tl.store(h_ptr + at, h, mask=inside)
        last = tl.arange(0, BLOCK_T)[:, None] == BLOCK_T - 1
        carry = tl.sum(tl.where(last, h, 0.0), axis=0)
        sums = tl.cumsum(b, axis=0, reverse=True)
        tl.atomic_add(total_ptr + c, tl.sum(tl.where(t[:, None] == start, sums, 0.0), axis=0),
                      mask=c < channels)  # fmt: skip


@every_dtype
def test_a_linear_recurrence_by_a_scan(dtype):
    length, channels = 21, 7
    a = torch.sigmoid(filled((length, channels), torch.float32)).to(dtype)
    b, h = filled((length, channels), dtype, 1), torch.empty(length, channels, dtype=dtype)
    right, state = [], torch.zeros(channels, dtype=torch.float64)
    for t in range(length):
        state = a[t].double() * state + b[t].double()
        right.append(state)
    total = torch.empty(channels)
    size = length * channels * a.element_size()
    programs, chunks = triton.cdiv(channels, 4), triton.cdiv(length, 8)

    def call():
        total.zero_()
        selective_scan[(programs,)](a, b, h, total, length, channels, BLOCK_T=8, BLOCK_C=4)

    prove(
        call,
        dtype,
        [(h, torch.stack(right)), (total, b.double().sum(0))],
        {"a": size, "b": size, "total": (channels * 4, chunks * channels * 4)},
        {"h": size, "total": (channels * 4, chunks * channels * 4)},
        units=8,
    )


@triton.jit
def sorted_rows(x_ptr, out_ptr, best_ptr, n_cols, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=float("inf"))
    tl.store(out_ptr + row * n_cols + cols, tl.sort(x), mask=cols < n_cols)
    x = tl.where(cols < n_cols, x, float("-inf"))
    best = tl.topk(x, K)
    tl.store(best_ptr + row * K + tl.arange(0, K), best)


@every_dtype
def test_rows_are_sorted(dtype):
    rows, cols, k = 3, 27, 4
    x, out = filled((rows, cols), dtype), torch.empty(rows, cols, dtype=dtype)
    best = torch.empty(rows, k, dtype=dtype)
    size = rows * cols * x.element_size()
    prove(
        lambda: sorted_rows[(rows,)](x, out, best, cols, K=k, BLOCK=32),
        dtype,
        [(out, x.double().sort(1)[0]), (best, x.double().topk(k, 1)[0])],
        {"x": size},
        {"out": size, "best": rows * k * x.element_size()},
        units=0,
    )
