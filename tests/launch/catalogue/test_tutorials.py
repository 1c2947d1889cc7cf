"""Kernels in the manner of Triton's tutorials: vectors, softmax, products, dropout, norms."""

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernels.philox import philox
from tests.launch.catalogue.proof import every_dtype, filled, prove


@triton.jit
def add_vectors(x_ptr, y_ptr, output_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, x + y, mask=mask)


@every_dtype
def test_vectors(dtype):
    n = 611
    x, y, out = filled((n,), dtype), filled((n,), dtype, 1), torch.empty(n, dtype=dtype)
    size = n * x.element_size()
    prove(
        lambda: add_vectors[lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),)](
            x, y, out, n, BLOCK_SIZE=256
        ),
        dtype,
        [(out, x.double() + y.double())],
        {"x": size, "y": size},
        {"output": size},
    )


@triton.jit
def softmax_rows(output_ptr, input_ptr, input_row_stride, output_row_stride, n_rows, n_cols,
                 BLOCK_SIZE: tl.constexpr, num_stages: tl.constexpr):  # fmt: skip
    row_start = tl.program_id(0)
    row_step = tl.num_programs(0)
    for row_idx in tl.range(row_start, n_rows, row_step, num_stages=num_stages):
        col_offsets = tl.arange(0, BLOCK_SIZE)
        mask = col_offsets < n_cols
        row = tl.load(
            input_ptr + row_idx * input_row_stride + col_offsets, mask=mask, other=-float("inf")
        ).to(tl.float32)
        numerator = tl.exp(row - tl.max(row, axis=0))
        denominator = tl.sum(numerator, axis=0)
        output_row = output_ptr + row_idx * output_row_stride
        tl.store(output_row + col_offsets, numerator / denominator, mask=mask)


@every_dtype
def test_softmax_of_rows_by_a_few_programs(dtype):
    rows, cols = 11, 53
    x, out = filled((rows, cols), dtype), torch.empty(rows, cols, dtype=dtype)
    size = rows * cols * x.element_size()
    prove(
        lambda: softmax_rows[(3,)](
            out, x, x.stride(0), out.stride(0), rows, cols, BLOCK_SIZE=64, num_stages=2
        ),
        dtype,
        [(out, x.double().softmax(1))],
        {"input": size},
        {"output": size},
        units=4,
    )


def blocks_of_products():
    sizes = [(16, 32, 16), (32, 32, 32)]
    return [
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 2}, num_stages=2, num_warps=4
        )
        for m, n, k in sizes
    ]


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.autotune(configs=blocks_of_products(), key=["M", "N", "K"])
@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
            stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
            GROUP_M: tl.constexpr, ACTIVATION: tl.constexpr):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    tl.assume(pid_m >= 0)
    tl.assume(stride_am > 0)

    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=c_mask)


@every_dtype
def test_a_tuned_product_in_groups(dtype):
    m, n, k = 37, 43, 29
    a, b, c = filled((m, k), dtype), filled((k, n), dtype, 1), torch.empty(m, n, dtype=dtype)
    size = a.element_size()
    rows, columns = triton.cdiv(m, 16), triton.cdiv(n, 32)  # blocks of the first configuration
    right = torch.nn.functional.leaky_relu(a.double() @ b.double(), 0.01)
    prove(
        lambda: product[lambda meta: (
            triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),
        )](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), ACTIVATION="leaky_relu"),
        dtype,
        [(c, right)],
        # Rows and columns beyond the end wrap around: every lane of them asks.
        {
            "a": (m * k * size, rows * columns * 16 * k * size),
            "b": (k * n * size, rows * columns * 32 * k * size),
        },
        {"c": m * n * size},
        units=8,
    )  # fmt: skip


@triton.jit
def seeded_dropout(x_ptr, output_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    x_keep = tl.rand(seed, offsets) > p
    output = tl.where(x_keep, x / (1 - p), 0.0)
    tl.store(output_ptr + offsets, output, mask=mask)


@every_dtype
def test_dropout_from_a_seed(dtype):
    n, p, seed = 777, 0.3, 123
    x, out = filled((n,), dtype), torch.empty(n, dtype=dtype)
    counters = np.zeros((n, 4), dtype=np.uint32)
    counters[:, 0] = np.arange(n)
    word = philox(seed, counters)[:, 0].view(np.int32).astype(np.int64)
    uniform = torch.from_numpy(np.where(word < 0, -word - 1, word) * 4.6566127342e-10)
    size = n * x.element_size()
    prove(
        lambda: seeded_dropout[(triton.cdiv(n, 256),)](x, out, n, p, seed, BLOCK_SIZE=256),
        dtype,
        [(out, torch.where(uniform > p, x.double() / (1 - p), 0.0))],
        {"x": size},
        {"output": size},
        units=4,
    )


@triton.jit
def norm_forward(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    _mean = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        _mean += tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(_mean, axis=0) / N
    _var = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        _var += x * x
    rstd = 1 / tl.sqrt(tl.sum(_var, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        mask = cols < N
        w = tl.load(W + cols, mask=mask)
        b = tl.load(B + cols, mask=mask)
        x = tl.load(X + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(Y + cols, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def norm_backward(DX, DY, DW, DB, X, W, Mean, Rstd, Lock, stride, N, GROUP_SIZE_M: tl.constexpr,
                  BLOCK_SIZE_N: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE_N)
    mask = cols < N
    X += row * stride
    DY += row * stride
    DX += row * stride
    lock_id = row % GROUP_SIZE_M
    Lock += lock_id
    Count = Lock + GROUP_SIZE_M
    DW = DW + lock_id * N + cols
    DB = DB + lock_id * N + cols
    x = tl.load(X + cols, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + cols, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    mean = tl.load(Mean + row)
    rstd = tl.load(Rstd + row)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    tl.store(DX + cols, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    partial_dw = (dy * xhat).to(w.dtype)
    partial_db = dy.to(w.dtype)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    count = tl.load(Count)
    if count == 0:
        tl.atomic_xchg(Count, 1)
    else:
        partial_dw += tl.load(DW, mask=mask)
        partial_db += tl.load(DB, mask=mask)
    tl.store(DW, partial_dw, mask=mask)
    tl.store(DB, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


@triton.jit
def norm_backward_weights(DW, DB, FINAL_DW, FINAL_DB, M, N, BLOCK_SIZE_M: tl.constexpr,
                          BLOCK_SIZE_N: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    cols = pid * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    dw = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    db = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for i in range(0, M, BLOCK_SIZE_M):
        rows = i + tl.arange(0, BLOCK_SIZE_M)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        offs = rows[:, None] * N + cols[None, :]
        dw += tl.load(DW + offs, mask=mask, other=0.0)
        db += tl.load(DB + offs, mask=mask, other=0.0)
    tl.store(FINAL_DW + cols, tl.sum(dw, axis=0), mask=cols < N)
    tl.store(FINAL_DB + cols, tl.sum(db, axis=0), mask=cols < N)


@every_dtype
def test_a_norm_and_its_backward_under_a_lock(dtype):
    m, n, group, eps = 7, 37, 3, 1e-5
    x, dy = filled((m, n), dtype), filled((m, n), dtype, 1)
    w, b = filled((n,), dtype, 2), filled((n,), dtype, 3)
    leaves = [t.double().requires_grad_() for t in (x, w, b)]
    right = torch.nn.functional.layer_norm(leaves[0], (n,), leaves[1], leaves[2], eps)
    right.backward(dy.double())
    y, dx = torch.empty_like(x), torch.empty_like(x)
    mean, rstd = torch.empty(m), torch.empty(m)
    partial_w, partial_b = torch.empty(group, n), torch.empty(group, n)
    dw, db = torch.empty(n), torch.empty(n)
    size = x.element_size()
    prove(
        lambda: norm_forward[(m,)](x, y, w, b, mean, rstd, n, n, eps, BLOCK_SIZE=16),
        dtype,
        [(y, right.detach()), (mean, x.double().mean(1))],
        {"X": (m * n * size, 3 * m * n * size), **dict.fromkeys("WB", (n * size, m * n * size))},
        {"Y": m * n * size, "Mean": 4 * m, "Rstd": 4 * m},
        units=8,
    )  # fmt: skip

    def backward():
        lock = torch.zeros(2 * group, dtype=torch.int32)
        norm_backward[(m,)](
            dx, dy, partial_w, partial_b, x, w, mean, rstd, lock, n, n,
            GROUP_SIZE_M=group, BLOCK_SIZE_N=64,
        )  # fmt: skip
        norm_backward_weights[(triton.cdiv(n, 32),)](
            partial_w, partial_b, dw, db, group, n, BLOCK_SIZE_M=16, BLOCK_SIZE_N=32
        )

    # Each group's first row only stores its partial sums; then they are read once more.
    partial = (2 * group * n * 4, (m - group + group) * n * 4)
    launches = prove(
        backward,
        dtype,
        [(dx, leaves[0].grad), (dw, leaves[1].grad), (db, leaves[2].grad)],
        {"X": m * n * size, "DY": m * n * size, "W": (n * size, m * n * size),
         "Mean": 4 * m, "Rstd": 4 * m, "DW": partial, "DB": partial,
         # A lock is tried and given back by each row; a count is read by each, set by the first.
         "Lock": (2 * group * 4, (3 * m + group) * 4)},
        {"DX": m * n * size, "DW": (group * n * 4, m * n * 4), "DB": (group * n * 4, m * n * 4),
         "FINAL_DW": n * 4, "FINAL_DB": n * 4, "Lock": (2 * group * 4, (2 * m + group) * 4)},
        units=16,
    )  # fmt: skip
    assert "atomics may order" in launches.seen[0].arena.note


@triton.jit
def arcsine(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    x = libdevice.asin(x)
    tl.store(y_ptr + offsets, x, mask=mask)


@every_dtype
def test_a_function_of_libdevice(dtype):
    n = 301
    x, out = filled((n,), dtype).clamp(-1, 1), torch.empty(n, dtype=dtype)
    size = n * x.element_size()
    prove(
        lambda: arcsine[(3,)](x, out, n, BLOCK_SIZE=128),
        dtype,
        [(out, x.double().asin())],
        {"x": size},
        {"y": size},
    )


@triton.jit
def tile_of(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M: tl.constexpr):
    group_id = tile_id // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    return first_pid_m + (tile_id % group_size_m), (tile_id % num_pid_in_group) // group_size_m


@triton.jit
def persistent_product(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_SIZE_M: tl.constexpr,
                       BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
                       GROUP_SIZE_M: tl.constexpr, NUM_SMS: tl.constexpr):  # fmt: skip
    dtype = c_ptr.dtype.element_ty
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    k_tiles = tl.cdiv(K, BLOCK_SIZE_K)
    a_desc = tl.make_tensor_descriptor(
        a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_K]
    )
    b_desc = tl.make_tensor_descriptor(
        b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_SIZE_N, BLOCK_SIZE_K]
    )
    c_desc = tl.make_tensor_descriptor(
        c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_N]
    )
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    for tile_id in tl.range(start_pid, num_pid_m * num_pid_n, NUM_SMS, flatten=True):
        pid_m, pid_n = tile_of(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M)
        offs_am = pid_m * BLOCK_SIZE_M
        offs_bn = pid_n * BLOCK_SIZE_N
        accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for ki in range(k_tiles):
            offs_k = ki * BLOCK_SIZE_K
            a = a_desc.load([offs_am, offs_k])
            b = b_desc.load([offs_bn, offs_k])
            accumulator = tl.dot(a, b.T, accumulator)
        c_desc.store([offs_am, offs_bn], accumulator.to(dtype))


@every_dtype
def test_a_persistent_product_by_descriptors(dtype):
    # A descriptor wants rows of a multiple of 16 bytes; nothing divides by its block.
    m, n, k = 37, 40, 24
    a, b, c = filled((m, k), dtype), filled((n, k), dtype, 1), torch.empty(m, n, dtype=dtype)
    size = a.element_size()
    rows, columns = triton.cdiv(m, 32), triton.cdiv(n, 16)
    launches = prove(
        lambda: persistent_product[(3,)](
            a, b, c, m, n, k, BLOCK_SIZE_M=32, BLOCK_SIZE_N=16, BLOCK_SIZE_K=16, GROUP_SIZE_M=2,
            NUM_SMS=3,
        ),
        dtype,
        [(c, a.double() @ b.double().T)],
        {"a": (m * k * size, columns * m * k * size), "b": (n * k * size, rows * n * k * size)},
        {"c": m * n * size},
        units=8,
    )  # fmt: skip
    assert launches.seen[0].grid == (3, 1, 1)
