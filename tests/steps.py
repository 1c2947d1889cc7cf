"""The steps of `make test`, in order, with the time that each took.

    python -m tests.steps

Two lanes run beside each other before the tests: the code is checked while the book is built. That
keeps one core busy for a part of its time. The tests come last, in two processes: they read what
the build executed. The first step that fails ends it all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# `worksteal`: each process keeps to neighbouring tests, which share fixtures, and takes over from
# the other once it has none left.
TESTS = ["-m", "pytest", "-n", "2", "--dist", "worksteal", "-rs"]
# Two processes have a core each. The tiles of an interpreted kernel are too small to be shared by
# threads: on two busy cores a test that multiplies many took 42 s of processor time, and 15 so.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Step:
    """A step's name, what Python is called with for it, and what is added to the environment."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


LANES = (
    (
        Step("ruff", ["-m", "ruff", "check", "."]),
        Step("mypy", ["-m", "mypy"]),
        Step(
            "exercises in step with their solutions", ["-m", "kernels.grading.generate", "--check"]
        ),
    ),
    (Step("book", ["book/tools/build.py"]),),
)
LAST = Step("pytest", TESTS, ONE_THREAD)


@dataclass
class Run:
    """A run of all steps: what is running, what was done, in how many seconds, and what failed."""

    start: float = field(default_factory=time.monotonic)
    took: list[tuple[float, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def head(self, name: str) -> None:
        """Say what begins, and when."""
        print(f"\n== {name} ({time.monotonic() - self.start:.0f} s)", flush=True)

    def step(self, step: Step, shown: bool) -> bool:
        """Run a step; show its output as it comes, or at its end; return whether it went well."""
        with self.lock:
            if self.failed:
                return False
            if shown:
                self.head(step.name)
            process = subprocess.Popen(
                [sys.executable, *step.arguments],
                stdout=None if shown else subprocess.PIPE,
                stderr=None if shown else subprocess.STDOUT,
                text=True,
                env={**os.environ, **step.environment},
            )
            self.running.append(process)
        began = time.monotonic()
        said = process.communicate()[0]
        with self.lock:
            self.running.remove(process)
            self.took.append((time.monotonic() - began, step.name))
            if process.returncode and self.failed:  # ended because the other lane failed
                return False
            if not shown:
                self.head(f"{step.name}, done")
                print(said, end="", flush=True)
            if process.returncode:
                self.failed.append(step.name)
                for other in self.running:
                    other.terminate()
        return process.returncode == 0

    def lane(self, steps: Sequence[Step], shown: bool) -> None:
        """Run steps one after the other, up to the first that fails."""
        for step in steps:
            if not self.step(step, shown):
                return

    def table(self) -> str:
        """Where the time went, a line each step; those of two lanes overlap."""
        lines = [f"{seconds:6.0f} s  {name}" for seconds, name in self.took]
        return "\n".join([*lines, f"{time.monotonic() - self.start:6.0f} s  in all"])


def main(lanes: Sequence[Sequence[Step]] = LANES, last: Step = LAST) -> int:
    """Run the steps; return the exit code."""
    run = Run()
    beside = [threading.Thread(target=run.lane, args=(steps, False)) for steps in lanes[:-1]]
    for thread in beside:
        thread.start()
    run.lane(lanes[-1], True)
    for thread in beside:
        thread.join()
    if not run.failed:
        run.step(last, True)
    run.head("where the time went")
    print(run.table())
    run.head(f"failed: {run.failed[0]}" if run.failed else "all passed")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
