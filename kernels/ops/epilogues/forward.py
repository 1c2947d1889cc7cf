"""The launches of a product with an epilogue: the same two kernels for every operation."""

from __future__ import annotations

import torch

from kernels.launch import capability, multiprocessors
from kernels.launch.gluon import may_take_gluon
from kernels.ops.epilogues.configurations import (
    Finish,
    epilogue_tiling,
    simple_tiling,
    suits_hopper,
)
from kernels.ops.epilogues.epilogue_kernels import epilogue_persistent, epilogue_tile
from kernels.ops.epilogues.given import Given
from kernels.ops.products.configurations import Tiling
from kernels.ops.products.forward import described, matrix
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor


def launch(
    given: Given,
    tiling: Tiling | None = None,
    *,
    hopper: bool = False,
    finish: Finish | None = None,
) -> None:
    """Write y, and what is kept, in one launch; the tiling is the card's if None.

    With `hopper` the kernel written for Hopper computes it where it can (`suits_hopper`), and
    finishes its tiles as `finish` says, or as its table does if None.
    """
    if given.y.numel() == 0:
        return
    x, card = given.x, capability(given.x.device)
    keeps = given.kept is not None
    rule = given.sizes, x.element_size(), given.aligned, given.gated
    where = card, multiprocessors(x.device)
    follows = given.activation is not None, keeps, given.heads
    if hopper and may_take_gluon(x) and suits_hopper(*rule, *follows, *where):
        from kernels.ops.epilogues import hopper as by_hand  # which imports Gluon

        by_hand.launch(given, finish=finish)
        return
    if tiling is None:
        tiling = epilogue_tiling(*rule, keeps or given.residual is not None, *where)
    with device_guard(x):
        if tiling.persistent:
            _persistent(given, tiling)
        else:
            _by_pointers(given, tiling)


def launch_simple(given: Given) -> None:
    """Write y by the kernel of the page, one tile a program, by plain pointers."""
    x = given.x
    launch(given, simple_tiling(x.element_size(), given.gated, capability(x.device)))


def _by_pointers(given: Given, tiling: Tiling) -> None:
    (m, k, n), residual = given.sizes, given.residual
    positions, n_heads, n_batches, head_size = given.heads or (1, 1, 1, None)
    epilogue_tile[(tiling.tiles(m, n),)](
        given.x,
        given.weight,
        given.bias,
        residual,
        given.y,
        given.kept,
        m,
        n,
        k,
        given.x.stride(0),
        given.weight.stride(-2),
        0 if residual is None else residual.stride(0),
        positions,
        n_heads,
        n_batches,
        ACTIVATION=given.activation,
        GATED=given.gated,
        HEAD_SIZE=head_size,
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        BLOCK_K=tiling.block_k,
        GROUP=tiling.group,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def _persistent(given: Given, tiling: Tiling) -> None:
    (m, k, n), x = given.sizes, given.x
    positions, n_heads, n_batches, head_size = given.heads or (1, 1, 1, None)
    block_m, block_n, block_k = tiling.block_m, tiling.block_n, tiling.block_k
    width = block_n // 2 if tiling.halves else block_n

    def leaving(one: Tensor | None) -> object:
        if one is None:
            return None
        return described(one, block_m, *(1,) * (one.dim() - 2), width)

    epilogue_persistent[(min(multiprocessors(x.device), tiling.tiles(m, n)),)](
        described(x, block_m, block_k),
        described(given.weight, *((2,) if given.gated else ()), block_n, block_k),
        given.bias,
        leaving(given.residual),
        None if given.heads else leaving(given.y),
        given.y if given.heads else None,
        leaving(given.kept),
        m,
        n,
        k,
        positions,
        n_heads,
        n_batches,
        ACTIVATION=given.activation,
        GATED=given.gated,
        HEAD_SIZE=head_size,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=tiling.group,
        HALVES=tiling.halves,
        FLATTEN=tiling.flatten,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


# ------------------------------------------------------------------------------- each operation


def with_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, keeps: bool
) -> tuple[Given, tuple[Tensor, Tensor | None]]:
    """The launch of act(x · weightᵀ + bias), and its outputs (..., N): y, and what is kept.

    x (..., K), weight (N, K), bias (N,) or None.
    """
    shape = *x.shape[:-1], len(weight)
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    kept = torch.empty(shape, dtype=x.dtype, device=x.device) if keeps else None
    given = Given(
        x=matrix(x),
        weight=matrix(weight),
        y=matrix(y),
        bias=None if bias is None else bias.contiguous(),
        activation=activation,
        kept=None if kept is None else matrix(kept),
    )
    return given, (y, kept)


def with_residual(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor
) -> tuple[Given, Tensor]:
    """The launch of residual + (x · weightᵀ + bias), and its output (..., N).

    x (..., K), weight (N, K), bias (N,) or None, residual (..., N).
    """
    y = torch.empty((*x.shape[:-1], len(weight)), dtype=x.dtype, device=x.device)
    given = Given(
        x=matrix(x),
        weight=matrix(weight),
        y=matrix(y),
        bias=None if bias is None else bias.contiguous(),
        residual=matrix(residual),
    )
    return given, y


def with_gate(
    x: Tensor, weight: Tensor, activation: str, keeps: bool
) -> tuple[Given, tuple[Tensor, Tensor | None]]:
    """The launch of act(x · gateᵀ) · (x · upᵀ), and its outputs: y (..., N), and what is kept.

    x (..., K), weight (2, N, K): gate, and up. What is kept is (..., 2N): both products.
    """
    n = weight.shape[1]
    y = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    kept = None
    if keeps:
        kept = torch.empty((*x.shape[:-1], 2 * n), dtype=x.dtype, device=x.device)
    given = Given(
        x=matrix(x),
        weight=matrix(weight).unflatten(0, (2, n)),
        y=matrix(y),
        activation=activation,
        kept=None if kept is None else kept.view(-1, 2, n),
    )
    return given, (y, kept)


def in_heads(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Given, Tensor]:
    """The launch of x · weightᵀ + bias laid out by heads, and its output (T, B, H, S, D).

    x (B, S, K), weight (T, H, D, K), bias (T, H, D) or None.
    """
    n_batches, positions, _ = x.shape
    n_parts, n_heads, head_size, _ = weight.shape
    shape = n_parts, n_batches, n_heads, positions, head_size
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    given = Given(
        x=matrix(x),
        weight=matrix(weight),
        y=y,
        bias=None if bias is None else bias.contiguous(),
        heads=(positions, n_heads, n_batches, head_size),
    )
    return given, y
