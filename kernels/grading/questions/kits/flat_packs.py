"""What questions share whose kernels take flat tensors in packs of eight: lengths and checks."""

from __future__ import annotations

import random

from kernels.grading.cases import Run
from kernels.grading.checks import reads_once, within_bytes
from kernels.grading.cuda_checks import in_cuda, within_sectors
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.cuda_cases import at_end, blocks_enough
from kernels.grading.questions.kits.packs import ideal_bytes, in_packs
from kernels.grading.questions.kits.wrong_models import Models, recognised

GUARD = (
    "The last block has more threads than there are elements left: whoever has none does nothing."
)
SEVERAL = (
    "If several threads take the elements behind the last whole pack, each takes all of them: they "
    "belong to one thread, or to a few that take one each."
)
REST = (
    "The elements behind the last whole pack were never stored: they are fewer than 8, and go one "
    "by one."
)


def sizes(rng: random.Random) -> list[int]:
    """Return lengths with a rest behind whole packs and blocks, and without one."""
    ragged = [rng.randrange(9, 64), rng.randrange(2051, 4000)]
    return [1, 7, 8, 9, 2047, 2048, 2049, *ragged, 8 * rng.randrange(2049, 2200)]


def explain_packs(runs: list[Run], models: Models) -> str:
    """Return what explains wrong outputs of kernels that take packs of eight, or ""."""
    failed = [r for r in runs if r.fault is not None]
    if any(r.case.x.numel() % 8 == 0 for r in failed) and (told := at_end(runs)):
        return told  # more is missing than a rest
    return recognised(runs, models) or at_end(runs)


def _stored_once(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if an element of the output is stored more than once."""
    for r in runs:
        moved = r.traffic(r.output)
        if moved.write_requested > moved.write_unique:
            more = (moved.write_requested - moved.write_unique) // r.output.element_size()
            raise Wrong(
                f"{attempt.name} stores {more:,} elements of the output once more on {r.case}.",
                f"Lanes that store the same number do no harm, and no good. {SEVERAL}",
            )
    attempt.held.append("each element of the output is stored once")


def elementwise(attempt: Attempt, runs: list[Run], names: tuple[str, ...]) -> None:
    """`Wrong` unless one launch takes each byte once, 16 bytes an access."""
    _stored_once(attempt, runs)
    # An element of a rest that is dropped need not be loaded: then not all of x is.
    judged = [r for r in runs if r.case.x.numel() % 8 == 0 or len(r.launches) != 1 or r.operators]
    in_cuda(attempt, judged, launches=1)
    for name in names:
        reads_once(attempt, runs, name)
    within_bytes(attempt, runs, ideal_bytes, f"{', '.join(names)} read, the output written")
    for name in (*names, "the output"):
        in_packs(attempt, runs, name)
        # A thread that takes a rest one by one makes a request for each.
        within_sectors(attempt, [r for r in runs if r.case.x.numel() % 8 == 0], name)
    blocks_enough(attempt, runs)
