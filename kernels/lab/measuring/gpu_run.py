"""What `make gpu` runs on a GPU machine: GPU tests, models and every suite, left in one archive.

A proof is a row that a test marked `proves` leaves when it passes on a card: it holds while the
sources that the test names stay as they were (see `kernels.lab.records.proofs`).

It needs the machine's own Python with PyTorch and Triton; neither a network nor this repository's
environment. `tar -xzf gpu-<gpu>-<date>.tar.gz -C book/data <gpu>` puts what was recorded into the
book.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.lab.cards import devices
from kernels.lab.measuring import gpu_tests, verdicts
from kernels.lab.measuring.cell_bench import say
from kernels.lab.records import provenance
from kernels.lab.records.data import read_suite
from kernels.lab.selection import NO_GPU, RefusalError, suite_ops, suites
from kernels.paths import ROOT

# What stands among the suites: what models launch, what a call from Python costs, what a compiler
# writes, what a training step needs of memory.
BESIDE = ("models", "host", "generated", "memory")
TABLE_DTYPES = ("bf16", "fp32")  # the last table stays short: the first of these a suite has


def _stream(command: Sequence[str]) -> int:
    """Run a command, passing its output on as it comes; return its exit code."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for text in process.stdout:
            print(text, end="", flush=True)
    return process.returncode


def archive(folder: Path, slug: str, date: str, since: float = 0.0) -> Path:
    """Put the CSV, JSON and log files of `folder` into one archive there and return its path.

    Files older than `since` (seconds of the epoch) are an earlier run's and stay out.
    """
    path = folder / f"gpu-{slug}-{date}.tar.gz"
    mine = [*folder.glob("gpu.json"), *folder.glob("tests.log")]
    mine += [file for kind in ("csv", "json") for file in folder.glob(f"{slug}/*.{kind}")]
    with tarfile.open(path, "w:gz") as tar:
        for file in sorted(mine):
            if file.stat().st_mtime >= since:
                tar.add(file, arcname=str(file.relative_to(folder)))
    return path


def _table(folder: Path, slug: str, names: Sequence[str]) -> str:
    told = []
    for name in names:
        path = folder / slug / f"{name}.csv"
        if not path.exists():
            told.append(f"{name}: not recorded")
            continue
        rows, _ = read_suite(path)
        if name != "ceilings":
            has = {row.dtype for row in rows}
            dtype = next((d for d in TABLE_DTYPES if d in has), None)
            rows = [row for row in rows if dtype is None or row.dtype == dtype]
        told.append(f"{name}\n{verdicts.table(rows)}")
    return "\n\n".join(told)


def _command(folder: Path, name: str, seconds: float) -> list[str]:
    """The command that records a suite, or what stands beside the suites."""
    command = [sys.executable, "-m", "kernels.lab"]
    if name in BESIDE:
        return [*command, name, "--out", str(folder)]
    return [*command, "bench", name, "--out", str(folder), "--seconds", str(seconds)]


@dataclass(frozen=True)
class Chosen:
    """What of it all is run: which suites ([]: all there is, None: none), and which tests.

    `seconds` is a variant's budget a cell; `owed` leaves out the tests whose proof holds;
    `processes` is how many files of tests run at once (None: by the CPU's cores).
    """

    suites: Sequence[str] | None = ()
    seconds: float = 0.5
    tests: bool = True
    owed: bool = False
    processes: int | None = None


def run(out: Path | None, chosen: Chosen) -> int:
    """Run the tests, the suites and what stands beside them; return 0 if all passed, else 1.

    Where suites are chosen they are all that is recorded. The archive is written anew after each
    step, so that a run cut short leaves what it had.
    """
    tests, seconds = chosen.tests, chosen.seconds
    for name in chosen.suites or ():
        suite_ops(name)
    if not torch.cuda.is_available():
        raise RefusalError(NO_GPU)
    folder = (out or ROOT / "_build" / "gpu").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    card = devices.describe(torch.cuda.current_device())
    slug, date = card["slug"], provenance.utc_now()
    names = list(chosen.suites or ())
    if chosen.suites is not None and not names:
        names = [*BESIDE, *suites()]
    # A file system may keep whole seconds.
    began, started = time.perf_counter(), time.time() - 1
    record: dict[str, Any] = {"card": card, "date": date, "tests": None, "suites": {}}

    def keep() -> Path:
        text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
        (folder / "gpu.json").write_text(text + "\n", encoding="utf-8")
        return archive(folder, slug, date[:10], started)

    codes: dict[str, int] = {}
    steps = len(names) + tests
    say(f"gpu: {card['name']}, {'tests, ' if tests else ''}{', '.join(names)}")
    if tests:
        say(f"[1/{steps}] GPU tests")
        record["tests"] = gpu_tests.run(folder / "tests.log", slug, chosen.owed, chosen.processes)
        say(f"[1/{steps}] {record['tests']['told']}  ({time.perf_counter() - began:.0f} s)")
        keep()
    for number, name in enumerate(names, 1 + tests):
        what = name if name in BESIDE else f"suite {name}"
        say(f"[{number}/{steps}] {what}")
        code = _stream(_command(folder, name, seconds))
        codes[what] = record["suites"][name] = code
        took = time.perf_counter() - began
        say(f"[{number}/{steps}] {what}: exit code {code}  ({took:.0f} s)")
        keep()
    path = keep()
    say(_table(folder, slug, [name for name in names if name not in BESIDE]))
    failed = [what for what, code in codes.items() if code]
    if record["tests"] and record["tests"]["passed"] is False:
        failed.insert(0, f"GPU tests ({record['tests']['told']})")
    say(
        f"{path}  ({time.perf_counter() - began:.0f} s)" + (f"; failed: {failed}" if failed else "")
    )
    return 1 if failed else 0
