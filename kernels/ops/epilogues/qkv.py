"""The projections of attention, one product for all, laid out by heads behind it (chapter 11).

    y[t, b, h, s, d] = Σ_k x[b, s, k] · w[t, h, d, k] + bias[t, h, d]

x has the shape (B, S, K), w (T, H, D, K), as a linear layer of T·H·D outputs keeps it
(`layer.weight.view(3, H, D, K)`), bias (T, H, D), y (T, B, H, S, D): T is 3 for queries, keys and
values, 2 for keys and values of another sequence. Each y[t] is what attention reads, contiguous.
With M = B·S rows, N = T·H·D and elements of s bytes, forward must move (M·K + N·K + N + M·N)·s
bytes. Where the product leaves rows, a copy reads them and writes heads: 2·M·N·s bytes more. A
row's pieces of D elements go to T·H places then, 2·D bytes each in 16 bits.

Back, dy is copied to rows in one launch, from which the product's gradients go on.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.launch.gluon import needs_hopper
from kernels.ops.epilogues import common
from kernels.ops.epilogues.forward import in_heads, launch, launch_simple
from kernels.ops.epilogues.moves import Followed, back_through_product, heads_step
from kernels.ops.epilogues.operators import ways
from kernels.ops.epilogues.peers import compiled_qkv, max_autotuned_qkv, torch_qkv
from kernels.ops.epilogues.qkv_operators import NAME, by_heads, check, composed, launched
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


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The projections in float64, straight from the equation; float64 (T, B, H, S, D)."""
    y = torch.einsum("bsk,thdk->tbhsd", x.double(), weight.double())
    return y if bias is None else y + bias.double()[:, None, :, None, :]


def eager(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The maths, one PyTorch operator after the other: a product, a sum, a copy."""
    y = x @ weight.flatten(0, 2).T
    y = y if bias is None else y + bias.flatten()
    return by_heads(y, weight).contiguous()


def fused_simple(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The kernel of the page: a tile a program by plain pointers; arguments as below."""
    check(x, weight, bias)
    refuse_gradients(NAME, x, weight, bias, instead="the variant fused")
    given, y = in_heads(x, weight, bias)
    launch_simple(given)
    return y


def fused(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The fastest in Triton, forward and back, on any card; arguments as of the public one."""
    return launched(x, weight, bias, EVERYWHERE)


def fused_hopper(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The kernel written for Hopper, where `suits_hopper` takes it; elsewhere `fused`."""
    return launched(x, weight, bias, Ways(HOPPER, TORCH, TORCH))


def qkv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Queries, keys and values of x as `q, k, v = qkv(x, weight, bias)`, in one launch.

    x: (B, S, K) in fp16, bf16 or fp32, any strides, K at least 1. weight: (T, H, D, K); bias:
    (T, H, D) or None; all of one dtype. Sums are in fp32, and fp32 is multiplied in full. Returns a
    new contiguous tensor (T, B, H, S, D) of x's dtype. It takes the faster kernels on the card at
    hand by one rule, `configurations.WAYS`; on a CPU the kernels are interpreted. ValueError or
    TypeError names the argument, what it got and what it takes; NotImplementedError if a gradient
    that our backward made is differentiated again. Inside a transform of `torch.func` and in
    forward-mode differentiation PyTorch's operators compute it. Rows are copied first where
    `kernels.ops.products.linear.linear` copies them.
    """
    by = ways(x)
    if by == BY_TORCH:
        check(x, weight, bias)
        return composed(x, weight, bias)
    return launched(x, weight, bias, by)


def inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random x (B, S, K), weight (T, H, D, K) scaled by 1/√K, and bias (T, H, D)."""
    n_batches, positions, k, *heads = shape
    random = common.Random(dtype, device, seed)
    return {
        "x": random(n_batches, positions, k),
        "weight": random(*heads, k, scale=k**-0.5),
        "bias": random(*heads),
    }


def sizes(case: Case) -> tuple[int, int, int]:
    """M, K and N of the product of a case."""
    n_batches, positions, k, n_parts, n_heads, head_size = case.shape
    return n_batches * positions, k, n_parts * n_heads * head_size


def forward_cost(case: Case) -> Cost:
    """What it must do at least: x, weight and bias in, y out; an FMA a term."""
    (m, k, n), size = sizes(case), case.dtype.itemsize
    return Cost(2 * m * n * k + m * n, (m * k + n * k + n) * size, m * n * size)


def backward_cost(case: Case) -> Cost:
    """What both products back must do at least, dy read once: dy, x and weight in, three out."""
    return common.product_backward_cost(sizes(case), case.dtype.itemsize)


def tolerance(case: Case, _name: str) -> Tolerance:
    """The output is rounded once; sums of K terms."""
    return common.bound(case.dtype, case.shape[2])


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """The bound on a gradient's error: sums of N terms for x, of M for weight and bias."""
    return common.gradient_bound(sizes(case), case.dtype, name)


def _followed(case: Case) -> Followed:
    return Followed(sizes(case), case.dtype.itemsize, biased=True, heads=True)


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves, forward or back."""
    m, k, n = sizes(case)
    if pass_ == "bwd":
        back = back_through_product(m, k, n, case.dtype, sums=True)
        return Moves.of(heads_step(m, n, case.dtype.itemsize), *back)
    return Moves.of(_followed(case).step())


def simple_moves(case: Case, _pass: str) -> Moves:
    """What the kernel of the page moves."""
    return _followed(case).by_simple()


def hopper_moves(case: Case, _pass: str) -> Moves:
    """What the kernel written for Hopper moves."""
    return _followed(case).by_hopper()


def suits(case: Case) -> bool:
    """Whether that kernel takes a case, rows side by side."""
    n_batches, positions, _, _, n_heads, head_size = case.shape
    return _followed(case).suits((positions, n_heads, n_batches, head_size))


def candidates(case: Case) -> dict[str, Any]:
    """The tilings of the forward in a case as functions of its inputs, and PyTorch's way."""

    def run(tiling: Tiling, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given, y = in_heads(x, weight, bias)
        launch(given, tiling)
        return y

    found = forward_to_try(Case(sizes(case), case.dtype))
    tried = {name: functools.partial(run, one) for name, one in found.items()}
    return {"PyTorch": torch_qkv, **tried}


SHAPES: tuple[Shape, ...] = ((8, 512, 1024, 3, 16, 64), (4, 2048, 4096, 3, 32, 128))
_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=NAME,
        suite="matmul",
        dims="BSKTHD",
        tensors={"x": "BSK", "weight": "THDK", "bias": "THD"},
        outputs={"y": "TBHSD"},
        independent="B",
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten", cases=cases(SHAPES[:1], "bf16")),
            Variant("torch", torch_qkv, _BOTH, counted="aten"),
            Variant("compile", compiled_qkv, _BOTH, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune",
                max_autotuned_qkv,
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
        beyond=((1, 16, 1024, 3, 16, 64), (3, 100, 1000, 3, 5, 40), (3, 77, 1001, 2, 3, 33)),
        small=(
            (2, 32, 48, 3, 2, 16),
            (3, 11, 24, 3, 2, 8),
            (1, 150, 64, 2, 5, 24),
            (3, 5, 17, 3, 1, 7),
            (1, 1, 1, 1, 2, 1),
            (0, 16, 8, 3, 2, 8),
        ),
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
            differentiates=("x", "weight", "bias"),
        ),
    )
)
