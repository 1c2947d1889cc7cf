"""Answers to 09.2 and 09.9: a kernel read, and a router's softmax with its columns' means."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl


# 09.2
def read_by_parts(a, b, c):
    wide = a.float()
    h = wide / (1 + torch.exp(-wide)) * b.float()
    root = torch.sqrt(h.pow(2).sum(-1, keepdim=True) / h.shape[1] + 1e-6)
    return (h / root * c.float()).to(a.dtype)


def read_in_float64(a, b, c):
    h = a.double() * torch.sigmoid(a.double()) * b.double()
    return (F.rms_norm(h, h.shape[-1:], c.double(), 1e-6)).to(a.dtype)


def read_by_rms_norm(a, b, c):
    h = F.silu(a.float()) * b.float()
    return F.rms_norm(h, (h.size(-1),), weight=c.float(), eps=1e-6).type_as(a)


def read_with(gate=None, norm=None):
    """The right function, its gate of (a, b) or its norm of (h, c) replaced."""

    def as_read(a, b, c):
        wide = a.float(), b.float(), c.float()
        h = gate(*wide[:2]) if gate else F.silu(wide[0]) * wide[1]
        right = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6) * wide[2]
        return (norm(h, wide[2]) if norm else right).to(a.dtype)

    return as_read


def read_step_by_step(a, b, c):
    h = F.silu(a) * b
    return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6) * c


# 09.9
@triton.jit
def tile_kernel(
    x_ptr,
    probs_ptr,
    parts_ptr,
    n_tokens,
    n_experts,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    FAULT: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    tokens = program * TOKENS + tl.arange(0, TOKENS)[:, None]
    experts = tl.arange(0, BLOCK)[None, :]
    mask = (tokens < n_tokens) & (experts < n_experts)
    if FAULT == "no row mask":
        mask = (experts < n_experts) & (tokens >= 0)
    places = tokens * n_experts + experts
    if FAULT == "zeros":
        x = tl.load(x_ptr + places, mask=mask, other=0.0).to(tl.float32)
    elif FAULT == "no other":
        x = tl.load(x_ptr + places, mask=mask).to(tl.float32)
    else:
        x = tl.load(x_ptr + places, mask=mask, other=-float("inf")).to(tl.float32)
    if FAULT == "twice":
        x = tl.load(x_ptr + places, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=1, keep_dims=True)
    if FAULT == "no maximum":
        top = tl.zeros_like(top)
    if FAULT == "one maximum":
        top = tl.zeros_like(top) + tl.max(x)
    if FAULT != "nan rows":
        top = tl.where(tokens < n_tokens, top, 0.0)
    weight = tl.exp(x - top)
    total = tl.sum(weight, axis=1, keep_dims=True)
    if FAULT == "one maximum":
        total = tl.zeros_like(total) + tl.sum(weight)
    if FAULT == "columns":
        total = tl.sum(weight, axis=0, keep_dims=True)
    if FAULT != "nan rows":
        total = tl.where(total > 0, total, 1.0)
    probs = weight / total
    if FAULT == "undivided":
        probs = weight
    if FAULT == "uniform rows":
        probs = tl.where(tokens < n_tokens, probs, 1.0 / n_experts)
    tl.store(probs_ptr + places, probs.to(probs_ptr.dtype.element_ty), mask=mask)
    if FAULT == "rounded":
        probs = probs.to(probs_ptr.dtype.element_ty).to(tl.float32)
    sums = tl.sum(probs, axis=0)
    column = tl.arange(0, BLOCK)
    if FAULT == "means":
        sums = sums / tl.minimum(n_tokens - program * TOKENS, TOKENS)
    if FAULT == "atomics":
        tl.atomic_add(parts_ptr + column, sums, mask=column < n_experts)
    elif FAULT == "unmasked parts":
        tl.store(parts_ptr + program * n_experts + column, sums)
    else:
        tl.store(parts_ptr + program * n_experts + column, sums, mask=column < n_experts)


@triton.jit
def finish_kernel(
    parts_ptr,
    load_ptr,
    n_parts,
    divide_by,
    n_experts,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    FAULT: tl.constexpr,
):
    experts = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n_parts, PARTS):
        parts = first + tl.arange(0, PARTS)[:, None]
        mask = (parts < n_parts) & (experts < n_experts)[None, :]
        part = tl.load(
            parts_ptr + parts.to(tl.int64) * n_experts + experts[None, :], mask=mask, other=0.0
        ).to(tl.float32)
        if FAULT == "last part":
            total = tl.sum(part, axis=0)
        else:
            total += tl.sum(part, axis=0)
    if FAULT == "first part":
        total = tl.load(parts_ptr + experts, mask=experts < n_experts)
    tl.store(load_ptr + experts, total / divide_by, mask=experts < n_experts)


def routed_with(fault="", tokens_each=32, finish="", by=None, few_columns=False):
    def routed(x):
        tokens, experts = x.shape
        parts = triton.cdiv(tokens, tokens_each)
        probs = torch.empty_like(x)
        sums = torch.empty(parts, experts, dtype=torch.float32, device=x.device)
        load = torch.empty(experts, dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(experts)
        tile_kernel[(parts,)](
            x, probs, sums, tokens, experts, tokens_each, block, fault, num_warps=8
        )
        columns = 1 if few_columns else triton.cdiv(experts, 16)
        divide_by = by(tokens, experts, parts, tokens_each) if by else tokens
        finish_kernel[(columns,)](sums, load, parts, divide_by, experts, 8, 16, finish)
        return probs, load

    return routed


def routed_through_probs(x):
    """The second launch sums what the first one stored."""
    tokens, experts = x.shape
    probs, _ = _first(x)
    load = torch.empty(experts, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(experts, 16),)
    finish_kernel[grid](probs, load, tokens, tokens, experts, 32, 16, "")
    return probs, load


def _first(x, tokens_each=32):
    tokens, experts = x.shape
    parts = triton.cdiv(tokens, tokens_each)
    probs = torch.empty_like(x)
    sums = torch.empty(parts, experts, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(experts)
    tile_kernel[(parts,)](x, probs, sums, tokens, experts, tokens_each, block, "", num_warps=8)
    return probs, sums


def routed_and_pytorch(x):
    probs, sums = _first(x)
    return probs, sums.sum(0) / len(x)


def routed_by_atomics(x):
    tokens, experts = x.shape
    parts = triton.cdiv(tokens, 32)
    probs = torch.empty_like(x)
    sums = torch.zeros(experts, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(experts)
    tile_kernel[(parts,)](x, probs, sums, tokens, experts, 32, block, "atomics", num_warps=8)
    return probs, sums / tokens


def routed_by_pytorch(x):
    probs = torch.softmax(x.float(), -1)
    return probs.to(x.dtype), probs.mean(0)


def routed_alone(x):
    return _first(x)[0]


def routed_in_16_bits(x):
    probs, load = routed_with()(x)
    return probs, load.half()


def routed_in_three(x):
    probs, sums = _first(x, 16)
    tokens, experts = x.shape
    parts = len(sums)
    halves = torch.empty(1, experts, dtype=torch.float32, device=x.device)
    load = torch.empty(experts, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(experts, 16),)
    finish_kernel[grid](sums, halves, parts, 1, experts, 8, 16, "")
    finish_kernel[grid](halves, load, 1, tokens, experts, 8, 16, "")
    return probs, load


@triton.jit
def again_kernel(x_ptr, load_ptr, n_tokens, n_experts, BLOCK: tl.constexpr):
    """Go through x once more, a program for all columns."""
    column = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for token in range(0, n_tokens):
        x = tl.load(
            x_ptr + token * n_experts + column, mask=column < n_experts, other=-float("inf")
        ).to(tl.float32)
        weight = tl.exp(x - tl.max(x, axis=0))
        total += weight / tl.sum(weight, axis=0)
    tl.store(load_ptr + column, total / n_tokens, mask=column < n_experts)


def routed_through_x(x):
    probs, _ = _first(x)
    tokens, experts = x.shape
    load = torch.empty(experts, dtype=torch.float32, device=x.device)
    again_kernel[(1,)](x, load, tokens, experts, BLOCK=triton.next_power_of_2(experts))
    return probs, load


# Right, and written otherwise: columns in a loop for the finish, a mask in place of a guard.
@triton.jit
def guarded_kernel(x_ptr, y_ptr, s_ptr, n, width, ROWS: tl.constexpr, LANES: tl.constexpr):
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    inside = (rows[:, None] < n) & (lane[None, :] < width)
    at = rows[:, None].to(tl.int64) * width + lane[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=-1e30).to(tl.float32)
    e = tl.where(inside, tl.exp(x - tl.max(x, axis=1)[:, None]), 0.0)
    p = e * (1.0 / tl.maximum(tl.sum(e, axis=1), 1e-30))[:, None]
    tl.store(y_ptr + at, p.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(s_ptr + tl.program_id(0) * width + lane, tl.sum(p, 0) / n, mask=lane < width)


@triton.jit
def column_kernel(s_ptr, load_ptr, parts, width, LANES: tl.constexpr):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float32)
    for part in range(parts):
        total += tl.load(s_ptr + part * width + lane, mask=lane < width, other=0.0)
    tl.store(load_ptr + lane, total, mask=lane < width)


def guarded_router(x, rows=16):
    n, width = x.shape
    parts = triton.cdiv(n, rows)
    y = torch.empty(n, width, dtype=x.dtype, device=x.device)
    s = torch.empty((parts, width), dtype=torch.float32, device=x.device)
    load = torch.empty((width,), dtype=torch.float32, device=x.device)
    lanes = triton.next_power_of_2(width)
    guarded_kernel[(parts,)](x, y, s, n, width, ROWS=rows, LANES=lanes, num_warps=8)
    column_kernel[(triton.cdiv(width, 64),)](s, load, parts, width, LANES=64)
    return [y, load]
