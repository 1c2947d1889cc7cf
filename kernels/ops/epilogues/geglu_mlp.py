"""A gated MLP with GELU, GEGLU and the product down, in two launches (chapter 11).

    g = x · gateᵀ,   u = x · upᵀ,   a = gelu(g) · u,   y = a · downᵀ

Shapes, bytes and launches are those of `swiglu_mlp`; GELU is the tanh form, or that with the error
function.

Source: Shazeer, "GLU variants improve Transformer" (arXiv:2002.05202).
"""

from __future__ import annotations

import torch

from kernels.launch.gluon import needs_hopper
from kernels.ops.chains import geglu
from kernels.ops.chains.gated import GELU_TANH
from kernels.ops.epilogues import mlp_common
from kernels.ops.epilogues.gate_operators import check_mlp, launched_mlp, mlp_composed
from kernels.ops.epilogues.mlp_common import (
    hopper_moves,
    moves,
    registered,
    run_simple,
    simple_moves,
    suits,
)
from kernels.ops.epilogues.operators import gelu_form, ways
from kernels.ops.epilogues.peers import compiled_geglu_mlp, torch_geglu_mlp
from kernels.ops.products.configurations import BY_TORCH, EVERYWHERE, HOPPER, TORCH, Ways
from kernels.ops.shared.available import needs_gpu
from kernels.registry import Variant, cases, named

Tensor = torch.Tensor

NAME = "geglu_mlp"


def reference(x: Tensor, weight: Tensor, down: Tensor, approximate: str = "tanh") -> Tensor:
    """The MLP in float64, straight from the equations; returns float64 (..., K)."""
    gate, up = (x.double() @ one.double().T for one in weight)
    return geglu.reference(gate, up, approximate) @ down.double().T


def eager(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other; the gate in fp32."""
    return geglu.eager(x @ weight[0].T, x @ weight[1].T) @ down.T


def fused_simple(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """The kernels of the page, by plain pointers, GELU in the tanh form; arguments as below."""
    return run_simple(NAME, x, weight, down, GELU_TANH)


def fused(x: Tensor, weight: Tensor, down: Tensor, approximate: str = "tanh") -> Tensor:
    """The fastest in Triton, forward and back, on any card; arguments as of the public one."""
    return launched_mlp(x, weight, down, gelu_form(approximate), EVERYWHERE)


def fused_hopper(x: Tensor, weight: Tensor, down: Tensor, approximate: str = "tanh") -> Tensor:
    """Both products by the kernels written for Hopper, where they stand; elsewhere `fused`."""
    return launched_mlp(x, weight, down, gelu_form(approximate), Ways(HOPPER, TORCH, TORCH))


def geglu_mlp(x: Tensor, weight: Tensor, down: Tensor, approximate: str = "tanh") -> Tensor:
    """(gelu(x · gateᵀ) · (x · upᵀ)) · downᵀ in two launches; its backward is five.

    `approximate` is as in `torch.nn.functional.gelu`: "tanh", or "none" for the form with the error
    function; ValueError for another. All else is as in `swiglu_mlp.swiglu_mlp`.
    """
    by, activation = ways(x), gelu_form(approximate)
    if by == BY_TORCH:
        check_mlp(x, weight, down)
        return mlp_composed(x, weight, down, activation)
    return launched_mlp(x, weight, down, activation, by)


_BOTH = ("fwd", "bwd")
OP = registered(
    NAME,
    reference,
    named(
        Variant("eager", eager, _BOTH, counted="aten", cases=cases(mlp_common.SHAPES[:1], "bf16")),
        Variant("torch", torch_geglu_mlp, _BOTH, counted="aten"),
        Variant("compile", compiled_geglu_mlp, _BOTH, unavailable=needs_gpu),
        Variant("fused_simple", fused_simple, counted="triton", moves=simple_moves),
        Variant("fused", fused, _BOTH, counted="triton", moves=moves),
        Variant(
            "fused_hopper",
            fused_hopper,
            counted="formula",
            moves=hopper_moves,
            unavailable=needs_hopper,
            fits=suits,
        ),
    ),
    flops=(10, 19),
    measured=mlp_common.SHAPES[:1],
)
