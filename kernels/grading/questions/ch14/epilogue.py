"""14.6: a residual in a product's epilogue, where the sum is still in fp32."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.attention import by_trait
from kernels.grading.questions.kits.products import (
    OUTSIDE,
    ProductCase,
    along_k,
    explain_tiles,
    sum_tolerance,
    unstored,
)
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    lanes_named,
    recognised,
    right_or_told,
)
from kernels.registry import DTYPES

CANCELS = "the residual takes nearly all of the sum away"
_STEPS = (16, 32, 64, 128)
_PLAN: tuple[tuple[int, int, int, str, str], ...] = (
    (32, 32, 32, "fp32", ""),
    (17, 33, 50, "fp16", ""),
    (40, 24, 70, "fp32", ""),
    (1, 70, 40, "bf16", ""),
    (24, 40, 64, "fp16", CANCELS),
    (24, 40, 96, "bf16", CANCELS),
    (5, 3, 1, "fp32", ""),
)
_OUTSIDE = f"{OUTSIDE} residual lies as y does: element [m, n] at m * N + n."
_ROUNDED = (
    "It is right wherever the sum and the residual are of one size. The sum is rounded to 16 bits "
    "and then the residual is added: what was rounded off is missing where the two nearly cancel. "
    "Add in fp32, and convert once, at the store."
)
_IN_LOOP = (
    "The residual is added in every step of the K loop, and asked for as often: it belongs behind "
    "the loop."
)


def _case(rng: random.Random, m: int, n: int, k: int, name: str, trait: str) -> Case:
    dtype = DTYPES[name]
    x, weight = (drawn(rng, (rows, k), torch.float32) for rows in (m, n))
    if trait:
        x, weight = 1 + 0.1 * x, 1 + 0.1 * weight
    else:
        x, weight = 0.5 + x, (0.3 + weight) / k**0.5
    x, weight, bias = x.to(dtype), weight.to(dtype), drawn(rng, (n,), dtype)
    sums = x.double() @ weight.double().T + bias.double()
    residual = drawn(rng, (m, n), torch.float32)
    if trait:
        residual = residual - sums.float()
    residual = residual.to(dtype)
    right = sums + residual.double()
    terms = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    near = sum_tolerance(terms + residual.double().abs(), right, k, dtype)
    given = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    return ProductCase(given, (), right, near, trait)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    more = (rng.randrange(33, 60), rng.randrange(3, 60), rng.randrange(33, 90), "fp16", "")
    return [_case(rng, *one) for one in (*_PLAN, more)]


def _misread(residual: Tensor, k: int) -> Tensor:
    """The residual with rows of k numbers; NaN where the tensor has ended."""
    m, n = residual.shape
    at = torch.arange(m)[:, None] * k + torch.arange(n)
    flat = residual.flatten()
    return torch.where(at < len(flat), flat[at.clamp(max=len(flat) - 1)], torch.nan)


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, weight, bias, residual = (one.double() for one in case.tensors.values())
    dtype = case.x.dtype
    (m, k), n = x.shape, len(weight)
    total = x @ weight.T
    y = total + bias + residual

    def rounded(sums: Tensor) -> Tensor:
        return sums.to(dtype).double()

    yield _ROUNDED, rounded(total + bias) + residual
    yield _ROUNDED, rounded(rounded(total) + bias) + residual
    yield _ROUNDED, rounded(total) + bias + residual
    yield (
        "The residual is rounded to fp16 before it is added: convert it to fp32.",
        total + bias + residual.half().double(),
    )
    yield (
        "The residual's rows are N numbers long, as those of y, and not K.",
        total + bias + _misread(residual, k),
    )
    yield (
        "The residual's rows are N numbers long, and not K. And more: the sum is rounded to 16 "
        "bits before the residual is added.",
        rounded(total + bias) + _misread(residual, k),
    )
    for step in _STEPS:
        yield _IN_LOOP, total + bias + -(-k // step) * residual
        yield (
            "The bias is added in every step of the K loop: it belongs behind it.",
            total + -(-k // step) * bias + residual,
        )
        yield (
            "Bias and residual are added in every step of the K loop: both belong behind it.",
            total + -(-k // step) * (bias + residual),
        )
    yield "The residual is not added.", total + bias
    yield "The residual is taken away: it is added.", total + bias - residual
    yield "The bias is not added.", total + residual
    yield "The bias is taken away: it is added.", total - bias + residual
    yield "Bias and residual are missing.", total
    yield "The product is missing: that is bias and residual.", (bias + residual).expand_as(y)
    yield "The residual is added twice.", y + residual
    if m <= n:
        yield (
            "The bias is indexed by the row: it has a number for each column.",
            total + bias[:m, None] + residual,
        )
    yield (
        "Every row adds the residual's first row: row m of y takes row m of it.",
        total + bias + residual[:1],
    )
    row, col = torch.arange(m)[:, None], torch.arange(n)[None, :]
    for edge in _STEPS:
        for at in ((row % edge, col % edge), (row % edge, col), (row, col % edge)):
            yield (
                "Each tile takes the first rows or columns of the residual: they are counted from "
                "the matrix' first.",
                total + bias + residual[at],
            )
    for turned in (residual.T.reshape(m, n), residual.reshape(n, m).T):
        yield (
            "The residual is read transposed: element [m, n] lies at m * N + n.",
            total + bias + turned,
        )
    yield "y is stored transposed: element [m, n] lies at m · N + n.", y.T.reshape(m, n)
    if n == k:
        yield "That is x · weight: output n takes row n of weight.", x @ weight + bias + residual
    for what, faulty in along_k(x, weight):
        yield what, faulty + bias + residual
    yield from unstored(y)


def _explain(runs: list[Run]) -> str:
    told = recognised(runs, _models) or by_trait(runs, {CANCELS: _ROUNDED})
    return told or explain_tiles(runs, lambda case: iter(()))


def ideal_bytes(case: Case) -> int:
    """Every input and the output once."""
    inputs = sum(t.numel() * t.itemsize for t in case.tensors.values())
    return inputs + case.reference.numel() * case.x.itemsize


def grade_epilogue(attempt: Attempt) -> None:
    """Grade `linear_residual(x, weight, bias, residual)`: right, one launch, residual once."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "residual")
    within_bytes(attempt, runs, ideal_bytes, "x, weight, bias and residual read, y written")
    lanes_named(attempt, [r.case for r in runs if r.case.x.shape[-1] % 16][:2])
    compiles(attempt, (r.case for r in runs))
