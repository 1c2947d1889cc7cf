"""Checks of launches in CUDA C++: sectors of named tensors, bank conflicts, shared memory.

They read the emulator's counts, which tell every figure by source line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from kernels.cuda import Module
from kernels.cuda.cuda_launch import CudaLaunch
from kernels.cuda.emulator.results import LineTraffic
from kernels.grading.cases import Run
from kernels.grading.checks import computed_by_kernels
from kernels.grading.question import Attempt, Wrong
from kernels.hardware import WARP_THREADS
from kernels.launch.interpreter import tensors_of

# An emulated launch of a check ends within this, so that the fault names the kernel's own line.
_SECONDS = 6.0


def limit_time(attempt: Attempt) -> None:
    """Give launches of the modules that the reader's function names a shorter limit of time."""
    function = attempt.answer
    named = list(getattr(function, "__globals__", {}).values())
    for cell in getattr(function, "__closure__", None) or ():
        try:
            named.append(cell.cell_contents)
        except ValueError:  # a name that has no value yet
            continue
    for module in named:
        if isinstance(module, Module):
            object.__setattr__(module, "time_limit_s", min(module.time_limit_s, _SECONDS))


def in_cuda(attempt: Attempt, runs: Sequence[Run], launches: int) -> None:
    """`Wrong` unless the reader's kernels in CUDA C++, in so many launches, did all the work."""
    for r in runs:
        for launch in r.launches:
            if not isinstance(launch, CudaLaunch):
                raise Wrong(
                    f"{attempt.name} launched {launch.name}, which is written in Triton.",
                    "The question takes a kernel in CUDA C++, in the string of its cell.",
                )
    computed_by_kernels(attempt, runs, launches, "CUDA C++")


def lines_of(run: Run, tensor: torch.Tensor) -> Iterator[tuple[CudaLaunch, LineTraffic]]:
    """What each source line asked of one tensor, under whatever name a launch took it."""
    place = tensor.untyped_storage().data_ptr()
    for launch in run.launches:
        if not isinstance(launch, CudaLaunch) or launch.arena is None:
            continue
        names = {
            name
            for name, value in launch.arguments.items()
            if any(t.untyped_storage().data_ptr() == place for t in tensors_of(value))
        }
        for line in launch.arena.lines:
            if line.argument in names:
                yield launch, line


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def within_sectors(attempt: Attempt, runs: Sequence[Run], name: str) -> None:
    """`Wrong` if the requests for the input `name`, or for "the output", waste part of a sector.

    They touch as many sectors as its bytes fill. `runs` are those where neighbouring threads can
    do that: with rows that begin at a sector.
    """
    for r in runs:
        wanted = r.case.tensors.get(name, r.output)
        told = list(lines_of(r, wanted))
        sectors = sum(line.sectors for _, line in told)
        times = sum(line.bytes_requested for _, line in told) / max(_size(wanted), 1)
        if times > 1:
            raise Wrong(
                f"{name} is asked for {times:.1f} times on {r.case}; once will do.",
                "Each load and each store is a request to memory. A value that is used again "
                "stays in a register, as a variable of the thread.",
            )
        least = -(-_size(wanted) // 32)
        if sectors <= least + 3:  # up to 3 elements behind wide accesses share theirs
            continue
        launch, worst = max(told, key=lambda one: one[1].sectors * (1 - one[1].efficiency))
        verb = "loads" if worst.kind == "load" else "stores to"
        each = worst.sectors / worst.requests
        raise Wrong(
            f"{name} takes {sectors:,} sectors on {r.case}, and {least:,} will do: line "
            f"{worst.line} of {launch.name} {verb} {worst.argument} with {each:.1f} sectors a "
            f"request of a warp, where {worst.width} hold what 32 lanes want.",
            "A sector is 32 bytes, and it moves whole. Lanes of one warp share sectors where they "
            "take neighbouring elements: threadIdx.x counts along the contiguous axis.",
            hint=f"Write down the offset in {name} for thread 0 and for thread 1. They should "
            "differ by one element.",
        )
    attempt.held.append(f"every sector of {name} is used whole")


def no_conflicts(attempt: Attempt, runs: Sequence[Run]) -> None:
    """`Wrong` if a request of shared memory takes more passes over the banks than it must."""
    for r in runs:
        for launch in r.launches:
            if not isinstance(launch, CudaLaunch) or launch.arena is None:
                continue
            worst = max(launch.arena.banks, key=lambda line: line.conflicts, default=None)
            if worst is None or not worst.conflicts:
                continue
            each = worst.wavefronts / worst.requests
            verb = "loads from" if worst.kind == "load" else "stores to"
            raise Wrong(
                f"Line {worst.line} of {launch.name} {verb} shared memory with "
                f"{worst.conflicts:,} bank conflicts on {r.case}: a request of a warp takes "
                f"{each:.1f} passes over the banks, and 1 will do.",
                "Word w of shared memory lies in bank w % 32, and a bank gives one word a pass. "
                "Lanes that want different words of one bank wait for one another.",
                hint="Which bank does each lane of a warp want on that line? Write down word % 32 "
                "for lanes 0, 1 and 2.",
            )
    attempt.held.append("no bank conflicts in shared memory")


def few_shared_stores(attempt: Attempt, runs: Sequence[Run]) -> None:
    """`Wrong` if the threads store more to shared memory than two numbers of 4 bytes a warp."""
    for r in runs:
        for launch in r.launches:
            if not isinstance(launch, CudaLaunch) or launch.arena is None:
                continue
            stores = [line for line in launch.arena.banks if line.kind != "load"]
            stored = sum(line.bytes_requested for line in stores)
            warps = math.prod(launch.grid) * -(-math.prod(launch.block) // WARP_THREADS)
            if stored <= 8 * warps:
                continue
            worst = max(stores, key=lambda line: line.bytes_requested)
            raise Wrong(
                f"{launch.name} stores {stored // 4:,} numbers to shared memory on {r.case}, most "
                f"of them in line {worst.line}; its {warps:,} warps need one or two each.",
                "The lanes of a warp hand one another values by shuffles, from register to "
                "register. Shared memory is for what has to leave a warp: one number of each.",
            )
    attempt.held.append("lanes hand one another values by shuffles")
