"""The tests that need a GPU, several files at once, and the proofs that they leave on its card.

Most of a GPU test's time is a CPU's, which compiles kernels. So files run in processes of their own
beside each other. Tests marked `alone` time something, or read the card's counters, where another
process's work would be seen: they come last, one after the other.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.lab.measuring.cell_bench import say
from kernels.lab.records import proofs
from kernels.lab.selection import RefusalError
from kernels.paths import DATA_DIR, ROOT

# Where tests marked `gpu` are; the other folders need what a GPU machine may not have.
PLACES = ("tests/gpu", "tests/ops", "tests/test_philox.py")
NO_TESTS_COLLECTED = 5  # pytest's exit code
SHOWN = 40  # lines of a part that failed
CORES_A_PROCESS = 2
MOST_PROCESSES = 8
MOST_TESTS = 2  # of a file, where they are named, in a process


@dataclass(frozen=True)
class Part:
    """A process of pytest: its name, the files or tests that it runs, and a `-m` expression."""

    name: str
    tests: tuple[str, ...]
    marks: str


@dataclass(frozen=True)
class Ended:
    """A part that has run: pytest's exit code, its output, and the last line of it."""

    part: Part
    code: int
    output: str

    @property
    def last(self) -> str:
        """The line in which pytest sums up."""
        return (self.output.strip().splitlines() or ["no output"])[-1].strip("= ")


def processes() -> int:
    """How many files run at once here, unless told."""
    return max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) // CORES_A_PROCESS))


def files() -> list[str]:
    """The files that have a test marked `gpu`, the largest first: they tend to take longest."""
    found: list[Path] = []
    for place in PLACES:
        path = ROOT / place
        found += [path] if path.is_file() else path.glob("test_*.py")
    marked = [one for one in found if "mark.gpu" in one.read_text(encoding="utf-8")]
    by_size = sorted(marked, key=lambda one: -one.stat().st_size)
    return [str(one.relative_to(ROOT)) for one in by_size]


def parts(owed: bool) -> list[Part]:
    """What to run: all, or the tests whose proof is owed; those that run alone are the last part.

    RefusalError if nothing is owed.
    """
    by_file: dict[str, tuple[str, ...]] = {file: (file,) for file in files()}
    if owed:
        debts = sorted(proofs.owed(DATA_DIR))
        if not debts:
            raise RefusalError("no proof is owed: leave --owed out to run all GPU tests")
        of_file = {
            file: tuple(test for test in debts if test.startswith(f"{file}::")) for file in by_file
        }
        by_file = {file: tests for file, tests in of_file.items() if tests}
    beside = [part for file, tests in by_file.items() for part in _cut(Path(file).stem, tests)]
    everything = tuple(test for tests in by_file.values() for test in tests)
    return [*beside, Part("alone", everything, "gpu and alone")]


def _cut(name: str, tests: Sequence[str]) -> list[Part]:
    """A file's parts: one, or where its tests are named as many as keep to MOST_TESTS."""
    told = [tuple(tests[at : at + MOST_TESTS]) for at in range(0, len(tests), MOST_TESTS)]
    names = [name if len(told) == 1 else f"{name}_{at + 1}" for at in range(len(told))]
    return [Part(one, some, "gpu and not alone") for one, some in zip(names, told, strict=True)]


def _run(part: Part, folder: Path, slug: str) -> Ended:
    command = [sys.executable, "-m", "pytest", *part.tests, "-m", part.marks, "-q", "-rs"]
    command += ["-p", "no:cacheprovider", "-p", "kernels.lab.records.proofs_plugin"]
    command += ["--proofs", str(folder / "parts" / part.name), "--proofs-card", slug]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        errors="replace",
    )  # fmt: skip
    return Ended(part, ended.returncode, ended.stdout + ended.stderr)


def _counted(ended: Sequence[Ended]) -> str:
    """The sums of what the parts' last lines say, as `12 passed, 3 skipped`."""
    sums: dict[str, int] = {}
    for one in ended:
        for number, what in re.findall(r"(\d+) (failed|passed|skipped|errors?|xfailed)", one.last):
            what = "error" if what == "errors" else what
            sums[what] = sums.get(what, 0) + int(number)
    return ", ".join(f"{number} {what}" for what, number in sums.items()) or "nothing was run"


def run(log: Path, slug: str, owed: bool = False, at_once: int | None = None) -> dict[str, Any]:
    """Run the tests; return what came of it, as `{"ran", "passed", "told"}`.

    The proofs go into the folder of the card `slug` beside `log`, renewed after every part, so that
    a run cut short leaves what it had; the output of all parts goes into `log`.
    """
    if importlib.util.find_spec("pytest") is None:
        told = "the GPU tests were not run: this Python has no pytest"
        log.write_text(told + "\n", encoding="utf-8")
        say(told)
        return {"ran": False, "passed": None, "told": told}
    folder = log.parent
    *beside, alone = parts(owed)
    known, done = DATA_DIR / slug, list[Ended]()

    def ended(one: Ended) -> None:
        done.append(one)
        say(f"  {one.part.name}: {one.last}")
        if one.code not in (0, NO_TESTS_COLLECTED):
            print("\n".join(one.output.splitlines()[-SHOWN:]), flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"== {one.part.name}\n{one.output}\n")
        made = [folder / "parts" / each.part.name / slug for each in done]
        proofs.write(folder / slug, *proofs.merged(known, made))

    log.write_text("", encoding="utf-8")
    shutil.rmtree(folder / "parts", ignore_errors=True)  # an earlier run's
    with ThreadPoolExecutor(at_once or processes()) as pool:
        for future in as_completed([pool.submit(_run, part, folder, slug) for part in beside]):
            ended(future.result())
    ended(_run(alone, folder, slug))
    ran = [one for one in done if one.code != NO_TESTS_COLLECTED]
    if not ran:
        return {"ran": False, "passed": None, "told": "no test is marked gpu"}
    failed = [one.part.name for one in ran if one.code]
    rows, _ = proofs.read(folder / slug)
    before, _ = proofs.read(known)
    new = sum(row != before.get(test) for test, row in rows.items())
    told = f"{_counted(ran)}; proofs: {new} new, {len(rows)} of {slug} in all"
    if failed:
        told += f"; failed in {', '.join(failed)}"
    return {"ran": True, "passed": not failed, "told": told}
