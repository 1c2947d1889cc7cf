"""What the checks of set 03 share: random inputs, and wrong outputs recognised by their values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from kernels.grading.checks import Case, Run, right_everywhere
from kernels.grading.compare import relative_error
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.registry import Tolerance

Tensor = torch.Tensor
# From a case to outputs with one fault each, in float64, and what the fault is.
Models = Callable[[Case], Iterable[tuple[str, Tensor]]]
EXACT = Tolerance(0.0, 0.0)


def drawn(
    rng: random.Random, shape: Sequence[int], dtype: torch.dtype, mean: float = 0.0
) -> Tensor:
    """Return normal numbers with spread 1 around `mean`, on the CPU, from `rng` alone."""
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    return (mean + torch.randn(*shape, generator=generator)).to(dtype)


def recognised(runs: Sequence[Run], models: Models) -> str:
    """Return the fault whose output one of the wrong runs equals, or "" if none does.

    Elements that were never stored are NaN, in an output and in a model alike, and count as equal.
    """
    for r in runs:
        if r.fault is None or not r.wrong.numel():
            continue
        near = max(4 * r.case.tolerance.relative_norm, 1e-6)
        output = r.output.detach().double()
        for what, model in models(r.case):
            # A model that lies as near the right output as the submission's tells nothing.
            if not relative_error(model, r.case.reference) > 4 * near:
                continue
            lost = model.isnan()
            same = torch.equal(lost, output.isnan()) and not bool(lost.all())
            if same and relative_error(output.nan_to_num(), model.nan_to_num()) <= near:
                return what
    return ""


def only_end_missing(runs: Sequence[Run]) -> bool:
    """Whether each wrong run lacks elements at its end, one block's or more, and nothing else."""
    failed = [r for r in runs if r.fault is not None]

    def at_end(r: Run) -> bool:
        lost = r.output.detach().isnan().flatten()
        count = int(lost.sum())
        return count > 0 and bool(lost[-count:].all()) and torch.equal(lost, r.wrong)

    return bool(failed) and all(r.wrong.numel() > 0 and at_end(r) for r in failed)


def stored_in_each(runs: Sequence[Run]) -> set[int]:
    """How many elements the wrong runs stored, each run's own number once."""
    return {int((~r.output.isnan()).sum()) for r in runs if r.fault is not None}


def right_or_told(
    attempt: Attempt,
    cases: Sequence[Case],
    explain: Callable[[list[Run]], str],
    outside: str,
) -> list[Run]:
    """Run all cases as `right_everywhere` does; add `outside` where a lane leaves its tensor."""
    try:
        return right_everywhere(attempt, cases, explain)
    except Wrong as wrong:
        if "reaches past its tensor" in wrong.means:
            wrong.means += f" {outside}"
        raise


def whole_number(told: Any, asked: str, what: str) -> int:
    """Return `told` if it is an int; `Wrong`, with the question `asked`, if it is anything else."""
    if told is None or told is ...:
        raise NotAnswered
    if type(told) is int and abs(told) < 2**63:
        return told
    shown = f"the float {told!r}" if type(told) is float else f"a {type(told).__name__}"
    if type(told) is int:
        shown = "a number beyond 2**63"
    means = "A division with / makes a float." if type(told) is float else ""
    raise Wrong(f"{asked} returned {shown} as {what}; it is an int.", means)
