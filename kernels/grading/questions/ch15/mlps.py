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


def gelu(u: Tensor) -> Tensor:
    """Return u · Φ(u)."""
    return torch.nn.functional.gelu(u)


def slope(u: Tensor) -> Tensor:
    """Return the derivative of GELU at u: Φ(u) + u · φ(u)."""
    return 0.5 * (1 + torch.erf(u / math.sqrt(2))) + u * torch.exp(-u * u / 2) / math.sqrt(
        2 * math.pi
    )


def wide(case: Case) -> dict[str, Tensor]:
    """The tensors of a case in float64."""
    return {name: one.double() for name, one in case.tensors.items()}


def held_to(case: Case, right: Tensor, terms: int) -> Case:
    """Return the case with another output: sums of so many terms in fp32, behind one another."""
    near = 2.0**-24 * (64 + 16 * math.sqrt(terms))
    return replace(case, reference=right, tolerance=Tolerance(near, 2 * near))


_TANH = "That is GELU's tanh form, which is near: asked is F.gelu(u), by the error function."


def tanh_gelu(u: Tensor) -> Tensor:
    """Return GELU in the form that people take for the other one."""
    return torch.nn.functional.gelu(u, approximate="tanh")


def tanh_back(da: Tensor, u: Tensor) -> Tensor:
    """Return da times the slope of that form."""
    return torch.ops.aten.gelu_backward(da, u, approximate="tanh")


def explaining(
    faults: Faults, by_tanh: Callable[[dict[str, Tensor]], Tensor] | None = None
) -> Callable[[list[Run]], str]:
    """Return what explains wrong runs by models of their faults.

    by_tanh: the output by GELU's tanh form. It is too near for a model among others, and is held to
    fp32's digits in every run.
    """

    def models(case: Case) -> Iterator[tuple[str, Tensor]]:
        return faults(wide(case))

    def explain(runs: list[Run]) -> str:
        if by_tanh and all(_is(r, by_tanh(wide(r.case))) for r in runs):
            return _TANH
        return recognised(runs, models)

    return explain


def _is(run: Run, model: Tensor) -> bool:
    output = run.output
    if type(output) is not torch.Tensor or output.shape != model.shape:
        return False
    return bool((output.double() - model).abs().max() <= 4e-6 * model.abs().max())


def back_through(dy: Tensor, u: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return y's gradients of y = gelu(u) · weightᵀ + bias: du, dweight and dbias."""
    return {
        "du": dy @ weight * slope(u),
        "dweight": dy.T @ gelu(u),
        "dbias": dy.sum(0),
    }


def gelu_faults(dy: Tensor, u: Tensor, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Wrong du of y = gelu(u) · weightᵀ."""
    da = dy @ weight
    yield "GELU's slope is missing: du is da · gelu'(u).", da
    yield "da is multiplied by gelu(u): it takes the slope, gelu'(u).", da * gelu(u)
    yield "The slope is taken at a: it is taken at u.", da * slope(gelu(u))
    yield "The slope is taken at da: gelu_backward(da, u) has da first.", u * slope(da)
    yield "da is missing: du is da · gelu'(u), and da is dy · weight.", slope(u).expand_as(da)
    yield "du has the slope twice.", da * slope(u) ** 2


def weight_faults(dy: Tensor, u: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Wrong dweight of y = gelu(u) · weightᵀ."""
    yield "dweight is made of u: the product read a = gelu(u), which is made again.", dy.T @ u
    yield "dweight takes the slope: it takes a = gelu(u).", dy.T @ slope(u)
    twice = "GELU is taken twice for dweight: what was kept is u, or it is a."
    yield twice, dy.T @ gelu(gelu(u))
    relu = "That is ReLU of u: asked is GELU."
    yield relu, dy.T @ u.relu()
    yield "dweight is a mean over the tokens: it is their sum.", dy.T @ gelu(u) / len(dy)
    if dy.shape[1] == u.shape[1]:
        yield "dweight is transposed: it is dyᵀ · a, of weight's shape.", gelu(u).T @ dy


def sums(tensors: Sequence[Any]) -> int:
    """Bytes of all tensors."""
    return sum(one.numel() * one.element_size() for one in tensors)
