"""The bench: every variant of a suite, timed, checked and counted, into one file of rows.

    python -m kernels.lab bench norms
    python -m kernels.lab bench norms --shape 4096x4096 --dtype bf16 --variants torch,fused
    python -m kernels.lab bench norms --pass bwd

A whole suite writes `book/data/<gpu>/<suite>.csv` and `.json`. A run of part of a suite writes to
`_build/bench/<run-id>/` instead, since a file holds one whole run. The order is: all times first;
then the launches, by PyTorch's profiler, whose hooks would otherwise stand in the times; then the
bytes, counted by the ledgers; then DRAM, by Nsight Compute (see `kernels.lab.profiling.profile`).
The file is written behind the times, behind the bytes, and behind DRAM. Until the second of these
each cell is kept as it comes (see `kept_cells`): `--resume` goes on where a run was cut.
"""

from __future__ import annotations

import gc
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernels.lab.cards import devices
from kernels.lab.cards.makers import CARDS
from kernels.lab.measuring import timing, verdicts
from kernels.lab.measuring.cell_bench import Bench, in_cell, say, without_fallback
from kernels.lab.measuring.kept_cells import KeptCells, file_of
from kernels.lab.profiling import profile
from kernels.lab.records import provenance, sources
from kernels.lab.records.data import write_suite
from kernels.lab.selection import NO_GPU, Cell, RefusalError, select, suite_ops
from kernels.paths import DATA_DIR, ROOT


@dataclass(frozen=True)
class Options:
    """What the command line chose; see `python -m kernels.lab bench --help`."""

    suite: str
    variants: str = "all"
    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    pass_: str = "all"
    out: Path | None = None
    run_id: str | None = None
    seconds: float = 0.5
    profile: bool = True
    profile_seconds: float = 150.0
    resume: bool = False

    @property
    def partial(self) -> bool:
        """Whether only a part of the suite was asked for."""
        chosen = self.shapes or self.dtypes or self.options
        return self.variants != "all" or self.pass_ != "all" or bool(chosen)

    def kept(self, slug: str) -> Path:
        """Return the file of the cells of a run that is not at its end."""
        return file_of(self.directory(whole=False), slug, self.suite)

    def directory(self, whole: bool = True) -> Path:
        """Return the folder that holds `<gpu>/<suite>.csv`; `whole` if the run reached its end."""
        if self.out is not None:
            return self.out
        if whole and not self.partial:
            return DATA_DIR
        return ROOT / "_build" / "bench" / (self.run_id or provenance.run_id())


def _method(bench: Bench, empty_us: float) -> dict[str, Any]:
    return {
        "graph": "CUDA graph replay between two CUDA events, in µs per call; as many calls in one "
        f"graph as last {timing.WINDOW_US:.0f} µs for the fastest variant of the row, at most "
        f"{timing.MAX_CALLS}, each on inputs of its own",
        "host": "calls from Python back to back, wall time per call, launch cost included, no "
        "flush",
        "bwd": "the forward runs once, outside the window; a call takes random gradients of the "
        "outputs back to the inputs; compiled graphs keep their saved buffers (donated_buffer is "
        "off), so that they can run back again",
        "interleaved": "sample by sample, the first variant another each turn",
        "flush": f"a buffer of {max(timing.FLUSH_BYTES, 4 * bench.stream.l2_bytes) >> 20} MiB is "
        "written before each graph sample, outside the timed window",
        "empty_window_us": round(empty_us, 3),
        "seconds_per_variant": bench.seconds,
        "samples_min": timing.MIN_SAMPLES,
        "samples_max": timing.MAX_SAMPLES,
        "copy": "the faster of two plain copies, a kernel's and the driver's, in each cell; both "
        "stand under copies_us",
        "speed_ups": "medians of paired ratios with their 95 % interval by order statistics; noise "
        "is the larger (p95 - p20) / p50 of the two",
        "launches": "kernels of one call, by torch.profiler; under timelines each one's name, its "
        "start after the first one's and its duration in µs",
        "seed": bench.seed,
    }


def _provenance(options: Options, bench: Bench, card: dict[str, Any]) -> dict[str, Any]:
    empty = timing.time_windows({"empty": lambda: None}, bench.stream, seconds=0.0)["empty"]
    return {
        "suite": options.suite,
        "card": card,
        "versions": provenance.versions(),
        **provenance.source(),
        "sources": sources.of_operations(
            sources.of_folder(ROOT), options.suite, [op.name for op in suite_ops(options.suite)]
        ),
        "command": provenance.command(),
        "date": provenance.utc_now(),
        "method": _method(bench, timing.quantile(empty, 0.5)),
    }


@torch.no_grad()
def run(options: Options) -> int:
    """Run the bench, write its files, print its report; return the exit code, 0 or 1.

    RefusalError if what was asked for is not understood or this machine has no GPU.
    """
    if not (options.seconds > 0 and math.isfinite(options.seconds)):
        raise RefusalError(f"--seconds {options.seconds} does not fit; it takes a number above 0")
    cells = select(
        *(options.suite, options.variants, options.shapes, options.dtypes, options.pass_),
        options=options.options,
    )
    if not re.fullmatch(r"[\w.-]+", options.run_id or "-"):
        raise RefusalError(
            f"--run-id {options.run_id!r} does not fit; it takes letters, digits, . _ -"
        )
    if not torch.cuda.is_available():
        raise RefusalError(NO_GPU)
    if options.out is not None:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RefusalError(f"--out {options.out} cannot be made: {error.strerror}") from error
    began = time.perf_counter()
    bench = Bench(options.seconds)
    card = devices.describe(bench.device.index)
    say(f"bench {options.suite} on {card['name']}: {len(cells)} cells")
    record = _provenance(options, bench, card)
    kept = _kept(options, bench, record)
    with without_fallback():
        _measure_all(bench, cells, kept)
        return _finish(options, bench, cells, record, began, kept)


def _measure_all(bench: Bench, cells: Sequence[Cell], kept: KeptCells) -> None:
    """Measure the cells in order, but those that a cut run left; stop where the device died."""
    for number, cell in enumerate(cells, 1):
        started = time.perf_counter()
        rows = kept.take(cell)
        if rows is None:
            had = len(bench.problems)
            rows = bench.attempt(cell.name, partial(bench.measure, cell)) or []
            if not bench.dead:
                kept.keep(cell, rows, bench.problems[had:])
        bench.rows += rows
        if bench.dead:
            break
        gc.collect()
        torch.cuda.empty_cache()
        took = time.perf_counter() - started
        say(f"[{number:>2}/{len(cells)}] {cell.name}: {verdicts.line(rows)}  ({took:.1f} s)")


def _kept(options: Options, bench: Bench, record: dict[str, Any]) -> KeptCells:
    """Where the cells are kept; with --resume those that a cut run left."""
    names = ("name", "driver", "multiprocessors")
    measured_with = {
        "sources": record["sources"],
        "card": {name: record["card"].get(name) for name in names},
        "versions": record["versions"],
        "seconds": options.seconds,
    }
    kept = KeptCells(options.kept(record["card"]["slug"]), measured_with, bench)
    kept.begin(options.resume)
    say(f"cells are kept in {kept.path} until all are timed")
    return kept


def _keep_times(bench: Bench, record: dict[str, Any]) -> None:
    """Put into the record what is known once all cells are timed."""
    record["card_after"] = {} if bench.dead else devices.smi(bench.device.index)
    record["calls_in_graph"], record["copies_us"] = bench.calls_in_graph, bench.copies
    record["speed_ups"], record["speed_ups_host"] = bench.speed_ups, bench.speed_ups_host
    record["problems"] = bench.problems


def _fill(bench: Bench, cells: Sequence[Cell], record: dict[str, Any], kept: KeptCells) -> None:
    """Fill the columns that are not times, and judge the rows."""
    started = time.perf_counter()
    for cell in cells:
        if not bench.dead:
            had = len(bench.problems)
            bench.count_launches(cell)
            rows = [row for row in bench.rows if in_cell(row, cell)]
            kept.keep(cell, rows, bench.problems[had:])
    say(f"launches counted  ({time.perf_counter() - started:.1f} s)")
    started = time.perf_counter()
    bench.rows = verdicts.fill_bytes(bench.rows, cells, bench.problem)
    say(f"bytes counted  ({time.perf_counter() - started:.1f} s)")
    card = CARDS.get(record["card"]["slug"])
    rate = None if card is None else card.bandwidth_bytes_per_s
    bench.rows, flagged, rejected = verdicts.judge(bench.rows, bench.stream.l2_bytes, rate)
    record["timelines"] = bench.timelines
    record["cache_effects"], record["rejected"] = flagged, rejected
    for sentence in flagged:
        say(f"above the copy  {sentence}")
    for sentence in rejected:
        bench.problem(f"rejected  {sentence}")


def _finish(
    options: Options,
    bench: Bench,
    cells: Sequence[Cell],
    record: dict[str, Any],
    began: float,
    kept: KeptCells,
) -> int:
    path = options.directory(not bench.dead) / record["card"]["slug"] / f"{options.suite}.csv"

    def write() -> None:
        record["seconds"] = round(time.perf_counter() - began, 1)
        write_suite(path, bench.rows, record)

    _keep_times(bench, record)
    if bench.rows:
        write()
    _fill(bench, cells, record, kept)
    if not bench.rows:
        bench.problem(f"nothing of suite {options.suite!r} was measured; no file is written")
        return 1
    write()
    if not bench.dead:
        kept.end()
    if options.profile and options.suite != "ceilings" and not bench.dead:
        gc.collect()
        torch.cuda.empty_cache()
        timed = bench.rows

        def keep(found: profile.Found) -> None:
            bench.rows, record["profile"] = profile.merge(timed, found)
            write()

        chosen = profile.default_rows(timed)
        keep(profile.run_rows(chosen, options.profile_seconds, say, keep))
        for sentence in record["profile"]["problems"]:
            say(f"profile  {sentence}")
    say(verdicts.table(bench.rows))
    say(f"{len(bench.rows)} rows in {path} ({time.perf_counter() - began:.0f} s)")
    if options.out is None and path.is_relative_to(ROOT / "_build"):
        say("a part of a suite does not replace the recorded file; --out names another place")
    if bench.problems:
        say(f"{len(bench.problems)} problems: " + "; ".join(bench.problems[:5]))
    return 1 if bench.problems else 0
