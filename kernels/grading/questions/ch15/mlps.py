"""What 15.3, 15.5 and 15.7 share: products behind GELU, by formulas in float64, and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.questions.kits.wrong_models import Tensor, recognised
from kernels.registry import Tolerance

# From the tensors of a case, in float64, to what stands for an output, and what its fault is.
Faults = Callable[[dict[str, Tensor]], Iterator[tuple[str, Tensor]]]


def gelu(z: Tensor) -> Tensor:
    """Return z · Φ(z)."""
    return torch.nn.functional.gelu(z)


def slope(z: Tensor) -> Tensor:
    """Return the derivative of GELU at z: Φ(z) + z · φ(z)."""
    return 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-z * z / 2) / math.sqrt(
        2 * math.pi
    )


def wide(case: Case) -> dict[str, Tensor]:
    """The tensors of a case in float64."""
    return {name: one.double() for name, one in case.tensors.items()}


def held_to(case: Case, right: Tensor, terms: int) -> Case:
    """Return the case with another output: sums of so many terms in fp32, behind one another."""
    near = 2.0**-24 * (64 + 16 * math.sqrt(terms))
    return replace(case, reference=right, tolerance=Tolerance(near, 2 * near))


def explaining(faults: Faults) -> Callable[[list[Run]], str]:
    """Return what explains wrong runs by models of their faults."""

    def models(case: Case) -> Iterator[tuple[str, Tensor]]:
        return faults(wide(case))

    return lambda runs: recognised(runs, models)


def back_through(dy: Tensor, z: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return y's gradients of y = gelu(z) · weightᵀ + bias: dz, dweight and dbias."""
    return {
        "dz": dy @ weight * slope(z),
        "dweight": dy.T @ gelu(z),
        "dbias": dy.sum(0),
    }


def gelu_faults(dy: Tensor, z: Tensor, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Wrong dz of y = gelu(z) · weightᵀ."""
    da = dy @ weight
    yield "GELU's slope is missing: dz is da · gelu'(z).", da
    yield "da is multiplied by gelu(z): it takes the slope, gelu'(z).", da * gelu(z)
    yield "The slope is taken at a: it is taken at z.", da * slope(gelu(z))
    yield "The slope is taken at da: gelu_backward(da, z) has da first.", z * slope(da)
    yield "da is missing: dz is da · gelu'(z), and da is dy · weight.", slope(z).expand_as(da)
    yield "dz has the slope twice.", da * slope(z) ** 2


def weight_faults(dy: Tensor, z: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Wrong dweight of y = gelu(z) · weightᵀ."""
    yield "dweight is made of z: the product read a = gelu(z), which is made again.", dy.T @ z
    yield "dweight takes the slope: it takes a = gelu(z).", dy.T @ slope(z)
    twice = "GELU is taken twice for dweight: what was kept is z, or it is a."
    yield twice, dy.T @ gelu(gelu(z))
    relu = "That is ReLU of z: asked is GELU."
    yield relu, dy.T @ z.relu()
    yield "dweight is a mean over the tokens: it is their sum.", dy.T @ gelu(z) / len(dy)
    if dy.shape[1] == z.shape[1]:
        yield "dweight is transposed: it is dyᵀ · a, of weight's shape.", gelu(z).T @ dy


def sums(tensors: Sequence[Any]) -> int:
    """Bytes of all tensors."""
    return sum(one.numel() * one.element_size() for one in tensors)
