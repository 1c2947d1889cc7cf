"""What SwiGLU and GEGLU have in common beside their kernels: inputs, costs, tolerances, moves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels.ops.chains.gated import gated_backward, gated_forward
from kernels.ops.shared.blocks import Block
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

# The first two are layers of a model of 4096 columns inside, the second that of 8 billion weights.
SHAPES: tuple[Shape, ...] = ((4096, 4096), (8192, 14336), (16384, 8192))
BEYOND: tuple[Shape, ...] = ((33, 1000), (7, 20001))


def inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random gate and up (rows, N)."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return {
        name: torch.randn(*shape, generator=generator, device=device).to(dtype)
        for name in ("gate", "up")
    }


def _cost(flops: int, n_read: int, n_written: int, case: Case) -> Cost:
    size = case.shape[0] * case.shape[1]
    each = size * case.dtype.itemsize
    return Cost(flops * size, n_read * each, n_written * each)


def tolerance(case: Case, _name: str) -> Tolerance:
    """The output's rounding, and a handful of fp32's: of the exponential, the quotient, products.

    1 − σ is taken of a rounded σ, so that a slope near 0 is off by fp32's unit of 1, not its own.
    """
    unit = torch.finfo(case.dtype).eps / 2
    return Tolerance(relative_norm=unit + 2.0**-20, largest=2 * unit + 2.0**-19)


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """A gradient's rounding: nothing on the way is rounded to the dtype."""
    return tolerance(case, name)


def moves(case: Case, pass_: str) -> Moves:
    """One launch each way, which asks for each element once."""
    size = case.shape[0] * case.shape[1] * case.dtype.itemsize
    each = (5 if pass_ == "bwd" else 3) * size
    return Moves(1, unique=each, requested=each)


def blocks(elements: tuple[int, ...]) -> dict[str, Block]:
    """The tiles worth timing, by name: so many elements a thread, by 2 to 8 warps."""
    return {
        f"tiles of {32 * warps * each}, {warps} warps": Block(32 * warps * each, warps)
        for warps in (2, 4, 8)
        for each in elements
    }


class _Configured(torch.autograd.Function):
    """A gated product that goes back in a tile of your own."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: str, block: Block) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.told = activation, block
        return gated_forward(gate, up, activation)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return *gated_backward(dy, *ctx.saved_tensors, *ctx.told), None, None


def _candidates(activation: str, _case: Case) -> dict[str, Any]:
    def run(block: Block, gate: Tensor, up: Tensor) -> Tensor:
        return gated_forward(gate, up, activation, block)

    return {name: functools.partial(run, block) for name, block in blocks((8, 16, 32)).items()}


def _backward_candidates(activation: str, _case: Case) -> dict[str, Any]:
    def run(block: Block, gate: Tensor, up: Tensor) -> Any:
        return _Configured.apply(gate, up, activation, block)

    return {name: functools.partial(run, block) for name, block in blocks((8, 16)).items()}


def registered(
    name: str,
    activation: str,
    reference: Callable[..., Tensor],
    variants: Mapping[str, Variant],
    flops: tuple[int, int],
) -> Op:
    """Register a gated product; `flops` an element, forward and back."""
    return register(
        Op(
            name=name,
            suite="pointwise",
            dims="RN",
            tensors={"gate": "RN", "up": "RN"},
            outputs={"y": "RN"},
            independent="R",
            inputs=inputs,
            reference=reference,
            variants=variants,
            shapes=SHAPES,
            beyond=BEYOND,
            forward=Pass(
                cost=functools.partial(_cost, flops[0], 2, 1),
                tolerance=tolerance,
                cases=cases(SHAPES, "bf16") + cases([(8192, 14336)], "fp32"),
                candidates=functools.partial(_candidates, activation),
            ),
            backward=Backward(
                cost=functools.partial(_cost, flops[1], 3, 2),
                tolerance=gradient_tolerance,
                cases=cases(SHAPES, "bf16"),
                candidates=functools.partial(_backward_candidates, activation),
                differentiates=("gate", "up"),
            ),
        )
    )
