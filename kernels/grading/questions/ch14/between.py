"""14.7: what stands between two products in training: bias, dropout, residual and norm at once."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.attention import by_trait
from kernels.grading.questions.kits.layer_norm import explain_layer_norm, norm_tolerance
from kernels.grading.questions.kits.masks import (
    edge,
    kept,
    masks_and_scales,
    near,
    right_masked,
    state,
)
from kernels.grading.questions.kits.row_norms import row_groups
from kernels.grading.questions.kits.two_outputs import Part, are_two, graded_second, reads_no_h
from kernels.grading.questions.kits.wrong_models import (
    Model,
    Tensor,
    drawn,
    masked_lanes_named,
    recognised,
)
from kernels.ops.norms.layernorm import reference
from kernels.philox import scale
from kernels.registry import DTYPES, Tolerance, dtype_name

FAR = "a mean near 1000"
CANCELS = "the residual takes nearly all of the rest away"
_ROUNDED = (
    "It is right wherever the residual and what is added to it are of one size. What dropout "
    "leaves, or y + bias, is rounded to 16 bits before the sum: where the two nearly cancel, that "
    "shows. Convert what is loaded to fp32, add, and convert once, at the store."
)
# Widths are multiples of 8, so that a row begins with a block of random numbers.
_PLAN: tuple[tuple[int, int, str, float | None, str], ...] = (
    (4, 64, "fp32", 0.25, ""),
    (3, 24, "fp32", 0.5, ""),
    (5, 200, "fp16", 0.1, ""),
    (6, 8, "bf16", 0.4, ""),
    (1, 2048, "fp32", None, ""),
    (3, 40, "fp32", 0.0, ""),
    (2, 24, "fp16", 1.0, ""),
    (2, 400, "fp32", 0.3, FAR),
    (3, 72, "fp16", 0.5, CANCELS),
)


class _Case(Case):
    """A call whose sentences name y, since no argument is called x."""

    def __str__(self) -> str:
        return f"y{super().__str__()[1:]}"


def _h(given: dict[str, Tensor], p: float) -> Tensor:
    y, bias, residual = (given[name].double() for name in ("y", "bias", "residual"))
    mask = kept(tuple(y.shape), p, given["seed_offset"])
    return residual + torch.where(mask, (y + bias) * scale(p), 0.0)


def cases(seed: int) -> tuple[list[Case], list[Case]]:
    """The same calls twice: graded by h, and by its norm."""
    rng = random.Random(seed)
    of_h: list[Case] = []
    of_n: list[Case] = []
    more = (rng.randrange(4, 9), 8 * rng.randrange(9, 30), "fp32", 0.2, "")
    for rows, cols, name, told, trait in (*_PLAN, more):
        seed_offset, eps, dtype = state(rng), rng.choice((1e-5, 1e-3, 0.1)), DTYPES[name]
        p = edge(rng, rows * cols, seed_offset) if told is None else told
        given = {
            "y": drawn(rng, (rows, cols), dtype, 0.3),
            "bias": drawn(rng, (cols,), dtype, 0.5),
            "residual": drawn(rng, (rows, cols), dtype, 1000.0 if trait == FAR else 0.2),
            "weight": (1.0 + 0.5 * drawn(rng, (cols,), torch.float32)).to(dtype),
            "norm_bias": (0.5 + 0.4 * drawn(rng, (cols,), torch.float32)).to(dtype),
            "seed_offset": seed_offset,
        }
        if trait == CANCELS:
            given["residual"] = (given["residual"] / 16 - (_h(given, p) - given["residual"])).to(
                dtype
            )
        h = _h(given, p)
        of_h.append(_Case(given, (p, eps), h, near(dtype), trait))
        n = reference(h, given["weight"], given["norm_bias"], eps)
        # Room for a norm of h as it was before it was rounded, and of h as it was stored.
        own, unit = norm_tolerance({"x": h.to(dtype)}, eps), torch.finfo(dtype).eps
        wide = Tolerance(own.relative_norm + unit, own.largest + 2 * unit)
        if trait == FAR:  # one rounding of h near 1000, against a spread of 1
            wide = Tolerance(2.0**-13, 2.0**-12)
        of_n.append(_Case(given, (p, eps), n, wide, trait))
    return of_h, of_n


def _models_of_h(case: Case) -> Iterator[Model]:
    y, bias, residual = (case.tensors[name].double() for name in ("y", "bias", "residual"))
    p = case.options[0]
    seed_offset, shape = case.tensors["seed_offset"], tuple(y.shape)
    mask = kept(shape, p, seed_offset)

    def made(x: Tensor, mask: Tensor = mask, by: float = scale(p)) -> Tensor:
        return torch.where(mask, x * by, 0.0)

    weight, norm_bias = (case.tensors[name].double() for name in ("weight", "norm_bias"))
    h, eps = case.reference, case.options[1]
    # What fp32 loses of a norm whose mean is far from 0.
    spread = torch.sqrt(h.var(-1, correction=0, keepdim=True) + eps)
    lost = 2.0**-24 * h.mean(-1, keepdim=True).abs() / spread * weight
    yield (
        "That is the norm, and h is asked for second: the order is (n, h).",
        reference(h, weight, norm_bias, eps),
        lost.expand_as(h),
    )
    yield "The residual is not added.", made(y + bias)
    yield "The bias is not added.", residual + made(y)
    yield (
        "norm_bias is added to y, where the product's bias belongs: it is the norm's.",
        residual + made(y + norm_bias),
    )
    yield (
        "The bias is added behind dropout: it is part of the product, and is dropped with it.",
        residual + made(y) + bias,
    )
    yield (
        "Dropout is taken of the whole sum: the residual is added behind it, and is never dropped.",
        made(y + bias + residual),
    )
    yield "The residual is taken away: it is added.", made(y + bias) - residual
    yield (
        "What is dropped is added as it is, y + bias: in its place stands 0.",
        residual + torch.where(mask, (y + bias) * scale(p), y + bias),
    )
    yield "The bias is taken away: it is added.", residual + made(y - bias)
    yield "y is missing: h is residual + dropout(y + bias).", residual + made(bias.expand_as(y))
    yield "What comes back as h is the residual alone.", residual
    for what, other, factor in masks_and_scales(shape, p, seed_offset):
        yield what, residual + made(y + bias, other, factor)


def _explain_h(runs: list[Run]) -> str:
    return recognised(runs, _models_of_h) or by_trait(runs, {CANCELS: _ROUNDED})


def _of_norm(r: Run) -> Run:
    """A run as a LayerNorm's of h."""
    given = r.case.tensors
    h = _h(given, r.case.options[0])
    tensors = {"x": h, "weight": given["weight"], "bias": given["norm_bias"]}
    case = Case(
        tensors,
        (r.case.options[1],),
        r.case.reference,
        r.case.tolerance,
        r.case.trait,
        given["y"].dtype,
    )
    return replace(r, case=case)


def _models_of_n(case: Case) -> Iterator[tuple[str, Tensor]]:
    given, (p, eps) = case.tensors, case.options
    h = _h(given, p)
    weight, bias = given["weight"], given["norm_bias"]
    yield "n is h itself, and not its LayerNorm. The order is (n, h).", h
    for what, x in (
        ("n is the LayerNorm of the residual alone: it is h that is normalised.", "residual"),
        ("n is the LayerNorm of y alone: it is h that is normalised.", "y"),
    ):
        yield what, reference(given[x], weight, bias, eps)
    yield (
        "n is the LayerNorm of what dropout left: the residual is added before the norm.",
        reference(h - given["residual"].double(), weight, bias, eps),
    )
    zero = torch.zeros_like(bias)
    yield "norm_bias is not added: n ends with it.", reference(h, weight, zero, eps)
    yield (
        "The bias of the product stands in the norm's place: the norm has a bias of its own.",
        reference(h, weight, given["bias"], eps),
    )


_TELLS = {
    FAR: "It is right where the mean is small. Taken as the mean of h² less the mean squared, the "
    "variance is a small difference of large numbers: subtract the mean first, then square."
}


def _explain_n(runs: list[Run]) -> str:
    failed = [r for r in runs if r.fault is not None]
    if any(not r.wrong.numel() for r in failed):
        return ""
    told = recognised(runs, _models_of_n)
    if not told:  # a LayerNorm's x is h here
        told = re.sub(r"\bx\b", "h", explain_layer_norm([_of_norm(r) for r in runs]))
    return told or by_trait(runs, _TELLS)


def grade_between(attempt: Attempt) -> None:
    """Grade `bias_dropout_add_norm(…)`: (n, h), one launch, each byte once."""
    of_h, of_n = cases(attempt.seed)
    are_two(attempt, of_h[0], "(n, h)")
    part, alone = Part(attempt.answer, 1), Part(attempt.answer, 0)
    second, first = Attempt(part, attempt.seed), Attempt(alone, attempt.seed)
    h_runs = right_masked(second, of_h, _explain_h, "h")
    pairs = [result[::-1] for result in part.returned]
    n_runs = graded_second(of_n, h_runs, pairs, lambda: right_masked(first, of_n, _explain_n, "n"))
    names = ", ".join(dict.fromkeys(dtype_name(case.x.dtype) for case in of_h))
    attempt.held.append(f"n and h right on {len(of_h)} random inputs: {names}")
    judged, of_norm = ([r for r in runs if 0 < r.case.options[0] < 1] for runs in (h_runs, n_runs))
    reads_no_h(attempt, judged)
    computed_by_kernels(second, judged, launches=1)
    computed_by_kernels(attempt, of_norm, launches=1)
    for name in ("y", "residual"):
        reads_once(attempt, judged, name)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return (4 * rows + 3) * cols * case.x.itemsize + 16

    what = "y, residual, three vectors and the seed read, n and h written"
    within_bytes(attempt, judged, ideal, what)
    enough_programs(attempt, judged, row_groups, "one for every four rows")
    masked_lanes_named(first, of_norm)
    attempt.held += first.held[-1:]
    compiles(attempt, of_h)
