"""08.6: dx of y = residual + dropout(gelu(x + bias)), with the forward's mask."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.masks import (
    edge,
    explains_all,
    kept,
    masks_and_scales,
    near,
    nonzero,
    right_masked,
    state,
)
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, masked_lanes_named
from kernels.philox import scale
from kernels.registry import DTYPES, Tolerance

_PLAN: tuple[tuple[int, int, str, float | None], ...] = (
    (4, 64, "fp32", 0.25),
    (3, 17, "fp32", 0.5),
    (5, 100, "fp16", 0.1),
    (6, 3, "fp32", 0.4),
    (2, 1000, "bf16", 0.3),
    (1, 2048, "fp32", None),
    (3, 40, "fp32", 0.0),
    (2, 24, "fp16", 1.0),
)
_ROOT = math.sqrt(2 / math.pi)
_PROGRAM = 4096  # elements of a program at most


def gelu(h: Tensor) -> Tensor:
    """Return GELU of h in its tanh form."""
    return h * torch.sigmoid(2 * _ROOT * (h + 0.044715 * h**3))


def slope(h: Tensor) -> Tensor:
    """Return the derivative of `gelu` at h."""
    share = torch.sigmoid(2 * _ROOT * (h + 0.044715 * h**3))
    return share + h * share * (1 - share) * 2 * _ROOT * (1 + 3 * 0.044715 * h**2)


def _case(rng: random.Random, rows: int, cols: int, name: str, p: float | None) -> Case:
    seed_offset = state(rng)
    p = edge(rng, rows * cols, seed_offset) if p is None else p
    dtype = DTYPES[name]
    dy = nonzero(rng, (rows, cols), dtype)
    # Where GELU's slope is nearly 0 no mask would show.
    x = (drawn(rng, (rows, cols), torch.float32).abs() - 0.3).to(dtype)
    bias = (drawn(rng, (cols,), torch.float32).abs() * 0.4).to(dtype)
    mask = kept((rows, cols), p, seed_offset)
    dx = torch.where(mask, dy.double() * slope(x.double() + bias.double()) * scale(p), 0.0)
    close = near(dtype)
    if not bool(mask.any()):
        close = Tolerance(close.relative_norm, 0.0)
    given = {"dy": dy, "x": x, "bias": bias, "seed_offset": seed_offset}
    return Case(given, (p,), dx, close)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases = [_case(rng, *one) for one in _PLAN]
    return [*cases, _case(rng, rng.randrange(4, 9), rng.randrange(65, 300), "fp32", 0.2)]


def _slopes(dy: Tensor, x: Tensor, bias: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Factors of the mask in place of dy · gelu'(x + bias)."""
    h = x + bias
    right = dy * slope(h)
    yield "GELU's slope is missing: dx is dropout(dy) · gelu'(x + bias).", dy
    yield "dy is multiplied by gelu(x + bias): it takes the slope, gelu'.", dy * gelu(h)
    yield "The slope is taken at x: it is taken at x + bias.", dy * slope(x)
    yield "dy is missing.", slope(h)
    yield "gelu' is taken of dy: it is taken of x + bias.", dy * slope(dy)
    share = torch.sigmoid(2 * _ROOT * (h + 0.044715 * h**3))
    yield (
        "The slope has a second term: σ alone is the derivative of nothing but a straight line.",
        dy * share,
    )
    yield "dy is added to dx: the residual's gradient is dy, and x's is not.", right + dy


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    dy, x, bias = (case.tensors[name].double() for name in ("dy", "x", "bias"))
    (p,) = case.options
    seed_offset = case.tensors["seed_offset"]
    shape = tuple(dy.shape)
    right = kept(shape, p, seed_offset)
    value = dy * slope(x + bias)
    later = kept(shape, p, seed_offset + torch.tensor([0, 1]))
    another = (
        "The backward draws another mask, that of the next offset: it takes the seed and the "
        "offset of its forward, for the mask is the same."
    )
    yield another, torch.where(later, value * scale(p), 0.0)
    yield (
        "dy is added to dx: the residual's gradient is dy, and x's is not.",
        torch.where(right, value * scale(p), 0.0) + dy,
    )
    slopes = list(_slopes(dy, x, bias))
    for what, wrong in slopes:
        yield what, torch.where(right, wrong * scale(p), 0.0)
        yield f"{another} And more: {what}", torch.where(later, wrong * scale(p), 0.0)
    for what, mask, factor in masks_and_scales(shape, p, seed_offset):
        yield what, torch.where(mask, value * factor, 0.0)
    for what, mask, factor in masks_and_scales(shape, p, seed_offset):
        yield f"{slopes[0][0]} {what}", torch.where(mask, dy * factor, 0.0)


def _explain(runs: list[Run]) -> str:
    return explains_all(runs, _models)


def grade_chain_dx(attempt: Attempt) -> None:
    """Grade `chain_dx(dy, x, bias, seed_offset, p)`: right, one launch, each byte once."""
    runs = right_masked(attempt, _cases(attempt.seed), _explain, "dx")
    judged = [r for r in runs if 0 < r.case.options[0] < 1]
    computed_by_kernels(attempt, judged, launches=1)
    for name in ("dy", "x"):
        reads_once(attempt, judged, name)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return (3 * rows + 1) * cols * case.x.itemsize + 16

    within_bytes(attempt, judged, ideal, "dy, x, bias and the seed read, dx written, and no mask")

    def least(case: Case) -> int:
        return -(-case.x.numel() // _PROGRAM)

    enough_programs(attempt, judged, least, f"one for every {_PROGRAM} elements")
    masked_lanes_named(attempt, judged)
    compiles(attempt, (r.case for r in judged))
