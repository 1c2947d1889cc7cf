"""08.8: eight numbers of a call where a thread took four, counted in instructions an element."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import call, computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.masks import (
    edge,
    explains_all,
    kept,
    masks_and_scales,
    near,
    nonzero,
    right_masked,
    state,
)
from kernels.grading.questions.kits.wrong_models import Tensor, masked_lanes_named
from kernels.hardware import WARP_THREADS
from kernels.lab.counting.compile_errors import reason
from kernels.lab.counting.instructions import instructions
from kernels.launch import recording
from kernels.launch.binary import Compiled
from kernels.launch.launches import Launch
from kernels.launch.triton_compile import compile_launch
from kernels.philox import scale
from kernels.registry import Tolerance

CAPABILITIES = (80, 90)
# Eight numbers a call in blocks of 1024 by 4 warps: 22.9 on sm_80, 23.8 on sm_90, and less in
# larger ones. Four a call: 26.4 at the least.
MOST = 24
_COUNTED = 2**20
_ROUNDS = 20  # wide products of a call of Philox
_WIDE = ("IMAD.WIDE.U32", "IMAD.HI.U32")
_LABEL = re.compile(r"^(\$L__BB\w+):|\bbra(?:\.uni)?\s+(\$L__BB\w+);", re.MULTILINE)


def _case(rng: random.Random, n: int, p: float | None) -> Case:
    seed_offset = state(rng)
    p = edge(rng, n, seed_offset) if p is None else p
    x = nonzero(rng, (n,), torch.float32)
    mask = kept((n,), p, seed_offset)
    y = torch.where(mask, x.double() * scale(p), 0.0)
    close = near(x.dtype) if bool(mask.any()) else Tolerance(2.0**-20, 0.0)
    return Case({"x": x, "seed_offset": seed_offset}, (p,), y, close)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    plan = ((64, 0.25), (5000, None), (4099, 0.1), (1, 0.3), (2048, 0.5), (900, 1.0), (900, 0.0))
    cases = [_case(rng, *one) for one in plan]
    return [*cases, _case(rng, rng.randrange(3000, 8000), 0.2)]


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, (p,) = case.x.double(), case.options
    for what, mask, factor in masks_and_scales(tuple(x.shape), p, case.tensors["seed_offset"]):
        yield what, torch.where(mask, x * factor, 0.0)


def _explain(runs: list[Run]) -> str:
    return explains_all(runs, _models)


def loops(ptx: str) -> bool:
    """Whether a kernel jumps back: its instructions count once, however often they run."""
    seen = set()
    for found in _LABEL.finditer(ptx):
        label, target = found.groups()
        if label:
            seen.add(label)
        elif target in seen:
            return True
    return False


def per_element(launch: Launch, capability: int, n: int) -> tuple[float, float]:
    """Return the instructions of a launch over n elements for each of them, and wide products."""
    threads = math.prod(launch.grid) * WARP_THREADS * compile_launch(launch, capability).num_warps
    counts: Counter[str] = instructions(launch, capability)
    wide = sum(counts[name] for name in _WIDE)
    return counts.total() * threads / n, wide * threads / n


def _compiled(launch: Launch, capability: int) -> Compiled:
    """What is counted, compiled; it may be another block than that of a smaller tensor."""
    try:
        return compile_launch(launch, capability)
    except Exception as error:
        raise Wrong(
            f"{launch.name} on {_COUNTED:,} elements does not compile for sm_{capability}: "
            f"{reason(error).rstrip('.')}.",
        ) from None


def _few_instructions(attempt: Attempt, case: Case) -> None:
    """`Wrong` if an element takes more than `MOST` instructions."""
    x = torch.empty(_COUNTED)
    with recording() as launches:
        call(attempt, x, case.tensors["seed_offset"].clone(), 0.1)
    if len(launches) != 1:
        raise Wrong(
            f"{attempt.name} made {len(launches)} launches on {_COUNTED:,} elements; 1 will do."
        )
    (launch,) = launches
    told = []
    for capability in CAPABILITIES:
        if loops(_compiled(launch, capability).ptx):
            raise Wrong(
                f"{launch.name} has a loop, compiled for sm_{capability}.",
                "What is counted is the instructions in the binary, and a loop's stand there once. "
                "Let a program take one block of elements, or unroll with tl.static_range.",
            )
        count, wide = per_element(launch, capability, len(x))
        if count > MOST:
            raise Wrong(
                f"{launch.name} takes {count:.1f} instructions for each element, compiled for "
                f"sm_{capability}; the question takes {MOST} at most.",
                _too_many(wide),
            )
        told.append(f"{count:.1f} on sm_{capability}")
    attempt.held.append(f"instructions for each element: {' and '.join(told)}; {MOST} at most")


def _too_many(wide: float) -> str:
    served = round(_ROUNDS / max(wide, 0.1))
    if served >= 7:
        return (
            f"{wide:.1f} of them are wide products: a call of Philox, which has {_ROUNDS}, serves "
            "eight elements. What remains is shared by the elements of a thread: give each more of "
            "them, with a larger block or fewer warps."
        )
    return (
        f"{wide:.1f} of them are wide products. A call of Philox has {_ROUNDS} and makes the "
        f"numbers of eight elements; here it serves {max(served, 1)}. The thread that makes the "
        "numbers of a block has to have all its eight elements."
    )


def grade_eight(attempt: Attempt) -> None:
    """Grade `eight_dropout(x, seed_offset, p)`: `keeps` bit for bit, `MOST` instructions each."""
    cases = _cases(attempt.seed)
    runs = right_masked(attempt, cases, _explain)
    judged = [r for r in runs if 0 < r.case.options[0] < 1]
    computed_by_kernels(attempt, judged, launches=1)
    reads_once(attempt, judged, "x")

    def ideal(case: Case) -> int:
        return 8 * case.x.numel() + 16

    within_bytes(attempt, judged, ideal, "x and the seed read, y written")
    masked_lanes_named(attempt, [r for r in judged if r.case.x.numel() > 1])
    compiles(attempt, (r.case for r in judged))
    _few_instructions(attempt, cases[0])
