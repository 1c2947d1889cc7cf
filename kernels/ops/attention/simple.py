"""Attention in the kernel of the page, and in three launches with a softmax of ours between.

`attention_simple` masks the length and causality alone and takes head dimensions that are powers of
two; `attention_forward` is built on it. `scaled_softmax` is what stands between two products where
nothing is fused: scores are written, read, written as weights and read again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import capability
from kernels.ops.attention.configurations import Tiling, tiling_for
from kernels.ops.attention.forward_kernels import LOG2E, LOWEST
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor


@triton.jit
def attention_simple(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    length,
    scale,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # A program computes one tile of one head's outputs: BLOCK_M queries, and keys in steps of
    # BLOCK_N. A row's state is (m, l, acc): the largest score so far, Σ 2^(s − m), Σ 2^(s − m) · v.
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)[None, :]
    first = head * length * D  # 64 bits for a head's place, 32 within it
    within = rows[:, None] * D + dims
    q = tl.load(q_ptr + first + within, mask=rows[:, None] < length, other=0.0)
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    end = tl.minimum((tile + 1) * BLOCK_M, length) if CAUSAL else length
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        places = keys[:, None] * D + dims
        k = tl.load(k_ptr + first + places, mask=keys[:, None] < length, other=0.0)
        s = tl.dot(q, k.T, input_precision="ieee") * (scale * LOG2E)  # exp(s) is 2^(s · log2 e)
        seen = keys[None, :] < length
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        s = tl.where(seen, s, -float("inf"))

        new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        correction = tl.exp2(m - new)
        l = l * correction + tl.sum(p, axis=1)  # noqa: E741
        v = tl.load(v_ptr + first + places, mask=keys[:, None] < length, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * correction[:, None], input_precision="ieee")
        m = new
    out = acc / l[:, None]
    tl.store(o_ptr + first + within, out.to(o_ptr.dtype.element_ty), mask=rows[:, None] < length)
    if lse_ptr is not None:  # what a backward computes the weights from again
        tl.store(lse_ptr + head * length + rows, (m + tl.log2(l)) / LOG2E, mask=rows < length)


@triton.jit(do_not_specialize=["n_queries", "n_keys"])
def scaled_softmax(
    scores_ptr,
    weights_ptr,
    n_queries,
    n_keys,
    scale,
    CAUSAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # One program a row of scores, which is read once, whole; with CAUSAL what lies behind the
    # diagonal is left out of the sum, and 0.
    row = tl.program_id(0).to(tl.int64)
    keys = tl.arange(0, BLOCK)
    s = tl.load(scores_ptr + row * n_keys + keys, mask=keys < n_keys, other=-float("inf"))
    s = s.to(tl.float32) * (scale * LOG2E)
    if CAUSAL:
        last = (row % n_queries).to(tl.int32) + n_keys - n_queries
        s = tl.where(keys <= last, s, -float("inf"))
    e = tl.exp2(s - tl.maximum(tl.max(s, axis=0), LOWEST))
    total = tl.sum(e, axis=0)
    p = e * tl.where(total == 0, 0.0, 1.0 / total)
    places = weights_ptr + row * n_keys + keys
    tl.store(places, p.to(weights_ptr.dtype.element_ty), mask=keys < n_keys)


def simple_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    tiling: Tiling | None = None,
    *,
    want_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Launch the kernel of the page, unchecked: q, k, v (B, H, S, D) alike, D a power of two.

    Returns o, and log Σ exp of each row (B, H, S) in fp32, or None. The tiling is the card's if
    None.
    """
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = None
    if want_lse:
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    n_batch, n_heads, length, head_dim = q.shape
    if out.numel() == 0:
        return out, lse
    if tiling is None:
        card = capability(q.device)
        tiling = tiling_for(length, head_dim, q.element_size(), card, simple=True)
    with device_guard(q):
        attention_simple[(-(-length // tiling.block_m), n_batch * n_heads)](
            q,
            k,
            v,
            out,
            lse,
            length,
            scale,
            CAUSAL=causal,
            D=head_dim,
            BLOCK_M=tiling.block_m,
            BLOCK_N=tiling.block_n,
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
    return out, lse


def softmax_of_scores(scores: Tensor, scale: float, n_queries: int) -> Tensor:
    """softmax(scores · scale) over the last dimension of scores (..., N), unchecked.

    With `n_queries` above 0 it is causal: rows are those of so many queries, again and again, and
    the last of them sees all N keys.
    """
    scores = scores.contiguous()
    weights = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    if weights.numel() == 0:
        return weights
    n_keys = scores.shape[-1]
    block = triton.next_power_of_2(n_keys)
    with device_guard(scores):
        scaled_softmax[(scores.numel() // n_keys,)](
            scores,
            weights,
            max(n_queries, 1),
            n_keys,
            scale,
            CAUSAL=n_queries > 0,
            BLOCK=block,
            num_warps=min(32, max(1, block // 512)),
        )
    return weights
