"""The launch of attention forward: the output and its layout, tiles, descriptors; unchecked."""

from __future__ import annotations

from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launch import capability
from kernels.launch.gluon import may_take_gluon
from kernels.ops.attention.configurations import (
    HOPPER_DROPPED,
    Tiling,
    by_descriptors,
    held_dim,
    suits_hopper,
    tiling_for,
)
from kernels.ops.attention.forward_kernels import attention_forward
from kernels.ops.shared.operators import device_guard
from kernels.philox import NUMBERS, threshold
from kernels.philox import scale as drop_scale

Tensor = torch.Tensor


def output_like(q: Tensor) -> Tensor:
    """An output of q's shape, (B, H, S, D): the heads of a place side by side if q's are.

    So a projection of the output takes it as it lies. Else it is contiguous.
    """
    b, h, s, d = q.shape
    strides = (h * s * d, s * d, d, 1)
    if h > 1 and s > 1 and q.stride(1) < q.stride(2):
        strides = (s * h * d, d, h * d, 1)
    return torch.empty_strided((b, h, s, d), strides, dtype=q.dtype, device=q.device)


def side_by_side(x: Tensor) -> Tensor:
    """x, or a contiguous copy of it where its last dimension has gaps."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    q_lengths: Tensor | None = None,
    k_lengths: Tensor | None = None,
    seed_offset: Tensor | None = None,
    causal: bool = False,
    top_left: bool = False,
    window: int | None = None,
    scale: float = 1.0,
    dropout_p: float = 0.0,
    want_lse: bool = False,
    by_hand: bool = False,
    tiling: Tiling | None = None,
    bits: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Launch attention; return the output (B, H, Sq, D) and log-sum-exp (B, H, Sq), or None.

    Arguments as of `attention`, unchecked; `top_left` aligns a causal mask at the first query and
    key. `by_hand` takes the kernel written for Hopper where it can. The tiling is the card's if
    None. `bits`, which `dropped_bits.left_by_forward` gives, gets what is dropped; ValueError where
    the kernel that runs leaves none.
    """
    q, k, v = side_by_side(q), side_by_side(k), side_by_side(v)
    out = output_like(q)
    (n_batch, n_heads, n_queries, head_dim), n_keys = q.shape, k.shape[2]
    lse = None
    if want_lse:
        lse = torch.empty((n_batch, n_heads, n_queries), dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out, lse
    drops = threshold(dropout_p) > 0
    more = drops or bias is not None or key_padding_mask is not None
    ragged = q_lengths is not None or k_lengths is not None
    plain = bias is None and window is None
    if drops:
        plain = plain and not ragged and key_padding_mask is None
        plain = plain and head_dim in HOPPER_DROPPED and threshold(dropout_p) < NUMBERS
    plain = plain and not (causal and top_left and (ragged or n_queries != n_keys))
    card = capability(q.device)
    if by_hand and plain and may_take_gluon(q) and suits_hopper(q, k, v, card):
        from kernels.ops.attention import hopper  # which imports Gluon

        hopper.launch(
            *(q, k, v, out, lse),
            scale=scale,
            causal=causal,
            key_padding_mask=key_padding_mask,
            q_lengths=q_lengths,
            k_lengths=k_lengths,
            dropout_p=dropout_p,
            seed_offset=seed_offset,
            bits=bits,
        )
        return out, lse
    if bits is not None:
        raise ValueError("bits are given; only attention written for Hopper fills them")
    copied = not more and not ragged and by_descriptors(q, k, v)
    if tiling is None:
        kind = {"more": more, "tight": ragged or window is not None, "copied": copied}
        tiling = tiling_for(n_queries, head_dim, q.element_size(), card, **kind)
    dim = held_dim(head_dim)
    described = tiling.descriptors and copied
    sources: tuple[Any, ...] = (q, k, v)
    if described:
        sources = (
            _described(q, tiling.block_m, dim),
            _described(k, tiling.block_n, dim),
            _described(v, tiling.block_n, dim),
        )
    bias_strides: tuple[int, ...] = (0, 0, 0, 0)
    if bias is not None:
        bias = bias.expand(n_batch, n_heads, n_queries, n_keys)
        bias_strides = bias.stride()
    n_tiles = -(-n_queries // tiling.block_m)
    with device_guard(q):
        attention_forward[(n_tiles * n_heads * n_batch,)](
            *sources,
            out,
            lse,
            bias,
            key_padding_mask,
            q_lengths,
            k_lengths,
            seed_offset if drops else None,
            *q.stride()[:3],
            *k.stride()[:3],
            *v.stride()[:3],
            *out.stride()[:3],
            *bias_strides,
            *((0, 0) if key_padding_mask is None else key_padding_mask.stride()),
            scale,
            n_heads,
            n_heads // k.shape[1],
            n_tiles,
            n_queries,
            n_keys,
            min(window or 0, n_queries + n_keys),
            threshold(dropout_p),
            drop_scale(dropout_p),
            CAUSAL=causal,
            TOP_LEFT=top_left,
            WINDOWED=window is not None,
            RAGGED=ragged or n_keys % tiling.block_n != 0,
            DROPS=drops,
            D=head_dim,
            BLOCK_M=tiling.block_m,
            BLOCK_N=tiling.block_n,
            BLOCK_D=dim,
            DESCRIPTORS=described,
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
    return out, lse


def _described(x: Tensor, block_rows: int, block_dim: int) -> TensorDescriptor:
    """The descriptor of x (B, H, S, D) for rows of one head."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, block_rows, block_dim])
