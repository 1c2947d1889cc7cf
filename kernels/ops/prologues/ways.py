"""The ways of a norm and a product, each under the operation's name, and which of them is taken."""

from __future__ import annotations

import torch

from kernels.hardware import VECTOR_BYTES
from kernels.launch import capability, multiprocessors
from kernels.launch.gluon import no_gluon
from kernels.ops.epilogues.operators import ways as epilogue_ways
from kernels.ops.products import linear as products
from kernels.ops.products.configurations import by_descriptors
from kernels.ops.prologues import forward as launches
from kernels.ops.prologues.configurations import suits_hopper
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
    keep: bool = True,
) -> Tensor:
    """One launch with folded weights, made before: kept from call to call, or anew each time."""
    _taken(name, x, norm_weight, norm_bias, weight, bias)
    if keep:
        known = kept_fold(norm_weight, norm_bias, weight, bias, _CENTRED[name])
        return folded_launched(x, known, eps, hopper, activation)
    # By its launch on a CPU too, so that a ledger counts it.
    made = launch_fold(norm_weight, norm_bias, weight, bias, _CENTRED[name])
    return folded_launched(x, made, eps, hopper, activation)


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
    parameter, which stays so that folding it pays. Everywhere else in two kernels.
    """
    tensors = (x, norm_weight, norm_bias, weight, bias)
    if folds(*tensors):
        return folded(name, *tensors, eps, activation=activation, hopper=True)
    return two_kernels(name, *tensors, eps, activation)


def folds(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether the best way for these tensors is the folded one."""
    weight = parameters[2]
    if not getattr(x, shared.SHORT_WHERE, False) or not isinstance(weight, torch.nn.Parameter):
        return False
    if torch.compiler.is_compiling() or not _ordinary() or needs_gradient(x, *parameters):
        return False
    check(x, *parameters)  # type: ignore[arg-type]
    (n, k), card = weight.shape, capability(x.device)
    flat = x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1)
    aligned = flat and n * x.element_size() % VECTOR_BYTES == 0 and by_descriptors(x.reshape(-1, k))
    rule = x.element_size(), aligned, card, multiprocessors(x.device)
    return no_gluon() is None and suits_hopper((x.numel() // k, k, n), *rule)
