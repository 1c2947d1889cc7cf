"""The ledgers of many cases at once, in processes of their own: a count is work for one core."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from kernels.lab.counting import op_ledger
from kernels.registry import Case, get

FEW = 12  # so many cases are counted sooner than processes begin
MOST_PROCESSES = 16  # each imports PyTorch: some 0.5 GB


@dataclass(frozen=True)
class Counted:
    """What of a ledger a row of data keeps; bytes, and how they were counted."""

    bytes_unique: int
    bytes_requested: int | None
    bytes_sectors: int | None
    method: str


Task = tuple[str, str, Case, str]  # an operation, a variant, a case, a pass


def count(task: Task) -> Counted | str:
    """Count one case; return why where that fails, as one line."""
    name, variant, case, pass_ = task
    try:
        ledger = op_ledger.count_case(get(name), variant, case, pass_)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    # What the lanes of PyTorch's own kernels ask for is not counted.
    asked = None if ledger.method == "aten" else ledger.bytes_requested
    return Counted(ledger.bytes_unique, asked, ledger.bytes_sectors, ledger.method)


def count_all(tasks: Sequence[Task]) -> list[Counted | str]:
    """Count all of them, as many at a time as there are cores; in their order."""
    processes = min(os.cpu_count() or 1, MOST_PROCESSES, len(tasks))
    if len(tasks) <= FEW or processes == 1:
        return [count(task) for task in tasks]
    # Begun anew and not forked: this process may hold a GPU, which a fork can't use.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(count, task) for task in tasks]
        found: list[Counted | str] = []
        for job in jobs:
            try:
                found.append(job.result())
            except BrokenProcessPool as error:
                found.append(f"a process that counts has ended: {error}")
        return found
