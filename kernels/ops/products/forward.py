"""The launches of y = x · wᵀ + b."""

from __future__ import annotations

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launch import capability, for_card, multiprocessors
from kernels.launch.gluon import may_take_gluon
from kernels.ops.products.configurations import (
    SIMPLE,
    SINGLE,
    Tiling,
    by_descriptors,
    forward_tiling,
    suits_hopper,
)
from kernels.ops.products.forward_kernels import linear_persistent, linear_tile
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import one_row_stride

Tensor = torch.Tensor


def matrix(x: Tensor) -> Tensor:
    """x (..., K) as a matrix of its rows, K elements side by side; a copy where it must be."""
    x, stride = one_row_stride(x)
    n_cols = x.shape[-1]
    n_rows = x.numel() // n_cols
    return x.as_strided((n_rows, n_cols), (n_cols if n_rows == 1 else stride, 1))


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tiling: Tiling | None = None,
    *,
    hopper: bool = False,
) -> Tensor:
    """Launch the product; return y (..., N), contiguous. Nothing is checked here.

    x (..., K), weight (N, K), bias (N,) or None. The tiling is the card's if None. With `hopper`
    the kernel written for Hopper computes it where it can (`suits_hopper`).
    """
    y = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    if y.numel():
        into(x, weight, bias, matrix(y), tiling, hopper=hopper)
    return y


def into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    tiling: Tiling | None = None,
    *,
    hopper: bool = False,
) -> None:
    """Launch the product; write it to `out` (M, N), not empty. Other arguments as `forward`."""
    x, weight = matrix(x), matrix(weight)
    bias = None if bias is None else bias.contiguous()
    aligned, card = by_descriptors(x, weight, out), capability(x.device)
    sizes = *x.shape, len(weight)
    rule = sizes, x.element_size(), aligned, card, multiprocessors(x.device)
    if hopper and may_take_gluon(x) and suits_hopper(*rule):
        from kernels.ops.products import hopper as by_hand  # which imports Gluon

        by_hand.launch(x, weight, bias, out)
        return
    if tiling is None:
        tiling = forward_tiling(*rule)
    with device_guard(x):
        if tiling.persistent:
            persistent(x, weight, bias, out, tiling)
        else:
            by_pointers(x, weight, bias, out, tiling)


def simple(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The kernel of the page, one tile a program, by plain pointers; arguments as `forward`."""
    single = x.element_size() == 4
    return forward(x, weight, bias, SINGLE if single else for_card(SIMPLE, capability(x.device)))


def by_pointers(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, tiling: Tiling) -> None:
    """Launch a program for each tile of y; x (M, K), weight (N, K) and y (M, N) are matrices."""
    (m, k), n = x.shape, len(weight)
    linear_tile[(tiling.tiles(m, n),)](
        x,
        weight,
        bias,
        y,
        m,
        n,
        k,
        x.stride(0),
        weight.stride(0),
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        BLOCK_K=tiling.block_k,
        GROUP=tiling.group,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def persistent(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, tiling: Tiling) -> None:
    """Launch as many programs as SMs, or as tiles if they are fewer; all rows are aligned."""
    (m, k), n = x.shape, len(weight)
    block_m, block_n, block_k = tiling.block_m, tiling.block_n, tiling.block_k
    linear_persistent[(min(multiprocessors(x.device), tiling.tiles(m, n)),)](
        described(x, block_m, block_k),
        described(weight, block_n, block_k),
        bias,
        described(y, block_m, block_n // 2 if tiling.halves else block_n),
        m,
        n,
        k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=tiling.group,
        HALVES=tiling.halves,
        FLATTEN=tiling.flatten,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def described(x: Tensor, *block: int) -> TensorDescriptor:
    """The descriptor of a matrix for tiles of `block`."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(block))
