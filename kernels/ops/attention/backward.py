"""The launches of attention backward: dq, then dk and dv, then a bias's gradient; unchecked."""

from __future__ import annotations

from typing import Any

import torch

from kernels.launch import capability
from kernels.launch.gluon import may_take_gluon
from kernels.ops.attention.backward_configurations import (
    Tilings,
    suits_hopper_backward,
    tilings_for,
)
from kernels.ops.attention.backward_kernels import attention_dkdv, attention_dq
from kernels.ops.attention.configurations import Tiling, held_dim
from kernels.ops.attention.dbias_kernels import attention_dbias
from kernels.ops.attention.formula import Given
from kernels.ops.attention.forward import output_like, side_by_side
from kernels.ops.shared.operators import device_guard
from kernels.philox import scale as drop_scale
from kernels.philox import threshold

Tensor = torch.Tensor
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]


def backward(
    given: Given,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    wants_bias: bool,
    tilings: Tilings | None = None,
    bits: Tensor | None = None,
) -> Gradients:
    """Launch the backward of `given`; return dq, dk, dv, and dbias or None.

    out (B, H, Sq, D) and lse (B, H, Sq), fp32 and contiguous, are what forward returned; d_out is
    of out's shape and dtype with any strides, d_lse of lse's shape or None. The gradients of q, k
    and v lie as `output_like` says, a bias's is contiguous. The tilings are the card's if None.
    `bits` are what the forward left, if it did.
    """
    q, k, v, d_out, out = map(side_by_side, (given.q, given.k, given.v, d_out, out))
    dq, dk, dv = output_like(q), output_like(k), output_like(v)
    bias = given.bias
    dbias = None
    if wants_bias and bias is not None:
        dbias = torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)
    if 0 in (q.numel(), k.numel()):
        return dq.zero_(), dk.zero_(), dv.zero_(), None if dbias is None else dbias.zero_()
    if d_lse is not None:
        d_lse = d_lse.contiguous()
    (n_batch, n_heads, n_queries, head_dim), (_, own_heads, n_keys, _) = q.shape, k.shape
    drops = threshold(given.dropout_p) > 0
    card = capability(q.device)
    if given.by_hand and may_take_gluon(q) and suits_hopper_backward(given, d_out, card):
        from kernels.ops.attention import hopper_backward  # which imports Gluon

        found = (dq, dk, dv)
        hopper_backward.launch(
            *(q, k, v, out, lse, d_out, d_lse), *found, scale=given.scale, causal=given.causal,
            dropout_p=given.dropout_p, seed_offset=given.seed_offset, bits=bits,
        )  # fmt: skip
        return dq, dk, dv, dbias
    of_rows = torch.empty((2, *q.shape[:3]), dtype=torch.float32, device=q.device)
    ragged = given.q_lengths is not None or given.k_lengths is not None
    split = card >= (8, 0)
    if tilings is None:
        more = drops or bias is not None or given.key_padding_mask is not None
        tight = ragged or given.window is not None
        tilings = tilings_for(head_dim, q.element_size(), card, more=more, tight=tight)
    if bias is not None:
        bias = bias.expand(n_batch, n_heads, n_queries, n_keys)
    padding = given.key_padding_mask
    seed_offset = given.seed_offset if drops else None
    masks = (bias, padding, given.q_lengths, given.k_lengths, seed_offset)
    strides_of_masks = (
        *((0, 0, 0, 0) if bias is None else bias.stride()),
        *((0, 0) if padding is None else padding.stride()),
    )
    sizes = (
        *(n_queries, n_keys, min(given.window or 0, n_queries + n_keys)),
        *(threshold(given.dropout_p), drop_scale(given.dropout_p)),
    )
    flags: dict[str, Any] = {
        "CAUSAL": given.causal,
        "TOP_LEFT": given.top_left,
        "WINDOWED": given.window is not None,
        "DROPS": drops,
        "D": head_dim,
        "BLOCK_D": held_dim(head_dim),
    }
    strides_in = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    with device_guard(q):
        tiling = tilings.dq
        n_tiles = -(-n_queries // tiling.block_m)
        attention_dq[(n_tiles * n_heads * n_batch,)](
            *(q, k, v, out, d_out, dq, lse, d_lse, of_rows[0], of_rows[1], *masks),
            *strides_in,
            *(*out.stride()[:3], *d_out.stride()[:3], *dq.stride()[:3], *strides_of_masks),
            *(given.scale, n_heads, n_heads // own_heads, n_tiles, *sizes),
            RAGGED=ragged or n_keys % tiling.block_n != 0,
            SPLIT=split,
            **_run(tiling),
            **flags,
        )
        tiling = tilings.dkdv
        n_tiles = -(-n_keys // tiling.block_n)
        attention_dkdv[(n_tiles * own_heads * n_batch,)](
            *(q, k, v, d_out, dk, dv, of_rows[0], of_rows[1], *masks),
            *strides_in,
            *(*d_out.stride()[:3], *dk.stride()[:3], *dv.stride()[:3], *strides_of_masks),
            *(given.scale, own_heads, n_tiles, *sizes),
            GROUP=n_heads // own_heads,
            RAGGED=ragged or n_queries % tiling.block_m != 0,
            SPLIT=split,
            **_run(tiling),
            **flags,
        )
        if dbias is not None:
            tiling = tilings.dq
            shares = _shares(dbias, tiling, n_batch, n_heads, n_queries, n_keys)
            own_b, own_h, row_tiles, col_tiles, rows_each, cols_each = shares
            attention_dbias[(own_b * own_h * row_tiles * col_tiles,)](
                *(q, k, v, d_out, of_rows[0], of_rows[1], *masks, dbias),
                *strides_in,
                *(*d_out.stride()[:3], *strides_of_masks),
                *(given.scale, n_heads, n_heads // own_heads, own_h),
                *(n_batch // own_b, n_heads // own_h, row_tiles, col_tiles, rows_each, cols_each),
                *sizes,
                ONE_ROW=dbias.shape[2] == 1,
                ONE_COL=dbias.shape[3] == 1,
                **_run(tiling),
                **flags,
            )
    return dq, dk, dv, dbias


def _shares(
    dbias: Tensor, tiling: Tiling, n_batch: int, n_heads: int, n_queries: int, n_keys: int
) -> tuple[int, int, int, int, int, int]:
    """A bias's own batches and heads, its tiles of rows and columns, and how many each adds up."""
    own_b, own_h, n_rows, n_cols = dbias.shape
    row_tiles, col_tiles = -(-n_queries // tiling.block_m), -(-n_keys // tiling.block_n)
    rows = (1, row_tiles) if n_rows == 1 else (row_tiles, 1)
    cols = (1, col_tiles) if n_cols == 1 else (col_tiles, 1)
    return own_b, own_h, rows[0], cols[0], rows[1], cols[1]


def _run(tiling: Tiling) -> dict[str, int]:
    return {
        "BLOCK_M": tiling.block_m,
        "BLOCK_N": tiling.block_n,
        "num_warps": tiling.num_warps,
        "num_stages": tiling.num_stages,
    }
