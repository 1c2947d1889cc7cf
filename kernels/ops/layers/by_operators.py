"""The encoder layer by PyTorch's operators, one after the other, with this package's dropout masks.

In float64 it is what the fused layer is held to; in another dtype it rounds where PyTorch's layer
does. Without a dropout it is `torch.nn.TransformerEncoderLayer`, operator by operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from kernels.philox import kept_elements, scale, threshold

Tensor = torch.Tensor


def _dropped(
    x: Tensor, p: float, seed: Tensor, first_row: int, n_drawn: int | None = None
) -> Tensor:
    """`x` where the mask keeps it, scaled; of a last dimension drawn for `n_drawn` numbers."""
    if threshold(p) == 0:
        return x
    shape = (*x.shape[:-1], n_drawn or x.shape[-1])
    first = first_row * math.prod(shape[1:])
    return x * kept_elements(shape, p, seed, first)[..., : x.shape[-1]] * scale(p)


def _attention(
    layer: nn.TransformerEncoderLayer, x: Tensor, hidden: Tensor, seed: Tensor, first_row: int
) -> Tensor:
    mha = layer.self_attn
    n_batch, length, width = x.shape
    qkv = F.linear(x, mha.in_proj_weight, mha.in_proj_bias)
    q, k, v = qkv.unflatten(-1, (3, mha.num_heads, -1)).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + hidden.to(x.dtype)
    # Attention draws numbers for rows of a multiple of eight keys, so that neighbours share a call.
    p = _dropped(scores.softmax(-1), mha.dropout, seed, first_row, -(-length // 8) * 8)
    return mha.out_proj((p @ v).transpose(1, 2).reshape(n_batch, length, width))


def by_operators(
    layer: nn.TransformerEncoderLayer,
    x: Tensor,
    seeds: Tensor | Sequence[Tensor],
    hidden: Tensor | None = None,
    first_row: int = 0,
) -> Tensor:
    """The layer of x (B, S, E), batch first, in training; returns (B, S, E) of x's dtype.

    layer: any with PyTorch's names, in x's dtype. seeds: int64 (4, 2), as the fused layer draws
    them: for attention's weights, behind attention, in the MLP and behind it. hidden: what is added
    to the scores, of a shape that broadcasts to (B, H, S, S), −inf where a key is not seen.
    first_row: the place of x's first sequence in the whole batch, for a part of it.
    """
    if hidden is None:
        hidden = x.new_zeros(1)
    of_weights, behind_attention, in_mlp, behind_mlp = seeds

    def attended(u: Tensor) -> Tensor:
        return _dropped(
            _attention(layer, u, hidden, of_weights, first_row),
            *(layer.dropout1.p, behind_attention, first_row),
        )

    def mlp(u: Tensor) -> Tensor:
        a = _dropped(layer.activation(layer.linear1(u)), layer.dropout.p, in_mlp, first_row)
        return _dropped(layer.linear2(a), layer.dropout2.p, behind_mlp, first_row)

    if layer.norm_first:
        h = x + attended(layer.norm1(x))
        y: Tensor = h + mlp(layer.norm2(h))
        return y
    h = layer.norm1(x + attended(x))
    y = layer.norm2(h + mlp(h))
    return y
