"""The ways of a norm and a product, each under the operation's name, and which of them is taken."""

from __future__ import annotations

import math

import torch

from kernels.hardware import VECTOR_BYTES
from kernels.launch import capability, multiprocessors
from kernels.launch.gluon import no_gluon
from kernels.ops.epilogues.operators import ways as epilogue_ways
from kernels.ops.products import linear as products
from kernels.ops.products.configurations import by_descriptors
from kernels.ops.prologues import forward as launches
from kernels.ops.prologues.configurations import (
    FOLDING,
    FOLDING_HOPPER,
    FOLDS_FROM,
    folds_in_training,
    suits_hopper,
)
from kernels.ops.prologues.folding import kept_fold, launch_fold
from kernels.ops.prologues.gelu_operators import launched as activated_launched
from kernels.ops.prologues.operators import check, folded_launched, launched
from kernels.ops.shared import operators as shared
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.operators import _ordinary, needs_gradient

Tensor = torch.Tensor

CENTRED = {"layernorm_linear": True, "rmsnorm_linear": False}
# The operations with GELU behind the product: a way of theirs takes its form as `activation`.
ACTIVATED = {"layernorm_linear_gelu": True}
_CENTRED = CENTRED | ACTIVATED


def two_kernels(
    name: str,
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    activation: str | None = None,
) -> Tensor:
    """The norm's kernel, then the product's, forward and back, by the card's rule for products."""
    if activation is not None:
        by = epilogue_ways(x)
        return activated_launched(x, norm_weight, norm_bias, weight, bias, eps, activation, by)
    ways = products.ways(x)
    return launched(x, norm_weight, norm_bias, weight, bias, eps, _CENTRED[name], ways)


def one_kernel(
    name: str,
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    activation: str | None = None,
) -> Tensor:
    """One launch, which normalises each tile of x on its way into the product."""
    _taken(name, x, norm_weight, norm_bias, weight, bias)
    told = x, norm_weight, norm_bias, weight, bias, eps, _CENTRED[name]
    return launches.one_kernel(*told, activation=activation)


def folded(
    name: str,
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    activation: str | None = None,
    hopper: bool = False,
) -> Tensor:
    """One launch with folded weights, made before and kept from call to call."""
    _taken(name, x, norm_weight, norm_bias, weight, bias)
    known = kept_fold(norm_weight, norm_bias, weight, bias, _CENTRED[name])
    return folded_launched(x, known, eps, hopper, activation)


def folding(
    name: str,
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    activation: str | None = None,
    hopper: bool = False,
) -> Tensor:
    """Two launches, one that folds and the product: what training pays for the folded way."""
    if activation is not None:  # training would keep what it is taken of: no way of one launch
        _taken(name, x, norm_weight, norm_bias, weight, bias)
        made = launch_fold(norm_weight, norm_bias, weight, bias, _CENTRED[name])
        return folded_launched(x, made, eps, hopper, activation)
    by = products.ways(x)._replace(forward=FOLDING_HOPPER if hopper else FOLDING)
    return launched(x, norm_weight, norm_bias, weight, bias, eps, _CENTRED[name], by)


def _taken(name: str, x: Tensor, *others: Tensor | None) -> None:
    check(x, *others)  # type: ignore[arg-type]
    refuse_gradients(name, x, *others, instead=f"kernels.ops.prologues.{name}")


def best(
    name: str,
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    activation: str | None = None,
) -> Tensor:
    """The best way on the card at hand: the rule that the public functions go by.

    Folded on Hopper, where `suits_hopper` says so, nobody asks for a gradient, and the weight is a
    parameter, which stays so that folding it pays; in training where `folds_in_training` says so.
    Everywhere else in two kernels.
    """
    tensors = (x, norm_weight, norm_bias, weight, bias)
    if folds(*tensors):
        return folded(name, *tensors, eps, activation=activation, hopper=True)
    if activation is None and trains_folded(*tensors):
        return folding(name, *tensors, eps, hopper=True)
    return two_kernels(name, *tensors, eps, activation)


def folds(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether the best way for these tensors is the folded one, its weights kept."""
    if not isinstance(parameters[2], torch.nn.Parameter) or not _by_hand(x, *parameters):
        return False
    return not needs_gradient(x, *parameters)


def trains_folded(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether the best way for a training step of these tensors folds at the call."""
    if not getattr(x, shared.SHORT_WHERE, False) or not needs_gradient(x, *parameters):
        return False
    if torch.compiler.is_compiling() or not _ordinary():
        return False
    card, weight = capability(x.device), parameters[2]
    if FOLDS_FROM.get(card, math.inf) == math.inf or not _by_hand(x, *parameters):
        return False
    assert weight is not None
    n, k = weight.shape
    return folds_in_training((x.numel() // k, k, n), card)


def _by_hand(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether the kernel written for Hopper may take these tensors, called as they are."""
    if not getattr(x, shared.SHORT_WHERE, False):
        return False
    if torch.compiler.is_compiling() or not _ordinary():
        return False
    check(x, *parameters)  # type: ignore[arg-type]
    weight = parameters[2]
    assert weight is not None
    (n, k), card = weight.shape, capability(x.device)
    flat = x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1)
    aligned = flat and n * x.element_size() % VECTOR_BYTES == 0 and by_descriptors(x.reshape(-1, k))
    rule = x.element_size(), aligned, card, multiprocessors(x.device)
    return no_gluon() is None and suits_hopper((x.numel() // k, k, n), *rule)
