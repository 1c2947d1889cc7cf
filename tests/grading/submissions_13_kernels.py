"""Answers to 13.2, 13.7 and 13.8: a backward's kernels with a switch for each fault, right ones."""

import torch
import triton
import triton.language as tl

from kernels.ops.attention.simple_backward import simple_delta, simple_dkdv


@triton.jit
def switched_delta(
    o_ptr, do_ptr, delta_ptr, n_rows, D: tl.constexpr, BLOCK_M: tl.constexpr, FAULT: tl.constexpr
):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    there = rows < n_rows
    if FAULT == "unmasked":
        there = rows >= 0
    o = tl.load(o_ptr + at, mask=there[:, None], other=0.0)
    do = tl.load(do_ptr + at, mask=there[:, None], other=0.0)
    if FAULT != "narrow":
        o, do = o.to(tl.float32), do.to(tl.float32)
    terms = o * do
    if FAULT == "o alone":
        terms = o
    if FAULT == "o squared":
        terms = o * o
    if FAULT == "do squared":
        terms = do * do
    if FAULT == "added":
        terms = o + do
    delta = tl.sum(terms, axis=1)
    if FAULT == "mean":
        delta = delta / D
    if FAULT == "negative":
        delta = -delta
    tl.store(delta_ptr + rows, delta, mask=rows < n_rows)


def delta_with(fault="", rows_each=64):
    def row_delta(o, do):
        heads, m, d = o.shape
        dtype = o.dtype if fault == "dtype of o" else torch.float32
        delta = torch.empty((heads, m), dtype=dtype, device=o.device)
        rows = m if fault == "one head" else heads * m
        grid = max(1, rows // rows_each) if fault == "few programs" else triton.cdiv(
            rows, rows_each
        )  # fmt: skip
        switched_delta[(grid,)](o, do, delta, rows, D=d, BLOCK_M=rows_each, FAULT=fault)
        return delta

    return row_delta


@triton.jit
def a_head_at_a_time_kernel(o_ptr, do_ptr, delta_ptr, M, D: tl.constexpr, EDGE: tl.constexpr):
    """A grid with an axis for heads, a column after the other, do first."""
    row = tl.program_id(1) * EDGE + tl.arange(0, EDGE)
    begin = (tl.program_id(0) * M + row) * D
    total = tl.zeros((EDGE,), tl.float32)
    for col in range(D):
        do = tl.load(do_ptr + begin + col, mask=row < M)
        total += do.to(tl.float32) * tl.load(o_ptr + begin + col, mask=row < M).to(tl.float32)
    tl.store(delta_ptr + tl.program_id(0) * M + row, total, mask=row < M)


def delta_a_head_at_a_time(o, do):
    heads, m, d = o.shape
    delta = torch.empty(o.shape[:2], device=o.device)
    a_head_at_a_time_kernel[(heads, triton.cdiv(m, 32))](o, do, delta, m, D=d, EDGE=32)
    return delta


def delta_by_pytorch(o, do):
    return (o.float() * do.float()).sum(-1)


def delta_by_the_packages_kernel(o, do):
    heads, m, d = o.shape
    delta = torch.empty((heads, m), device=o.device)
    grid = (triton.cdiv(heads * m, 64),)
    simple_delta[grid](o, do, delta, heads * m, D=d, BLOCK_M=64, num_warps=4)
    return delta


@triton.jit
def switched_backward(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    one_ptr,
    other_ptr,
    N,
    scale,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    OF_KEYS: tl.constexpr,
    FAULT: tl.constexpr,
):
    # own: what stays, queries for dq, keys for dk and dv; steps: what passes by.
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, row = head * N * D, head * N
    if FAULT == "first head":
        row = head * 0
    own = tile * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, D)[None, :]
    within = own[:, None] * D + dims
    there = (own < N)[:, None]
    if OF_KEYS:
        a = tl.load(k_ptr + first + within, mask=there, other=0.0)
        b = tl.load(v_ptr + first + within, mask=there, other=0.0)
    else:
        a = tl.load(q_ptr + first + within, mask=there, other=0.0)
        b = tl.load(do_ptr + first + within, mask=there, other=0.0)
        lse = tl.load(lse_ptr + row + own, mask=own < N, other=0.0)[:, None]
        delta = tl.load(delta_ptr + row + own, mask=own < N, other=0.0)[:, None]
    sums = tl.zeros([BLOCK, D], tl.float32)
    of_v = tl.zeros([BLOCK, D], tl.float32)
    begin, end = 0, N
    if OF_KEYS:
        begin = tile * BLOCK // STEP * STEP
        if FAULT == "late":
            begin = (tile + 1) * BLOCK // STEP * STEP
    else:
        end = tl.minimum((tile + 1) * BLOCK, N)
        if FAULT == "late":
            end = tile * BLOCK
    if FAULT == "all":
        begin, end = 0, N
    if FAULT == "whole steps":
        end = end // STEP * STEP
    if FAULT == "first step":
        end = tl.minimum(end, STEP)
    for start in range(begin, end, STEP):
        steps = start + tl.arange(0, STEP)
        at = steps[:, None] * D + dims
        mask = (steps < N)[:, None]
        if FAULT == "unmasked":
            mask = (steps >= 0)[:, None]
        if OF_KEYS:
            c = tl.load(q_ptr + first + at, mask=mask, other=0.0)
            e = tl.load(do_ptr + first + at, mask=mask, other=0.0)
            if FAULT == "no other":
                lse = tl.load(lse_ptr + row + steps, mask=steps < N)[None, :]
            else:
                lse = tl.load(lse_ptr + row + steps, mask=steps < N, other=0.0)[None, :]
            delta = tl.load(delta_ptr + row + steps, mask=steps < N, other=0.0)[None, :]
        else:
            c = tl.load(k_ptr + first + at, mask=mask, other=0.0)
            if FAULT == "no other":
                e = tl.load(v_ptr + first + at, mask=mask)
            else:
                e = tl.load(v_ptr + first + at, mask=mask, other=0.0)
        s = tl.dot(a, c.T) if FAULT == "tf32" else tl.dot(a, c.T, input_precision="ieee")
        if FAULT != "scores unscaled":
            s = s * scale
        if FAULT == "no lse":
            p = tl.exp(s)
        elif FAULT == "divided":
            p = tl.exp(s) / tl.exp(lse)
        elif FAULT == "base 2":
            p = tl.exp2(s - lse)
        else:
            p = tl.exp(s - lse)
        if OF_KEYS:
            seen = own[:, None] <= steps[None, :]
            if FAULT == "strict":
                seen = own[:, None] < steps[None, :]
            if FAULT == "upside down":
                seen = own[:, None] >= steps[None, :]
        else:
            seen = steps[None, :] <= own[:, None]
            if FAULT == "strict":
                seen = steps[None, :] < own[:, None]
            if FAULT == "upside down":
                seen = steps[None, :] >= own[:, None]
        if FAULT == "no mask":
            seen = (own[:, None] < N) & (steps[None, :] < N)
        p = tl.where(seen, p, 0.0)
        dp = tl.dot(b, e.T, input_precision="ieee")
        ds = p * (dp - delta)
        if FAULT == "no delta":
            ds = p * dp
        if FAULT == "delta added":
            ds = p * (dp + delta)
        if FAULT == "delta last":
            ds = tl.where(seen, p * dp - delta, 0.0)
        if FAULT == "no p":
            ds = tl.where(seen, dp - delta, 0.0)
        if FAULT == "p for ds":
            ds = p
        if FAULT == "ds for p":
            p = ds
        if FAULT == "fp32 operands":
            sums = tl.dot(ds, c.to(tl.float32), sums, input_precision="ieee")
        elif FAULT == "replaced":
            sums = tl.dot(ds.to(c.dtype), c, input_precision="ieee")
        else:
            sums = tl.dot(ds.to(c.dtype), c, sums, input_precision="ieee")
        if OF_KEYS:
            if FAULT == "q for do":
                of_v = tl.dot(p.to(c.dtype), c, of_v, input_precision="ieee")
            elif FAULT == "dv replaced":
                of_v = tl.dot(p.to(e.dtype), e, input_precision="ieee")
            else:
                of_v = tl.dot(p.to(e.dtype), e, of_v, input_precision="ieee")
        if FAULT == "narrow":
            sums = sums.to(tl.float16).to(tl.float32)
    if FAULT != "no scale":
        sums = sums * scale
    if FAULT == "scale twice":
        sums = sums * scale
    if FAULT == "dv scaled":
        of_v = of_v * scale
    if FAULT == "turned":
        sums = -sums
    if FAULT == "atomic":
        tl.atomic_add(one_ptr + first + within, sums.to(one_ptr.dtype.element_ty), mask=there)
    else:
        tl.store(one_ptr + first + within, sums.to(one_ptr.dtype.element_ty), mask=there)
    if OF_KEYS:
        tl.store(other_ptr + first + within, of_v.to(other_ptr.dtype.element_ty), mask=there)


def _launched(of_keys, given, out, fault, block, step, warps, stages=1):
    heads, n, d = given[0].shape
    tiles = max(1, n // block) if fault == "few programs" else triton.cdiv(n, block)
    switched_backward[(tiles, heads)](
        *given, *out, n, d**-0.5, D=d, BLOCK=block, STEP=step, OF_KEYS=of_keys, FAULT=fault,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def dq_with(fault="", block=32, step=32, warps=8, stages=1):
    def query_gradient(q, k, v, do, lse, delta):
        dq = torch.empty_like(q, dtype=torch.float32 if fault == "fp32 output" else None)
        given = (q, k, v, do, lse, delta)
        _launched(False, given, (dq, dq), fault, block, step, warps, stages)
        return dq

    return query_gradient


def dkdv_with(fault="", block=32, step=32, warps=8, stages=1):
    def key_gradients(q, k, v, do, lse, delta):
        dtype = torch.float32 if fault == "fp32 output" else None
        dk, dv = torch.empty_like(k, dtype=dtype), torch.empty_like(v)
        if fault == "atomic":
            dk.zero_()
        given = (q, k, v, do, lse, delta)
        _launched(True, given, (dk, dv), fault, block, step, warps, stages)
        return (dv, dk) if fault == "changed places" else (dk, dv)

    return key_gradients


# Right, and written otherwise.
@triton.jit
def rows_first_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, n, scale,
    D: tl.constexpr, EDGE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Queries as rows of a tile, the last tile of queries first; base 2; the scale within q."""
    tiles = tl.cdiv(n, EDGE)
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    begin = head.to(tl.int64) * n * D
    key = tile * EDGE + tl.arange(0, EDGE)
    dim = tl.arange(0, D)
    at = begin + key[:, None] * D + dim[None, :]
    there = key[:, None] < n
    k, v = tl.load(k_ptr + at, mask=there, other=0), tl.load(v_ptr + at, mask=there, other=0)
    dk, dv = tl.zeros((EDGE, D), tl.float32), tl.zeros((EDGE, D), tl.float32)
    low = tile * EDGE // STEP
    for step in range(tl.cdiv(n, STEP) - low):
        row = (tl.cdiv(n, STEP) - 1 - step) * STEP + tl.arange(0, STEP)
        by = begin + row[:, None] * D + dim[None, :]
        q = tl.load(q_ptr + by, mask=row[:, None] < n, other=0)
        do = tl.load(do_ptr + by, mask=row[:, None] < n, other=0)
        lse = tl.load(lse_ptr + head * n + row, mask=row < n, other=float("inf"))
        delta = tl.load(delta_ptr + head * n + row, mask=row < n, other=0)
        s = tl.dot(q, k.T, input_precision="ieee") * scale - lse[:, None]
        p = tl.exp2(s * 1.4426950408889634)
        p = tl.where((row[:, None] >= key[None, :]) & (row[:, None] < n), p, 0)
        ds = p * (tl.dot(do, v.T, input_precision="ieee") - delta[:, None])
        dv += tl.dot(p.to(do.dtype).T, do, input_precision="ieee")
        dk += tl.dot(ds.to(q.dtype).T, q, input_precision="ieee")
    tl.store(dv_ptr + at, dv.to(dv_ptr.dtype.element_ty), mask=there)
    tl.store(dk_ptr + at, (scale * dk).to(dk_ptr.dtype.element_ty), mask=there)


def dkdv_rows_first(q, k, v, do, lse, delta):
    heads, n, d = q.shape
    dk, dv = torch.empty_like(q), torch.empty_like(q)
    rows_first_kernel[(triton.cdiv(n, 32) * heads,)](
        q, k, v, do, lse, delta, dk, dv, n, d**-0.5, D=d, EDGE=32, STEP=16,
        num_warps=8, num_stages=1,
    )  # fmt: skip
    return [dk, dv]


# Wrong in the launch, or hostile.
def _by_pytorch(q, k, v, do, lse, delta):
    s = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    p = torch.exp(s - lse[..., None]).tril()
    ds = p * (do.float() @ v.float().mT - delta[..., None])
    return p, ds, q.shape[-1] ** -0.5


def dq_by_pytorch(q, k, v, do, lse, delta):
    _, ds, scale = _by_pytorch(q, k, v, do, lse, delta)
    return (ds @ k.float() * scale).to(q.dtype)


def dkdv_by_pytorch(q, k, v, do, lse, delta):
    p, ds, scale = _by_pytorch(q, k, v, do, lse, delta)
    return (ds.mT @ q.float() * scale).to(q.dtype), (p.mT @ do.float()).to(q.dtype)


def dkdv_in_two_launches(q, k, v, do, lse, delta):
    """A launch for each gradient: everything is asked for twice."""
    return dkdv_with()(q, k, v, do, lse, delta)[0], dkdv_with()(q, k, v, do, lse, delta)[1]


def dq_scaled_last(q, k, v, do, lse, delta):
    return dq_with("no scale")(q, k, v, do, lse, delta) * q.shape[-1] ** -0.5


def dkdv_by_the_packages_kernel(q, k, v, do, lse, delta):
    heads, n, d = q.shape
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    simple_dkdv[(triton.cdiv(n, 32), heads)](
        q, k, v, do, lse, delta, dk, dv, n, d**-0.5,
        CAUSAL=True, D=d, BLOCK_M=32, BLOCK_N=32, num_warps=8, num_stages=1,
    )  # fmt: skip
    return dk, dv
