"""Answers to 12.7 and 12.8: attention with a switch for each fault, and right ones."""

import torch
import triton
import triton.language as tl

from kernels.ops.attention.attention import attention
from kernels.ops.attention.simple import attention_simple
from tests.grading.submissions import copy_kernel


@triton.jit
def switched_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    hidden_ptr,
    o_ptr,
    M,
    N,
    scale,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    FAULT: tl.constexpr,
    IEEE: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)[None, :]
    within = rows[:, None] * D + dims
    q_at = q_ptr + head * M * D + within
    keys_of = head * N * D
    if FAULT == "first head":
        keys_of = head * 0
    row_mask = (rows < M)[:, None]
    q = tl.load(q_at, mask=row_mask, other=0.0)
    start_m = -float("inf")
    if FAULT == "lowest":
        start_m = -3.0e38
    if FAULT == "m from 0":
        start_m = 0.0
    m = tl.full([BLOCK_M], start_m, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    end = N
    if CAUSAL:
        end = tl.minimum((tile + 1) * BLOCK_M, N)
        if FAULT == "whole loop":
            end = N
        if FAULT == "before the diagonal":
            end = tile * BLOCK_M
    if FAULT == "whole blocks":
        end = end // BLOCK_N * BLOCK_N
    if FAULT == "first block":
        end = min(end, BLOCK_N)
    for start in range(0, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        at = keys[:, None] * D + dims
        key_mask = (keys < N)[:, None]
        if FAULT == "unmasked":
            key_mask = (keys >= 0)[:, None]
        k = tl.load(k_ptr + keys_of + at, mask=key_mask, other=0.0)
        if FAULT == "no other":
            v = tl.load(v_ptr + keys_of + at, mask=key_mask)
        else:
            v = tl.load(v_ptr + keys_of + at, mask=key_mask, other=0.0)
        if FAULT == "converted":
            k, v = k.to(tl.float32), v.to(tl.float32)
            s = tl.dot(q.to(tl.float32), k.T, input_precision="ieee")
        elif FAULT == "no dot":
            s = tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], axis=2)
        elif IEEE:
            s = tl.dot(q, k.T, input_precision="ieee")
        else:
            s = tl.dot(q, k.T)
        if FAULT != "no scale":
            s = s * scale
        if FAULT == "scale twice":
            s = s * scale
        if FAULT == "exp2":
            s = s * 0.6931471805599453
        if CAUSAL:
            seen = keys[None, :] <= rows[:, None]
            if FAULT == "strict":
                seen = keys[None, :] < rows[:, None]
            if FAULT == "one more":
                seen = (keys[None, :] <= rows[:, None] + 1) & (keys < N)[None, :]
            if FAULT == "sees all":
                seen = (keys < N)[None, :] & (rows >= 0)[:, None]
            if FAULT == "places in the tile":
                seen = keys[None, :] <= (rows - tile * BLOCK_M)[:, None]
        else:
            hidden = tl.load(hidden_ptr + keys, mask=keys < N, other=1)
            visible = hidden == 0
            if FAULT == "inverted":
                visible = (hidden != 0) & (keys < N)
            if FAULT == "ignored":
                visible = keys < N
            seen = visible[None, :] & (rows >= 0)[:, None]
        if FAULT == "zero":
            s = tl.where(seen, s, 0.0)
        elif FAULT == "finite":
            s = tl.where(seen, s, -1.0e30)
        elif FAULT != "behind" and FAULT != "left in l":
            s = tl.where(seen, s, -float("inf"))
        if FAULT == "left in l":
            s = tl.where((keys < N)[None, :], s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        if FAULT == "own maximum":
            new = tl.max(s, axis=1)
        if FAULT == "no maximum":
            new = tl.zeros([BLOCK_M], tl.float32)
        top = new
        if not CAUSAL and FAULT != "no guard" and FAULT != "behind":
            top = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp(s - top[:, None])
        correction = tl.exp(m - top)
        if FAULT == "no maximum":
            correction = tl.full([BLOCK_M], 1.0, tl.float32)
        if FAULT == "behind":
            p = tl.where(seen, p, 0.0)
        if FAULT == "correction upside down":
            correction = tl.exp(top - m)
        if FAULT == "no correction" or FAULT == "acc alone":
            l = l + tl.sum(p, axis=1)  # noqa: E741
        elif FAULT == "l replaced":
            l = tl.sum(p, axis=1)  # noqa: E741
        else:
            l = l * correction + tl.sum(p, axis=1)  # noqa: E741
        if FAULT == "left in l":
            p = tl.where(seen, p, 0.0)
        if FAULT != "no correction" and FAULT != "l alone":
            acc = acc * correction[:, None]
        if FAULT == "narrow":
            acc = acc.to(tl.float16).to(tl.float32)
        if FAULT == "no dot":
            acc += tl.sum(p[:, :, None] * v.to(tl.float32)[None, :, :], axis=1)
        elif FAULT == "weights in fp32":
            acc = tl.dot(p, v.to(tl.float32), acc, input_precision="ieee")
        elif FAULT == "acc replaced":
            acc = tl.dot(p.to(v.dtype), v, input_precision="ieee")
        elif IEEE:
            acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        else:
            acc = tl.dot(p.to(v.dtype), v, acc)
        if FAULT != "m kept":
            m = new
    total = l
    if not CAUSAL and FAULT != "no zero" and FAULT != "no guard" and FAULT != "behind":
        total = tl.where(l == 0, 1.0, l)
    o = acc / total[:, None]
    if FAULT == "not divided":
        o = acc
    if FAULT == "times l":
        o = acc * total[:, None]
    o_at = o_ptr + head * M * D + within
    if FAULT == "unmasked store":
        tl.store(o_at, o.to(o_ptr.dtype.element_ty))
    else:
        tl.store(o_at, o.to(o_ptr.dtype.element_ty), mask=row_mask)


def padded_with(fault="", tile=(32, 32), warps=4):
    def padded_attention(q, k, v, hidden):
        (m, d), n = q.shape, len(k)
        o = torch.empty_like(q, dtype=torch.float32 if fault == "fp32 output" else None)
        grid = (max(1, m // tile[0]) if fault == "few programs" else triton.cdiv(m, tile[0]), 1)
        switched_kernel[grid](
            q, k, v, hidden, o, m, n, d**-0.5, d, *tile, False, fault, True, num_warps=warps
        )
        return o

    return padded_attention


def causal_with(fault="", tile=(64, 32), warps=8, stages=2, ieee=True):
    def causal_attention(q, k, v):
        heads, n, d = q.shape
        o = torch.empty_like(q, dtype=torch.float32 if fault == "fp32 output" else None)
        grid = (max(1, n // tile[0]) if fault == "few programs" else triton.cdiv(n, tile[0]), heads)
        switched_kernel[grid](
            q, k, v, q, o, n, n, d**-0.5, d, *tile, True, fault, ieee,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return o

    return causal_attention


# Right, and written otherwise.
@triton.jit
def two_loops_kernel(q_ptr, k_ptr, v_ptr, o_ptr, n, scale_log2, D: tl.constexpr, EDGE: tl.constexpr,
                     STEP: tl.constexpr):  # fmt: skip
    """The longest walk first; a loop without a mask, one at the diagonal; base 2; keys across."""
    tiles = tl.cdiv(n, EDGE)
    tile, head = tiles - 1 - tl.program_id(0) % tiles, tl.program_id(0) // tiles
    begin = head.to(tl.int64) * n * D
    row = tile * EDGE + tl.arange(0, EDGE)[:, None]
    dim = tl.arange(0, D)
    q = tl.load(q_ptr + begin + row * D + dim[None, :], mask=row < n, other=0)
    m = tl.full((EDGE, 1), -float("inf"), tl.float32)
    total = tl.zeros((EDGE, 1), tl.float32)
    acc = tl.zeros((EDGE, D), tl.float32)
    whole = tile * EDGE // STEP * STEP
    for at in range(0, whole, STEP):
        col = at + tl.arange(0, STEP)
        k = tl.load(k_ptr + begin + col[None, :] * D + dim[:, None])
        s = tl.dot(q, k, input_precision="ieee") * scale_log2
        top = tl.maximum(m, tl.max(s, axis=1, keep_dims=True))
        p = tl.exp2(s - top)
        shrink = tl.exp2(m - top)
        total = total * shrink + tl.sum(p, axis=1, keep_dims=True)
        v = tl.load(v_ptr + begin + col[:, None] * D + dim[None, :])
        acc = acc * shrink + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = top
    for at in range(whole, tl.minimum(tile * EDGE + EDGE, n), STEP):
        col = at + tl.arange(0, STEP)
        k = tl.load(k_ptr + begin + col[None, :] * D + dim[:, None], mask=col[None, :] < n, other=0)
        s = tl.dot(q, k, input_precision="ieee") * scale_log2
        s += tl.where(row >= col[None, :], 0, -float("inf"))
        top = tl.maximum(m, tl.max(s, axis=1, keep_dims=True))
        p = tl.exp2(s - top)
        shrink = tl.exp2(m - top)
        total = total * shrink + tl.sum(p, axis=1, keep_dims=True)
        v = tl.load(v_ptr + begin + col[:, None] * D + dim[None, :], mask=col[:, None] < n, other=0)
        acc = acc * shrink + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = top
    o = acc * (1 / total)
    tl.store(o_ptr + begin + row * D + dim[None, :], o.to(o_ptr.dtype.element_ty), mask=row < n)


def causal_in_two_loops(q, k, v):
    heads, n, d = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    grid = (triton.cdiv(n, 64) * heads,)
    scale = 1.4426950408889634 / d**0.5
    two_loops_kernel[grid](q, k, v, o, n, scale, D=d, EDGE=64, STEP=16, num_warps=8, num_stages=1)
    return o


# Wrong in the launch, or hostile.
def causal_by_pytorch(q, k, v):
    s = q @ k.mT * q.shape[-1] ** -0.5
    seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(s.masked_fill(~seen, -torch.inf), -1) @ v


def causal_by_the_package(q, k, v):
    return attention(q[None], k[None], v[None], causal=True)[0]


def causal_by_the_packages_kernel(q, k, v):
    o = torch.empty_like(q)
    heads, n, d = q.shape
    lse = torch.empty(heads, n, device=q.device)
    sizes = {"CAUSAL": True, "D": d, "BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 8}
    attention_simple[(triton.cdiv(n, 64), heads)](q, k, v, o, lse, n, d**-0.5, **sizes)
    return o


def causal_scaled_first(q, k, v):
    """The scale by an operator of PyTorch's."""
    return causal_with("no scale")(q * q.shape[-1] ** -0.5, k, v)


def causal_a_head_at_a_time(q, k, v):
    return torch.stack(
        [causal_with()(*(t[i : i + 1] for t in (q, k, v)))[0] for i in range(len(q))]
    )


def causal_once_and_for_all():
    kept = {}

    def causal_attention(q, k, v):
        key = q.shape, q.dtype
        if key not in kept:
            kept[key] = causal_with()(q, k, v)
        return kept[key]

    return causal_attention


def causal_behind_the_dispatcher(q, k, v):
    with torch.utils._python_dispatch._disable_current_modes():
        o = causal_by_pytorch(q.float(), k.float(), v.float()).to(q.dtype)
    out = torch.empty_like(o)
    copy_kernel[(triton.cdiv(o.numel(), 256),)](o, out, o.numel(), BLOCK=256)
    return out


def causal_into_its_input(q, k, v):
    o = causal_with()(q, k, v)
    k.copy_(v)
    return o


def padded_by_pytorch(q, k, v, hidden):
    s = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    p = torch.softmax(s.masked_fill(hidden, -torch.inf), -1).nan_to_num(0.0)
    return (p @ v.float()).to(q.dtype)


def padded_by_the_package(q, k, v, hidden):
    given = (one[None, None] for one in (q, k, v))
    return attention(*given, key_padding_mask=hidden[None])[0, 0]
