"""Attention backward in the kernels of the page: delta, then dK and dV, then dQ.

Each masks the length and causality alone and takes head dimensions that are powers of two;
`backward_kernels` are built on them. The weights of a tile come from its scores and from the
log-sum-exp of its rows, which forward kept: p = exp(s − L). No two programs write to one address.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from kernels.launch import capability
from kernels.ops.attention.backward_configurations import tilings_for
from kernels.ops.attention.forward_kernels import LOG2E
from kernels.ops.attention.simple import simple_forward
from kernels.ops.shared.operators import device_guard, needs_gradient

Tensor = torch.Tensor
ROWS = 64  # that a program of the first kernel takes


@triton.jit
def simple_delta(o_ptr, do_ptr, delta_ptr, n_rows, D: tl.constexpr, BLOCK_M: tl.constexpr):
    # delta of a row, Σ o · do, is what Σ p · dp of the whole row would be, without p and dp.
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    places = rows[:, None] * D + tl.arange(0, D)[None, :]
    o = tl.load(o_ptr + places, mask=rows[:, None] < n_rows, other=0.0).to(tl.float32)
    do = tl.load(do_ptr + places, mask=rows[:, None] < n_rows, other=0.0).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(o * do, axis=1), mask=rows < n_rows)


@triton.jit
def simple_dkdv(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    length,
    scale,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # A program keeps BLOCK_N keys and values and the sums that belong to them; queries pass by.
    # The tile of weights lies with keys as its rows, pᵀ, as both sums take it.
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    keys = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)[None, :]
    first = head * length * D
    within = keys[:, None] * D + dims
    k = tl.load(k_ptr + first + within, mask=keys[:, None] < length, other=0.0)
    v = tl.load(v_ptr + first + within, mask=keys[:, None] < length, other=0.0)
    dk = tl.zeros([BLOCK_N, D], tl.float32)
    dv = tl.zeros([BLOCK_N, D], tl.float32)
    begin = tile * BLOCK_N // BLOCK_M * BLOCK_M if CAUSAL else 0
    for start in range(begin, length, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        places = rows[:, None] * D + dims
        q = tl.load(q_ptr + first + places, mask=rows[:, None] < length, other=0.0)
        do = tl.load(do_ptr + first + places, mask=rows[:, None] < length, other=0.0)
        lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
        delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
        s = tl.dot(k, q.T, input_precision="ieee") * scale
        p = tl.exp2((s - lse[None, :]) * LOG2E)
        seen = rows[None, :] < length
        if CAUSAL:
            seen = seen & (keys[:, None] <= rows[None, :])
        p = tl.where(seen, p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dp = tl.dot(v, do.T, input_precision="ieee")
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    dk *= scale
    tl.store(dk_ptr + first + within, dk.to(dk_ptr.dtype.element_ty), mask=keys[:, None] < length)
    tl.store(dv_ptr + first + within, dv.to(dv_ptr.dtype.element_ty), mask=keys[:, None] < length)


@triton.jit
def simple_dq(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    length,
    scale,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # A program keeps BLOCK_M queries and their sum; keys and values pass by, as in the forward.
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)[None, :]
    first = head * length * D
    within = rows[:, None] * D + dims
    q = tl.load(q_ptr + first + within, mask=rows[:, None] < length, other=0.0)
    do = tl.load(do_ptr + first + within, mask=rows[:, None] < length, other=0.0)
    lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
    delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    end = tl.minimum((tile + 1) * BLOCK_M, length) if CAUSAL else length
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        places = keys[:, None] * D + dims
        k = tl.load(k_ptr + first + places, mask=keys[:, None] < length, other=0.0)
        v = tl.load(v_ptr + first + places, mask=keys[:, None] < length, other=0.0)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        p = tl.exp2((s - lse[:, None]) * LOG2E)
        seen = keys[None, :] < length
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        p = tl.where(seen, p, 0.0)
        dp = tl.dot(do, v.T, input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    dq *= scale
    tl.store(dq_ptr + first + within, dq.to(dq_ptr.dtype.element_ty), mask=rows[:, None] < length)


def simple_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the backward of the page, unchecked; return dq, dk, dv, contiguous.

    All are (B, H, S, D) but lse (B, H, S); out and lse are what `simple_forward` returned.
    """
    d_out, q, k, v = (one.contiguous() for one in (d_out, q, k, v))
    dq, dk, dv = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    delta = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    n_batch, n_heads, length, head_dim = q.shape
    if q.numel() == 0:
        return dq, dk, dv
    n_rows, heads = n_batch * n_heads * length, n_batch * n_heads
    card = capability(q.device)
    for_dq, for_dkdv = tilings_for(head_dim, q.element_size(), card, simple=True)
    with device_guard(q):
        simple_delta[(-(-n_rows // ROWS),)](
            out, d_out, delta, n_rows, D=head_dim, BLOCK_M=ROWS, num_warps=8
        )
        simple_dkdv[(-(-length // for_dkdv.block_n), heads)](
            *(q, k, v, d_out, lse, delta, dk, dv, length, scale),
            CAUSAL=causal,
            D=head_dim,
            BLOCK_M=for_dkdv.block_m,
            BLOCK_N=for_dkdv.block_n,
            num_warps=for_dkdv.num_warps,
            num_stages=for_dkdv.num_stages,
        )
        simple_dq[(-(-length // for_dq.block_m), heads)](
            *(q, k, v, d_out, lse, delta, dq, length, scale),
            CAUSAL=causal,
            D=head_dim,
            BLOCK_M=for_dq.block_m,
            BLOCK_N=for_dq.block_n,
            num_warps=for_dq.num_warps,
            num_stages=for_dq.num_stages,
        )
    return dq, dk, dv


class _Simple(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        out, lse = simple_forward(q, k, v, causal, scale, want_lse=True)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.told = causal, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Any:
        return *simple_backward(d_out, *ctx.saved_tensors, *ctx.told), None, None


def simple(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    """Attention by the kernels of the pages, forward and back, unchecked; as `simple_forward`."""
    if needs_gradient(q, k, v):
        result: Tensor = _Simple.apply(q, k, v, causal, scale)
        return result
    return simple_forward(q, k, v, causal, scale)[0]
