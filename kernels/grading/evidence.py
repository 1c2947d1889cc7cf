"""What a wrong output shows: the line that stored its first wrong element, and two maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels.cuda.cuda_launch import CudaLaunch
from kernels.cuda.emulator.results import WarpAccess
from kernels.grading.cases import Case, Run
from kernels.grading.pictures import as_rows, heat_map, where
from kernels.launch import Launches
from kernels.launch.interpreter import tensors_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Evidence:
    """`stored` is the end of a sentence, or ""; `pictures` are SVG figures with their words."""

    stored: str = ""
    pictures: tuple[str, ...] = ()


def evidence(run: Run, again: Callable[[Case], tuple[Any, Case, Launches]]) -> Evidence:
    """What a wrong `run` shows; `again` calls the reader's function once more, traced."""
    if not run.wrong.numel():
        return Evidence()
    shape = tuple(run.output.shape)
    output, reference = run.output.detach().double().flatten(), run.case.reference.flatten()
    error = (output - reference).abs()
    error = torch.where(run.wrong, error.nan_to_num(nan=torch.inf, posinf=torch.inf), 0.0)
    wrong = as_rows(run.wrong.numpy(), shape)
    told = f"wrong in {where(wrong, len(shape))}"
    pictures = [heat_map("Error of the output", as_rows(error.numpy(), shape), told)]
    traced, case, launches = again(run.case)
    stored = ""
    if isinstance(traced, torch.Tensor) and launches.seen:
        stored = _stored(launches, traced, int(run.wrong.int().argmax()))
        for name, tensor in case.tensors.items():
            reads = _reads(launches, tensor)
            pictures.append(
                heat_map(
                    f"Reads of {name}", as_rows(reads, tuple(tensor.shape)), _told_reads(reads)
                )
            )
    return Evidence(stored, tuple(pictures))


def _accesses(launches: Launches, tensor: torch.Tensor) -> Iterator[tuple[Any, Array]]:
    """Every access to `tensor`, with the elements that each lane takes: (lanes, elements).

    A lane that takes a pack, as of 16 bytes, takes all its elements.
    """
    place, size = tensor.untyped_storage().data_ptr(), tensor.element_size()
    begin = tensor.storage_offset() * size
    for launch in launches:
        names: dict[str, int] = {}
        for name, value in launch.arguments.items():
            for t in tensors_of(value):
                if t.untyped_storage().data_ptr() == place:
                    names[name] = int(t.storage_offset() * t.element_size() - begin)
        for access in launch.trace:
            if access.argument in names:
                first = (access.offsets * access.itemsize + names[access.argument]) // size
                pack = np.arange(max(access.itemsize // size, 1))
                yield access, first[:, None] + pack


def _stored(launches: Launches, output: torch.Tensor, first: int) -> str:
    last: Any = None
    for access, elements in _accesses(launches, output):
        lanes = np.flatnonzero((elements == first).any(axis=1))
        if access.kind != "load" and lanes.size:
            last, lane = access, int(lanes[0])
    if last is None:
        in_cuda = any(isinstance(launch, CudaLaunch) for launch in launches)
        return f"no {'thread' if in_cuda else 'program'} stored it"
    who = f"program {last.program}"
    if isinstance(last, WarpAccess):
        who = f"thread {last.threads[lane]} of block {last.program}"
    return f"{who} stored it, in line {last.line}"


def _reads(launches: Launches, tensor: torch.Tensor) -> Array:
    """How often each element of a contiguous tensor was loaded."""
    counts = np.zeros(tensor.numel(), dtype=np.int64)
    for access, elements in _accesses(launches, tensor):
        if access.kind != "store":
            np.add.at(counts, elements, 1)
    return counts


def _told_reads(reads: Array) -> str:
    least, most = (int(reads.min()), int(reads.max())) if reads.size else (0, 0)
    if least != most:
        return f"from {least} to {most} times"
    return "each element once" if most == 1 else f"each element {most} times"
