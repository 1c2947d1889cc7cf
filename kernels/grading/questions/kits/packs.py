"""What the checks of set 05 share: results in fp16 rounded once, accesses of 16 bytes."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.grading.cases import Case, Run
from kernels.grading.closeness import relative_error
from kernels.grading.cuda_checks import lines_of
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.cuda_cases import Tensor
from kernels.registry import Tolerance

PACK_BYTES = 16


def rounded_once(reference: Tensor, in_fp32: float = 8 * 2.0**-23) -> Tolerance:
    """The tolerance of fp16 results that are computed in fp32 and rounded at the end alone.

    `in_fp32` is the relative error before that. A rounding to fp16 on the way adds its own error
    to the last one's, which is more.
    """
    once = relative_error(reference.half(), reference)
    # Half a unit in the last place of the largest; what comes before may tip a tie.
    return Tolerance(1.1 * once + in_fp32, 1.05 * 2.0**-11 + in_fp32)


def ideal_bytes(case: Case) -> int:
    """Each input once and the output once."""
    given = sum(t.numel() * t.element_size() for t in case.tensors.values())
    return given + case.reference.numel() * case.like.element_size()


def in_packs(attempt: Attempt, runs: Sequence[Run], name: str) -> None:
    """`Wrong` unless all whole packs of 16 bytes of `name` are taken by accesses of that width.

    `name` is an input, or "the output"; `runs` are those whose packs begin at 16 bytes.
    """
    for r in runs:
        wanted = r.case.tensors.get(name, r.output)
        lines = list(lines_of(r, wanted))
        size = wanted.numel() * wanted.element_size() // PACK_BYTES * PACK_BYTES
        got = sum(line.bytes_requested for _, line in lines if line.width == PACK_BYTES)
        if got >= size:
            continue
        narrow = [one for one in lines if one[1].width < PACK_BYTES]
        if not narrow:
            continue
        launch, worst = max(narrow, key=lambda one: one[1].bytes_requested)
        verb = "loads" if worst.kind == "load" else "stores to"
        packs, whole = size // PACK_BYTES, got // PACK_BYTES
        raise Wrong(
            f"Line {worst.line} of {launch.name} {verb} {worst.argument} with {worst.width} bytes "
            f"an access on {r.case}: of {packs:,} pack{'s' * (packs != 1)} of 16 bytes, "
            f"{whole:,} {'is' if whole == 1 else 'are'} taken whole.",
            "One instruction takes 16 bytes where the type it goes through has that size and "
            "alignment, and is copied whole: a Pack, or float4. Through a pointer to single "
            "elements each is an access of its own.",
            hint="Copy the whole pack into a variable first, then work on that; store it whole.",
        )
    attempt.held.append(f"{name} goes in accesses of 16 bytes")
