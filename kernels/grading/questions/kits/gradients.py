"""Gradients of norms: inputs of a backward pass, tolerances, and what launches must keep to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import call
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, right_or_told
from kernels.launch import interpreting
from kernels.registry import DTYPES, Tolerance

EPS = 1e-5
OUTSIDE = "Columns beyond the row need a mask in each load and in the store: cols < n_cols."
OUTSIDE_OF_SHARE = (
    f"{OUTSIDE} And no program has a row beyond the last: its rows end at "
    "tl.minimum(first + rows_each, n_rows)."
)
PLAN: tuple[tuple[int, int, str], ...] = (
    (4, 64, "fp32 bf16"),
    (3, 17, "fp32 fp16"),
    (5, 3, "fp32"),
    (2, 1000, "fp16"),
    (1, 4096, "fp32 fp16"),
)


def norm_inputs(
    rng: random.Random, rows: int, cols: int, name: str, centred: bool
) -> dict[str, Tensor]:
    """Return x, dy (rows, cols), weight (cols,) in one dtype, and the statistics (rows,) in fp32.

    A LayerNorm (`centred`) has mean and inv_std, an RMSNorm inv_rms. Their eps isn't always the
    usual one: statistics that are made again from x are others. dy has a mean and a part along
    x_hat, so that each term of dx counts in a wide row too.
    """
    dtype = DTYPES[name]
    x = (0.5 + 1.5 * drawn(rng, (rows, cols), torch.float32)).to(dtype)
    wide = x.double()
    mean = wide.mean(-1) if centred else torch.zeros(rows, dtype=torch.float64)
    eps = EPS if rows % 2 else 0.3
    inverse = torch.rsqrt(((wide - mean[:, None]) ** 2).mean(-1) + eps)
    along = (wide - mean[:, None]) * inverse[:, None]
    dy = 0.7 + 0.6 * along + drawn(rng, (rows, cols), torch.float32)
    weight = 1.0 + 0.5 * drawn(rng, (cols,), torch.float32)
    made = {"x": x, "dy": dy.to(dtype), "weight": weight.to(dtype)}
    if centred:
        return made | {"mean": mean.float(), "inv_std": inverse.float()}
    return made | {"inv_rms": inverse.float()}


def gradient_tolerance(g: Tensor, dx: Tensor, dtype: torch.dtype) -> Tolerance:
    """The output's rounding and fp32 sums of a row; more where g's terms cancel in dx.

    g: inv_std · dy · weight, and dx, both (rows, cols) in float64.
    """
    size = max(1.0, float(g.abs().max() / dx.abs().max()))
    unit = torch.finfo(dtype).eps / 2
    sums = 8 * 2.0**-24 * (2 + math.log2(g.shape[-1])) * size
    return Tolerance(unit + sums, 2 * unit + sums)


def right_gradient(
    attempt: Attempt,
    cases: Sequence[Case],
    explain: Callable[[list[Run]], str],
    output: str,
    outside: str = OUTSIDE,
) -> list[Run]:
    """Run all cases as `right_or_told` does; a wrong element is one of `output`, as "dx"."""
    try:
        return right_or_told(attempt, cases, explain, outside)
    except Wrong as wrong:
        wrong.sentence = wrong.sentence.replace(": y[", f": {output}[", 1)
        raise


def no_atomics(attempt: Attempt, case: Case) -> None:
    """`Wrong` if a launch adds to memory with an atomic."""
    given = [tensor.clone() for tensor in case.tensors.values()]
    with interpreting(trace=True) as launches:
        call(attempt, *given, *case.options)
    for launch in launches:
        lines = [a.line for a in launch.trace if a.kind == "atomic"]
        if lines:
            raise Wrong(
                f"{launch.name} uses an atomic, in line {lines[0]}, {len(lines)} times on {case}.",
                "Atomics of programs that run at once come in any order, and an fp32 sum depends "
                "on its order: the same inputs give other bits at each call. Each program stores "
                "a partial sum of its own, and the next launch adds them up.",
            )
    attempt.held.append("no atomics: the same inputs give the same bits")


def programs_as_told(attempt: Attempt, runs: Sequence[Run]) -> None:
    """`Wrong` unless the first launch has the programs that the call's last option allows.

    Programs that have no row may be left out: rows are shared out whole.
    """
    for r in runs:
        first, told, rows = r.launches.seen[0], r.case.options[-1], len(r.case.x)
        count = math.prod(first.grid)
        least = math.ceil(rows / math.ceil(rows / told))
        if count > told:
            raise Wrong(
                f"{first.name}, the first launch, runs {count} programs on {r.case}; the call says "
                f"programs = {told}.",
                "However many rows there are, so many programs share them, and so many rows of "
                "partial sums there are.",
            )
        if count < least:
            raise Wrong(
                f"{first.name}, the first launch, runs {count} program{'s' * (count != 1)} on "
                f"{r.case}; the call says programs = {told}, and {least} of them can have rows.",
                "The caller asks for as many programs as the card runs at once. With fewer, a part "
                "of it idles.",
            )
    attempt.held.append("as many programs share the rows as the call says")


def enough_to_finish(attempt: Attempt, runs: Sequence[Run]) -> None:
    """`Wrong` if a program of the last launch adds up more than 64 columns, or fewer than 8."""
    for r in runs:
        last, cols = r.launches.seen[-1], r.case.x.shape[-1]
        count = math.prod(last.grid)
        least, most = math.ceil(cols / 64), math.ceil(cols / 8)
        if count < least:
            raise Wrong(
                f"{last.name} runs {count} program{'s' * (count != 1)} on {r.case}; the question "
                f"takes {least} at least: 64 columns a program at most.",
                "A GPU has dozens of SMs, and a program runs on one: the sums of all columns by "
                "few programs take longer than they need to.",
            )
        if count > most:
            raise Wrong(
                f"{last.name} runs {count} programs on {r.case}; the question takes {most} at "
                "most: 8 columns a program at least.",
                "Memory comes in sectors of 32 bytes, which is 8 numbers in fp32. A program with "
                "fewer columns asks for sectors that it uses in part.",
            )
    attempt.held.append("8 to 64 columns for each program of the finishing launch")
