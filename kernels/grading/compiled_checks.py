"""Checks of what a GPU would make of the reader's launches; compiling needs none.

A kernel that is right in the interpreter may still not compile, spill its registers, ask for more
shared memory than a block has, or be one program on a card of many SMs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import torch

from kernels.cuda.cuda_compile import no_compiler
from kernels.cuda.cuda_launch import CudaLaunch
from kernels.grading.cases import Case, Run
from kernels.grading.checks import call
from kernels.grading.question import Attempt, Wrong
from kernels.hardware import LIMITS, WARP_THREADS
from kernels.lab.counting.compile_errors import reason
from kernels.launch import assume_capability, recording
from kernels.launch.binary import Compiled
from kernels.launch.launches import Launch
from kernels.launch.triton_compile import compile_launch, ready

CAPABILITIES = (75, 80)
_NO_PRINT = (
    "A print is fine while you look for a fault. Take it out of the kernel before you hand it in: "
    "on a GPU every thread would print."
)

_FEWER = {
    False: "Take a smaller block, or more warps (num_warps=8).",
    True: "An array of a thread's own stays in registers only where each index is known when the "
    "kernel is compiled: take a shorter one, and unroll its loops.",
}


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}".rstrip(".")


def _prints(launch: Launch, ptx: str) -> bool:
    """Whether a kernel prints; of CUDA C++ there is no PTX, and its source is asked."""
    if isinstance(launch, CudaLaunch):
        return "printf(" in launch.kernel.module.source
    return "vprintf" in ptx


def prepare() -> None:
    """Let this process know Triton's compiler, so that a fork which compiles needn't find out.

    NVRTC is among what a question of CUDA C++ `needs`.
    """
    ready(CAPABILITIES)


def _where(launch: Launch, case: Case, capability: int) -> str:
    return f"{launch.name} on {case}, compiled for sm_{capability},"


def built_for(attempt: Attempt, case: Case, capability: int) -> list[tuple[Launch, Compiled]]:
    """Return the launches of a case with what they are compiled to; `Wrong` if one isn't.

    Nothing is returned of CUDA C++ where NVRTC is not installed.
    """
    given = {name: tensor.clone() for name, tensor in case.tensors.items()}
    with assume_capability(capability), recording() as launches:
        call(attempt, *given.values(), *case.options)
    if any(isinstance(launch, CudaLaunch) for launch in launches) and no_compiler():
        return []
    made = []
    for launch in launches:
        try:
            made.append((launch, compile_launch(launch, capability)))
        except Exception as error:
            cuda = isinstance(launch, CudaLaunch)
            why = _last_line(error) if cuda else reason(error).rstrip(".")
            raise Wrong(
                f"{_where(launch, case, capability)} does not compile: {why}.",
                "It is right on the CPU: there g++ compiled it, and for a GPU NVRTC does."
                if cuda
                else _NO_PRINT
                if re.search(r'"\s*(?:print|tl\.device_print)\(', why)
                else "It is right when it is interpreted: the interpreter takes all of Python, "
                "a GPU only what Triton can compile.",
            ) from None
    return made


def compiles(attempt: Attempt, cases: Iterable[Case], fewer: str = "") -> None:
    """`Wrong` unless the launches of the widest case compile for sm_75 and sm_80, and fit there.

    bf16 is left out: sm_75 has none. CUDA C++ is compiled where NVRTC is installed. `fewer` says
    how a thread of this question's kernel comes to hold less; without it, the usual way is told.
    """
    known = [case for case in cases if case.x.dtype != torch.bfloat16]
    case = max(known, key=lambda case: int(case.x.shape[-1]))
    for capability in CAPABILITIES:
        made = built_for(attempt, case, capability)
        if not made:
            return
        for launch, built in made:
            where = _where(launch, case, capability)
            limit = LIMITS[capability].shared_bytes_per_block
            if built.shared_bytes > limit:
                raise Wrong(
                    f"{where} takes {built.shared_bytes:,} bytes of shared memory; a block there "
                    f"has {limit:,} at most.",
                    "Such a launch fails on that card. Take a smaller block.",
                )
            if built.stack_bytes and _prints(launch, built.ptx):
                raise Wrong(
                    f"{where} prints, and keeps what it prints in memory: {built.stack_bytes} "
                    "bytes a thread.",
                    _NO_PRINT,
                )
            if built.stack_bytes:
                raise Wrong(
                    f"{where} spills: a thread keeps {built.stack_bytes} bytes in memory that its "
                    f"{built.registers} registers don't hold.",
                    "Spilled values travel to memory and back, and no byte count shows it. "
                    + (fewer or _FEWER[isinstance(launch, CudaLaunch)]),
                )
            registers = built.registers * WARP_THREADS * built.num_warps
            if registers > LIMITS[capability].registers_per_sm:
                raise Wrong(
                    f"{where} takes {built.registers} registers a thread, and {registers:,} a "
                    f"block; an SM there has {LIMITS[capability].registers_per_sm:,}.",
                    "Such a launch fails on that card. Take fewer threads a block.",
                )
    attempt.held.append("compiles for sm_75 and sm_80: no spills, shared memory fits")


def enough_programs(
    attempt: Attempt, runs: Sequence[Run], least: Callable[[Case], int], what: str
) -> None:
    """`Wrong` if a launch has fewer programs, or blocks, than `least(case)`, told as `what`."""
    one = "program"
    for r in runs:
        for launch in r.launches:
            programs = launch.grid[0] * launch.grid[1] * launch.grid[2]
            one = "block" if isinstance(launch, CudaLaunch) else "program"
            if programs < least(r.case):
                raise Wrong(
                    f"{launch.name} runs {programs} {one}{'s' * (programs != 1)} on {r.case}; the "
                    f"question takes {least(r.case)} at least: {what}.",
                    f"A GPU has dozens of SMs, and a {one} runs on one: with few {one}s most "
                    "of them idle.",
                )
    attempt.held.append(f"{one}s enough to fill a GPU: {what}")
