"""What checks share: random inputs, and wrong outputs recognised by their values."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from kernels.grading.cases import Case, Run
from kernels.grading.checks import right_everywhere, run
from kernels.grading.closeness import relative_error
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.numbers import kind
from kernels.launch.builder import MendedBuilder
from kernels.registry import Tolerance

Tensor = torch.Tensor
# From a case to outputs with one fault each, in float64, and what the fault is.
Models = Callable[[Case], Iterable[tuple[str, Tensor]]]
# The same, and where it counts how far a right computation of that fault in fp32 may be from it.
Model = tuple[str, Tensor] | tuple[str, Tensor, Tensor]
EXACT = Tolerance(0.0, 0.0)


def drawn(
    rng: random.Random, shape: Sequence[int], dtype: torch.dtype, mean: float = 0.0
) -> Tensor:
    """Return normal numbers with spread 1 around `mean`, on the CPU, from `rng` alone."""
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    return (mean + torch.randn(*shape, generator=generator)).to(dtype)


def recognised(runs: Sequence[Run], models: Callable[[Case], Iterable[Model]]) -> str:
    """Return the fault that every wrong run shows and no right one denies, or "".

    A run shows a fault if its output equals one of the models that go by the fault's words. A
    right run denies it if all of them are far from right there. What an output can't hold equals
    itself: NaN in the same places, infinity too.
    """
    failed = [r for r in runs if r.fault is not None]
    if not failed or any(not _has_values(r) for r in failed):
        return ""
    left: dict[str, bool] = {}  # whether a run shows it that is neither nearly right nor all NaN
    for number, r in enumerate(failed):
        shown: dict[str, bool] = {}
        for what, model, *lost in models(r.case):
            if (number == 0 or what in left) and _equals(r, model, *lost):
                told = _is_far(r.case, model) and not bool(model.isnan().all())
                shown[what] = shown.get(what, False) or told
        left = {what: told or left.get(what, False) for what, told in shown.items()}
        if not left:
            return ""
    for r in runs:
        if r.fault is None:
            denied: dict[str, bool] = {}
            for what, model, *_ in models(r.case):
                if what in left:
                    denied[what] = denied.get(what, True) and _is_far(r.case, model)
            left = {what: told for what, told in left.items() if not denied.get(what, False)}
    return next((what for what, told in left.items() if told), "")


def _has_values(run: Run) -> bool:
    """Whether an output can be held against models: it is wrong in its values, or its dtype."""
    like = run.case.like
    whole = type(run.output) is torch.Tensor and run.output.shape == like.shape
    return whole and (run.wrong.numel() > 0 or run.output.dtype != like.dtype)


def _near(case: Case) -> float:
    return max(4 * case.tolerance.relative_norm, 1e-6)


def _equals(run: Run, model: Tensor, lost: Tensor | None = None) -> bool:
    """Whether an output is that of a model, as its dtype can hold it, and fp32 its computation."""
    output, held = run.output.detach().double(), model.to(run.output.dtype).double()
    if not torch.equal(output.isnan(), held.isnan()):
        return False
    finite = held.isfinite()
    if not torch.equal(output[~finite].nan_to_num(), held[~finite].nan_to_num()):
        return False
    blur = 0.0 if lost is None else relative_error(held[finite] + lost[finite], held[finite])
    return relative_error(output[finite], held[finite]) <= _near(run.case) + 4 * blur


def _is_far(case: Case, model: Tensor) -> bool:
    """Whether a model is so far from right that an output which equals it tells something."""
    return relative_error(model, case.reference) > 4 * _near(case)


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


def as_a_view_lies(runs: Sequence[Run]) -> str:
    """What is told where every wrong output has the right shape and isn't contiguous; or ""."""
    failed = [r for r in runs if r.fault is not None]
    outputs = [r.output for r in failed if r.wrong.numel()]
    if len(outputs) < len(failed) or not failed or any(y.is_contiguous() for y in outputs):
        return ""
    return (
        "The output isn't contiguous: a transposed view has strides of its own, and empty_like "
        "keeps them. Allocate with torch.empty((cols, rows), dtype=x.dtype, device=x.device)."
    )


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


@contextlib.contextmanager
def _nan_without_other() -> Iterator[None]:
    """Let masked lanes hold NaN, interpreted, where a load of floats names no `other`."""
    as_written = MendedBuilder.create_masked_load
    # The interpreter keeps bf16 as its bits.
    nans = {
        tl.float32: np.array(np.nan, np.float32),
        tl.float16: np.array(np.nan, np.float16),
        tl.bfloat16: np.array(0x7FC0, np.uint16),
    }

    def load(self: Any, ptrs: Any, mask: Any, other: Any, *more: Any) -> Any:
        element = ptrs.get_element_ty()
        if other is None and element in nans:
            other = TensorHandle(nans[element], element)
        return as_written(self, ptrs, mask, other, *more)

    MendedBuilder.create_masked_load = load  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        MendedBuilder.create_masked_load = as_written  # type: ignore[method-assign]


def masked_lanes_named(attempt: Attempt, runs: Sequence[Run]) -> None:
    """`Wrong` if a result depends on a masked lane whose load names no value for it.

    `runs` are right ones. Those whose rows leave lanes over run again, with NaN in such lanes.
    """
    lanes_named(
        attempt, [r.case for r in runs if r.case.x.shape[-1] & (r.case.x.shape[-1] - 1)][:2]
    )


def lanes_named(attempt: Attempt, cases: Sequence[Case]) -> None:
    """`Wrong` if the result of a case changes with NaN in masked lanes that have no value."""
    for case in cases:
        with _nan_without_other():
            again = run(attempt, case)
        if again.fault is not None:
            raise Wrong(
                f"{attempt.name} on {case}: masked lanes enter the result, and their load names no "
                "other= for them.",
                "Triton doesn't say what a masked lane holds then. Today it happens to be 0; with "
                "nan in its place the result is wrong. Give the load the value that changes "
                "nothing: of a sum that is other=0.0.",
            )
    attempt.held.append("no result depends on a masked lane that has no value")


def whole_number(told: Any, asked: str, what: str) -> int:
    """Return `told` if it is an int; `Wrong`, with the question `asked`, if it is anything else."""
    if told is None or told is ...:
        raise NotAnswered
    if type(told) is int and abs(told) < 2**63:
        return told
    shown = f"the float {told!r}" if type(told) is float else kind(told)
    if type(told) is int:
        shown = "a number beyond 2**63"
    means = "A division with / makes a float." if type(told) is float else ""
    raise Wrong(f"{asked} returned {shown} as {what}; it is an int.", means)
