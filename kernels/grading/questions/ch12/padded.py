"""12.7: attention whose mask stands behind the maximum, and blocks of keys that are all hidden."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.attention import (
    FALLING,
    FELL,
    HIGH,
    LOW,
    all_nan,
    attended,
    attention_case,
    attention_inputs,
    attention_models,
    scores,
)
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    lanes_named,
    recognised,
    right_or_told,
)

FIRST, ALL, STRONG = (
    "the first keys are hidden",
    "all keys are hidden",
    "hidden keys have large scores",
)
# M, N, d, dtype, what is special; with FIRST two thirds are hidden, else every third key or none.
_PLAN: tuple[tuple[int, int, int, str, str, int], ...] = (
    (32, 64, 32, "fp32", "", 0),
    (17, 50, 16, "fp16", "", 3),
    (33, 70, 32, "bf16", "", 3),
    (70, 33, 64, "fp32", "", 2),
    (1, 1, 16, "fp16", "", 0),
    (20, 45, 16, "fp32", LOW, 0),
    (20, 64, 16, "fp32", HIGH, 3),
    (20, 90, 16, "fp32", STRONG, 3),
    (5, 90, 16, "fp32", FALLING, 0),
    (16, 100, 32, "fp16", FIRST, 0),
    (9, 200, 16, "fp32", FIRST, 0),
    (17, 40, 32, "bf16", ALL, 0),
    (32, 64, 32, "fp32", "", 0),
)
_OUTSIDE = "Queries take rows < M, keys and values keys < N, and so does what is loaded of hidden."
_BEHIND = (
    "It is right where scores are moderate. Where a key that is hidden, or a lane beyond the last "
    "key, has a score far above all that are seen, it is the maximum, and exp(s - m) of the others "
    "is 0: 0 / 0. A mask belongs in front of the maximum: s is -inf where nothing is seen."
)
_FAR_BELOW = (
    "It is right where scores are moderate. Where all lie far below 0, a maximum that begins at 0 "
    "or at a number that is not low enough stays there, and so does one that lanes beyond the last "
    "key take part in, whose score is 0: exp(s - m) of every key is 0 then."
)
_NO_KEY_YET = (
    "It is wrong where a block of keys is hidden as a whole, and no key came before it: the "
    "maximum is -inf then, and -inf - (-inf) is nan. Take differences from a number that is "
    "finite: 0 in place of a maximum of -inf, or start m at the lowest finite number."
)
_NO_KEY = (
    "It is wrong where a query sees no key at all: l is 0 then, and 0 / 0 is nan. Such a query's "
    "output is 0."
)

_FINITE = (
    "It is wrong where a query sees no key at all: its output is 0. If what is hidden has a finite "
    "score, however low, m is that score then, and exp(score - m) is 1. With -inf, or with weights "
    "that are set to 0 where nothing is seen, l stays 0, and tells such a query from others."
)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    plan = [*_PLAN, (rng.randrange(17, 32), rng.randrange(65, 96), 32, "fp16", "", 4)]
    cases: list[Case] = []
    for m, n, d, name, trait, every in plan:
        given = attention_inputs(rng, (m, d), n, name, trait)
        hidden = torch.zeros(n, dtype=torch.bool)
        if every:
            hidden = torch.arange(n) % every == rng.randrange(every)
        if trait == FIRST:
            hidden = torch.arange(n) < 2 * n // 3
        if trait == ALL:
            hidden[:] = True
        if trait == STRONG:
            given["q"] = given["q"].abs() + 1
            given["k"] = torch.where(hidden[:, None], 150.0 / d**0.5, given["k"])
        given["hidden"] = hidden
        cases.append(attention_case(given, (~hidden).expand(m, n), trait))
    return cases


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    yield from attention_models(case)
    q, k, v = (case.tensors[name] for name in ("q", "k", "v"))
    hidden, s = case.tensors["hidden"], scores(q, k)
    zero = s.masked_fill(hidden, 0.0)
    yield (
        "What is hidden has the score 0, and exp(0 - m) is no small weight: its score is -inf.",
        attended(zero, v),
    )
    yield (
        "Hidden keys are left out of acc, and their weights are still in l.",
        torch.softmax(s, -1).masked_fill(hidden, 0.0) @ v.double(),
    )


def _explain(runs: list[Run]) -> str:
    failed = [r for r in runs if r.fault is not None]
    if not failed or any(not r.wrong.numel() for r in failed):
        return ""
    if told := recognised(runs, _models):
        return told
    traits = {r.case.trait for r in failed}
    known = (
        ({ALL}, _NO_KEY if all_nan(runs) else _FINITE),
        ({LOW}, _FAR_BELOW),
        ({FALLING}, FELL),
        ({STRONG}, _BEHIND),
        ({LOW, STRONG}, _BEHIND),
        ({LOW, STRONG, ALL}, f"{_BEHIND} And the output of a query that sees no key is 0."),
        ({FIRST}, _NO_KEY_YET),
        ({FIRST, ALL}, _NO_KEY_YET),
    )
    for which, told in known:
        if traits == which:
            return told
    if HIGH in traits and traits <= {HIGH, LOW, STRONG, ALL, FALLING}:
        return "It is right for moderate scores: exp(s - m) takes the largest score away first."
    return ""


def grade_padded(attempt: Attempt) -> None:
    """Grade `padded_attention(q, k, v, hidden)`: right whatever is hidden, in one launch."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    # Who skips what is hidden doesn't read it, and is right.
    computed_by_kernels(
        attempt, [r for r in runs if not bool(r.case.tensors["hidden"].any())], launches=1
    )
    lanes_named(attempt, [r.case for r in runs if r.case.tensors["k"].shape[0] % 16][:2])
    compiles(attempt, (r.case for r in runs))
