"""Small kernels that the tests of the launcher, the arena and the ledger share."""

import triton
import triton.language as tl


@triton.jit
def copy_one_too_many(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i <= n)


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def read_outside(x_ptr, y_ptr, shift):
    tl.store(y_ptr, tl.load(x_ptr + shift))


@triton.jit
def add_in_place(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i) + 1)


@triton.jit
def shift_left(x_ptr, BLOCK: tl.constexpr):
    # Program p reads the block that program p + 1 stores.
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i + BLOCK))


@triton.jit
def add_up(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0)))


@triton.jit
def last_one_finishes(x_ptr, parts_ptr, count_ptr, total_ptr, n, n_programs, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0))
    tl.store(parts_ptr + tl.program_id(0), part)
    if tl.atomic_add(count_ptr, 1) == n_programs - 1:
        total = 0.0
        for p in range(0, n_programs):
            total += tl.load(parts_ptr + p)
        tl.store(total_ptr, total)


@triton.jit
def through_an_integer(x_ptr, y_ptr):
    address = x_ptr.to(tl.int64, bitcast=True)
    tl.store(y_ptr, tl.load((address + 4).to(tl.pointer_type(tl.float32), bitcast=True)))


@triton.jit
def from_nowhere(y_ptr):
    address = y_ptr.to(tl.int64, bitcast=True) * 0 + 64
    tl.store(address.to(tl.pointer_type(tl.float32), bitcast=True), 1.0)


@triton.jit
def helper(a, b):
    return a * b + a


@triton.jit
def bf16_arithmetic(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    z = helper(x, y) - y
    tl.store(out_ptr + i, tl.where(z > y, z, tl.maximum(x, y)))


@triton.jit
def bf16_dot(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(x_ptr + at), tl.load(y_ptr + at)))


@triton.jit
def sum_in_its_dtype(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N)), axis=0))


@triton.jit
def to_bf16(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(tl.bfloat16))


@triton.jit
def merge(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n > 0, n_b / n, 0.0)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def welford(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    counts = (i < n).to(tl.float32)
    mean, m2, count = tl.reduce((x, tl.zeros_like(x), counts), 0, merge)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, m2 / count)


@triton.jit
def run_time_loop(x_ptr, out_ptr, n):
    total = 0.0
    for k in range(0, n):
        total += tl.load(x_ptr + k.to(tl.int64))
    for k in tl.range(0, n, 2):
        total += tl.where(k % 2 == 0, 1.0, 0.0)
    for k in tl.static_range(3):
        total += k
    tl.store(out_ptr, total)


@triton.jit
def missing_name(x_ptr):
    tl.store(x_ptr, not_defined_anywhere)  # noqa: F821


@triton.jit
def rows_by_descriptor(x_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, shape=[rows, cols], strides=[cols, 1],
                                  block_shape=[ROWS, COLS])  # fmt: skip
    y = tl.make_tensor_descriptor(y_ptr, shape=[rows, cols], strides=[cols, 1],
                                  block_shape=[ROWS, COLS])  # fmt: skip
    y.store([tl.program_id(0) * ROWS, 0], x.load([tl.program_id(0) * ROWS, 0]))


@triton.jit
def product_of_all(x_ptr, out_ptr, N: tl.constexpr, KEEP: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    total = tl.reduce(tl.load(x_ptr + at), None, multiply, keep_dims=KEEP)
    if KEEP:
        tl.store(out_ptr + tl.zeros((1, 1), tl.int32), total)
    else:
        tl.store(out_ptr, total)


@triton.jit
def multiply(a, b):
    return a * b
