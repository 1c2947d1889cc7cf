"""What `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` run on a GPU for inference.

In `eval()` and without gradients each hands its weights to one operator of PyTorch, which launches
the operators below. A profiler shows them under that operator's name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def multi_head_attention(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    num_heads: int,
    qkv: tuple[Tensor, Tensor],
    proj: tuple[Tensor, Tensor],
    mask: Tensor | None,
    need_weights: bool,
) -> Tensor:
    """Self-attention of (batch, length, width), of weights and biases; with no mask, no weights.

    `attend(query, key, value)` is the fused attention. ValueError for a mask, for weights that are
    asked for and for heads that 8 does not divide: those take kernels that are not counted.
    """
    batch, _, width = x.shape
    size = width // num_heads
    if mask is not None or need_weights or size % 8:
        raise ValueError(
            "inference of this attention is not counted: it takes no mask, need_weights=False and "
            "heads of a multiple of 8; torch.backends.mha.set_fastpath_enabled(False) leads around"
        )
    chunks = F.linear(x, *qkv).chunk(3, -1)
    q, k, v = (one.view(batch, -1, num_heads, size).transpose(1, 2) for one in chunks)
    return F.linear(attend(q, k, v).transpose(1, 2).reshape(batch, -1, width), *proj)


def encoder_layer(attention: Callable[..., Tensor], src: Tensor, *args: Any) -> Tensor:
    """The layer, its arguments those of `torch._transformer_encoder_layer_fwd`.

    `attention(x, num_heads, qkv, proj, mask, need_weights)` is its attention.
    """
    width, num_heads, qkv_w, qkv_b, proj_w, proj_b, gelu, norm_first, eps, *rest = args
    norm1, norm2 = tuple(rest[0:2]), tuple(rest[2:4])
    up_w, up_b, down_w, down_b = rest[4:8]
    mask = rest[8] if len(rest) > 8 else None

    def norm(x: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, (width,), *weights, eps)

    x = norm(src, norm1) if norm_first else src
    x = attention(x, num_heads, (qkv_w, qkv_b), (proj_w, proj_b), mask, False)
    x = x.add_(src)
    x = x if norm_first else norm(x, norm1)
    before = x
    x = norm(x, norm2) if norm_first else x
    flat = x.reshape(-1, width)
    flat = torch._addmm_activation(up_b, flat, up_w.t(), use_gelu=gelu)
    x = torch.addmm(down_b, flat, down_w.t()).view(src.shape)
    x = x.add_(before)
    return x if norm_first else norm(x, norm2)
