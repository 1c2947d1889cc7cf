"""08.4: attention's weights with dropout, which comes behind the normalisation."""

from __future__ import annotations

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
    right_masked,
    state,
)
from kernels.grading.questions.kits.row_norms import row_groups
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, masked_lanes_named
from kernels.philox import scale
from kernels.registry import DTYPES, Tolerance

_PLAN: tuple[tuple[int, int, str, float | None], ...] = (
    (4, 64, "fp32", 0.25),
    (3, 17, "fp32", 0.5),
    (5, 100, "fp16", 0.1),
    (6, 3, "fp32", 0.6),
    (2, 1000, "bf16", 0.3),
    (1, 2048, "fp32", None),
    (3, 40, "fp32", 0.0),
    (2, 24, "fp16", 1.0),
)


class _Case(Case):
    """A call of which p is told, and where its values lie far from 0."""

    def __str__(self) -> str:
        middle = round(float(self.x.float().mean()), -2)
        near = f", values near {middle:.0f}" if middle else ""
        return f"{super().__str__()}{near}, p = {self.options[0]:.4g}"


def _case(
    rng: random.Random, rows: int, cols: int, name: str, p: float | None, mean: float = 0.0
) -> Case:
    seed_offset = state(rng)
    p = edge(rng, rows * cols, seed_offset) if p is None else p
    x = drawn(rng, (rows, cols), DTYPES[name], mean)
    mask = kept((rows, cols), p, seed_offset)
    y = torch.where(mask, torch.softmax(x.double(), -1) * scale(p), 0.0)
    close = near(x.dtype)
    if not bool(mask.any()):
        close = Tolerance(close.relative_norm, 0.0)
    return _Case({"x": x, "seed_offset": seed_offset}, (p,), y, close)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases = [_case(rng, *one) for one in _PLAN]
    cases.append(_case(rng, rng.randrange(4, 9), rng.randrange(65, 300), "fp32", 0.2))
    return [*cases, _case(rng, 3, 50, "fp32", 0.4, 100.0), _case(rng, 3, 50, "fp32", 0.4, -200.0)]


_BEFORE = (
    "The sum is taken behind the mask: so a row sums to 1 whatever was dropped, the scale cancels, "
    "and each weight depends on what became of the others. Normalise first, then drop."
)


def _exp(x: Tensor) -> Tensor:
    """As large and as small as fp32 is."""
    return torch.exp(x.float()).double()


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, (p,) = case.x.double(), case.options
    seed_offset = case.tensors["seed_offset"]
    shape = tuple(x.shape)
    weights = torch.softmax(x, -1)
    right = kept(shape, p, seed_offset)
    some = torch.where(right, weights, 0.0)
    total = some.sum(-1, keepdim=True)
    yield _BEFORE, some / total
    yield _BEFORE, torch.where(total > 0, some / total, 0.0)
    yield f"{_BEFORE} And the scale is no part of the sum.", some / total * scale(p)
    yield (
        "The sum has the factor scale in it, and so the scale cancels: it belongs to what is kept.",
        some if scale(p) else some / 0.0,
    )
    yield (
        "That is the softmax of x with dropped values set to 0: a dropped weight is 0, and exp(0) "
        "is not.",
        torch.softmax(torch.where(right, x * scale(p), 0.0), -1),
    )
    lanes = 1 << (shape[1] - 1).bit_length()
    own = x.amax(-1, keepdim=True)
    for top in (torch.clamp(own, min=0.0) if lanes > shape[1] else own, own):
        e = _exp(x - top)
        whole = e.sum(-1, keepdim=True) + (lanes - shape[1]) * _exp(-top)
        yield (
            "Masked lanes enter the sum: they hold 0, and exp(0 - max) is not 0. The neutral "
            "element of a maximum, and of exp, is -inf.",
            torch.where(right, e / whole * scale(p), 0.0),
        )
    e = _exp(x)
    yield (
        "No maximum is taken away: exp of a large number is infinite, and of a small one 0.",
        torch.where(right, e / e.sum(-1, keepdim=True) * scale(p), 0.0),
    )
    for what, mask, factor in masks_and_scales(shape, p, seed_offset):
        yield what, torch.where(mask, weights * factor, 0.0)


def _explain(runs: list[Run]) -> str:
    return explains_all(runs, _models)


def grade_weights(attempt: Attempt) -> None:
    """Grade `dropped_softmax(x, seed_offset, p)`: right, one launch, each byte once."""
    runs = right_masked(attempt, _cases(attempt.seed), _explain)
    judged = [r for r in runs if 0 < r.case.options[0] < 1]
    computed_by_kernels(attempt, judged, launches=1)
    reads_once(attempt, judged, "x")

    def ideal(case: Case) -> int:
        return 2 * case.x.numel() * case.x.itemsize + 16

    within_bytes(attempt, judged, ideal, "x and the seed read, y written")
    enough_programs(attempt, judged, row_groups, "one for every four rows")
    masked_lanes_named(attempt, judged)
    compiles(attempt, (r.case for r in judged))
