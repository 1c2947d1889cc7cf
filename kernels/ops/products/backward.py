"""The launches of the gradients of y = x · wᵀ + b."""

from __future__ import annotations

import torch

from kernels.launch import capability, multiprocessors
from kernels.ops.products.backward_kernels import (
    add_splits,
    gradient_persistent,
    gradient_tile,
)
from kernels.ops.products.configurations import Tiling, by_descriptors, gradient_tiling, shared_out
from kernels.ops.products.forward import described, matrix
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor

ADDED = 1024  # elements that a program of `add_splits` takes; not timed yet


def grad_x(dy: Tensor, weight: Tensor, tiling: Tiling | None = None) -> Tensor:
    """Launch dX = dY · W; return it contiguous, (..., K). Nothing is checked here.

    dy (..., N), weight (N, K).
    """
    dx = torch.empty((*dy.shape[:-1], weight.shape[1]), dtype=dy.dtype, device=dy.device)
    if dx.numel():
        product(matrix(dy), matrix(weight), matrix(dx), None, across=False, tiling=tiling)
    return dx


def grad_weight(
    dy: Tensor, x: Tensor, wants_bias: bool, tiling: Tiling | None = None
) -> tuple[Tensor, Tensor | None]:
    """Launch dW = dYᵀ · X, and with it db; return (dW (N, K), db (N,)), db None where not wanted.

    dy (..., N), x (..., K). Nothing is checked here.
    """
    n, k = dy.shape[-1], x.shape[-1]
    dweight = torch.empty((n, k), dtype=x.dtype, device=x.device)
    dbias = torch.empty(n, dtype=x.dtype, device=x.device) if wants_bias else None
    if dy.numel():
        product(matrix(dy), matrix(x), dweight, dbias, across=True, tiling=tiling)
        return dweight, dbias
    dweight.zero_()
    return dweight, None if dbias is None else dbias.zero_()


def product(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    sums: Tensor | None = None,
    across: bool = False,
    tiling: Tiling | None = None,
) -> None:
    """Write a · b to `out` (m, n), or aᵀ · b with `across`, whose rows of aᵀ are summed too."""
    (m, n), depth = out.shape, len(b)
    aligned = by_descriptors(a, b, out)
    if tiling is None:
        sms = multiprocessors(a.device)
        tiling = gradient_tiling(
            (m, n, depth), a.element_size(), aligned, across, capability(a.device), sms
        )
    splits, each = shared_out(depth, tiling)
    parts, part_sums = out, sums
    if splits > 1:
        parts = torch.empty((splits, m, n), dtype=torch.float32, device=a.device)
        if sums is not None:
            part_sums = torch.empty((splits, m), dtype=torch.float32, device=a.device)
    with device_guard(a):
        if tiling.persistent:
            _persistent(a, b, out, parts, part_sums, across, tiling, splits, each)
        else:
            _by_pointers(a, b, out, parts, part_sums, across, tiling, splits, each)
        if splits > 1:
            _finish(parts, out)
            if sums is not None and part_sums is not None:
                _finish(part_sums, sums)


def _by_pointers(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    parts: Tensor,
    sums: Tensor | None,
    across: bool,
    tiling: Tiling,
    splits: int,
    each: int,
) -> None:
    m, n = out.shape
    gradient_tile[(tiling.tiles(m, n), splits)](
        a,
        b,
        parts,
        sums,
        m,
        n,
        len(b),
        each,
        a.stride(0),
        b.stride(0),
        ACROSS=across,
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        BLOCK_K=tiling.block_k,
        GROUP=tiling.group,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def _persistent(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    parts: Tensor,
    sums: Tensor | None,
    across: bool,
    tiling: Tiling,
    splits: int,
    each: int,
) -> None:
    m, n = out.shape
    block_m, block_n, block_k = tiling.block_m, tiling.block_n, tiling.block_k
    gradient_persistent[(min(multiprocessors(a.device), tiling.tiles(m, n) * splits),)](
        described(a, *((block_k, block_m) if across else (block_m, block_k))),
        described(b, block_k, block_n),
        described(out, block_m, block_n // 2 if tiling.halves else block_n),
        parts if splits > 1 else None,
        sums,
        m,
        n,
        len(b),
        each,
        splits,
        ACROSS=across,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=tiling.group,
        HALVES=tiling.halves,
        FLATTEN=tiling.flatten,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def _finish(parts: Tensor, out: Tensor) -> None:
    """Add up the parts of a sum, the first dimension of `parts`."""
    grid = (-(-out.numel() // ADDED),)
    add_splits[grid](parts, out, out.numel(), len(parts), BLOCK=ADDED, num_warps=4)
