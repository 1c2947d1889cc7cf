"""06.7: a LayerNorm of heads in any order of memory, without the copy in front of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.layer_norm import explain_layer_norm, norm_tolerance
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    masked_lanes_named,
    recognised,
    right_or_told,
)
from kernels.ops.norms.layernorm import reference
from kernels.registry import DTYPES

# Which axis of (batch, head, position) lies outermost in memory, and so on inwards.
_ORDERS = tuple(itertools.permutations(range(3)))
_OUTSIDE = (
    "Element [b, h, p, c] of x lies at b · x.stride(0) + h · x.stride(1) + p · x.stride(2) + c, "
    "and columns beyond the row need a mask."
)
_LIKE = (
    "torch.empty_like(x) takes on the order of x. torch.empty(x.shape, dtype=x.dtype, "
    "device=x.device) is contiguous."
)


def in_order(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return a tensor equal to x (4 axes) whose first three lie so in memory, outermost first."""
    inverse = [order.index(axis) for axis in range(3)]
    return x.permute(*order, 3).contiguous().permute(*inverse, 3)


def _case(
    rng: random.Random, shape: tuple[int, ...], name: str, order: tuple[int, ...], eps: float = 1e-5
) -> Case:
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    cols = shape[-1]
    values = {
        "x": in_order(0.5 + 1.5 * torch.randn(*shape, generator=generator), order),
        "weight": 1.0 + 0.5 * torch.randn(cols, generator=generator),
        "bias": torch.randn(cols, generator=generator),
    }
    given = {key: value.to(DTYPES[name]) for key, value in values.items()}
    exact = reference(given["x"], given["weight"], given["bias"], eps)
    rows = given["x"].reshape(-1, cols)
    trait = f"strides {given['x'].stride()}" if order != (0, 1, 2) else ""
    return Case(given, (eps,), exact, norm_tolerance({"x": rows}, eps), trait)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases = [
        _case(rng, (2, heads, 2, cols), name, order)
        for order, name, heads, cols in zip(
            _ORDERS, ("fp32", "fp16", "bf16") * 2, (3, 2) * 3, (64, 17) * 3, strict=True
        )
    ]
    for order in _ORDERS[:3]:
        shape = (2, 1, rng.randrange(3, 5), rng.randrange(65, 300))
        cases.append(_case(rng, shape, "fp32", order))
    cases.append(_case(rng, (2, 2, 3, 100), "fp32", (0, 2, 1), 0.5))
    cases.append(_case(rng, (1, 2, 6, 1), "fp32", (0, 1, 2), 1e-3))
    return cases + [_case(rng, (1, 2, 2, 4096), name, (0, 2, 1)) for name in ("fp32", "fp16")]


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, weight, bias = case.tensors.values()
    (eps,) = case.options
    contiguous = torch.empty(x.shape).stride()
    yield (
        "The rows come in the order in which they lie in memory: x is read as if it were "
        "contiguous, or y is stored with the strides of x. x has strides of its own, y has not.",
        reference(x.as_strided(x.shape, contiguous), weight, bias, eps),
    )
    for order in _ORDERS[1:]:
        yield (
            "The program's number is split in another order. Row r of y is position r % P, head "
            "r // P % H and batch r // (P · H).",
            case.reference.permute(*order, 3).reshape(x.shape),
        )


def _explain(runs: list[Run]) -> str:
    failed = [r for r in runs if r.fault is not None]
    if failed and all(r.wrong.numel() and not r.output.is_contiguous() for r in failed):
        return f"y is asked for contiguous, and this one isn't. {_LIKE}"
    if told := recognised(runs, _models) or explain_layer_norm(runs):
        return told
    if failed and all(r.case.trait for r in failed):
        return "It is right where x is contiguous: look at what becomes of the strides."
    return ""


def _no_copy(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if x is copied into another order first."""
    for r in runs:
        copies = [name for name in r.operators if name in ("clone", "copy_", "contiguous")]
        if copies:
            twice = 2 * r.case.x.numel() * r.case.x.itemsize
            raise Wrong(
                f"{attempt.name} copies x first on {r.case}, by PyTorch's {copies[0]}.",
                f"The copy reads x and writes it once more, {twice:,} bytes beside the norm's own. "
                "A kernel can walk x as it lies: hand it the strides.",
            )


def _contiguous(attempt: Attempt, runs: list[Run]) -> None:
    for r in runs:
        if not r.output.is_contiguous():
            raise Wrong(
                f"{attempt.name} on {r.case} returned a tensor with strides {r.output.stride()}; "
                "a contiguous one is asked for.",
                _LIKE,
            )
    attempt.held.append("the output is contiguous, whatever the order of x")


def grade_any_order(attempt: Attempt) -> None:
    """Grade `norm_any_order(x, weight, bias, eps)`: right in every order of memory, no copy."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    _no_copy(attempt, runs)
    computed_by_kernels(attempt, runs, launches=1)
    _contiguous(attempt, runs)
    reads_once(attempt, runs, "x")

    def ideal(case: Case) -> int:
        return (2 * case.x.numel() + 2 * case.x.shape[-1]) * case.x.itemsize

    within_bytes(attempt, runs, ideal, "x, weight and bias read, y written")

    def least(case: Case) -> int:
        return -(-case.x.numel() // case.x.shape[-1] // 4)

    enough_programs(attempt, runs, least, "one for every four rows")
    masked_lanes_named(attempt, runs)
    compiles(attempt, (r.case for r in runs))


def _large(seed: int) -> Case:
    case = _case(random.Random(seed), (4, 8, 256, 2048), "fp32", (0, 2, 1))
    return replace(case, trait="heads inside positions")


ORDER_SPEED = Speed(_large, 0.8)
