"""Questions in CUDA C++: a run of all cases in fp32, and what is told of wrong outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import right_everywhere
from kernels.grading.closeness import relative_error
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.cuda_checks import limit_time
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.wrong_models import only_end_missing, stored_in_each

Tensor = torch.Tensor
SECTOR_FLOATS = 8
# What a question needs whose answers are compiled as CUDA C++.
COMPILED = ("kernels.cuda.nvrtc_loaded",)


def right_in_cuda(
    attempt: Attempt,
    cases: Sequence[Case],
    explain: Callable[[list[Run]], str],
    guard: str,
    unread: str = "",
    met: str = "",
) -> list[Run]:
    """Run all cases as `right_everywhere` does, and say more of three faults.

    `guard` is added where a thread leaves its tensor, `unread` where it reads what nobody stored,
    and `met` where two threads or blocks meet.
    """
    limit_time(attempt)
    try:
        return right_everywhere(attempt, cases, explain)
    except Wrong as wrong:
        if "no guard stops" in wrong.means:
            wrong.means += f" {guard}"
        if "has to be stored first" in wrong.means:
            wrong.means = f"{wrong.means} {unread}".rstrip()
        if "meet at one element" in wrong.means:
            wrong.means = f"{wrong.means} {met}".rstrip()
        raise


def at_end(runs: Sequence[Run], of: str = "elements") -> str:
    """What outputs say that miss nothing but their end; "" of others."""
    if not only_end_missing(runs):
        return ""
    stored = stored_in_each(runs)
    if len(stored) == 1 and 0 not in stored:
        return (
            f"Only the first {stored.pop()} {of} were stored, whatever the size is: the grid "
            "takes a block for every so many."
        )
    return (
        f"Only {of} at the end were never stored: the last block is missing, or the guard is too "
        "strict. The number of blocks is a quotient rounded up: (n + threads - 1) // threads."
    )


def unstored(runs: Sequence[Run]) -> bool:
    """Whether each wrong run never stored a part of its output, and is right where it stored."""
    failed = [r for r in runs if r.fault is not None]

    def lacks(r: Run) -> bool:
        stored = r.traffic(r.output).write_unique
        return stored < r.output.numel() * r.output.element_size()

    # New memory holds NaN in a check.
    return bool(failed) and all(
        r.wrong.numel() > 0 and torch.equal(r.output.isnan().flatten(), r.wrong) and lacks(r)
        for r in failed
    )


def nearly_right(runs: Sequence[Run]) -> bool:
    """Whether every wrong run is right to about three digits, as after a passage through fp16.

    Runs with a trait, such as a mean far from 0, of which fp16 leaves nothing, are judged if no
    others are wrong.
    """
    failed = [r for r in runs if r.fault is not None]
    plain = [r for r in failed if not r.case.trait] or failed
    return all(r.wrong.numel() > 0 for r in failed) and all(
        relative_error(r.output, r.case.reference) < 5e-3 for r in plain
    )


def aligned(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose rows begin at a sector each."""
    return [r for r in runs if r.case.x.shape[-1] % SECTOR_FLOATS == 0]


def blocks_enough(attempt: Attempt, runs: Sequence[Run]) -> None:
    """`Wrong` if a block has more than 8192 elements of x to do."""

    def least(case: Case) -> int:
        return math.ceil(case.x.numel() / 8192)

    enough_programs(attempt, runs, least, "one for every 8192 elements")


def sum_tolerance(x: Tensor) -> float:
    """How far an fp32 sum of each row of x, in any order, may be from the exact one, relatively."""
    total = x.double().sum(-1).abs().max()
    size = float(x.double().abs().sum(-1).max() / total)
    return 2.0**-24 * (4 + math.sqrt(x.shape[-1])) * size
