"""The masks of `torch.nn.TransformerEncoderLayer` as the package's attention takes them.

PyTorch's masks say True, or −inf, where a key is *not* seen; those of `attention` say True where it
is. A bool padding mask goes through as it is, B·S bytes, and is never spread over heads and
queries; a causal mask is two numbers in the kernel, and no tensor at all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.registry import DTYPES

Tensor = torch.Tensor


class Seen(NamedTuple):
    """Which keys a query sees, in the words of `attention`.

    bias: (1 or B, 1 or H, 1 or S, S), a number that is added to a score, or bool, True where a key
    is seen. key_padding_mask: bool (B, S), True where a key is padding.
    """

    causal: bool = False
    bias: Tensor | None = None
    key_padding_mask: Tensor | None = None


def seen_by(
    src_mask: Tensor | None,
    src_key_padding_mask: Tensor | None,
    is_causal: bool,
    x: Tensor,
    n_heads: int,
) -> Seen:
    """The masks of a call of the layer; x is (B, S, E), the layer's input, batch first.

    src_mask: (S, S) or (B·H, S, S), bool or a number; src_key_padding_mask: (B, S), bool or a
    number. With `is_causal` src_mask is taken to be the causal mask, as PyTorch's documentation
    says of this hint, and not read. TypeError or ValueError with one sentence for other masks.
    """
    n_batch, length, _ = x.shape
    if is_causal:
        src_mask = None
    padding = src_key_padding_mask
    if padding is not None:
        _check("src_key_padding_mask", padding, [(n_batch, length)], x)
    bias = None
    if src_mask is not None:
        whole = (n_batch * n_heads, length, length)
        _check("src_mask", src_mask, [(length, length), whole], x)
        bias = src_mask[None, None]
        if src_mask.dim() == 3:
            bias = src_mask.view(n_batch, n_heads, length, length)
    if padding is None or padding.dtype == torch.bool:
        if bias is not None:
            bias = bias.logical_not() if bias.dtype == torch.bool else _as_number(bias, x)
        return Seen(is_causal, bias, padding)
    added = _as_number(padding, x)[:, None, None, :]  # a number for each key, of all heads
    if bias is None:
        return Seen(is_causal, added)
    if bias.dtype == torch.bool:
        return Seen(is_causal, torch.where(bias, -torch.inf, added))
    return Seen(is_causal, _as_number(bias, x) + added)


def _as_number(mask: Tensor, x: Tensor) -> Tensor:
    return mask if mask.dtype in DTYPES.values() else mask.to(x.dtype)


def _check(name: str, mask: object, shapes: list[tuple[int, ...]], x: Tensor) -> None:
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"{name} is a {type(mask).__name__}; it takes a torch.Tensor or None")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} has dtype {mask.dtype}; it takes bool or a floating dtype")
    if tuple(mask.shape) not in shapes:
        taken = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ValueError(f"{name} has the shape {tuple(mask.shape)}; it takes {taken} here")
    if mask.device != x.device:
        raise ValueError(f"{name} lies on {mask.device} and src on {x.device}; put both on one")
