"""09.2: what a generated kernel computes, written back in PyTorch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import right_everywhere
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.masks import near
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, recognised
from kernels.registry import DTYPES

EPS = 1e-6
# Rows, columns, dtype, and the spread of a: where that is small, eps counts.
_PLAN = (
    (4, 64, "fp32", 1.0),
    (3, 17, "fp32", 1.0),
    (5, 100, "bf16", 1.0),
    (2, 1000, "fp16", 1.0),
    (1, 8, "fp32", 3e-3),
    (6, 40, "fp32", 1e-3),
)


def gated_norm(a: Tensor, b: Tensor, c: Tensor, eps: float = EPS) -> Tensor:
    """Return what the kernel computes, in the dtype of the arguments."""
    h = torch.nn.functional.silu(a) * b
    return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps) * c


def _case(rng: random.Random, rows: int, cols: int, name: str, spread: float) -> Case:
    dtype = DTYPES[name]
    a = (spread * (drawn(rng, (rows, cols), torch.float32) + 0.3)).to(dtype)
    b = (drawn(rng, (rows, cols), torch.float32) + 0.5).to(dtype)
    c = (1.0 + 0.5 * drawn(rng, (cols,), torch.float32)).to(dtype)
    y = gated_norm(a.double(), b.double(), c.double())
    trait = "small values" if spread < 0.1 else ""
    close = near(dtype)
    if dtype != torch.float32:
        # One rounding is off by 0.4 units of most numbers; one at each step by twice as much.
        close = replace(close, relative_norm=0.6 * torch.finfo(dtype).eps / 2)
    return Case({"a": a, "b": b, "c": c}, (), y, close, trait)


def _gates(a: Tensor, b: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What may be taken for h, the gated values, with one fault."""
    sigma = torch.sigmoid(a)
    yield "The gate is a · σ(a): tmp6 divides tmp1 by tmp5, and not 1 by it.", sigma * b
    yield "b is not multiplied with: tmp9 is tmp7 * tmp8.", a * sigma
    yield "The exponent is -a: tmp2 is -tmp1.", a * (1 - sigma) * b
    yield "The gate is missing: h is a · σ(a) · b.", a * b
    yield (
        "The gate is taken of b, and a multiplies: it is the other way round.",
        torch.nn.functional.silu(b) * a,
    )
    yield (
        "That is GELU: tmp1 / (1 + exp(-tmp1)) is SiLU.",
        torch.nn.functional.gelu(a) * b,
    )
    yield "That is ReLU of a: the exp makes it SiLU.", torch.relu(a) * b


def _normed(h: Tensor, c: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What may be taken for the norm of h, with one fault."""
    square = (h * h).mean(-1, keepdim=True)
    n = h.shape[-1]
    yield (
        "c is missing: the last product is with tmp32, loaded from in_ptr2.",
        h * torch.rsqrt(square + EPS),
    )
    yield "Nothing is normalised: tmp31 is h times tmp30, the inverse root.", h * c
    yield (
        "The sum is not divided: tmp26 divides it by 4096, the columns of a row.",
        h * torch.rsqrt(n * square + EPS) * c,
    )
    yield (
        "It is divided by the columns that are there, 4096 in the kernel: by 4096 only where a row "
        "has as many.",
        h * torch.rsqrt(n * square / 4096 + EPS) * c,
    )
    yield "eps is missing: tmp29 adds 1e-06.", h * torch.rsqrt(square) * c
    yield "eps is 1e-5 here; tmp28 is 1e-06.", h * torch.rsqrt(square + 1e-5) * c
    yield "eps is added outside the root; tmp29 adds it to the mean.", h / (square.sqrt() + EPS) * c
    yield "It is multiplied by the root: tmp30 is one over it.", h * (square + EPS).sqrt() * c
    yield "It is divided by the mean square, and not by its root.", h / (square + EPS) * c
    yield (
        "The mean of h is taken away: the kernel sums tmp9 * tmp9, and no tmp9.",
        (h - h.mean(-1, keepdim=True))
        * torch.rsqrt(h.var(-1, correction=0, keepdim=True) + EPS)
        * c,
    )
    yield (
        "It is divided by the standard deviation: the squares are those of h itself, no mean is "
        "taken away.",
        h * torch.rsqrt(h.var(-1, correction=0, keepdim=True) + EPS) * c,
    )
    yield (
        "The squares are summed down the columns: r0_1 runs along a row.",
        h * torch.rsqrt((h * h).mean(0, keepdim=True) + EPS) * c,
    )
    yield (
        "One mean is taken of the whole matrix: each row has its own.",
        h * torch.rsqrt((h * h).mean() + EPS) * c,
    )
    yield "That is divided by c; tmp33 multiplies.", h * torch.rsqrt(square + EPS) / c


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    a, b, c = (t.double() for t in case.tensors.values())
    h = torch.nn.functional.silu(a) * b
    for what, gate in _gates(a, b):
        yield what, gate * torch.rsqrt((gate * gate).mean(-1, keepdim=True) + EPS) * c
    yield from _normed(h, c)
    inner = (a * a).mean(-1, keepdim=True)
    yield (
        "The mean is that of a², or of another part of h: tmp10 is tmp9 * tmp9.",
        h * torch.rsqrt(inner + EPS) * c,
    )
    silu = torch.nn.functional.silu(a)
    yield (
        "The mean is that of the gate's squares: b is in tmp9 when it is squared.",
        h * torch.rsqrt((silu * silu).mean(-1, keepdim=True) + EPS) * c,
    )


def _explain(runs: list[Run]) -> str:
    if told := recognised(runs, _models):
        return told
    failed = [r for r in runs if r.fault is not None]
    if any(r.case.x.dtype == torch.float32 for r in failed):
        return ""
    if all(_is_rounded(r) for r in failed):
        return (
            "It rounds to 16 bits after each step. The kernel converts what it loads to fp32, and "
            "rounds once, in the store."
        )
    return ""


def _is_rounded(r: Run) -> bool:
    """Whether an output is near, as one with a rounding at each step is."""
    right = r.case.reference
    return (
        r.wrong.numel() > 0
        and float((r.output.double() - right).norm() / right.norm())
        < 32 * torch.finfo(r.case.x.dtype).eps
    )


def grade_gated(attempt: Attempt) -> None:
    """Grade `as_read(a, b, c)`: the values of the kernel on the page, for rows of any length."""
    rng = random.Random(attempt.seed)
    cases = [_case(rng, *one) for one in _PLAN]
    cases.append(_case(rng, rng.randrange(4, 9), rng.randrange(65, 300), "fp32", 1.0))
    right_everywhere(attempt, cases, _explain)
