"""The steps of an encoder layer, each one launch or two: what is fused with what, and when.

Without dropout everything behind a product is its epilogue and every norm its prologue:

    qkv = LayerNorm(x) · Wᵀ + b        attention        h = x + o · Woᵀ + bo
    a = gelu(LayerNorm(h) · W1ᵀ + b1)                   y = h + a · W2ᵀ + b2

Each of these is one launch on Hopper, where the norm's weight is folded into the product's; the
operation decides (`prologues.ways.best`), and elsewhere a norm is a launch of its own.

With dropout a product leaves its sums, and one kernel takes them through dropout, residual and the
next norm. Heads are laid out by strides and not by a copy: the product leaves rows of 3·H·D
numbers, attention reads q, k and v where they stand in them, and leaves o in rows again.

x has the shape (B, S, E), weights are as `torch.nn.Linear` keeps them, and a dropout is told by its
probability and a seed, int64 (2,), or None where the probability is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.ops.attention.attention import attention
from kernels.ops.chains.activation_dropout import activation_dropout
from kernels.ops.chains.dropout_add_layernorm import dropout_add_layer_norm
from kernels.ops.chains.dropout_residual import dropout_residual
from kernels.ops.chains.dropped_sums import takes_norm
from kernels.ops.chains.gated import GELU_ERF, GELU_TANH
from kernels.ops.epilogues.linear_bias_gelu import linear_bias_gelu
from kernels.ops.epilogues.linear_bias_residual import linear_bias_residual
from kernels.ops.epilogues.operators import ways
from kernels.ops.layers import joined, stochastic, summed
from kernels.ops.layers.masks import Seen
from kernels.ops.norms.layernorm import layer_norm
from kernels.ops.products.configurations import BY_TORCH
from kernels.ops.products.linear import linear
from kernels.ops.prologues.layernorm_linear import layernorm_linear
from kernels.ops.prologues.layernorm_linear_gelu import layernorm_linear_gelu
from kernels.ops.prologues.ways import trains_folded

Tensor = torch.Tensor


class Product(NamedTuple):
    """The parameters of a product: weight (N, K), bias (N,) or None."""

    weight: Tensor
    bias: Tensor | None


class Norm(NamedTuple):
    """The parameters of a LayerNorm: weight and bias (K,) or None, eps.

    With `sums` its backward may add to them by atomics (`stochastic`).
    """

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    sums: Tensor | None = None

    @property
    def adds(self) -> bool:
        """Whether it may go back by atomics."""
        return torch.is_grad_enabled() and self.sums is not None and self.weight is not None


class Dropped(NamedTuple):
    """A dropout: the probability to drop, and the seed where that isn't 0."""

    p: float = 0.0
    seed_offset: Tensor | None = None


_FORMS = {GELU_ERF: "none", GELU_TANH: "tanh"}


def projected(x: Tensor, norm: Norm | None, product: Product) -> Tensor:
    """Queries, keys and values of all heads, (B, S, 3·E): one product, of LayerNorm(x) or of x."""
    if norm is None:
        return linear(x, *product)
    if norm.sums is not None and norm.adds:
        return joined.projected(x, *norm[:2], *product, norm.eps, norm.sums)[0]
    return layernorm_linear(x, norm.weight, norm.bias, *product, norm.eps)


def begun(x: Tensor, norm: Norm | None, product: Product) -> tuple[Tensor, Tensor]:
    """(`projected`, x): what goes on from x, the residual, goes back with it where steps join."""
    if norm is None or not joined.joins(x) or trains_folded(x, *norm[:2], *product):
        return projected(x, norm, product), x
    sums = norm.sums if norm.adds else None
    return joined.projected(x, norm.weight, norm.bias, *product, norm.eps, sums)


def attended(
    qkv: Tensor, n_heads: int, seen: Seen, dropped: Dropped, keeps_bits: bool = True
) -> Tensor:
    """Attention of the heads in rows qkv (B, S, 3·E); rows (B, S, E), in one launch."""
    if seen.bias is None and seen.key_padding_mask is None and joined.joins(qkv):
        return joined.attended(qkv, n_heads, seen.causal, *dropped, keeps_bits)
    parts = qkv.unflatten(-1, (3, n_heads, qkv.shape[-1] // (3 * n_heads))).unbind(2)
    q, k, v = (one.transpose(1, 2) for one in parts)
    o: Tensor = attention(
        *(q, k, v),
        causal=seen.causal,
        bias=seen.bias,
        key_padding_mask=seen.key_padding_mask,
        dropout_p=dropped.p,
        seed_offset=dropped.seed_offset,
    )
    return o.transpose(1, 2).flatten(2)  # a view: o's heads stand side by side, as q's do


def attended_of(
    x: Tensor, norm: Norm | None, product: Product, n_heads: int, seen: Seen, dropped: Dropped
) -> tuple[Tensor, Tensor]:
    """(`attended`, x) of LayerNorm(x) or of x: no name holds qkv behind it, its memory is free."""
    qkv, x = begun(x, norm, product)
    return attended(qkv, n_heads, seen, dropped), x


def _product_before(x: Tensor, product: Product, bias: Tensor) -> Tensor:
    """The product, whose bias gets its gradient from the dropout behind it."""
    return linear(x, product.weight, bias.detach())


def added(x: Tensor, product: Product, residual: Tensor, dropped: Dropped) -> Tensor:
    """residual + dropout(x · Wᵀ + b): the residual in the epilogue where nothing is dropped."""
    if dropped.seed_offset is None:
        return linear_bias_residual(x, *product, residual)
    together = summed.biased(x, product.bias, dropped.seed_offset)
    if together is None:
        return dropout_residual(linear(x, *product), residual, *dropped)
    bias, seed = together
    return summed.dropped(_product_before(x, product, bias), bias, residual, dropped.p, seed)


def added_and_normed(
    x: Tensor, product: Product, residual: Tensor, norm: Norm, dropped: Dropped
) -> tuple[Tensor, Tensor]:
    """(LayerNorm(h), h) of h = residual + dropout(x · Wᵀ + b), in two launches."""
    if dropped.seed_offset is None:
        h = linear_bias_residual(x, *product, residual)
        return layer_norm(h, *norm[:3]), h
    together = summed.biased(x, product.bias, dropped.seed_offset)
    if together is None or (norm.adds and not takes_norm(residual.shape[-1])):
        return _dropped_and_normed(linear(x, *product), residual, norm, dropped)
    bias, seed = together
    y = _product_before(x, product, bias)
    known = norm.sums if norm.adds else None
    return summed.dropped_and_normed(y, bias, residual, norm[:3], dropped.p, seed, known)


def _dropped_and_normed(
    y: Tensor, residual: Tensor, norm: Norm, dropped: Dropped
) -> tuple[Tensor, Tensor]:
    p, seed = dropped
    if norm.sums is not None and seed is not None and norm.adds:
        return stochastic.dropped_and_normed(y, residual, norm[:3], seed, p, norm.sums)
    return dropout_add_layer_norm(y, residual, norm.weight, norm.bias, p, seed, norm.eps)


def activated(x: Tensor, product: Product, activation: str, dropped: Dropped) -> Tensor:
    """dropout(act(x · Wᵀ + b)): GELU in the epilogue where nothing is dropped."""
    if dropped.seed_offset is None and activation in _FORMS and ways(x) != BY_TORCH:
        return linear_bias_gelu(x, *product, _FORMS[activation])
    together = summed.biased(x, product.bias, dropped.seed_offset)
    if together is None:
        return activation_dropout(linear(x, *product), activation, *dropped)
    bias, seed = together
    y = _product_before(x, product, bias)
    return summed.dropped(y, bias, None, dropped.p, seed, activation)


def normed_and_activated(x: Tensor, norm: Norm, product: Product, activation: str) -> Tensor:
    """act(LayerNorm(x) · Wᵀ + b) without a dropout.

    Where products are PyTorch's own, so would be every operator of GELU behind them: there one
    kernel of ours follows, as it follows a product with ReLU.
    """
    told = norm.weight, norm.bias, *product, norm.eps
    if activation in _FORMS and ways(x) != BY_TORCH:
        return layernorm_linear_gelu(x, *told, _FORMS[activation])
    y = layernorm_linear(x, *told)
    return activation_dropout(y, activation, 0.0)


def ended(
    a: Tensor, product: Product, residual: Tensor, norm: Norm | None, dropped: Dropped
) -> Tensor:
    """`added` at the end of a layer, normalised if there is a norm."""
    if norm is None:
        return added(a, product, residual, dropped)
    return added_and_normed(a, product, residual, norm, dropped)[0]


def ended_by_sums(y: Tensor, residual: Tensor, norm: Norm | None, dropped: Dropped) -> Tensor:
    """The same from what the product left, in one launch."""
    if norm is None:
        return dropout_residual(y, residual, *dropped)
    return _dropped_and_normed(y, residual, norm, dropped)[0]
