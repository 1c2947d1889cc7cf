"""Kernels in the manner of a compiler's output: names by number, helpers, libdevice, RBLOCK loops.

A compiler writes its numbers of elements as `xnumel` and `rnumel`, and reads each value where its
expression asks for it.
"""

import torch
import triton
import triton.language as tl
from triton.language import math as tl_math
from triton.language.extra import libdevice

from tests.launch.catalogue.proof import every_dtype, filled, prove


@triton.jit
def promote_to_tensor(x):
    return x + tl.zeros((1,), tl.int1)


@triton.jit
def maximum(a, b):
    # As a compiler needs it, a NaN stays one.
    mask = a > b
    mask |= a != a
    return tl.where(mask, a, b)


@triton.jit
def max2(a, dim):
    return tl.reduce(a, dim, maximum)


@triton.jit
def welford_reduce(value, mean, m2, weight, first_iteration):
    if first_iteration:
        new_weight = tl.full(weight.shape, 1, weight.dtype)
        new_mean = value
        new_m2 = tl.zeros_like(m2)
    else:
        delta = value - mean
        new_weight = weight + 1
        new_mean = mean + delta / new_weight
        new_m2 = m2 + delta * (value - new_mean)
    return new_mean, new_m2, new_weight


@triton.jit
def welford_combine(mean_1, m2_1, weight_1, mean_2, m2_2, weight_2):
    delta = mean_2 - mean_1
    new_weight = weight_1 + weight_2
    w2_over_w = tl.where(new_weight == 0.0, 0.0, weight_2 / new_weight)
    return (
        mean_1 + delta * w2_over_w,
        m2_1 + m2_2 + delta * delta * weight_1 * w2_over_w,
        new_weight,
    )


@triton.jit
def welford(mean, m2, weight, dim):
    return tl.reduce((mean, m2, weight), dim, welford_combine)


@triton.jit
def fused_embedding_gelu_0(in_ptr0, in_ptr1, in_ptr2, out_ptr0, ks0, xnumel,
                           XBLOCK: tl.constexpr):  # fmt: skip
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x1 = xindex // 13
    x0 = xindex % 13
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x1), xmask, eviction_policy="evict_last")
    tmp7 = tl.load(in_ptr2 + (x0), xmask, eviction_policy="evict_last").to(tl.float32)
    tmp1 = tl.full([XBLOCK], 17, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)
    tl.device_assert(((tmp4 >= 0) & (tmp4 < 17)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 17")
    tmp6 = tl.load(in_ptr1 + (x0 + 13 * tmp4), xmask).to(tl.float32)
    tmp8 = tmp6 + tmp7
    tmp9 = 0.5
    tmp10 = tmp8 * tmp9
    tmp11 = 0.7071067811865476
    tmp12 = tmp8 * tmp11
    tmp13 = libdevice.erf(tmp12)
    tmp14 = tmp13 + 1.0
    tmp15 = tmp10 * tmp14
    tmp16 = tl_math.abs(tmp15) * ks0.to(tl.float32)
    tl.store(out_ptr0 + (x2), tmp16, xmask)


@every_dtype
def test_a_pointwise_kernel_with_an_index_that_is_asserted(dtype):
    rows = 11
    index = torch.randint(-17, 17, (rows,))
    table, bias = filled((17, 13), dtype), filled((13,), dtype, 1)
    out = torch.empty(rows, 13, dtype=dtype)
    size, n = table.element_size(), rows * 13
    right = torch.nn.functional.gelu(table.double()[index] + bias.double()).abs() * 2.5
    prove(
        lambda: fused_embedding_gelu_0[(triton.cdiv(n, 64),)](
            index, table, bias, out, 2.5, n, XBLOCK=64, debug=True
        ),
        dtype,
        [(out, right)],
        {"in_ptr0": (rows * 8, n * 8), "in_ptr1": (len(set((index % 17).tolist())) * 13 * size,
         n * size), "in_ptr2": (13 * size, n * size)},
        {"out_ptr0": n * size},
        units=4,
    )  # fmt: skip


@triton.jit
def fused_softmax_1(in_ptr0, out_ptr2, xnumel, r0_numel, XBLOCK: tl.constexpr,
                    R0_BLOCK: tl.constexpr):  # fmt: skip
    rnumel = r0_numel
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_mask = r0_index < r0_numel
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + rnumel * x0), r0_mask & xmask, other=0.0).to(tl.float32)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, float("-inf"))
    tmp4 = max2(tmp3, 1)[:, None].to(tl.float32)
    tmp5 = tmp0 - tmp4
    tmp6 = libdevice.exp(tmp5)
    tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
    tmp9 = tl.where(r0_mask & xmask, tmp7, 0)
    tmp10 = tl.sum(tmp9, 1)[:, None].to(tl.float32)
    tmp11 = tmp6 / tmp10
    tl.store(out_ptr2 + (r0_1 + rnumel * x0), tmp11, r0_mask & xmask)


@every_dtype
def test_a_persistent_reduction(dtype):
    rows, cols = 7, 29
    x, out = filled((rows, cols), dtype), torch.empty(rows, cols, dtype=dtype)
    size = rows * cols * x.element_size()
    prove(
        lambda: fused_softmax_1[(triton.cdiv(rows, 4),)](
            x, out, rows, cols, XBLOCK=4, R0_BLOCK=32, num_warps=2
        ),
        dtype,
        [(out, x.double().softmax(1))],
        {"in_ptr0": size},
        {"out_ptr2": size},
        units=4,
    )


@triton.jit
def fused_native_layer_norm_2(in_out_ptr0, in_ptr0, in_ptr1, in_ptr2, out_ptr0, out_ptr1, xnumel,
                              rnumel, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):  # fmt: skip
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    rbase = tl.arange(0, RBLOCK)[None, :]
    x0 = xindex
    tmp3_mean = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    tmp3_m2 = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    tmp3_weight = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    for roffset in range(0, rnumel, RBLOCK):
        rindex = roffset + rbase
        rmask = rindex < rnumel
        r1 = rindex
        tmp0 = tl.load(
            in_ptr0 + (r1 + rnumel * x0), rmask & xmask, eviction_policy="evict_last", other=0.0
        ).to(tl.float32)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, RBLOCK])
        tmp3_mean_next, tmp3_m2_next, tmp3_weight_next = welford_reduce(
            tmp1, tmp3_mean, tmp3_m2, tmp3_weight, roffset == 0
        )
        tmp3_mean = tl.where(rmask & xmask, tmp3_mean_next, tmp3_mean)
        tmp3_m2 = tl.where(rmask & xmask, tmp3_m2_next, tmp3_m2)
        tmp3_weight = tl.where(rmask & xmask, tmp3_weight_next, tmp3_weight)
    tmp3_tmp, tmp4_tmp, _tmp5_tmp = welford(tmp3_mean, tmp3_m2, tmp3_weight, 1)
    tmp3 = tmp3_tmp[:, None]
    tmp4 = tmp4_tmp[:, None]
    tl.store(out_ptr0 + (x0), tmp3, xmask)
    tmp6 = tmp4 / rnumel.to(tl.float32)
    tmp7 = 1e-05
    tmp8 = tmp6 + promote_to_tensor(tmp7)
    tmp9 = libdevice.rsqrt(tmp8)
    tl.debug_barrier()
    tl.store(in_out_ptr0 + (x0), tmp9, xmask)
    for roffset in range(0, rnumel, RBLOCK):
        rindex = roffset + rbase
        rmask = rindex < rnumel
        r1 = rindex
        tmp10 = tl.load(
            in_ptr0 + (r1 + rnumel * x0), rmask & xmask, eviction_policy="evict_first", other=0.0
        ).to(tl.float32)
        tmp13 = tl.load(in_ptr1 + (r1), rmask, eviction_policy="evict_last", other=0.0)
        tmp15 = tl.load(in_ptr2 + (r1), rmask, eviction_policy="evict_last", other=0.0)
        tmp11 = tmp10 - tmp3
        tmp12 = tmp11 * tmp9
        tmp14 = tmp12 * tmp13.to(tl.float32)
        tmp16 = tmp14 + tmp15.to(tl.float32)
        tl.store(out_ptr1 + (r1 + rnumel * x0), tmp16, rmask & xmask)


@every_dtype
def test_a_reduction_in_a_loop(dtype):
    rows, cols = 6, 45
    x, w, b = filled((rows, cols), dtype) + 8, filled((cols,), dtype, 1), filled((cols,), dtype, 2)
    y, mean, rstd = torch.empty_like(x), torch.empty(rows), torch.empty(rows)
    size, programs = x.element_size(), triton.cdiv(rows, 4)
    right = torch.nn.functional.layer_norm(x.double(), (cols,), w.double(), b.double(), 1e-5)
    prove(
        lambda: fused_native_layer_norm_2[(programs,)](
            rstd, x, w, b, mean, y, rows, cols, XBLOCK=4, RBLOCK=16
        ),
        dtype,
        [(y, right), (mean, x.double().mean(1)),
         (rstd, (x.double().var(1, correction=0) + 1e-5).rsqrt())],
        {"in_ptr0": (rows * cols * size, 2 * rows * cols * size),
         **dict.fromkeys(("in_ptr1", "in_ptr2"), (cols * size, programs * cols * size))},
        {"out_ptr0": rows * 4, "in_out_ptr0": rows * 4, "out_ptr1": rows * cols * size},
        units=16,
    )  # fmt: skip
