"""A norm's weight and bias folded into a product's, and kept as long as they are current.

LayerNorm and a product, y = ((x − mean) · inv_std · γ + β) · Wᵀ + b, with F = W · diag(γ), are

    y = (x · Fᵀ − mean · F·1) · inv_std + (b + W · β)

so that the product can be of x as it is. A constant may be taken from each row of F, since
Σ (x − mean) is 0: with F centred, F·1 is 0 but for what rounding F to 16 bits leaves. That rest
times the mean is an error of its own, and no small one, unless F·1 is summed over the weights as
they are rounded. Centring keeps x · Fᵀ small too, where x has a large mean: fp32 sums lose
2⁻²⁴ · |mean| / std of y's size in a step, which bf16's 2⁻⁸ hides up to a mean of some hundred
standard deviations. RMSNorm has no mean and needs neither.

Rounding: `torch` rounds x̂ to 16 bits and multiplies by W as it is; folded, x is as it is and F is
rounded. Either is one rounding a term, so that both have the same error.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch.utils.weak import WeakIdKeyDictionary

from kernels.launch import launches
from kernels.ops.products.configurations import HOPPER_COLS
from kernels.ops.prologues.kernels import fold_rows
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor

WIDEST_BLOCK = 4096  # elements of a row of weights that a program takes at a time; not timed yet


class Folded(NamedTuple):
    """Weights that hold the norm's: `weight` (N, K) in W's dtype, what is added in fp32.

    `sums` (what F·1 is, None for RMSNorm) and `bias` are padded with zeros to whole tiles.
    """

    weight: Tensor
    sums: Tensor | None
    bias: Tensor


def _padded(n: int) -> int:
    return -(-n // HOPPER_COLS) * HOPPER_COLS


def composed_fold(
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    centred: bool,
) -> Folded:
    """Fold by PyTorch's operators; arguments as of `fold`."""
    wide, n = weight.float(), len(weight)
    folded = wide if norm_weight is None else wide * norm_weight.float()
    if centred:
        folded = folded - folded.mean(1, keepdim=True)
    folded = folded.to(weight.dtype).contiguous()
    added = wide.new_zeros(_padded(n))
    if norm_bias is not None:
        added[:n] += (wide * norm_bias.float()).sum(1)
    if bias is not None:
        added[:n] += bias.float()
    sums = None
    if centred:
        sums = wide.new_zeros(_padded(n))
        sums[:n] = folded.float().sum(1)
    return Folded(folded, sums, added)


def launch_fold(
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    centred: bool,
) -> Folded:
    """Fold in one launch; arguments as of `fold`. What pads is left as it is found."""
    n, k = weight.shape
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    folded = torch.empty((n, k), dtype=weight.dtype, device=weight.device)
    sums = torch.empty(_padded(n), device=weight.device) if centred else None
    added = torch.empty(_padded(n), device=weight.device)
    block = min(triton.next_power_of_2(k), WIDEST_BLOCK)
    with device_guard(weight):
        fold_rows[(n,)](
            weight,
            None if norm_weight is None else norm_weight.contiguous(),
            None if norm_bias is None else norm_bias.contiguous(),
            None if bias is None else bias.contiguous(),
            folded,
            sums,
            added,
            k,
            weight.stride(0),
            CENTRED=centred,
            BLOCK=block,
            num_warps=max(1, min(8, block // 512)),
        )
    return Folded(folded, sums, added)


def fold(
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    centred: bool,
) -> Folded:
    """Return a product's weights with a norm's folded in, for any number of calls.

    norm_weight, norm_bias (K,), weight (N, K), bias (N,), any but the weight None. With `centred`
    the norm is LayerNorm, else RMSNorm. In one launch on a GPU; elsewhere by PyTorch's operators,
    so that a ledger counts the calls and not this. Where launches are only recorded nothing is
    computed.
    """
    with torch.no_grad():
        if launches.mode() == "record":
            return _hollow(weight, centred)
        if weight.is_cuda:
            return launch_fold(norm_weight, norm_bias, weight, bias, centred)
        return composed_fold(norm_weight, norm_bias, weight, bias, centred)


def _hollow(weight: Tensor, centred: bool) -> Folded:
    added = torch.empty(_padded(len(weight)), device=weight.device)
    folded = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    return Folded(folded, torch.empty_like(added) if centred else None, added)


# ------------------------------------------------------------------------------------------ kept


_Stamp = tuple[int, int, torch.dtype] | None


@dataclass(frozen=True)
class _Kept:
    """Folded weights, and what they were made of: each tensor, where it lay, how often written."""

    made_of: tuple[weakref.ref[Tensor] | None, ...]
    stamps: tuple[_Stamp, ...]
    folded: Folded

    def current(self, tensors: tuple[Tensor | None, ...], stamps: tuple[_Stamp, ...]) -> bool:
        same = all(
            (ref is None and one is None) or (ref is not None and ref() is one)
            for ref, one in zip(self.made_of, tensors, strict=True)
        )
        return same and stamps == self.stamps


_kept: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _stamp(one: Tensor | None) -> _Stamp:
    return None if one is None else (one.data_ptr(), one._version, one.dtype)


def kept_fold(
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    centred: bool,
) -> Folded:
    """Return what `fold` returns, made anew only where one of its arguments has changed.

    A change is seen by the tensor, by its address and by PyTorch's count of what was written into
    it: an optimizer's step, `load_state_dict`, any operator in place. What is written through
    `.data`, by a foreign kernel, or by the replay of a CUDA graph counts as nothing: call
    `forget_folded` then. A graph holds what was current when it was captured. Folded weights take
    as much memory as `weight`, and live as long. Tensors made in inference mode have no such count;
    they are folded at each call.
    """
    tensors = (norm_weight, norm_bias, weight, bias)
    if any(one is not None and one.is_inference() for one in tensors):
        return fold(norm_weight, norm_bias, weight, bias, centred)
    if launches.mode() == "record":
        return _hollow(weight, centred)
    stamps = tuple(_stamp(one) for one in tensors)
    by_norm = _kept.get(weight)
    known = by_norm.get(centred) if by_norm else None
    if known is not None and known.current(tensors, stamps):
        folded: Folded = known.folded
        return folded
    folded = fold(norm_weight, norm_bias, weight, bias, centred)
    if weight.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return folded  # it is there when the graph runs, not before
        torch.cuda.current_stream(weight.device).synchronize()  # other streams may take it too
    refs = tuple(None if one is None else weakref.ref(one) for one in tensors)
    _kept[weight] = {**(by_norm or {}), centred: _Kept(refs, stamps, folded)}
    return folded


def forget_folded(weight: Tensor | None = None) -> None:
    """Throw away the folded weights of `weight`, or of all if None: a next call makes them anew."""
    if weight is None:
        _kept.clear()
    else:
        _kept.pop(weight, None)
