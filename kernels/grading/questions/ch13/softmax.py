"""13.1: the gradient of scores from a softmax's output and the gradient of that."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.gradients import right_gradient
from kernels.grading.questions.kits.products import ProductCase
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, recognised
from kernels.registry import Tolerance

# Queries, keys; each with hidden keys, whose p is 0, and one query that sees one key alone.
_PLAN = ((5, 8), (3, 17), (7, 7), (1, 40), (4, 1), (20, 33))


def score_gradient(p: Tensor, dp: Tensor) -> Tensor:
    """Return p ∘ (dp − Σ p · dp), row by row."""
    return p * (dp - (p * dp).sum(-1, keepdim=True))


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases: list[Case] = []
    for rows, keys in (*_PLAN, (rng.randrange(2, 20), rng.randrange(2, 60))):
        s = 2 * drawn(rng, (rows, keys), torch.float32)
        hidden = torch.arange(keys) % 5 == 3
        s = s.masked_fill(hidden, -torch.inf)
        if rows > 3:
            s[2, 1:] = -torch.inf
        given = {"p": torch.softmax(s, -1), "dp": 0.7 + drawn(rng, (rows, keys), torch.float32)}
        wide = score_gradient(given["p"].double(), given["dp"].double())
        # With one key nothing is left of the gradient but what p · dp and its sum are rounded to.
        top = float((given["p"] * given["dp"]).abs().max())
        size = max(1.0, top / float(wide.abs().max())) if bool(wide.any()) else 1.0
        near = 2.0**-24 * (8 + keys**0.5) * size
        cases.append(ProductCase(given, (), wide, Tolerance(near, 2 * near)))
    return cases


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    p, dp = (case.tensors[name].double() for name in ("p", "dp"))
    total = (p * dp).sum(-1, keepdim=True)
    n = p.shape[-1]
    yield (
        "The sum is missing: more weight for one key is less for all others, and so each score's "
        "gradient has Σ p · dp of its row taken from dp.",
        p * dp,
    )
    yield (
        "That is the diagonal alone, p · (1 - p) · dp: a score changes the weights of all keys in "
        "its row, and not its own alone.",
        p * (1 - p) * dp,
    )
    for mean in (dp.mean(-1, keepdim=True), total / n):
        yield (
            "A mean is taken away: it is the sum of p · dp over the row. The weights add up to 1 "
            "already.",
            p * (dp - mean),
        )
    yield (
        "The sum lacks its weights: it is the sum of p · dp, and not of dp.",
        p * (dp - dp.sum(-1, keepdim=True)),
    )
    yield "The factor p is missing: ds is p · (dp - Σ p · dp).", dp - total
    yield (
        "The difference comes first: p · (dp - Σ), and not p · dp - Σ.",
        p * dp - total,
    )
    yield "The sum is added: it is taken away.", p * (dp + total)
    yield "The sign is turned: ds is p · (dp - Σ p · dp).", p * (total - dp)
    yield (
        "The sum runs down the queries: a row of weights belongs to one query, and its keys lie "
        "along the last axis.",
        p * (dp - (p * dp).sum(0, keepdim=True)),
    )
    yield (
        "The sum runs over all rows: each query has its own.",
        p * (dp - (p * dp).sum()),
    )
    again = torch.softmax(p, -1)
    yield (
        "p is a softmax already: taking another one of it is one too many.",
        score_gradient(again, dp),
    )


def _explain(runs: list[Run]) -> str:
    return recognised(runs, _models)


def grade_score_gradient(attempt: Attempt) -> None:
    """Grade `score_gradient(p, dp)`: the gradient of the scores, from the weights alone."""
    right_gradient(attempt, _cases(attempt.seed), _explain, "ds", "")
