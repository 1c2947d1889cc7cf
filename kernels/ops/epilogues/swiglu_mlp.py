"""The gated MLP of most decoders, SwiGLU and the product down, in two launches (chapter 11).

    g = x · gateᵀ,   u = x · upᵀ,   a = g · σ(g) · u,   y = a · downᵀ

x and y have the shape (..., K), weight (2, N, K), gate and up behind it, down (K, N), as three
linear layers without bias keep them. With M rows and elements of s bytes, forward reads and writes
at least (2·M·K + 3·N·K)·s bytes; in two launches `a` is written and read, 2·M·N·s more, which no
kernel saves: a row of y needs all of a row of `a`, and that takes all of x's row and both weights.
In four launches it is 6·M·N·s more again. The first launch is `linear_swiglu`'s, the second a
product (chapter 10); back are that product's two, one through the gate, and two more.

Source: Shazeer, "GLU variants improve Transformer" (arXiv:2002.05202).
"""

from __future__ import annotations

import torch

from kernels.launch.gluon import needs_hopper
from kernels.ops.chains.gated import SILU
from kernels.ops.epilogues import linear_swiglu, mlp_common
from kernels.ops.epilogues.gate_operators import check_mlp, launched_mlp, mlp_composed
from kernels.ops.epilogues.mlp_common import (
    hopper_moves,
    moves,
    registered,
    run_simple,
    simple_moves,
    suits,
)
from kernels.ops.epilogues.operators import ways
from kernels.ops.epilogues.peers import (
    compiled_swiglu_mlp,
    max_autotuned_swiglu_mlp,
    torch_swiglu_mlp,
)
from kernels.ops.products.configurations import BY_TORCH, EVERYWHERE, HOPPER, TORCH, Ways
from kernels.ops.shared.available import needs_gpu
from kernels.registry import Variant, cases, named

Tensor = torch.Tensor

NAME = "swiglu_mlp"


def reference(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """The MLP in float64, straight from the equations; returns float64 (..., K)."""
    return linear_swiglu.reference(x, weight) @ down.double().T


def eager(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other; the gate in fp32."""
    return linear_swiglu.eager(x, weight) @ down.T


def fused_simple(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """The kernels of the page, both by plain pointers; arguments as below."""
    return run_simple(NAME, x, weight, down, SILU)


def fused(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """The fastest in Triton, forward and back, on any card; arguments as of the public one."""
    return launched_mlp(x, weight, down, SILU, EVERYWHERE)


def fused_hopper(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """Both products by the kernels written for Hopper, where they stand; elsewhere `fused`."""
    return launched_mlp(x, weight, down, SILU, Ways(HOPPER, TORCH, TORCH))


def swiglu_mlp(x: Tensor, weight: Tensor, down: Tensor) -> Tensor:
    """(silu(x · gateᵀ) · (x · upᵀ)) · downᵀ in two launches; its backward is five.

    x: (..., K) in fp16, bf16 or fp32, any strides, K at least 1. weight: (2, N, K), gate and up;
    down: (J, N), J being K as a rule; all of one dtype. Sums and the gate are in fp32; `a` is
    rounded to the dtype between the launches. Returns a new contiguous tensor (..., J) of x's
    dtype. All else is as in `linear_swiglu.linear_swiglu`.
    """
    by = ways(x)
    if by == BY_TORCH:
        check_mlp(x, weight, down)
        return mlp_composed(x, weight, down, SILU)
    return launched_mlp(x, weight, down, SILU, by)


_BOTH = ("fwd", "bwd")
OP = registered(
    NAME,
    reference,
    named(
        Variant("eager", eager, _BOTH, counted="aten", cases=cases(mlp_common.SHAPES[:1], "bf16")),
        Variant("torch", torch_swiglu_mlp, _BOTH, counted="aten"),
        Variant("compile", compiled_swiglu_mlp, _BOTH, unavailable=needs_gpu),
        Variant(
            "compile_max_autotune",
            max_autotuned_swiglu_mlp,
            unavailable=needs_gpu,
            cases=cases(mlp_common.SHAPES[:1], "bf16"),
        ),
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
    flops=(5, 11),
)
