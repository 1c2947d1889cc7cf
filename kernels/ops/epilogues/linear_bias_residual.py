"""A product with bias and a residual behind it, y = residual + x · wᵀ + b (chapter 11).

    y = residual + x · wᵀ + b
    dresidual = dy,   dx = dy · w,   dw = dyᵀ · x,   db = Σ dy over the rows

x has the shape (..., K), w (N, K) as `torch.nn.Linear` keeps it, b (N,), residual and y (..., N).
With M rows and elements of s bytes, forward must move (M·K + N·K + N + 2·M·N)·s bytes. In two
launches the product is written and read again, 2·M·N·s bytes more, and rounded on the way. Backward
is that of the product alone.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.launch.gluon import needs_hopper
from kernels.ops.epilogues import common
from kernels.ops.epilogues.forward import launch, launch_simple, with_residual
from kernels.ops.epilogues.moves import Followed, back_through_product
from kernels.ops.epilogues.operators import ways
from kernels.ops.epilogues.peers import (
    compiled_bias_residual,
    torch_bias_residual,
)
from kernels.ops.epilogues.residual_operators import NAME, check, composed, launched
from kernels.ops.products.configurations import BY_TORCH, EVERYWHERE, HOPPER, TORCH, Tiling, Ways
from kernels.ops.products.tuning import forward_to_try
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import needs_gpu
from kernels.registry import (
    Backward,
    Case,
    Cost,
    Moves,
    Op,
    Pass,
    Shape,
    Tolerance,
    Variant,
    cases,
    named,
    register,
)

Tensor = torch.Tensor


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """The product and the sum in float64, straight from the equation; returns float64 (..., N)."""
    y = residual.double() + x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


def eager(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other, each rounded."""
    y = x @ weight.T
    return residual + (y if bias is None else y + bias)


def fused_simple(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """The kernel of the page: a tile a program by plain pointers; arguments as below."""
    check(x, weight, bias, residual)
    refuse_gradients(NAME, x, weight, bias, residual, instead="the variant fused")
    given, y = with_residual(x, weight, bias, residual)
    launch_simple(given)
    return y


def fused(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """The fastest in Triton, forward and back, on any card; arguments as of the public one."""
    return launched(x, weight, bias, residual, EVERYWHERE)


def fused_hopper(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
    """The kernel written for Hopper, where `suits_hopper` takes it; elsewhere `fused`."""
    return launched(x, weight, bias, residual, Ways(HOPPER, TORCH, TORCH))


def linear_bias_residual(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor
) -> Tensor:
    """residual + x · weightᵀ + bias in one launch; its backward is a launch for each product.

    x: (..., K) in fp16, bf16 or fp32, any strides, K at least 1. weight: (N, K); bias: (N,) or
    None; residual: (..., N); all of one dtype. Sums are in fp32, and fp32 is multiplied in full.
    Returns a new contiguous tensor (..., N) of x's dtype. It takes the faster kernels on the card
    at hand by one rule, `configurations.WAYS`; on a CPU the kernels are interpreted. ValueError or
    TypeError names the argument, what it got and what it takes; NotImplementedError if a gradient
    that our backward made is differentiated again. Inside a transform of `torch.func` and in
    forward-mode differentiation PyTorch's operators compute it. Rows are copied first where
    `kernels.ops.products.linear.linear` copies them.
    """
    by = ways(x)
    if by == BY_TORCH:
        check(x, weight, bias, residual)
        return composed(x, weight, bias, residual)
    return launched(x, weight, bias, residual, by)


def inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random x, weight and bias as of a layer, and a residual (M, N)."""
    given = common.given(shape, dtype, device, seed)
    m, _, n = shape
    return {**given, "residual": common.Random(dtype, device, seed + 1)(m, n)}


def forward_cost(case: Case) -> Cost:
    """What it must do at least: x, weight, bias and residual in, y out; an FMA a term."""
    (m, k, n), size = case.shape, case.dtype.itemsize
    read = m * k + n * k + n + m * n
    return Cost(2 * m * n * k + 2 * m * n, read * size, m * n * size)


def backward_cost(case: Case) -> Cost:
    """What both products back must do at least; the residual has dy itself, which costs nothing."""
    return common.product_backward_cost(case.shape, case.dtype.itemsize)


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """The bound on a gradient's error: sums of N terms for x, of M for weight and bias."""
    return common.gradient_bound(case.shape, case.dtype, name)


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves, forward or back."""
    m, k, n = case.shape
    if pass_ == "bwd":
        return Moves.of(*back_through_product(m, k, n, case.dtype, sums=True))
    return Moves.of(_followed(case).step())


def _followed(case: Case) -> Followed:
    return Followed(case.shape, case.dtype.itemsize, biased=True, residual=True)


def simple_moves(case: Case, _pass: str) -> Moves:
    """What the kernel of the page moves."""
    return _followed(case).by_simple()


def hopper_moves(case: Case, _pass: str) -> Moves:
    """What the kernel written for Hopper moves."""
    return _followed(case).by_hopper()


def suits(case: Case) -> bool:
    """Whether that kernel takes a case, rows side by side."""
    return _followed(case).suits()


def candidates(case: Case) -> dict[str, Any]:
    """The tilings of the forward in a case as functions of its inputs, and PyTorch's way."""

    def run(tiling: Tiling, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        given, y = with_residual(x, weight, bias, residual)
        launch(given, tiling)
        return y

    tried = {name: functools.partial(run, one) for name, one in forward_to_try(case).items()}
    return {"PyTorch": torch_bias_residual, **tried}


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=NAME,
        suite="matmul",
        dims="MKN",
        tensors={"x": "MK", "weight": "NK", "bias": "N", "residual": "MN"},
        outputs={"y": "MN"},
        independent="M",
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten", cases=common.FIRST),
            Variant("torch", torch_bias_residual, _BOTH, counted="aten"),
            Variant("compile", compiled_bias_residual, _BOTH, unavailable=needs_gpu),
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
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        small=common.SMALL,
        forward=Pass(
            cost=forward_cost,
            tolerance=common.tolerance,
            cases=cases(common.SHAPES[::3], "bf16"),
            candidates=candidates,
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=common.FIRST,
            differentiates=("x", "weight", "bias", "residual"),
        ),
    )
)
