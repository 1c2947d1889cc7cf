"""Attention in the manner of the field: by pointers, block pointers and both kinds of descriptors.

Q, K, V and O are (heads, length, D). A program computes BLOCK_M rows of one head; every program of
a head reads all its keys and values, up to the diagonal if it is causal.
"""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.launch.catalogue.proof import every_dtype, filled, prove

HEADS, LENGTH, D, M, N = 2, 37, 16, 16, 16
SCALE = 0.25


@triton.jit
def step(acc, l_i, m_i, q, k, v, offs_m, offs_n, length, qk_scale, CAUSAL: tl.constexpr):
    qk = tl.dot(q, tl.trans(k)) * qk_scale
    allowed = offs_n[None, :] < length
    if CAUSAL:
        allowed = allowed & (offs_m[:, None] >= offs_n[None, :])
    qk = tl.where(allowed, qk, -1.0e6)
    m_new = tl.maximum(m_i, tl.max(qk, 1))
    p = tl.math.exp2(qk - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    acc = acc * alpha[:, None]
    acc = tl.dot(p.to(v.dtype), v, acc)
    return acc, l_i * alpha + tl.sum(p, 1), m_new


@triton.jit
def by_pointers(Q, K, V, O, L, length, sm_scale, BLOCK_M: tl.constexpr,  # noqa: E741
                BLOCK_N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    start_m = tl.program_id(0)
    off_h = tl.program_id(1).to(tl.int64)
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    head = off_h * length * D
    q_ptrs = Q + head + offs_m[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptrs, mask=offs_m[:, None] < length, other=0.0)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    qk_scale = sm_scale * 1.44269504
    end = min((start_m + 1) * BLOCK_M, length) if CAUSAL else length
    for start_n in range(0, end, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        offs_n = start_n + tl.arange(0, BLOCK_N)
        at = head + offs_n[:, None] * D + offs_d[None, :]
        k = tl.load(K + at, mask=offs_n[:, None] < length, other=0.0)
        v = tl.load(V + at, mask=offs_n[:, None] < length, other=0.0)
        acc, l_i, m_i = step(acc, l_i, m_i, q, k, v, offs_m, offs_n, length, qk_scale, CAUSAL)
    acc = acc / l_i[:, None]
    tl.store(L + off_h * length + offs_m, m_i + tl.math.log2(l_i), mask=offs_m < length)
    o_ptrs = O + head + offs_m[:, None] * D + offs_d[None, :]
    tl.store(o_ptrs, acc.to(O.type.element_ty), mask=offs_m[:, None] < length)


@triton.jit
def by_block_pointers(Q, K, V, O, length, sm_scale, BLOCK_M: tl.constexpr,  # noqa: E741
                      BLOCK_N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    start_m = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * length * D
    q_block = tl.make_block_ptr(
        Q + head, (length, D), (D, 1), (start_m * BLOCK_M, 0), (BLOCK_M, D), (1, 0)
    )
    k_block = tl.make_block_ptr(K + head, (length, D), (D, 1), (0, 0), (BLOCK_N, D), (1, 0))
    v_block = tl.make_block_ptr(V + head, (length, D), (D, 1), (0, 0), (BLOCK_N, D), (1, 0))
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    q = tl.load(q_block, boundary_check=(0,), padding_option="zero")
    end = min((start_m + 1) * BLOCK_M, length) if CAUSAL else length
    for start_n in range(0, end, BLOCK_N):
        k = tl.load(k_block, boundary_check=(0,), padding_option="zero")
        v = tl.load(v_block, boundary_check=(0,), padding_option="zero")
        offs_n = start_n + tl.arange(0, BLOCK_N)
        acc, l_i, m_i = step(
            acc, l_i, m_i, q, k, v, offs_m, offs_n, length, sm_scale * 1.44269504, CAUSAL
        )
        k_block = tl.advance(k_block, (BLOCK_N, 0))
        v_block = tl.advance(v_block, (BLOCK_N, 0))
    o_block = tl.make_block_ptr(
        O + head, (length, D), (D, 1), (start_m * BLOCK_M, 0), (BLOCK_M, D), (1, 0)
    )
    out = (acc / l_i[:, None]).to(O.type.element_ty)
    tl.store(o_block, out, boundary_check=(0,))


@triton.jit
def of_head(desc_or_ptr, length, head, D: tl.constexpr, BLOCK: tl.constexpr):
    # As the tutorial does it: what is a descriptor already is left alone.
    if isinstance(desc_or_ptr, tl.tensor_descriptor):
        return desc_or_ptr
    else:
        return tl.make_tensor_descriptor(
            desc_or_ptr + head * length * D, shape=[1, length, D], strides=[length * D, D, 1],
            block_shape=[1, BLOCK, D],
        )  # fmt: skip


@triton.jit
def by_descriptors(desc_q, desc_k, desc_v, desc_o, length, sm_scale, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
                   ON_HOST: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    start_m = tl.program_id(0)
    head = tl.program_id(1)
    at = head if ON_HOST else 0
    desc_q = of_head(desc_q, length, head, D, BLOCK_M)
    desc_k = of_head(desc_k, length, head, D, BLOCK_N)
    desc_v = of_head(desc_v, length, head, D, BLOCK_N)
    desc_o = of_head(desc_o, length, head, D, BLOCK_M)
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    q = desc_q.load([at, start_m * BLOCK_M, 0]).reshape(BLOCK_M, D)
    end = min((start_m + 1) * BLOCK_M, length) if CAUSAL else length
    for start_n in tl.range(0, end, BLOCK_N, warp_specialize=False):
        k = desc_k.load([at, start_n, 0]).reshape(BLOCK_N, D)
        v = desc_v.load([at, start_n, 0]).reshape(BLOCK_N, D)
        offs_n = start_n + tl.arange(0, BLOCK_N)
        acc, l_i, m_i = step(
            acc, l_i, m_i, q, k, v, offs_m, offs_n, length, sm_scale * 1.44269504, CAUSAL
        )
    out = (acc / l_i[:, None]).to(DTYPE)
    desc_o.store([at, start_m * BLOCK_M, 0], out.reshape(1, BLOCK_M, D))


def set_blocks(arguments):
    if not isinstance(arguments["desc_q"], TensorDescriptor):
        return
    for name, rows in (("q", "BLOCK_M"), ("k", "BLOCK_N"), ("v", "BLOCK_N"), ("o", "BLOCK_M")):
        arguments[f"desc_{name}"].block_shape = [1, arguments[rows], arguments["D"]]


def configurations(pre_hook=None):
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_stages=2, num_warps=4, pre_hook=pre_hook)
        for m, n in ((M, N), (32, 32), (128, 128))
    ]


def small_enough(configs, named_args, **kwargs):
    return [conf for conf in configs if conf.kwargs["BLOCK_M"] <= kwargs["D"] * 2]


tuned_by_pointers = triton.autotune(configurations(), key=["length", "D"])(by_pointers)
tuned_by_block_pointers = triton.autotune(configurations(), key=["length"])(by_block_pointers)
tuned_by_descriptors = triton.autotune(
    configurations(set_blocks),
    key=["length"],
    prune_configs_by={"early_config_prune": small_enough},
)(by_descriptors)


def bytes_of(causal, size):
    """Bytes of Q, K, V and O: distinct ones, and those of all programs' keys or values."""
    whole = HEADS * LENGTH * D * size
    programs = triton.cdiv(LENGTH, M)
    seen = [min((p + 1) * M, LENGTH) if causal else LENGTH for p in range(programs)]
    # The last block of keys before the diagonal is read whole, up to the end.
    keys = sum(min(triton.cdiv(end, N) * N, LENGTH) for end in seen)
    return whole, (whole, HEADS * keys * D * size)


def right_attention(q, k, v, causal):
    scores = q.double() @ k.double().transpose(1, 2) * SCALE
    if causal:
        scores = scores.masked_fill(~torch.ones(LENGTH, LENGTH).tril().bool(), float("-inf"))
    return scores.softmax(-1) @ v.double(), scores.logsumexp(-1)


@every_dtype
@pytest.mark.parametrize(
    ("tuned", "causal"),
    [(False, True), (False, False), (True, True)],
    ids=["causal", "plain", "tuned"],
)
def test_by_pointers(dtype, tuned, causal):
    q, k, v = (filled((HEADS, LENGTH, D), dtype, seed) for seed in range(3))
    o, lse = torch.empty_like(q), torch.empty(HEADS, LENGTH)
    whole, keys = bytes_of(causal, q.element_size())
    right, right_lse = right_attention(q, k, v, causal)
    grid = (triton.cdiv(LENGTH, M), HEADS)
    kernel, blocks = (tuned_by_pointers, {}) if tuned else (
        by_pointers, {"BLOCK_M": M, "BLOCK_N": N}
    )  # fmt: skip
    prove(
        lambda: kernel[grid](q, k, v, o, lse, LENGTH, SCALE, D=D, CAUSAL=causal, **blocks),
        dtype,
        [(o, right), (lse, right_lse / 0.6931471805599453)],
        {"Q": whole, "K": keys, "V": keys},
        {"O": whole, "L": HEADS * LENGTH * 4},
        units=8,
    )


@every_dtype
@pytest.mark.filterwarnings("ignore:.*make_block_ptr")
@pytest.mark.parametrize("tuned", [False, True], ids=["plain", "tuned"])
def test_by_block_pointers(dtype, tuned):
    causal = True
    q, k, v = (filled((HEADS, LENGTH, D), dtype, seed) for seed in range(3))
    o = torch.empty_like(q)
    whole, keys = bytes_of(causal, q.element_size())
    kernel, blocks = (tuned_by_block_pointers, {}) if tuned else (
        by_block_pointers, {"BLOCK_M": M, "BLOCK_N": N}
    )  # fmt: skip
    grid = (triton.cdiv(LENGTH, M), HEADS)
    prove(
        lambda: kernel[grid](q, k, v, o, LENGTH, SCALE, D=D, CAUSAL=causal, **blocks),
        dtype,
        [(o, right_attention(q, k, v, causal)[0])],
        {"Q": whole, "K": keys, "V": keys},
        {"O": whole},
        units=8,
    )


TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@every_dtype
@pytest.mark.parametrize("tuned", [False, True], ids=["plain", "tuned"])
@pytest.mark.parametrize("on_host", [False, True], ids=["device", "host"])
def test_by_descriptors(dtype, on_host, tuned):
    causal = on_host
    q, k, v = (filled((HEADS, LENGTH, D), dtype, seed) for seed in range(3))
    o = torch.empty_like(q)
    whole, keys = bytes_of(causal, q.element_size())
    kernel, blocks = (tuned_by_descriptors, {}) if tuned else (
        by_descriptors, {"BLOCK_M": M, "BLOCK_N": N}
    )  # fmt: skip

    def call():
        shape = [1, 1, 1] if tuned else [1, M, D]
        tensors = (q, k, v, o)
        given = [TensorDescriptor.from_tensor(t, list(shape)) for t in tensors]
        kernel[lambda meta: (triton.cdiv(LENGTH, meta["BLOCK_M"]), HEADS)](
            *(given if on_host else tensors), LENGTH, SCALE, D=D, CAUSAL=causal, ON_HOST=on_host,
            DTYPE=TYPES[dtype], **blocks,
        )  # fmt: skip

    prove(
        call,
        dtype,
        [(o, right_attention(q, k, v, causal)[0])],
        {"desc_q": whole, "desc_k": keys, "desc_v": keys},
        {"desc_o": whole},
        units=8,
    )
