"""Attention by PyTorch's operators: what its operator is composed of, its reference, its gradient.

    s = scale · q · kᵀ + bias, −inf where a query does not see a key
    p = exp(s − lse),   lse = log Σ exp(s),   o = dropout(p) · v

    dv = dropout(p)ᵀ · do,   dp = dropout(do · vᵀ),   ds = p · (dp − Σ dp · p + dlse)
    dq = scale · ds · k,   dk = scale · dsᵀ · q,   dbias = ds

A row that sees no key has p = 0 and lse = −inf. What was broadcast has the sum of its gradients: a
bias, and keys and values whose head several of the queries' share.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.philox import kept_elements, threshold
from kernels.philox import scale as drop_scale

Tensor = torch.Tensor


class Given(NamedTuple):
    """The arguments of attention's operator, in its order."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    key_padding_mask: Tensor | None = None
    q_lengths: Tensor | None = None
    k_lengths: Tensor | None = None
    seed_offset: Tensor | None = None
    causal: bool = False
    top_left: bool = False
    window: int | None = None
    scale: float = 1.0
    dropout_p: float = 0.0
    want_lse: bool = False
    by_hand: bool = False  # by the kernel written for Hopper, where it takes the call


def seen(given: Given) -> Tensor | None:
    """Where a query sees a key, bool that broadcasts to (B, H, Sq, Sk); None if everywhere."""
    n_queries, n_keys = given.q.shape[-2], given.k.shape[-2]
    device = given.q.device
    rows = torch.arange(n_queries, device=device)[:, None]
    keys = torch.arange(n_keys, device=device)
    masks = []
    q_ends: int | Tensor = n_queries
    k_ends: int | Tensor = n_keys
    if given.q_lengths is not None:
        q_ends = given.q_lengths.clamp(max=n_queries)[:, None, None, None]
        masks.append(rows < q_ends)
    if given.k_lengths is not None:
        k_ends = given.k_lengths.clamp(max=n_keys)[:, None, None, None]
        masks.append(keys < k_ends)
    places = rows + (0 if given.top_left else k_ends - q_ends)
    if given.causal:
        masks.append(keys <= places)
    if given.window is not None:
        masks.append(keys > places - given.window)
        if not given.causal:
            masks.append(keys < places + given.window)
    if given.key_padding_mask is not None:
        masks.append(~given.key_padding_mask[:, None, None, :])
    if given.bias is not None and given.bias.dtype == torch.bool:
        masks.append(given.bias)
    found = None
    for mask in masks:
        found = mask if found is None else found & mask
    return found


def kept(given: Given) -> Tensor | None:
    """What dropout keeps of the weights, bool (B, H, Sq, Sk); None if all."""
    if given.seed_offset is None or threshold(given.dropout_p) == 0:
        return None
    b, h, n_queries, _ = given.q.shape
    n_keys = given.k.shape[-2]
    shape = (b, h, n_queries, -(-n_keys // 8) * 8)
    return kept_elements(shape, given.dropout_p, given.seed_offset)[..., :n_keys]


def shared(x: Tensor, n_heads: int) -> Tensor:
    """Keys or values (B, Hk, S, D) with a head for each of the queries', (B, n_heads, S, D)."""
    n_own = x.shape[1]
    return x if n_own == n_heads else x.repeat_interleave(n_heads // n_own, 1)


def weights(given: Given, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """p (B, H, Sq, Sk) and lse (B, H, Sq, 1), computed in `dtype`."""
    q, k = given.q.to(dtype), shared(given.k, given.q.shape[1]).to(dtype)
    scores = q @ k.transpose(-1, -2) * given.scale
    if given.bias is not None and given.bias.dtype != torch.bool:
        scores = scores + given.bias.to(dtype)
    mask = seen(given)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if scores.shape[-1] == 0:
        return scores, scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    largest = scores.detach().amax(-1, keepdim=True)
    largest = largest.masked_fill(largest == -torch.inf, 0.0)
    powers = torch.exp(scores - largest)
    total = powers.sum(-1, keepdim=True)
    nothing = total == 0
    p = powers / total.masked_fill(nothing, 1.0)
    lse = largest + torch.log(total.masked_fill(nothing, 1.0))
    return p, lse.masked_fill(nothing, -torch.inf)


def composed(*args: object, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor | None]:
    """Attention by PyTorch's operators, in fp32 or wider; arguments in the operator's order.

    Returns the output in q's dtype, or in `dtype`, and log-sum-exp (B, H, Sq) if it is wanted.
    """
    given = Given(*args)  # type: ignore[arg-type]
    wide = dtype or torch.promote_types(given.q.dtype, torch.float32)
    p, lse = weights(given, wide)
    stays = kept(given)
    if stays is not None:
        p = p * stays * drop_scale(given.dropout_p)
    out = p @ shared(given.v, given.q.shape[1]).to(wide)
    return out.to(dtype or given.q.dtype), lse.squeeze(-1) if given.want_lse else None


def gradients(
    given: Given, d_out: Tensor, d_lse: Tensor | None, wants_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and the bias, from those of the output and of log-sum-exp (or None).

    The weights are computed anew, whole. Operators alone, so that it can be differentiated again.
    """
    n_heads, n_own = given.q.shape[1], given.k.shape[1]
    wide = torch.promote_types(given.q.dtype, torch.float32)
    p, _ = weights(given, wide)
    d_out = d_out.to(wide)
    d_p = d_out @ shared(given.v, n_heads).to(wide).transpose(-1, -2)
    dropped = p
    stays = kept(given)
    if stays is not None:
        factor = stays * drop_scale(given.dropout_p)
        d_p, dropped = d_p * factor, p * factor
    d_s = d_p - (d_p * p).sum(-1, keepdim=True)
    if d_lse is not None:
        d_s = d_s + d_lse.to(wide)[..., None]
    d_s = p * d_s

    def of_own_heads(x: Tensor) -> Tensor:
        return x if n_own == n_heads else x.unflatten(1, (n_own, n_heads // n_own)).sum(2)

    d_q = d_s @ shared(given.k, n_heads).to(wide) * given.scale
    d_k = of_own_heads(d_s.transpose(-1, -2) @ given.q.to(wide)) * given.scale
    d_v = of_own_heads(dropped.transpose(-1, -2) @ d_out)
    d_bias = None
    if wants_bias and given.bias is not None:
        d_bias = d_s.sum_to_size(given.bias.shape).to(given.bias.dtype)
    return d_q.to(given.q.dtype), d_k.to(given.k.dtype), d_v.to(given.v.dtype), d_bias
