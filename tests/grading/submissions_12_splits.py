"""Answers to 12.9: keys that several programs share, with a switch for each fault."""

import torch
import triton
import triton.language as tl


@triton.jit
def share_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    parts_ptr,
    lse_ptr,
    M,
    N,
    each,
    scale,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FAULT: tl.constexpr,
    IEEE: tl.constexpr,
):
    split, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, 16)
    dims = tl.arange(0, D)[None, :]
    row_mask = (rows < M)[:, None]
    q = tl.load(q_ptr + (head * M + rows[:, None]) * D + dims, mask=row_mask, other=0.0)
    m = tl.full([16], -float("inf"), tl.float32)
    l = tl.zeros([16], tl.float32)  # noqa: E741
    acc = tl.zeros([16, D], tl.float32)
    first = split * each
    last = min(first + each, N)
    if FAULT == "same share":
        first, last = 0, min(each, N)
    if FAULT == "all keys":
        first, last = 0, N
    if FAULT == "past N":
        last = first + each
    for start in range(first, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < last
        if FAULT == "overlap":
            inside = keys < N
        at = (head * N + keys[:, None]) * D + dims
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        if FAULT == "no other":
            v = tl.load(v_ptr + at, mask=inside[:, None])
        else:
            v = tl.load(v_ptr + at, mask=inside[:, None], other=0.0)
        s = tl.dot(q, k.T, input_precision="ieee" if IEEE else "tf32") * scale
        if FAULT == "scale twice":
            s = s * scale
        if FAULT != "zero":
            s = tl.where(inside[None, :], s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        if FAULT == "own maximum":
            new = tl.max(s, axis=1)
        p = tl.exp(s - new[:, None])
        correction = tl.exp(m - new)
        l = l * correction + tl.sum(p, axis=1)  # noqa: E741
        if FAULT != "l alone":
            acc = acc * correction[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee" if IEEE else "tf32")
        m = new
    total = tl.where(l == 0, 1.0, l)
    if FAULT == "empty divided":
        total = l
    place = (head * tl.num_programs(0) + split) * M + rows
    if FAULT == "one place":
        place = head * M + rows
    lse = m + tl.log(l)
    if FAULT == "lse is m":
        lse = m
    if FAULT == "lse is l":
        lse = tl.log(l)
    part = acc / total[:, None]
    if FAULT == "atomic":
        tl.atomic_add(parts_ptr + place[:, None] * D + dims, part, mask=row_mask)
        tl.atomic_add(lse_ptr + place, lse, mask=rows < M)
    elif FAULT == "empty left out":
        if first < N:
            tl.store(parts_ptr + place[:, None] * D + dims, part, mask=row_mask)
            tl.store(lse_ptr + place, lse, mask=rows < M)
    else:
        tl.store(
            parts_ptr + place[:, None] * D + dims,
            part.to(parts_ptr.dtype.element_ty),
            mask=row_mask,
        )
        tl.store(lse_ptr + place, lse.to(lse_ptr.dtype.element_ty), mask=rows < M)


@triton.jit
def weigh_kernel(
    parts_ptr, lse_ptr, o_ptr, M, splits, D: tl.constexpr, SPLITS: tl.constexpr,
    FAULT: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    split, dims = tl.arange(0, SPLITS), tl.arange(0, D)
    place = (head * splits + split) * M + row
    there = split < splits
    lse = tl.load(lse_ptr + place, mask=there, other=-float("inf")).to(tl.float32)
    top = tl.max(lse, axis=0)
    if FAULT == "no maximum":
        top = 0.0
    share = tl.exp(lse - top)
    if FAULT == "mean":
        share = tl.where(there, 1.0 / splits, 0.0)
    elif FAULT == "sum":
        share = tl.where(there, 1.0, 0.0)
    elif FAULT == "first":
        share = tl.where(split == 0, 1.0, 0.0)
    elif FAULT == "last":
        share = tl.where(split == splits - 1, 1.0, 0.0)
    elif FAULT != "not divided":
        share = share / tl.sum(share, axis=0)
    parts_at = parts_ptr + place[:, None] * D + dims[None, :]
    parts = tl.load(parts_at, mask=there[:, None], other=0.0).to(tl.float32)
    o = tl.sum(parts * share[:, None], axis=0)
    tl.store(o_ptr + (head * M + row) * D + dims, o.to(o_ptr.dtype.element_ty))


def split_with(fault="", merge="", block=32, warps=4, ieee=True, narrow=False):
    """The right attention, or one with faults; a share is a multiple of 32 unless it overlaps."""

    def split_attention(q, k, v, splits):
        (heads, m, d), n = q.shape, k.shape[1]
        o = torch.empty_like(q)
        make = torch.zeros if fault == "atomic" else torch.empty
        kind = q.dtype if narrow else torch.float32
        parts = make((heads, splits, m, d), dtype=kind, device=q.device)
        lse = make((heads, splits, m), dtype=kind, device=q.device)
        each = triton.cdiv(triton.cdiv(n, splits), block) * block
        if fault in ("overlap", "ragged shares"):
            each = triton.cdiv(n, splits)
        if fault == "rounded down":
            each = max(n // splits, 1)
        share_kernel[(splits, heads)](
            q, k, v, parts, lse, m, n, each, d**-0.5, d, block, fault, ieee, num_warps=warps
        )
        room = triton.next_power_of_2(splits)
        weigh_kernel[(m, heads)](parts, lse, o, m, splits, d, room, merge)
        return o

    return split_attention


# Right, and written otherwise: states without a division, splits that take every splits-th block,
# and a head's queries at once in the second launch.
@triton.jit
def striding_kernel(q_ptr, k_ptr, v_ptr, acc_ptr, ml_ptr, m_rows, n, splits, scale,
                    D: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    head, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    row = tl.arange(0, 16)[:, None]
    dim = tl.arange(0, D)[None, :]
    q = tl.load(q_ptr + (head * m_rows + row) * D + dim, mask=row < m_rows, other=0.0)
    m = tl.full((16, 1), -1.0e30, tl.float32)
    total = tl.zeros((16, 1), tl.float32)
    acc = tl.zeros((16, D), tl.float32)
    for i in range(split, tl.cdiv(n, STEP), splits):
        key = i * STEP + tl.arange(0, STEP)
        at = head * n * D + key[:, None] * D + dim
        k = tl.load(k_ptr + at, mask=key[:, None] < n, other=0.0)
        v = tl.load(v_ptr + at, mask=key[:, None] < n, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(key[None, :] < n, s, -1.0e30)
        top = tl.maximum(m, tl.max(s, axis=1, keep_dims=True))
        p = tl.exp(s - top)
        total = total * tl.exp(m - top) + tl.sum(p, axis=1, keep_dims=True)
        acc = acc * tl.exp(m - top) + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = top
    place = (head * m_rows + row) * splits + split
    tl.store(acc_ptr + place * D + dim, acc, mask=row < m_rows)
    tl.store(ml_ptr + place * 2, m, mask=row < m_rows)
    tl.store(ml_ptr + place * 2 + 1, total, mask=row < m_rows)


@triton.jit
def states_kernel(acc_ptr, ml_ptr, o_ptr, m_rows, splits, D: tl.constexpr):
    row = tl.program_id(0)
    dim = tl.arange(0, D)
    m, total = -1.0e30, 0.0
    acc = tl.zeros((D,), tl.float32)
    for split in range(splits):
        place = row * splits + split
        m_here = tl.load(ml_ptr + place * 2)
        top = tl.maximum(m, m_here)
        old, here = tl.exp(m - top), tl.exp(m_here - top)
        total = total * old + tl.load(ml_ptr + place * 2 + 1) * here
        acc = acc * old + tl.load(acc_ptr + place * D + dim) * here
        m = top
    tl.store(o_ptr + row * D + dim, (acc / total).to(o_ptr.dtype.element_ty))


def striding_attention(q, k, v, splits):
    heads, m, d = q.shape
    n = k.shape[1]
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    acc = torch.empty(heads, m, splits, d, device=q.device)
    ml = torch.empty(heads, m, splits, 2, device=q.device)
    striding_kernel[(heads * splits,)](
        q, k, v, acc, ml, m, n, splits, d**-0.5, D=d, STEP=16, num_warps=2
    )
    states_kernel[(heads * m,)](acc, ml, o, m, splits, D=d)
    return o


def whole_keys(q, k, v, splits):
    """One program a head, as it is given out."""
    return split_with()(q, k, v, 1)


def merged_by_pytorch(q, k, v, splits):
    (heads, m, d), n = q.shape, k.shape[1]
    parts = torch.empty((heads, splits, m, d), device=q.device)
    lse = torch.empty((heads, splits, m), device=q.device)
    each = triton.cdiv(triton.cdiv(n, splits), 32) * 32
    share_kernel[(splits, heads)](q, k, v, parts, lse, m, n, each, d**-0.5, d, 32, "", True)
    return (parts * torch.softmax(lse, 1)[..., None]).sum(1).to(q.dtype)


def split_by_pytorch(q, k, v, splits):
    s = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    return (torch.softmax(s, -1) @ v.float()).to(q.dtype)


def a_program_a_query(q, k, v, splits):
    """Each query walks by itself: keys are asked for once a query."""
    parts = [split_with()(q[:, i : i + 1].contiguous(), k, v, splits) for i in range(q.shape[1])]
    return torch.cat(parts, 1)
