"""08.3: dropout whose counter is the tile's, whose scale is missing, and which never stops."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

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
    only_when_infinite,
    right_masked,
    state,
    wrong_scales,
)
from kernels.grading.questions.kits.wrong_models import Tensor, masked_lanes_named
from kernels.philox import scale, threshold
from kernels.registry import DTYPES

_PROGRAM = 4096  # elements of a program at most
_SIZES: tuple[tuple[int, str, float], ...] = (
    (64, "fp32", 0.25),
    (5000, "fp32", 0.1),
    (4999, "fp16", 0.5),
    (2049, "bf16", 0.3),
    (1, "fp32", 0.7),
    (3000, "fp32", 0.0),
    (3000, "fp16", 1.0),
)


def _case(
    rng: random.Random, n: int, name: str, p: float | None, training: bool, trait: str = ""
) -> Case:
    seed_offset = state(rng)
    p = edge(rng, n, seed_offset) if p is None else p
    x = nonzero(rng, (n,), DTYPES[name])
    mask = kept((n,), p, seed_offset)
    if trait:
        x[~mask] = torch.inf
    y = torch.where(mask, x.double() * scale(p), 0.0) if training else x.double()
    given = {"x": x, "seed_offset": seed_offset}
    return _Case(given, (p, training), y, near(x.dtype), trait)


class _Case(Case):
    """A call that hands over p between its tensors, as PyTorch does."""

    def __str__(self) -> str:
        p, training = self.options
        return f"{super().__str__()}, p = {p:.4g}{'' if training else ', training = False'}"


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    case = partial(_case, rng)
    cases: list[Case] = [case(n, name, p, True) for n, name, p in _SIZES]
    cases.append(case(rng.randrange(1100, 4000), "fp32", None, True))
    cases.append(case(700, "fp32", 0.5, True, "infinite where it is dropped"))
    cases += [case(1500, "fp32", 0.4, False), case(300, "bf16", 1.0, False)]
    return cases


def _dropped(case: Case) -> Iterator[tuple[str, Tensor]]:
    """What a call of training gives with a wrong mask, a wrong factor, or both."""
    x, p = case.x.double(), case.options[0]
    for what, mask, factor in masks_and_scales(tuple(x.shape), p, case.tensors["seed_offset"]):
        yield what, torch.where(mask, x * factor, 0.0)


_ALWAYS = "training is not asked: without it nothing is dropped and nothing scaled."


def _evaluated(case: Case) -> Iterator[tuple[str, Tensor]]:
    """What a call without training gives that goes on dropping or scaling."""
    x, p = case.x.double(), case.options[0]
    yield (
        _ALWAYS,
        torch.where(kept(tuple(x.shape), p, case.tensors["seed_offset"]), x * scale(p), 0),
    )
    for factor in (scale(p), *(factor for _, factor in wrong_scales(p))):
        yield (
            "Without training the values are scaled: the scale makes up for what is dropped, and "
            "nothing is.",
            x * factor,
        )
    for what, model in _dropped(case):
        yield f"{_ALWAYS} {what}", model


def _explain(runs: list[Run]) -> str:
    trained = [r for r in runs if r.case.options[1]]
    others = [r for r in runs if not r.case.options[1]]
    told = []
    for some, models in ((trained, _dropped), (others, _evaluated)):
        if any(r.fault is not None for r in some):
            what = explains_all(some, models) or only_when_infinite(some)
            if not what:
                return ""
            told.append(what)
    if len(told) == 2 and told[1].startswith(_ALWAYS):
        told[1] = _ALWAYS  # what else is wrong is told already
    return " ".join(told)


def grade_modes(attempt: Attempt) -> None:
    """Grade `my_dropout(x, seed_offset, p, training)`: `keeps` bit for bit, in one launch."""
    runs = right_masked(attempt, _cases(attempt.seed), _explain)
    # Where nothing is dropped, or all is, no kernel is needed.
    judged = [r for r in runs if r.case.options[1] and 0 < threshold(r.case.options[0]) < 65536]
    computed_by_kernels(attempt, judged, launches=1)
    reads_once(attempt, judged, "x")

    def ideal(case: Case) -> int:
        return 2 * case.x.numel() * case.x.itemsize + 16

    within_bytes(attempt, judged, ideal, "x and the seed read, y written")

    def least(case: Case) -> int:
        return -(-case.x.numel() // _PROGRAM)

    enough_programs(attempt, judged, least, f"one for every {_PROGRAM} elements")
    masked_lanes_named(attempt, [r for r in judged if r.case.x.numel() > 1])
    compiles(attempt, (r.case for r in judged))
