"""02.7: a residual sum and its LayerNorm, two launches to be fused into one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import (
    computed_by_kernels,
    reads_once,
    right_everywhere,
    within_bytes,
)
from kernels.grading.closeness import relative_error
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.layer_norm import explain_layer_norm, norm_tolerance
from kernels.grading.questions.kits.row_norms import row_groups
from kernels.grading.questions.kits.two_outputs import Part, graded_h, is_pair, reads_no_h
from kernels.grading.questions.kits.wrong_models import recognised
from kernels.ops.norms.layernorm import reference
from kernels.registry import DTYPES, Tolerance, dtype_name

Tensor = torch.Tensor

_PLAN: tuple[tuple[int, int, str], ...] = (
    (4, 64, "fp32 fp16 bf16"),
    (3, 17, "fp32 fp16 bf16"),
    (2, 3, "fp32 fp16 bf16"),
    (1, 1000, "fp32 bf16"),
    (4, 1, "fp32 bf16"),
    (1, 4096, "fp32 fp16"),
)


def _residual_sum(x: Tensor, residual: Tensor) -> Tensor:
    return (x.float() + residual.float()).to(x.dtype)


def _cases(seed: int) -> tuple[list[Case], list[Case]]:
    """The same calls twice: graded by h, and by y."""
    rng = random.Random(seed)
    of_h, of_y = [], []

    def add(rows: int, cols: int, name: str, trait: str = "", **how: float) -> None:
        eps, mean, spread = how.get("eps", 1e-5), how.get("mean", 0.5), how.get("spread", 1.5)
        generator = torch.Generator().manual_seed(rng.getrandbits(31))

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator)

        tensors = {
            "x": mean / 3 + spread * normal(rows, cols),
            "residual": 2 * mean / 3 + spread * normal(rows, cols),
            "weight": 1.0 + 0.5 * normal(cols),
            "bias": normal(cols),
        }
        given = {key: tensor.to(DTYPES[name]) for key, tensor in tensors.items()}
        x, residual, weight, bias = given.values()
        h, unit = _residual_sum(x, residual), torch.finfo(x.dtype).eps / 2
        of_h.append(Case(given, (eps,), h.double(), Tolerance(unit, unit), trait))
        near = norm_tolerance({"x": h}, eps)
        of_y.append(Case(given, (eps,), reference(h, weight, bias, eps), near, trait))

    for rows, cols, names in _PLAN:
        for name in names.split():
            add(rows, cols, name)
    add(rng.randrange(13, 17), rng.randrange(65, 600), "fp32")
    add(2, 128, "fp32", eps=0.5)
    for cols in (17, 300):
        add(2, cols, "fp32", "mean near 1000", mean=1000.0, spread=1.0)
        add(2, cols, "fp16", "mean near 100", mean=100.0)
    return of_h, of_y


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, residual, weight, bias = case.tensors.values()
    (eps,) = case.options
    yield "y is the sum, not its LayerNorm. The order is (y, h).", x.double() + residual.double()
    for what, h in (
        ("y is the LayerNorm of x alone: normalize the sum.", x),
        ("y is the LayerNorm of the residual alone: normalize the sum.", residual),
        ("y is the LayerNorm of x - residual.", x.double() - residual.double()),
        ("y is the LayerNorm of x - residual.", _residual_sum(x, -residual)),
    ):
        yield what, reference(h, weight, bias, eps)


def _is_of_exact_sum(r: Run) -> bool:
    """Whether y is the LayerNorm of the sum before its rounding to h, and not of h."""
    x, residual, weight, bias = r.case.tensors.values()
    exact = reference(x.double() + residual.double(), weight, bias, *r.case.options)
    error, off = (relative_error(r.output, y) for y in (exact, r.case.reference))
    # What is no nearer to this model than to the right output tells nothing.
    return error <= min(4 * r.case.tolerance.relative_norm, off / 2)


def _explain_y(runs: list[Run]) -> str:
    failed = [r for r in runs if r.fault is not None]
    if any(not r.wrong.numel() for r in failed):
        return ""
    if told := recognised(runs, _models):
        return told
    # fp32 has no other h, and where few elements round otherwise 16 bits may pass too.
    if all(map(_is_of_exact_sum, failed)):
        return (
            "y is the LayerNorm of the sum as it was before h was rounded. What is stored is the "
            "rounded h, and y belongs to that one: round it in the kernel, and convert back to "
            "fp32."
        )
    return explain_layer_norm([_of_sum(r) for r in runs])


def _of_sum(r: Run) -> Run:
    """A run as a LayerNorm's of h."""
    x, residual, weight, bias = r.case.tensors.values()
    tensors = {"x": _residual_sum(x, residual), "weight": weight, "bias": bias}
    case = Case(tensors, r.case.options, r.case.reference, r.case.tolerance, r.case.trait)
    return replace(r, case=case)


def grade_add_norm(attempt: Attempt) -> None:
    """Grade `add_norm(x, residual, weight, bias, eps)`: (y, h), one launch, each byte once."""
    of_h, of_y = _cases(attempt.seed)
    is_pair(attempt, of_h[0])
    part = Part(attempt.answer, 0)
    y_runs = right_everywhere(Attempt(part, attempt.seed), of_y, _explain_y)
    h_runs = graded_h(attempt, of_h, y_runs, part.returned)
    names = ", ".join(dict.fromkeys(dtype_name(case.x.dtype) for case in of_h))
    attempt.held.append(f"y and h right on {len(of_h)} random inputs: {names}")
    reads_no_h(attempt, h_runs)
    computed_by_kernels(Attempt(part, attempt.seed), h_runs, launches=1)
    computed_by_kernels(attempt, y_runs, launches=1)
    for name in ("x", "residual"):
        reads_once(attempt, y_runs, name)

    def ideal(case: Case) -> int:
        rows, cols = case.x.shape
        return (4 * rows + 2) * cols * case.x.itemsize

    what = "x, residual, weight and bias read, y and h written"
    within_bytes(attempt, y_runs, ideal, what)
    enough_programs(attempt, y_runs, row_groups, "one for every four rows")
    compiles(attempt, of_y)
