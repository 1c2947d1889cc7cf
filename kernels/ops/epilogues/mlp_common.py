"""What the gated MLPs have in common: inputs, costs, tolerances, moves, and their registration.

a = act(x · gateᵀ) · (x · upᵀ),   y = a · downᵀ
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernels.launch import capability
from kernels.ops.epilogues import common
from kernels.ops.epilogues.configurations import simple_tiling
from kernels.ops.epilogues.forward import launch_simple, with_gate
from kernels.ops.epilogues.gate_operators import check_mlp
from kernels.ops.epilogues.moves import Followed, activation_step, back_through_product
from kernels.ops.products import moves as product_moves
from kernels.ops.products.configurations import hopper_tiles
from kernels.ops.products.forward import simple
from kernels.ops.shared.arguments import refuse_gradients
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
    register,
)

Tensor = torch.Tensor

SHAPES: tuple[Shape, ...] = ((4096, 1024, 3072, 2), (8192, 4096, 14336, 2))


def inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random x (M, K), weight (2, N, K) and down (K, N), scaled by 1/√K and 1/√N.

    The last number of a shape, T, is always 2: gate and up.
    """
    m, k, n, _ = shape
    random = common.Random(dtype, device, seed)
    return {
        "x": random(m, k),
        "weight": random(2, n, k, scale=k**-0.5),
        "down": random(k, n, scale=n**-0.5),
    }


def run_simple(name: str, x: Tensor, weight: Tensor, down: Tensor, activation: str) -> Tensor:
    """The kernels of the page, one behind the other: both by plain pointers."""
    check_mlp(x, weight, down)
    refuse_gradients(name, x, weight, down, instead="the variant fused")
    given, (a, _) = with_gate(x, weight, activation, keeps=False)
    launch_simple(given)
    return simple(a, down)


def _forward_cost(each: int, case: Case) -> Cost:
    (m, k, n, parts), size = case.shape, case.dtype.itemsize
    weights = (parts + 1) * n * k
    return Cost(2 * m * weights + each * m * n, (m * k + weights) * size, m * k * size)


def _backward_cost(each: int, case: Case) -> Cost:
    """dy, both products kept, x and the weights in, three gradients out."""
    (m, k, n, parts), size = case.shape, case.dtype.itemsize
    weights = (parts + 1) * n * k
    return Cost(
        flops=4 * m * weights + each * m * n,
        read_bytes=(2 * m * k + parts * m * n + weights) * size,
        write_bytes=(m * k + weights) * size,
    )


def tolerance(case: Case, _name: str) -> Tolerance:
    """Sums of K and of N terms, of what was rounded: `a`, by PyTorch both products and SiLU too."""
    _, k, n, _ = case.shape
    return common.bound(case.dtype, k + n, roundings=5)


def gradient_tolerance(case: Case, _name: str) -> Tolerance:
    """On the way are rounded what is kept, da, the gate's gradient and the last product."""
    return common.bound(case.dtype, sum(case.shape[:3]), roundings=6)


def _followed(case: Case) -> Followed:
    return Followed(case.shape[:3], case.dtype.itemsize, gated=True, activated=True)


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves: forward two launches, back that of the gate and two products twice."""
    (m, k, n, parts), dtype = case.shape, case.dtype
    if pass_ == "bwd":
        return Moves.of(
            *back_through_product(m, n, k, dtype, sums=False),
            activation_step(m, n, dtype.itemsize, gated=True),
            *back_through_product(m, k, parts * n, dtype, sums=False),
        )
    down = Case((m, n, k), dtype)
    tiling = product_moves.tiling_of(down)
    second = product_moves.forward_moves(down, tiling, biased=False)
    return Moves.of(_followed(case).step(), *second.steps)


def simple_moves(case: Case, _pass: str) -> Moves:
    """What the kernels of the page move."""
    (m, k, n, _), size = case.shape, case.dtype.itemsize
    card = capability(torch.device("cpu"))
    second = product_moves.forward_moves(
        Case((m, n, k), case.dtype), simple_tiling(size, False, card), biased=False
    )
    return Moves.of(_followed(case).step(simple_tiling(size, True, card)), *second.steps)


def hopper_moves(case: Case, _pass: str) -> Moves:
    """What the kernels written for Hopper move, one behind the other."""
    m, k, n, _ = case.shape
    first, down = _followed(case).by_hopper(), Case((m, n, k), case.dtype)
    second, biased = product_moves.hopper_moves(down, "fwd"), case.dtype.itemsize * k
    tiles_down, _across = hopper_tiles(m, k)
    return Moves(
        launches=2,
        unique=_sum(first.unique, second.unique, -biased),
        requested=_sum(first.requested, second.requested, -2 * biased * tiles_down),
    )


def _sum(*terms: int | None) -> int:
    return sum(one or 0 for one in terms)


def suits(case: Case) -> bool:
    """Whether they take both products of a case, rows side by side."""
    m, k, n, _ = case.shape
    return _followed(case).suits() and product_moves.suits(Case((m, n, k), case.dtype))


def registered(
    name: str,
    reference: Callable[..., Tensor],
    variants: Mapping[str, Variant],
    flops: tuple[int, int],
    measured: Sequence[Shape] = SHAPES,
) -> Op:
    """Register a gated MLP; `flops` an element of `a`, forward and back; `measured` forward."""
    return register(
        Op(
            name=name,
            suite="matmul",
            dims="MKNT",
            tensors={"x": "MK", "weight": "TNK", "down": "KN"},
            outputs={"y": "MK"},
            independent="M",
            inputs=inputs,
            reference=reference,
            variants=variants,
            shapes=SHAPES,
            beyond=((16, 4096, 4096, 2), (300, 1000, 520, 2)),
            small=(
                (64, 48, 32, 2),
                (33, 70, 17, 2),
                (150, 64, 264, 2),
                (1, 17, 5, 2),
                (5, 1, 3, 2),
                (0, 16, 8, 2),
            ),
            forward=Pass(
                cost=functools.partial(_forward_cost, flops[0]),
                tolerance=tolerance,
                cases=cases(measured, "bf16"),
            ),
            backward=Backward(
                cost=functools.partial(_backward_cost, flops[1]),
                tolerance=gradient_tolerance,
                cases=cases(SHAPES[:1], "bf16"),
                differentiates=("x", "weight", "down"),
            ),
        )
    )
