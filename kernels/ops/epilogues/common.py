"""What the operations have in common: inputs, tolerances, and the shapes of their suite."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.registry import Case, Cost, Shape, Tolerance, cases

Tensor = torch.Tensor

# Two products as a layer of 1024 wide makes them, one as a large model does, and a square one.
SHAPES: tuple[Shape, ...] = (
    (4096, 1024, 3072),
    (16384, 1024, 3072),
    (8192, 4096, 12288),
    (4096, 4096, 4096),
)
FIRST = cases(SHAPES[:1], "bf16")
BEYOND: tuple[Shape, ...] = ((16, 4096, 4096), (1000, 1001, 1003), (300, 1000, 520))
# Tiles that divide, ragged ones, rows off multiples of 16 bytes, sizes of 1, no rows.
SMALL: tuple[Shape, ...] = (
    (64, 48, 32),
    (33, 70, 17),
    (150, 64, 264),
    (1, 17, 5),
    (5, 1, 3),
    (130, 8, 1),
    (0, 16, 8),
)


class Random:
    """Random tensors of a dtype on a device, all from one seed."""

    def __init__(self, dtype: torch.dtype, device: torch.device | str, seed: int) -> None:
        self.dtype, self.device = dtype, device
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def __call__(self, *sizes: int, scale: float = 1.0) -> Tensor:
        """Normal numbers times `scale`, rounded to the dtype."""
        drawn = torch.randn(*sizes, generator=self.generator, device=self.device)
        return (drawn * scale).to(self.dtype)


def given(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random x (M, K), weight (N, K) scaled by 1/√K, as layers begin with, and bias (N,)."""
    m, k, n = shape
    random = Random(dtype, device, seed)
    return {"x": random(m, k), "weight": random(n, k, scale=k**-0.5), "bias": random(n)}


def bound(dtype: torch.dtype, terms: int, roundings: int = 1) -> Tolerance:
    """So many roundings to the dtype, and the error of a sum of so many terms in fp32.

    Tensor cores cut off where they add, so that each step is off by up to 2⁻²², to either side or
    to one; a random walk of √terms steps is allowed.
    """
    unit = roundings * torch.finfo(dtype).eps / 2
    sums = 2.0**-22 * (2 + math.sqrt(terms))
    return Tolerance(relative_norm=unit + sums, largest=2 * unit + 4 * sums)


def tolerance(case: Case, _name: str) -> Tolerance:
    """Sums of K terms; PyTorch's way rounds the product and the output, ours the output alone."""
    return bound(case.dtype, case.shape[1], roundings=2)


def gradient_bound(
    sizes: tuple[int, ...], dtype: torch.dtype, name: str, roundings: int = 1
) -> Tolerance:
    """The bound on a gradient of a product of `sizes` (M, K, N): so many roundings, and its sum.

    Sums have N terms for x, M for weight and bias.
    """
    m, _, n = sizes
    return bound(dtype, n if name == "x" else m, roundings)


def product_backward_cost(sizes: tuple[int, ...], itemsize: int) -> Cost:
    """What both products back of `sizes` (M, K, N) and the sum for the bias must do at least.

    dy, read once, x and weight go in, three gradients out, in elements of `itemsize` bytes.
    """
    m, k, n = sizes
    return Cost(
        flops=4 * m * n * k + m * n,
        read_bytes=(m * n + m * k + n * k) * itemsize,
        write_bytes=(m * k + n * k + n) * itemsize,
    )
