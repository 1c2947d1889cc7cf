"""What a profiler sees: the launches of a call, and the bytes that DRAM moved for it.

`launches` asks PyTorch's profiler. DRAM bytes come from Nsight Compute (`ncu`), which runs
`kernels.lab.profiling.profile_child` and profiles one call of each cell, compiled and warm
beforehand:

- a cell of one launch with `--cache-control all`: ncu empties the caches before the kernel;
- a chain of launches with `--cache-control none`: the child empties the L2 once, by reading a
  large buffer (reading leaves no lines that would be written back on the chain's account), and
  each kernel finds what the one before it left. Only metrics that fit one pass are asked for,
  since a second pass would find the caches warm.

Writes that still lie in the L2 when a kernel ends are not yet DRAM's: its write bytes are lower
than what the kernel stored, by up to one L2.

By default every cell in bf16 is profiled and, of the other dtypes, the cells of the shape with the
most ideal bytes, since bytes depend on a dtype through its size alone.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernels.lab.cards import devices
from kernels.lab.measuring.copying import COPY
from kernels.lab.profiling.ncu import (
    METRICS,
    CellProfile,
    cells_from_kernels,
    parse_csv,
    passes_in_log,
)
from kernels.lab.records import provenance
from kernels.lab.records.data import Row, read_suite, write_suite
from kernels.lab.selection import NO_GPU, RefusalError, suite_ops
from kernels.paths import DATA_DIR, ROOT

CHILD = "kernels.lab.profiling.profile_child"
MODES = {
    "single": {"cache_control": "all", "flush": "by ncu, before each pass of each kernel"},
    "chain": {"cache_control": "none", "flush": "once before the chain, by reading a buffer"},
    "sectors": {"cache_control": "none", "flush": "none: sectors are asked for before any cache"},
    "requested": {"cache_control": "all", "flush": "by ncu, before each pass of each kernel"},
}
START_SECONDS = 90.0  # for imports and the first compilations, beside the budget
_COPIES = ("Memcpy", "Memset")


Event = tuple[str, float, float]  # name, start in µs after the first one's, duration in µs


def device_events(events: Iterable[Any]) -> list[Event]:
    """Return what ran on the device, in order, from a profile's events."""
    found = [
        event
        for event in events
        if str(event.device_type).endswith("CUDA")
        and not getattr(event, "is_user_annotation", False)
    ]
    found.sort(key=lambda event: event.time_range.start)
    return [
        (
            str(event.name),
            float(event.time_range.start - found[0].time_range.start),
            float(event.time_range.elapsed_us()),
        )
        for event in found
    ]


def kernels_of(events: Sequence[Event]) -> list[Event]:
    """Return the launches among device events: the kernels, or the copies if all are copies."""
    kernels = [event for event in events if not event[0].startswith(_COPIES)]
    return kernels or [event for event in events if event[0].startswith("Memcpy")]


def timeline(fn: Callable[[], object]) -> list[Event]:
    """Return (kernel name, start in µs, duration in µs) of each launch of one call of `fn`.

    Copies and memsets count only if the call launches nothing else. The profiler makes a launch
    from Python cost a little more than it does without. RuntimeError if it sees nothing on the
    device.
    """
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    fn()
    for calls in (3, 3, 1):  # the first calls inside a profile run slower; a profile can miss some
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profiler:
            for _ in range(calls):
                fn()
                torch.cuda.synchronize()
        found = kernels_of(device_events(profiler.events() or []))
        each, rest = divmod(len(found), calls)
        if each and not rest:
            last = found[-each:]
            return [(name, start - last[0][1], took) for name, start, took in last]
    raise RuntimeError("the profiler saw no work on the device")


def default_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the graph rows to profile: all of bf16, the largest shape of each other dtype.

    Without bf16 the first dtype takes its place. The copy is left out: it is no kernel of ours.
    """
    candidates = [r for r in rows if r.timing == "graph" and r.variant != COPY]
    dtypes = list(dict.fromkeys(r.dtype for r in candidates))
    full = "bf16" if "bf16" in dtypes else (dtypes[0] if dtypes else "")
    largest: dict[tuple[str, str, str], int] = {}
    for row in candidates:
        key = (row.op, row.pass_, row.dtype)
        largest[key] = max(largest.get(key, 0), row.bytes_ideal or 0)
    chosen = [
        row
        for row in candidates
        if row.dtype == full or row.bytes_ideal == largest[row.op, row.pass_, row.dtype]
    ]
    return sorted(chosen, key=lambda row: row.dtype != full)


def matching_rows(rows: Sequence[Row], patterns: Sequence[str]) -> list[Row]:
    """Return the graph rows that match `op:variant:shape:dtype`, `*` standing for anything.

    Options, then the pass of a row that is no forward, stand at its end: `:causal:bwd`. The copy
    is left out.
    """
    named = {r.place: r for r in rows if r.timing == "graph" and r.variant != COPY}
    chosen: dict[str, Row] = {}
    for pattern in patterns:
        found = {name: row for name, row in named.items() if fnmatch.fnmatchcase(name, pattern)}
        if not found:
            raise RefusalError(
                f"cells {pattern!r} match no row; it takes "
                f"op:variant:shape:dtype[:options][:bwd], "
                f"* for any, as in: {next(iter(named), 'layernorm:fused:4096x4096:bf16')}"
            )
        chosen |= found
    return list(chosen.values())


def find_ncu() -> str | None:
    """Return the path of Nsight Compute's command line, or None."""
    usual = [Path("/usr/local/cuda/bin/ncu"), *sorted(Path("/opt/nvidia").glob("*/*/ncu"))]
    return shutil.which("ncu") or next((str(p) for p in usual if os.access(p, os.X_OK)), None)


def ncu_command(
    ncu: str, mode: str, log: Path, spec: Path, child: str = CHILD, without: Collection[str] = ()
) -> list[str]:
    """Return the command that profiles the cells of the file `spec`, its CSV going to `log`.

    `child` is the module that does the file's work, profiled between the profiler's start and stop;
    `without` are metrics that this card does not have.
    """
    metrics = [metric for metric in METRICS[mode] if metric not in without]
    return [
        ncu,
        "--csv",
        *("--page", "raw"),
        *("--print-units", "base"),
        *("--print-kernel-base", "function"),
        *("--clock-control", "none"),
        *("--cache-control", MODES[mode]["cache_control"]),
        *("--profile-from-start", "off"),
        *("--target-processes", "application-only"),
        *("--metrics", ",".join(metrics)),
        *("--log-file", str(log)),
        *(sys.executable, "-m", child, str(spec)),
    ]


@dataclass
class Found:
    """What a profile gave: one entry a cell, and what went wrong."""

    cells: list[CellProfile]
    modes: dict[str, Any]
    problems: list[str]


def _run_mode(
    ncu: str,
    mode: str,
    rows: Sequence[Row],
    seconds: float,
    found: Found,
    without: Collection[str] = (),
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, spec, done = (Path(folder) / name for name in ("ncu.csv", "spec.json", "done.json"))
        cells = [
            {
                "op": r.op,
                "variant": r.variant,
                "pass": r.pass_,
                "shape": r.shape,
                "dtype": r.dtype,
                "options": r.options,
            }
            for r in rows
        ]
        suite = {"cells": cells, "flush": mode == "chain", "seconds": seconds, "done": str(done)}
        spec.write_text(json.dumps(suite), encoding="utf-8")
        environment = os.environ | {
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no worker processes under the profiler
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        command = ncu_command(ncu, mode, log, spec, without=without)
        output = ""
        try:
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=seconds + START_SECONDS,
                check=False,
            )
            output = ended.stdout + ended.stderr
        except subprocess.TimeoutExpired:
            found.problems.append(f"ncu ({mode}) was stopped after {seconds + START_SECONDS:.0f} s")
        except OSError as error:
            found.problems.append(f"ncu ({mode}) did not start: {error}")
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        told = json.loads(done.read_text(encoding="utf-8")) if done.exists() else []
        errors = re.findall(r"^==ERROR== (.+)$", text + "\n" + output, re.MULTILINE)
        unknown = [
            metric
            for metric in METRICS[mode]
            if re.search(rf"\b{metric.partition('.')[0]}\b", "\n".join(errors))
        ]
        if set(unknown) - set(without):  # a card of another kind: what it has is worth having
            return _run_mode(ncu, mode, rows, seconds, found, {*unknown, *without})
        found.problems += [f"ncu ({mode}): {error}" for error in dict.fromkeys(errors)]
        found.problems += [f"{cell['name']}: {cell['error']}" for cell in told if cell["error"]]
        try:
            kernels = parse_csv(text)
            found.cells += cells_from_kernels(kernels, told, mode)
        except ValueError as error:
            last = output.strip().splitlines()[-1:]
            found.problems.append(" ".join([f"ncu ({mode}): {error}", *last]))
        found.modes[mode] = {
            **MODES[mode],
            "metrics": [metric for metric in METRICS[mode] if metric not in without],
            "passes_max": passes_in_log(text + output),
            "cells_asked": len(cells),
            "cells_profiled": sum(not cell["error"] for cell in told),
        }
        if mode == "chain" and (found.modes[mode]["passes_max"] or 1) > 1:
            found.problems.append("ncu needed several passes for a chain: later ones ran warm")


def run_rows(
    rows: Sequence[Row],
    seconds: float,
    say: Callable[[str], None],
    keep: Callable[[Found], object] = lambda _: None,
) -> Found:
    """Profile the cells of `rows` with ncu, in about `seconds`; problems stand in the result.

    `keep` is given what is there after each of ncu's runs: a later one may be cut.
    """
    ncu = find_ncu()
    if ncu is None:
        return Found([], {}, ["no DRAM bytes: Nsight Compute (ncu) is not on this machine"])
    version = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False)
    found = Found([], {"tool": " ".join(version.stdout.split()[-4:])}, [])
    groups = {
        "single": [row for row in rows if row.launches == 1],
        "chain": [row for row in rows if row.launches != 1],
    }
    for mode, group in groups.items():
        if group:
            say(f"profiling {len(group)} cells with ncu ({mode})")
            _run_mode(ncu, mode, group, seconds * len(group) / len(rows), found)
            keep(found)
    return found


def merge(rows: Sequence[Row], found: Found) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows with DRAM bytes on their graph rows, and what the provenance keeps."""
    by_key = {cell.key: cell for cell in found.cells}
    merged, problems = [], list(found.problems)
    for row in rows:
        cell = by_key.get((row.cell, row.variant)) if row.timing == "graph" else None
        if cell is None:
            merged.append(row)
            continue
        if row.launches is not None and row.launches != len(cell.kernels):
            problems.append(
                f"{row.place.replace(':', ' ')}: ncu saw {len(cell.kernels)} "
                f"kernels, PyTorch's profiler {row.launches}"
            )
        merged.append(
            replace(row, bytes_dram_read=cell.dram_read, bytes_dram_write=cell.dram_write)
        )
    return merged, {
        "modes": found.modes,
        "problems": problems,
        "cells": [asdict(cell) for cell in found.cells],
    }


def run(
    suite: str, cells: Sequence[str], out: Path | None, seconds: float, say: Callable[[str], None]
) -> int:
    """Profile a recorded suite of this card and write DRAM bytes into its file; return 0 or 1."""
    suite_ops(suite)
    if not torch.cuda.is_available():
        raise RefusalError(NO_GPU)
    path = (out or DATA_DIR) / devices.describe()["slug"] / f"{suite}.csv"
    if not path.exists():
        raise RefusalError(
            f"{path} does not exist; measure first: python -m kernels.lab bench {suite}"
        )
    rows, record = read_suite(path)
    chosen = matching_rows(rows, cells) if cells else default_rows(rows)
    before = record.get("profile", {}).get("cells", [])

    def keep(found: Found) -> dict[str, Any]:
        merged, told = merge(rows, found)
        told["command"], told["date"] = provenance.command(), provenance.utc_now()
        told["commit"] = provenance.source()["commit"]
        # Cells that an earlier run profiled, and this one was not asked for, stay.
        anew = {cell.key for cell in found.cells}
        for cell in before:
            place = (cell["op"], cell["pass_"], cell["shape"], cell["dtype"])
            if ((*place, cell.get("options", "")), cell["variant"]) not in anew:
                told["cells"].append(cell)
        write_suite(path, merged, record | {"profile": told})
        return told

    found = run_rows(chosen, seconds, say, keep)
    told = keep(found)
    for problem in told["problems"]:
        say(f"profile  {problem}")
    for cell in found.cells:
        say(describe_cell(cell))
    return 0 if found.cells else 1


def describe_cell(cell: CellProfile) -> str:
    """Return a profiled cell in one line, bytes in MB (10⁶)."""
    read, write = cell.dram_read / 1e6, cell.dram_write / 1e6
    told = (cell.op, cell.variant, cell.shape, cell.dtype, cell.options, cell.pass_)
    name = " ".join(part for part in told if part)
    return f"{name}: DRAM read {read:.1f} MB, written {write:.1f} MB, {len(cell.kernels)} kernels"
