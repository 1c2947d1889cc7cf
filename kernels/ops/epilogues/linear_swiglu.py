"""Two products of one x and a gate behind them, the first half of a SwiGLU MLP (chapter 11).

    g = x · gateᵀ,   u = x · upᵀ,   y = g · σ(g) · u with σ(g) = 1 / (1 + exp(−g))
    dg = dy · u · (s + g · s · (1 − s)) with s = σ(g),   du = dy · g · s
    dx = [dg du] · weight,   dweight = [dg du]ᵀ · x

x has the shape (..., K), weight (2, N, K): gate, and up behind it, which is how a linear layer of
2N outputs keeps both (`layer.weight.view(2, N, K)`); y (..., N). With M rows and elements of s
bytes, forward must move (M·K + 2·N·K + M·N)·s bytes. A program has a tile of g and the same tile of
u, of one tile of x that it loads once. In three launches g and u are written and read again,
4·M·N·s bytes more, and 2·M·N·s for SiLU of g where it is an operator of its own.

Source: Shazeer, "GLU variants improve Transformer" (arXiv:2002.05202).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.launch.gluon import needs_hopper
from kernels.ops.chains.gated import SILU
from kernels.ops.epilogues import common
from kernels.ops.epilogues.configurations import Finish, finishes_to_try, halved
from kernels.ops.epilogues.forward import launch, launch_simple, with_gate
from kernels.ops.epilogues.gate_operators import HALF, check, composed, launched
from kernels.ops.epilogues.moves import Followed, activation_step, back_through_product
from kernels.ops.epilogues.operators import ways
from kernels.ops.epilogues.peers import (
    compiled_swiglu_half,
    max_autotuned_swiglu_half,
    torch_swiglu_half,
)
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


def reference(x: Tensor, weight: Tensor) -> Tensor:
    """Both products and the gate in float64, straight from the equation; float64 (..., N)."""
    gate, up = (x.double() @ one.double().T for one in weight)
    return gate * torch.sigmoid(gate) * up


def eager(x: Tensor, weight: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other; the gate in fp32."""
    gate, up = ((x @ one.T).float() for one in weight)
    share = 1 / (1 + torch.exp(-gate))
    return (gate * share * up).to(x.dtype)


def fused_simple(x: Tensor, weight: Tensor) -> Tensor:
    """The kernel of the page: a tile a program by plain pointers; arguments as below."""
    check(x, weight)
    refuse_gradients(HALF, x, weight, instead="the variant fused")
    given, (y, _) = with_gate(x, weight, SILU, keeps=False)
    launch_simple(given)
    return y


def fused(x: Tensor, weight: Tensor) -> Tensor:
    """The fastest in Triton, forward and back, on any card; arguments as of the public one."""
    return launched(x, weight, SILU, EVERYWHERE)


def fused_hopper(x: Tensor, weight: Tensor) -> Tensor:
    """The kernel written for Hopper, where `suits_hopper` takes it; elsewhere `fused`."""
    return launched(x, weight, SILU, Ways(HOPPER, TORCH, TORCH))


def linear_swiglu(x: Tensor, weight: Tensor) -> Tensor:
    """silu(x · gateᵀ) · (x · upᵀ) in one launch; backward one for the gate, one for each product.

    x: (..., K) in fp16, bf16 or fp32, any strides, K at least 1. weight: (2, N, K), gate and up, of
    the same dtype. Sums and the gate are in fp32, and fp32 is multiplied in full. Returns a new
    contiguous tensor (..., N) of x's dtype. It takes the faster kernels on the card at hand by one
    rule, `configurations.WAYS`; on a CPU the kernels are interpreted. ValueError or TypeError names
    the argument, what it got and what it takes; NotImplementedError if a gradient that our backward
    made is differentiated again. Inside a transform of `torch.func` and in forward-mode
    differentiation PyTorch's operators compute it. Rows are copied first where
    `kernels.ops.products.linear.linear` copies them.
    """
    by = ways(x)
    if by == BY_TORCH:
        check(x, weight)
        return composed(x, weight, SILU)
    return launched(x, weight, SILU, by)


def inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random x (M, K), and weight (2, N, K) scaled by 1/√K; a shape's T is always 2."""
    m, k, n, _ = shape
    random = common.Random(dtype, device, seed)
    return {"x": random(m, k), "weight": random(2, n, k, scale=k**-0.5)}


# An element costs 5 FLOPs forward behind the products: 1 for exp, 1 to add, 1 for the quotient, 1
# for its argument, 1 for up; back 11, as in `chains.swiglu`.
def forward_cost(case: Case) -> Cost:
    """What it must do at least: x and both weights in, y out; an FMA a term."""
    (m, k, n, parts), size = case.shape, case.dtype.itemsize
    return Cost(2 * m * parts * n * k + 5 * m * n, (m * k + parts * n * k) * size, m * n * size)


def backward_cost(case: Case) -> Cost:
    """What the way back must do at least: dy, both products kept, x and weights in, two out."""
    (m, k, n, parts), size = case.shape, case.dtype.itemsize
    return Cost(
        flops=4 * m * parts * n * k + 11 * m * n,
        read_bytes=(m * n + parts * m * n + m * k + parts * n * k) * size,
        write_bytes=(m * k + parts * n * k) * size,
    )


def tolerance(case: Case, _name: str) -> Tolerance:
    """Sums of K terms; PyTorch's way rounds both products, SiLU and the output, ours that alone."""
    return common.bound(case.dtype, case.shape[1], roundings=4)


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """What is kept is rounded, the gate's gradient and the product's: sums of 2N terms, or M."""
    m, _, n, parts = case.shape
    return common.bound(case.dtype, parts * n if name == "x" else m, roundings=4)


def _followed(case: Case) -> Followed:
    return Followed(case.shape[:3], case.dtype.itemsize, gated=True, activated=True)


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves, forward or back."""
    (m, k, n, parts), size = case.shape, case.dtype.itemsize
    if pass_ == "bwd":
        back = back_through_product(m, k, parts * n, case.dtype, sums=False)
        return Moves.of(activation_step(m, n, size, gated=True), *back)
    return Moves.of(_followed(case).step())


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
    """The tilings of the forward in a case, and how the kernel for Hopper may finish: functions."""

    def run(tiling: Tiling, x: Tensor, weight: Tensor) -> Tensor:
        given, (y, _) = with_gate(x, weight, SILU, keeps=False)
        launch(given, tiling)
        return y

    def by_hand(finish: Finish, x: Tensor, weight: Tensor) -> Tensor:
        given, (y, _) = with_gate(x, weight, SILU, keeps=False)
        launch(given, hopper=True, finish=finish)
        return y

    tried = [halved(one) for one in forward_to_try(case).values()]
    found = {one.name: functools.partial(run, one) for one in tried}
    if suits(case):
        ways = finishes_to_try(SILU)
        found |= {one.name: functools.partial(by_hand, one) for one in ways}
    return {"PyTorch": torch_swiglu_half, **found}


SHAPES: tuple[Shape, ...] = (
    (4096, 1024, 3072, 2),
    (16384, 1024, 3072, 2),
    (8192, 4096, 14336, 2),
    (4096, 4096, 4096, 2),
)
_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=HALF,
        suite="matmul",
        dims="MKNT",
        tensors={"x": "MK", "weight": "TNK"},
        outputs={"y": "MN"},
        independent="M",
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten", cases=cases(SHAPES[:1], "bf16")),
            Variant("torch", torch_swiglu_half, _BOTH, counted="aten"),
            Variant("compile", compiled_swiglu_half, _BOTH, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune",
                max_autotuned_swiglu_half,
                unavailable=needs_gpu,
                cases=cases(SHAPES[:1], "bf16"),
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
        shapes=SHAPES,
        beyond=tuple((*shape, 2) for shape in common.BEYOND),
        small=tuple((*shape, 2) for shape in common.SMALL),
        forward=Pass(
            cost=forward_cost,
            tolerance=tolerance,
            cases=cases(SHAPES, "bf16"),
            candidates=candidates,
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=cases(SHAPES[:1], "bf16"),
            differentiates=("x", "weight"),
        ),
    )
)
