"""The call of `torch.nn.functional.scaled_dot_product_attention`, answered by this package."""

from __future__ import annotations

import torch

from kernels.ops.attention.operators import check_queries_keys_values, operator
from kernels.ops.shared.arguments import check_tensor
from kernels.philox import threshold

Tensor = torch.Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with the arguments of PyTorch's function, in place of it.

    query: (..., H, L, E); key and value: (..., Hk, S, E), in fp16, bf16 or fp32, of two dimensions
    or more; Hk is H, or divides it with enable_gqa. attn_mask broadcasts to (..., H, L, S): bool,
    True where a key is seen, or a number that is added to the scores. As in PyTorch, and unlike
    `attention`, is_causal lets query i see the keys j ≤ i whatever the lengths. dropout_p draws
    from PyTorch's generator the seed of this package's numbers: another mask in every call and in
    every replay of a graph. Under autocast all is cast to its dtype. Returns (..., H, L, E); a
    query that sees no key gives zeros.

    ValueError or TypeError names the argument, what it got and what it takes: a value with another
    last dimension than key's is not taken, nor a mask beside is_causal.
    """
    for name, one in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, one)
        if one.dim() < 2:
            raise ValueError(
                f"{name} has the shape {tuple(one.shape)}; it takes two dimensions or more"
            )
        if one.dim() != query.dim() or one.shape[:-3] != query.shape[:-3]:
            raise ValueError(
                f"{name} has the shape {tuple(one.shape)} and query {tuple(query.shape)}; what "
                "stands before the heads must be the same"
            )
    device = query.device.type
    if torch.is_autocast_enabled(device):  # as PyTorch's function does
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask is given and is_causal is True; it takes one of them")
    q, k, v = (_of_four(one) for one in (query, key, value))
    if k.shape[1] != q.shape[1] and not enable_gqa:
        raise ValueError(
            f"key has {k.shape[1]} heads and query {q.shape[1]}; fewer heads of keys need "
            "enable_gqa=True"
        )
    check_queries_keys_values(q, k, v)
    bias = None if attn_mask is None else _bias(attn_mask, query, q, k.shape[2])
    padding = None
    if bias is not None and bias.dtype == torch.bool and bias.shape[1:3] == (1, 1):
        # Which keys there are, the same for all heads and queries: fewer bytes than a mask of each.
        padding = (~bias[:, 0, 0]).expand(q.shape[0], k.shape[2])
        bias = None
    seed_offset = None
    if threshold(dropout_p) > 0:
        # In device memory, by an operator that a graph replays with another state of the generator.
        low, high = -(2**63), 2**63 - 1
        seed_offset = torch.randint(low, high, (2,), dtype=torch.int64, device=q.device)
    out: Tensor = operator(
        *(q, k, v, bias, padding, None, None, seed_offset),
        *(is_causal, is_causal, None, q.shape[-1] ** -0.5 if scale is None else scale),
        *(float(dropout_p), False, True),
    )[0]
    return out if query.dim() == 4 else out.reshape(query.shape)


def _of_four(x: Tensor) -> Tensor:
    """x as (batch, heads, length, head dimension)."""
    if x.dim() == 4:
        return x
    if x.dim() == 2:
        return x[None, None]
    return x[None] if x.dim() == 3 else x.flatten(0, -4)


def _bias(attn_mask: Tensor, query: Tensor, q: Tensor, n_keys: int) -> Tensor:
    """A mask in four dimensions, each q's or 1."""
    whole = (*query.shape[:-1], n_keys)
    sizes = zip(reversed(attn_mask.shape), reversed(whole), strict=False)
    if attn_mask.dim() > len(whole) or any(n not in (1, size) for n, size in sizes):
        raise ValueError(
            f"attn_mask has the shape {tuple(attn_mask.shape)}; it must broadcast to {whole}"
        )
    of_heads = attn_mask[(None,) * max(0, 3 - attn_mask.dim())]
    if of_heads.dim() == 3 or query.dim() <= 4:
        return of_heads if of_heads.dim() == 4 else of_heads[None]
    leading = of_heads.expand(*query.shape[:-3], *of_heads.shape[-3:])
    return leading.flatten(0, -4)
