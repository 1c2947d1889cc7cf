"""On a GPU: whether a right answer is right when it is compiled too, and a bonus for its speed.

This runs in the notebook's own process, since a fork can't use a GPU that its parent uses. So it
runs only what the check, in a process of its own, has found right.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.grading.cases import Case
from kernels.grading.checks import call
from kernels.grading.closeness import kind_fault, value_fault, wrong_elements
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.lab.measuring.copying import copy_by_kernel
from kernels.lab.measuring.timing import (
    CudaStream,
    calls_in_window,
    capture,
    quantile,
    time_windows,
)
from kernels.launch import recording

BONUS = 1
_SECONDS = 0.2
_WRONG_COMPILED = (
    "It is right when it is interpreted, program after program. Compiled, programs and threads run "
    "at once: look for two of them that meet at one element, or for a sum in too few bits."
)
_ON_CPU = (
    "The kernel got memory of the CPU. torch.empty_like(x) allocates where x lies; torch.empty "
    "takes device=x.device for that."
)


@dataclass(frozen=True)
class Timed:
    """What a card made of an answer: a sentence, and the bonus points earned."""

    sentence: str
    bonus: int


def _on(device: torch.device, case: Case) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(device) for tensor in case.tensors.values())


def _right(attempt: Attempt, case: Case, output: Any, card: str) -> None:
    where = f"{attempt.name} on {case}, on the {card}"
    if type(output) is torch.Tensor and not output.is_cuda:
        fault: str | None = f"it returned a tensor on {output.device}, not on the GPU"
    else:
        fault = kind_fault(output.cpu() if type(output) is torch.Tensor else output, case.like)
    if fault is None:
        wrong = wrong_elements(output.cpu(), case.reference, case.tolerance)
        if bool(wrong.any()):
            fault = value_fault(output.cpu(), case.reference, wrong)
    if fault is not None:
        raise Wrong(f"{where}: {fault}.", _WRONG_COMPILED)


def _rivals(
    speed: Speed, sets: Sequence[tuple[torch.Tensor, ...]], moved: int, device: torch.device
) -> tuple[list[Callable[[], Any]], str]:
    """What an answer is timed against, a call for each set of tensors, and its name."""
    if speed.against is not None:
        name = f"PyTorch's {speed.against.__name__}"
        return [functools.partial(speed.against, *tensors) for tensors in sets], name
    halves = [torch.zeros(math.ceil(moved / 2 / 4), device=device) for _ in sets]
    return [functools.partial(copy_by_kernel, half) for half in halves], "a copy of as many bytes"


def timed(attempt: Attempt, speed: Speed) -> Timed:
    """Time an answer on the current GPU against a copy, or against what its `speed` names.

    `Wrong` if its output there is wrong.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    card = torch.cuda.get_device_name(device)
    case = speed.make(attempt.seed)
    try:
        with recording():  # on a card nobody sees whose kernel runs, so each is looked at first
            call(attempt, *_on(device, case), *case.options)
        output = call(attempt, *_on(device, case), *case.options)
    except Wrong as wrong:
        # Triton's words where it launches, and ours where the launch is only recorded.
        on_cpu = any(told in wrong.sentence for told in ("cpu tensor", "on cpu"))
        raise Wrong(
            f"Right on the CPU; on the {card}, {wrong.sentence}",
            _ON_CPU if on_cpu else wrong.means,
        ) from None
    _right(attempt, case, output, card)
    moved = sum(t.numel() * t.element_size() for t in (*case.tensors.values(), output))
    stream = CudaStream(device)
    ideal_us = moved / 3e6  # a first guess, for the number of calls: 3 TB/s
    count = calls_in_window(ideal_us, moved, torch.cuda.get_device_properties(device).total_memory)
    sets = [_on(device, case) for _ in range(count)]
    made: list[torch.Tensor] = []

    def answer(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        result: torch.Tensor = call(attempt, *tensors, *case.options)
        made.append(result)
        return result

    rivals, told_rival = _rivals(speed, sets, moved, device)
    rivals[0]()
    pool = torch.cuda.graph_pool_handle()
    try:
        own = capture([functools.partial(answer, tensors) for tensors in sets], pool)
    except Exception:  # `Wrong` too: it was right outside of a graph
        torch.cuda.synchronize()
        return Timed(
            f"no time on the {card}: the call can't be captured into a CUDA graph, which allows "
            "no waiting for the GPU and no copy to the CPU",
            0,
        )
    rival = capture(rivals, pool)
    samples = time_windows(
        {"own": own.replay, "rival": rival.replay}, stream, seconds=_SECONDS, calls=count
    )
    # What was timed must have done the work: its outputs are wiped, made again and compared.
    for result in made:
        result.fill_(torch.nan)
    own.replay()
    torch.cuda.synchronize()
    for result in (made[0], made[-1]):
        _right(attempt, case, result, card)
    own_us, rival_us = (quantile(samples[name], 0.5) for name in ("own", "rival"))
    share = rival_us / own_us
    told = (
        f"on the {card}: {own_us:.1f} µs for {case}, where {told_rival} takes "
        f"{rival_us:.1f} µs, {share:.0%} of its rate"
    )
    if share >= speed.share:
        return Timed(f"{told}: a bonus point", BONUS)
    return Timed(f"{told}; from {speed.share:.0%} on it earns a bonus point", 0)
