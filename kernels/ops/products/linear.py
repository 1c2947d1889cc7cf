"""A product with bias, y = x · wᵀ + b, forward and backward (chapters 10, 11).

    y = x · wᵀ + b,      dx = dy · w,      dw = dyᵀ · x,      db = Σ dy over the rows

x has the shape (..., K), w (N, K) as `torch.nn.Linear` keeps it, b (N,), y (..., N). With M rows
and elements of s bytes, forward must move (M·K + N·K + N + M·N)·s bytes and does 2·M·N·K FLOPs, M·N
more for the bias; backward does twice as many. A kernel asks for more than it must move. A program
computes a tile of y, BM × BN, and for that it asks for BM rows of x and BN rows of w, whole:

    requested of x and w = (M·K·⌈N/BN⌉ + N·K·⌈M/BM⌉)·s, about (M·N·K/BN + M·N·K/BM)·s

so a tile twice as large asks for half as much. What it asks for twice comes from the L2 where that
still holds it, which is a matter of the order of the programs (`GROUP`).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.launch import capability, for_card
from kernels.launch.gluon import needs_hopper
from kernels.ops.products import linear_cuda
from kernels.ops.products.configurations import BY_TORCH, EVERYWHERE, HOPPER, TORCH, WAYS, Ways
from kernels.ops.products.forward import simple
from kernels.ops.products.moves import hopper_moves, moves, simple_moves, suits
from kernels.ops.products.operators import check, composed, launched
from kernels.ops.products.peers import compiled, max_autotuned, torch_linear
from kernels.ops.products.tuning import backward_candidates, candidates
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import needs_gpu
from kernels.registry import (
    Backward,
    Case,
    Cost,
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

# Two products as a layer of 1024 wide makes them, one as a large model does, and a square one.
SHAPES: tuple[Shape, ...] = (
    (4096, 1024, 3072),
    (16384, 1024, 3072),
    (8192, 4096, 12288),
    (4096, 4096, 4096),
)
MAX_AUTOTUNED = cases([(4096, 1024, 3072), (4096, 4096, 4096)], "bf16")


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product in float64, straight from the equation; returns float64 (..., N)."""
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


def eager(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The maths, one PyTorch operator after the other: a product, rounded, and a sum."""
    y = x @ weight.T
    return y if bias is None else y + bias


def fused_simple(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The kernel of the page: a tile a program by plain pointers; arguments as of `linear`."""
    check(x, weight, bias)
    refuse_gradients("linear", x, weight, bias)
    return simple(x, weight, bias)


def fused(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The fastest in Triton, forward and back, on any card; arguments as of `linear`."""
    return launched(x, weight, bias, EVERYWHERE)


def fused_hopper(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The kernel written for Hopper, where `suits_hopper` takes it; elsewhere `fused`."""
    return launched(x, weight, bias, Ways(HOPPER, TORCH, TORCH))


def ways(x: Any) -> Ways:
    """Which kernels `linear` takes for x: on a CPU the package's own, which are interpreted there.

    On a GPU those of `WAYS`, chosen by capability alone.
    """
    if not getattr(x, "is_cuda", False) or not torch.cuda.is_available():
        return EVERYWHERE
    return for_card(WAYS, capability(x.device))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, in one launch; its backward is a launch for each product.

    x: (..., K) in fp16, bf16 or fp32, any strides, K at least 1. weight: (N, K); bias: (N,) or
    None; all of one dtype. Sums are in fp32; fp32 is multiplied in full, never as tf32. Returns a
    new contiguous tensor (..., N) of x's dtype. It takes the faster kernels on the card at hand by
    one rule, `configurations.WAYS`: PyTorch's where the package's don't win, as on capability 7.5,
    whose tensor cores Triton doesn't use. On a CPU the kernels are interpreted. ValueError or
    TypeError names the argument, what it got and what it takes; NotImplementedError if a gradient
    that our backward made is differentiated again. Inside a transform of `torch.func` and in
    forward-mode differentiation PyTorch's operators compute it.

    Rows at more than one distance from each other, or whose elements don't lie side by side, are
    copied first, which is one more launch. Descriptors (capability 9.0 and later) take rows at
    multiples of 16 bytes; others go by plain pointers, which is slower.
    """
    by = ways(x)
    if by == BY_TORCH:
        check(x, weight, bias)
        return composed(x, weight, bias)
    return launched(x, weight, bias, by)


def inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random x (M, K), weight (N, K) scaled by 1/√K, as layers begin with, and bias (N,)."""
    m, k, n = shape
    generator = torch.Generator(device=device).manual_seed(seed)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=device)

    return {
        "x": random(m, k).to(dtype),
        "weight": (random(n, k) * k**-0.5).to(dtype),
        "bias": random(n).to(dtype),
    }


def forward_cost(case: Case) -> Cost:
    """What the product must do at least: x, weight and bias in, y out; an FMA a term."""
    m, k, n = case.shape
    size = case.dtype.itemsize
    return Cost(
        flops=2 * m * n * k + m * n,
        read_bytes=(m * k + n * k + n) * size,
        write_bytes=m * n * size,
    )


def backward_cost(case: Case) -> Cost:
    """What both products back must do at least, dy read once: dy, x and weight in, three out."""
    m, k, n = case.shape
    size = case.dtype.itemsize
    return Cost(
        flops=4 * m * n * k + m * n,
        read_bytes=(m * n + m * k + n * k) * size,
        write_bytes=(m * k + n * k + n) * size,
    )


def _tolerance(dtype: torch.dtype, terms: int) -> Tolerance:
    """The output's rounding, and that of a sum of so many terms in fp32, one after the other.

    Tensor cores cut off where they add, so that each step is off by up to 2⁻²², to either side or
    to one; a random walk of √terms steps is allowed.
    """
    unit = torch.finfo(dtype).eps / 2
    sums = 2.0**-22 * (2 + math.sqrt(terms))
    return Tolerance(relative_norm=unit + sums, largest=2 * unit + 4 * sums)


def tolerance(case: Case, _name: str) -> Tolerance:
    """The bound on y's error: sums of K terms."""
    return _tolerance(case.dtype, case.shape[1])


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """The bound on a gradient's error: sums of N terms for x, of M for weight and bias."""
    m, _, n = case.shape
    return _tolerance(case.dtype, n if name == "x" else m)


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name="linear",
        suite="matmul",
        dims="MKN",
        tensors={"x": "MK", "weight": "NK", "bias": "N"},
        outputs={"y": "MN"},
        independent="M",
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten"),
            Variant("torch", torch_linear, _BOTH, counted="aten"),
            Variant("compile", compiled, _BOTH, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune", max_autotuned, unavailable=needs_gpu, cases=MAX_AUTOTUNED
            ),
            *linear_cuda.VARIANTS,
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
        beyond=((1, 1024, 3072), (16, 4096, 4096), (1000, 1001, 1003), (300, 1000, 520)),
        small=(
            (64, 48, 32),
            (96, 72, 136),
            (33, 70, 17),
            (150, 64, 264),
            (1, 17, 5),
            (16, 300, 40),
            (5, 1, 3),
            (3, 1, 1),
            (130, 8, 1),
            (0, 16, 8),
        ),
        forward=Pass(
            cost=forward_cost,
            tolerance=tolerance,
            cases=cases(SHAPES, "bf16") + cases(SHAPES[:1] + SHAPES[3:], "fp16"),
            candidates=candidates,
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=cases(SHAPES, "bf16"),
            candidates=backward_candidates,
            differentiates=("x", "weight", "bias"),
            train_cases=cases(SHAPES[:1], "bf16"),
        ),
    )
)
