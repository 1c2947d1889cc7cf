"""13.2: one number a row, Σ do · o, which is what Σ p · dp of all its keys would be."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.gradients import right_gradient
from kernels.grading.questions.kits.products import ProductCase, sum_tolerance
from kernels.grading.questions.kits.tensor_cores import compiles_in_both
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    lanes_named,
    recognised,
)
from kernels.registry import DTYPES

_MOST = 128  # rows of a program
_PLAN: tuple[tuple[int, int, int, str], ...] = (
    (2, 64, 32, "fp32"),
    (3, 33, 16, "fp16"),
    (1, 140, 64, "bf16"),
    (4, 1, 16, "fp32"),
    (1, 200, 64, "fp16"),
    (2, 70, 64, "fp32"),
)
_OUTSIDE = "All heads' rows lie one after the other: rows < heads * M, and each has d elements."


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases: list[Case] = []
    for heads, m, d, name in (*_PLAN, (rng.randrange(1, 4), rng.randrange(65, 130), 32, "fp16")):
        o, do = (
            (0.4 + drawn(rng, (heads, m, d), torch.float32)).to(DTYPES[name]) for _ in range(2)
        )
        terms = o.double() * do.double()
        right = terms.sum(-1)
        near = sum_tolerance(terms.abs().sum(-1), right, d, torch.float32)
        cases.append(ProductCase({"o": o, "do": do}, (), right, near, dtype=torch.float32))
    return cases


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    o, do = (case.tensors[name].double() for name in ("o", "do"))
    right = case.reference
    d = o.shape[-1]
    yield "That is a mean over d: delta is a sum.", right / d
    yield "That has a scale in it: between o and delta there is none.", right * d**-0.5
    yield "That is the sum of do: each term is do · o.", do.sum(-1)
    yield "That is the sum of o: each term is do · o.", o.sum(-1)
    yield "That is the sum of o · o: one factor is the gradient, do.", (o * o).sum(-1)
    yield "That is the sum of do · do: one factor is the output, o.", (do * do).sum(-1)
    yield "Terms are added, do + o: each is a product.", (do + o).sum(-1)
    yield "The sign is turned: delta is what is taken away later.", -right
    flat = right.flatten()
    for block in (16, 32, 64, 128):
        for rows, of in ((flat, "all rows"), (right, "each head's rows")):
            for whole in {rows.shape[-1] // block * block, block}:
                model = torch.full_like(rows, torch.nan)
                model[..., :whole] = rows[..., :whole]
                yield (
                    f"Of {of} the last ones were never stored: the grid takes triton.cdiv of "
                    "their number.",
                    model.view(right.shape),
                )
    model = torch.full_like(right, torch.nan)
    model[:1] = right[:1]
    yield "Only the first head's rows were stored: there are heads * M rows.", model


def _explain(runs: list[Run]) -> str:
    return recognised(runs, _models)


def grade_delta(attempt: Attempt) -> None:
    """Grade `row_delta(do, o)`: right in fp32, one launch, each byte once."""
    cases = _cases(attempt.seed)
    runs = right_gradient(attempt, cases, _explain, "delta", _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    for name in ("o", "do"):
        reads_once(attempt, runs, name)

    def ideal(case: Case) -> int:
        return 2 * case.x.numel() * case.x.itemsize + 4 * case.reference.numel()

    within_bytes(attempt, runs, ideal, "o and do read, a number a row written")

    def least(case: Case) -> int:
        return -(-case.reference.numel() // _MOST)

    enough_programs(attempt, runs, least, f"one for every {_MOST} rows")
    lanes_named(attempt, [r.case for r in runs if r.case.reference.numel() % 16][:2])
    compiles_in_both(attempt, cases)
