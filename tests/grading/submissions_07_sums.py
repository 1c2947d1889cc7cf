"""Answers to 07.5 to 07.7: right ones written differently, and known-wrong ones."""

import torch
import triton
import triton.language as tl

from tests.grading.submissions_07 import tiled_rms_norm_dx


# 07.5: partial sums added up, with a switch for each fault.
@triton.jit
def parts_kernel(
    parts_ptr,
    sums_ptr,
    n_parts,
    n_cols,
    FAULT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([ROWS, COLS], tl.float32)
    end = n_parts
    if FAULT == "first tile":
        end = 1
    if FAULT == "rounded down":
        end = n_parts // ROWS * ROWS
    for start in range(0, end, ROWS):
        parts = start + tl.arange(0, ROWS)[:, None]
        mask = (parts < n_parts) & (cols < n_cols)[None, :]
        if FAULT == "no row mask":
            mask = (parts < n_parts + ROWS) & (cols < n_cols)[None, :]
        places = parts * n_cols + cols[None, :]
        if FAULT == "ones":
            tile = tl.load(parts_ptr + places, mask=mask, other=1.0)
        elif FAULT == "no other":
            tile = tl.load(parts_ptr + places, mask=mask)
        else:
            tile = tl.load(parts_ptr + places, mask=mask, other=0.0)
        if FAULT == "twice":
            tile = tl.load(parts_ptr + places, mask=mask, other=0.0)
        if FAULT == "replaces":
            total = tile
        else:
            total += tile
    sums = tl.sum(total, axis=0)
    if FAULT == "mean":
        sums /= n_parts
    if FAULT == "atomic":
        tl.atomic_xchg(sums_ptr + cols, sums, mask=cols < n_cols)
    else:
        tl.store(sums_ptr + cols, sums, mask=cols < n_cols)


def parts_with(fault, rows=16, cols=16, fewer=0):
    def sum_parts(parts):
        n_parts, n_cols = parts.shape
        sums = torch.empty(n_cols, dtype=torch.float32, device=parts.device)
        grid = (max(triton.cdiv(n_cols, cols) - fewer, 1),)
        parts_kernel[grid](parts, sums, n_parts, n_cols, FAULT=fault, ROWS=rows, COLS=cols)
        return sums

    return sum_parts


@triton.jit
def row_by_row_kernel(parts_ptr, sums_ptr, n_parts, n_cols, COLS: tl.constexpr):
    """One row of parts at a time, with a pointer that moves on."""
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = cols < n_cols
    total = tl.zeros([COLS], tl.float32)
    at = parts_ptr + cols
    for _ in range(n_parts):
        total += tl.load(at, mask=inside)
        at += n_cols
    tl.store(sums_ptr + cols, total, mask=inside)


def row_by_row(parts):
    n_parts, n_cols = parts.shape
    sums = torch.empty((n_cols,), dtype=torch.float32, device=parts.device)
    row_by_row_kernel[(triton.cdiv(n_cols, 64),)](parts, sums, n_parts, n_cols, COLS=64)
    return sums


@triton.jit
def one_tile_kernel(parts_ptr, sums_ptr, n_parts, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """All rows of some columns in one tile, without a loop."""
    parts = tl.arange(0, ROWS)[:, None]
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    mask = (parts < n_parts) & (cols < n_cols)[None, :]
    tile = tl.load(parts_ptr + parts * n_cols + cols[None, :], mask=mask)
    tl.store(sums_ptr + cols, tl.sum(tl.where(mask, tile, 0.0), axis=0), mask=cols < n_cols)


def one_tile(parts):
    n_parts, n_cols = parts.shape
    sums = torch.empty((n_cols,), dtype=torch.float32, device=parts.device)
    rows = triton.next_power_of_2(n_parts)
    one_tile_kernel[(triton.cdiv(n_cols, 8),)](parts, sums, n_parts, n_cols, ROWS=rows, COLS=8)
    return sums


# 07.6 and 07.7: the rows shared by programs, with a switch for each fault.
@triton.jit
def shared_kernel(
    x_ptr,
    dy_ptr,
    weight_ptr,
    inv_rms_ptr,
    dx_ptr,
    parts_ptr,
    n_rows,
    n_cols,
    rows_each,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    sums = tl.zeros([BLOCK], tl.float32)
    first = program * rows_each
    last = tl.minimum(first + rows_each, n_rows)
    if FAULT == "one row":
        last = tl.minimum(program + 1, n_rows)
        first = program
    if FAULT == "beyond":
        last = first + rows_each
    for row in range(first, last):
        inv_rms = tl.load(inv_rms_ptr + row)
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        if FAULT == "twice":
            x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask, other=0.0)
        x_hat = x if FAULT == "no factor" else x * inv_rms
        if FAULT == "half":
            term = (dy * x_hat.to(dy.dtype)).to(tl.float32)
        else:
            term = dy.to(tl.float32) * x_hat
        if FAULT == "dbias":
            term = dy.to(tl.float32)
        if dx_ptr is not None:
            g = dy.to(tl.float32)
            if FAULT != "no weight":
                g *= tl.load(weight_ptr + cols, mask=mask, other=0.0)
            if FAULT == "weighted":
                term = g * x_hat
            along = tl.sum(g * x_hat, axis=0) / (BLOCK if FAULT == "block" else n_cols)
            dx = (g - x_hat * along) * inv_rms
            tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if FAULT == "replaces":
            sums = term
        else:
            sums += term
        if FAULT == "each row":
            tl.store(parts_ptr + row * n_cols + cols, term, mask=mask)
    if FAULT == "atomic":
        tl.atomic_add(parts_ptr + cols, sums, mask=mask)
    elif FAULT == "no zeros":
        tl.store(parts_ptr + program * n_cols + cols, sums, mask=mask & (first < n_rows))
    elif FAULT != "each row":
        tl.store(parts_ptr + program * n_cols + cols, sums, mask=mask)


@triton.jit
def zeros_kernel(y_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.zeros([BLOCK], tl.float32), mask=places < n)


def _shared(fault, x, dy, weight, inv_rms, dx, programs):
    rows, n = x.shape
    own = rows if fault in ("each row", "a program a row") else programs
    parts = torch.empty(own, n, dtype=torch.float32, device=x.device)
    each = 1 if own == rows and fault else triton.cdiv(rows, own)
    if fault == "rounded down":
        each = rows // own
    if fault == "atomic":
        zeros_kernel[(triton.cdiv(n, 32),)](parts, n, BLOCK=32)
    shared_kernel[(own,)](
        *(x, dy, weight, inv_rms, dx, parts, rows, n, each),
        FAULT=fault,
        BLOCK=triton.next_power_of_2(n),
        num_warps=8,
    )
    if fault == "atomic":
        return parts[0]
    finish = parts_with("first tile", 1) if fault == "first alone" else parts_with("")
    return finish(parts)


def dweight_with(fault):
    def weight_gradient(x, dy, inv_rms, programs):
        return _shared(fault, x, dy, None, inv_rms, None, programs)

    return weight_gradient


def one_pass_with(fault):
    def rms_norm_backward(x, dy, weight, inv_rms, programs):
        dx = torch.empty_like(x)
        return dx, _shared(fault, x, dy, weight, inv_rms, dx, programs)

    return rms_norm_backward


@triton.jit
def strided_kernel(
    x_ptr,
    dy_ptr,
    weight_ptr,
    inv_rms_ptr,
    dx_ptr,
    parts_ptr,
    n_rows,
    n_cols,
    BLOCK: tl.constexpr,
):
    """Each program steps over the others' rows."""
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    sums = tl.zeros([BLOCK], tl.float32)
    for row in range(program, n_rows, tl.num_programs(0)):
        inv_rms = tl.load(inv_rms_ptr + row)
        x_hat = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32) * inv_rms
        dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        sums += dy * x_hat
        if dx_ptr is not None:
            g = dy * tl.load(weight_ptr + cols, mask=mask, other=0.0)
            dx = (g - x_hat * (tl.sum(g * x_hat, axis=0) / n_cols)) * inv_rms
            tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(parts_ptr + program * n_cols + cols, sums, mask=mask)


def _strided(x, dy, weight, inv_rms, dx, programs):
    rows, n = x.shape
    parts = torch.empty(programs, n, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(n)
    strided_kernel[(programs,)](
        *(x, dy, weight, inv_rms, dx, parts, rows, n), BLOCK=block, num_warps=8
    )
    return row_by_row(parts)


def strided_dweight(x, dy, inv_rms, programs):
    return _strided(x, dy, None, inv_rms, None, programs)


def strided_one_pass(x, dy, weight, inv_rms, programs):
    dx = torch.empty_like(x)
    return [dx, _strided(x, dy, weight, inv_rms, dx, programs)]


@triton.jit
def shared_tiles_kernel(
    x_ptr,
    dy_ptr,
    weight_ptr,
    inv_rms_ptr,
    dx_ptr,
    parts_ptr,
    n_rows,
    n_cols,
    rows_each,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Tiles of whole rows; the sums have a place for each element of a tile."""
    first = tl.program_id(0) * rows_each
    last = tl.minimum(first + rows_each, n_rows)
    cols = tl.arange(0, BLOCK)[None, :]
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)[:, None]
        mask = (rows < last) & (cols < n_cols)
        inv_rms = tl.load(inv_rms_ptr + rows, mask=rows < last, other=0.0)
        x_hat = tl.load(x_ptr + rows * n_cols + cols, mask=mask, other=0.0).to(tl.float32) * inv_rms
        dy = tl.load(dy_ptr + rows * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        sums += dy * x_hat
        if dx_ptr is not None:
            g = dy * tl.load(weight_ptr + cols, mask=cols < n_cols, other=0.0)
            along = tl.sum(g * x_hat, axis=1)[:, None] / n_cols
            dx = (g - x_hat * along) * inv_rms
            tl.store(dx_ptr + rows * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    out = tl.arange(0, BLOCK)
    part = tl.sum(sums, axis=0)
    tl.store(parts_ptr + tl.program_id(0) * n_cols + out, part, mask=out < n_cols)


def _tiled(x, dy, weight, inv_rms, dx, programs):
    rows, n = x.shape
    # Programs that would have no row are left out.
    programs = triton.cdiv(rows, triton.cdiv(rows, programs))
    parts = torch.empty(programs, n, dtype=torch.float32, device=x.device)
    shared_tiles_kernel[(programs,)](
        *(x, dy, weight, inv_rms, dx, parts, rows, n, triton.cdiv(rows, programs)),
        ROWS=2,
        BLOCK=triton.next_power_of_2(n),
        num_warps=16,
    )
    return parts_with("", 8, 64)(parts)


def tiled_dweight(x, dy, inv_rms, programs):
    return _tiled(x, dy, None, inv_rms, None, programs)


def tiled_one_pass(x, dy, weight, inv_rms, programs):
    dx = torch.empty_like(x)
    return dx, _tiled(x, dy, weight, inv_rms, dx, programs)


def dweight_by_pytorch(x, dy, inv_rms, programs):
    return (dy.float() * x.float() * inv_rms[:, None]).sum(0)


def three_launches(x, dy, weight, inv_rms, programs):
    """Right, and x and dy are read twice."""
    return tiled_rms_norm_dx(x, dy, weight, inv_rms), strided_dweight(x, dy, inv_rms, programs)


def the_wrong_way_round(x, dy, weight, inv_rms, programs):
    return strided_one_pass(x, dy, weight, inv_rms, programs)[::-1]


def dweight_by_half_the_programs(x, dy, inv_rms, programs):
    return tiled_dweight(x, dy, inv_rms, max(programs // 2, 1))


def finished_by_one_program(x, dy, inv_rms, programs):
    rows, n = x.shape
    parts = torch.empty(programs, n, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(n)
    strided_kernel[(programs,)](*(x, dy, None, inv_rms, None, parts, rows, n), BLOCK=block)
    return parts_with("", 1, block)(parts)
