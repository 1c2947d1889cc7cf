"""The launches of a norm and a product: two kernels, one with a prologue, one folded."""

from __future__ import annotations

import torch

from kernels.launch import capability, multiprocessors
from kernels.launch.gluon import may_take_gluon
from kernels.ops.epilogues.configurations import Finish
from kernels.ops.norms.forward import forward as norm_forward
from kernels.ops.products.configurations import HOPPER, Tiling, by_descriptors
from kernels.ops.products.forward import described, matrix
from kernels.ops.products.operators import FORWARD_BY
from kernels.ops.prologues.configurations import (
    folded_tiling,
    one_kernel_tiling,
    statistics_apart,
    suits_hopper,
)
from kernels.ops.prologues.folding import Folded
from kernels.ops.prologues.kernels import folded_persistent, folded_tile, norm_linear_tile
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor


def two_kernels(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    centred: bool,
    product_by: str,
) -> Tensor:
    """Launch the norm, then the product; return y (..., N). Nothing is checked here.

    x (..., K), norm_weight, norm_bias (K,) or None, weight (N, K), bias (N,) or None; the product
    by one of `products.configurations`' ways.
    """
    h = norm_forward(x, None, norm_weight, norm_bias, eps, centred=centred)[0]
    return FORWARD_BY[product_by](h, weight, bias)


def one_kernel(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    centred: bool,
    tiling: Tiling | None = None,
    activation: str | None = None,
) -> Tensor:
    """Launch the product whose prologue normalises; arguments as of `two_kernels`.

    `activation` is GELU's form behind it, or None.
    """
    y = _empty(x, weight)
    if y.numel() == 0:
        return y
    x, weight, out = matrix(x), matrix(weight), matrix(y)
    (m, k), n = x.shape, len(weight)
    if tiling is None:
        aligned = by_descriptors(x, weight, out)
        tiling = one_kernel_tiling(m, x.element_size(), aligned, capability(x.device))
    parameters = (norm_weight, norm_bias, weight, bias)
    norm_weight, norm_bias, _, bias = (None if p is None else p.contiguous() for p in parameters)
    with device_guard(x):
        norm_linear_tile[(tiling.tiles(m, n),)](
            x,
            norm_weight,
            norm_bias,
            weight,
            bias,
            out,
            m,
            n,
            k,
            x.stride(0),
            weight.stride(0),
            eps,
            CENTRED=centred,
            ACTIVATION=activation,
            BLOCK_M=tiling.block_m,
            BLOCK_N=tiling.block_n,
            BLOCK_K=tiling.block_k,
            GROUP=tiling.group,
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
    return y


def folded_forward(
    x: Tensor,
    folded: Folded,
    eps: float,
    *,
    hopper: bool = False,
    tiling: Tiling | None = None,
    activation: str | None = None,
    finish: Finish | None = None,
) -> Tensor:
    """Launch the product of x (..., K) with folded weights; return y (..., N).

    With `hopper` the kernel written for Hopper computes it where it can (`suits_hopper`), and
    finishes its tiles as `finish` says, or as its table does if None. `activation` is GELU's form
    behind it, or None. Nothing is checked here.
    """
    weight, sums, bias = folded
    y = _empty(x, weight)
    if y.numel() == 0:
        return y
    x, out = matrix(x), matrix(y)
    (m, k), n = x.shape, len(weight)
    aligned, card = by_descriptors(x, weight, out), capability(x.device)
    rule = x.element_size(), aligned, card, multiprocessors(x.device)
    if hopper and may_take_gluon(x) and suits_hopper((m, k, n), *rule):
        from kernels.ops.prologues import hopper as by_hand  # which imports Gluon

        by_hand.launch(x, folded, out, eps, activation=activation, finish=finish)
        return y
    if tiling is None:
        tiling = folded_tiling(m, x.element_size(), aligned, card)
    blocks = {
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "BLOCK_K": tiling.block_k,
        "STAGES": tiling.num_stages,
        "APART": statistics_apart(card),
    }
    warps = {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
    centred = sums is not None
    with device_guard(x):
        if tiling.persistent:
            wide = tiling.block_n // 2 if tiling.halves else tiling.block_n
            folded_persistent[(min(multiprocessors(x.device), tiling.tiles(m, n)),)](
                described(x, tiling.block_m, tiling.block_k),
                described(weight, tiling.block_n, tiling.block_k),
                sums,
                bias,
                described(out, tiling.block_m, wide),
                m,
                n,
                k,
                eps,
                CENTRED=centred,
                ACTIVATION=activation,
                **blocks,
                GROUP=tiling.group,
                HALVES=tiling.halves,
                FLATTEN=tiling.flatten,
                **warps,
            )
        else:
            folded_tile[(tiling.tiles(m, n),)](
                x,
                weight,
                sums,
                bias,
                out,
                m,
                n,
                k,
                x.stride(0),
                eps,
                CENTRED=centred,
                ACTIVATION=activation,
                **blocks,
                GROUP=tiling.group,
                **warps,
            )
    return y


def folded_by(
    x: Tensor,
    weight: Tensor,
    sums: Tensor | None,
    bias: Tensor,
    eps: float,
    activation: str | None,
    by: str,
) -> Tensor:
    """`folded_forward` as an operator takes it: by the package's Triton, or its own for Hopper."""
    folded = Folded(weight, sums, bias)
    return folded_forward(x, folded, eps, hopper=by == HOPPER, activation=activation)


def _empty(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty((*x.shape[:-1], len(weight)), dtype=x.dtype, device=x.device)
