"""A recorded suite as a readable page: what was decided, on which evidence, and its boundary.

python -m kernels.lab report norms
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernels.lab.measuring.paired_ratios import NOT_SUPPORTED, RERUN, SUPPORTED
from kernels.lab.records import proofs, sources
from kernels.lab.records.data import Recording, Row, recordings
from kernels.lab.selection import RefusalError
from kernels.paths import DATA_DIR, ROOT

CLAIMED = "fused"
OVER = ("eager", "torch", "compile", "compile_max_autotune", "liger", "helion")


# How a decision is timed: {timing: where its paired ratios stand beside the rows}.
TIMINGS = {"graph": "speed_ups", "host": "speed_ups_host"}


def _cells(recording: Recording, timing: str = "graph") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] | None = recording.provenance.get(TIMINGS[timing])
    return _by_quantiles(recording, timing) if found is None else found


def _by_quantiles(recording: Recording, timing: str) -> dict[str, dict[str, Any]]:
    """Verdicts of a run that kept no paired ratios, from the rows: apart if p20 and p95 are."""
    told: dict[str, dict[str, Any]] = {}
    for row in recording.select(timing=timing, variant=CLAIMED):
        for other in recording.select(timing=timing):
            times = (row.time_us_p20, row.time_us_p50, row.time_us_p95)
            base = (other.time_us_p20, other.time_us_p50, other.time_us_p95)
            if other.cell != row.cell or other.variant not in OVER or None in (*times, *base):
                continue
            (p20, p50, p95), (base_p20, base_p50, base_p95) = times, base
            verdict = SUPPORTED if p95 < base_p20 else RERUN  # type: ignore[operator]
            told.setdefault(row.cell_name, {}).setdefault(CLAIMED, {})[other.variant] = {
                "ratio": base_p50 / p50,  # type: ignore[operator]
                "verdict": NOT_SUPPORTED if p20 > base_p95 else verdict,  # type: ignore[operator]
            }
    return told


def _and_pass(told: str, pass_: str) -> str:
    """Words about a cell; the forward goes without saying, as in a cell's name."""
    return told if pass_ == "fwd" else f"{told} {pass_}"


def decisions(recording: Recording, timing: str = "graph") -> str:
    """A row a claim: `fused` is faster than a baseline, over all cells of an operation and pass.

    `timing` is "graph", the device alone, or "host", a call from Python.
    """
    lines = [
        "| claim | supported | rerun: noise | not supported | speed-up |",
        "|:--|--:|--:|--:|:--|",
    ]
    for op, pass_ in dict.fromkeys((row.op, row.pass_) for row in recording.rows):
        cells = {row.cell_name for row in recording.select(op=op, pass_=pass_)}
        for base in OVER:
            told = [
                variants[CLAIMED][base]
                for cell, variants in _cells(recording, timing).items()
                if cell in cells and base in variants.get(CLAIMED, {})
            ]
            if not told:
                continue
            counts = [
                sum(t["verdict"] == v for t in told) for v in (SUPPORTED, RERUN, NOT_SUPPORTED)
            ]
            ratios = [t["ratio"] for t in told]
            lines.append(
                f"| {_and_pass(op, pass_)}: {CLAIMED} is faster than {base} "
                f"| {counts[0]} | {counts[1]} | {counts[2]} "
                f"| {min(ratios):.2f} to {max(ratios):.2f} |"
            )
    return "\n".join(lines)


def evidence(recording: Recording) -> str:
    """A row a cell: `fused`'s times, its error, its speed-ups with their intervals, a verdict."""
    lines = [
        "| cell | p20, p50, p95 µs | GB/s | error | over eager | over torch | verdict over torch |",
        "|:--|:--|--:|--:|--:|--:|:--|",
    ]
    for row in recording.select(timing="graph", variant=CLAIMED):
        cell = row.cell_name
        ups = _cells(recording).get(cell, {}).get(CLAIMED, {})
        gbs = (row.bytes_ideal or 0) / (row.time_us_p50 or 1) / 1e3
        lines.append(
            f"| {cell} | {_times(row)} | {gbs:,.0f} "
            f"| {'–' if row.error is None else f'{row.error:.1e}'} "
            f"| {_interval(ups.get('eager'))} | {_interval(ups.get('torch'))} "
            f"| {ups.get('torch', {}).get('verdict', '–')} |"
        )
    return "\n".join(lines)


def _times(row: Row) -> str:
    times = (row.time_us_p20, row.time_us_p50, row.time_us_p95)
    return ", ".join("–" if time is None else f"{time:.2f}" for time in times)


def _interval(up: dict[str, Any] | None) -> str:
    return "–" if up is None else f"{up['ratio']:.2f} ({up['low']:.2f} to {up['high']:.2f})"


def counters(recording: Recording) -> str:
    """A row a profiled cell: DRAM throughput, occupancy, instruction issue, in % of the most."""
    lines = ["| cell | variant | DRAM | occupancy | issue |", "|:--|:--|--:|--:|--:|"]
    for cell in recording.provenance.get("profile", {}).get("cells", []):
        if len(cell["kernels"]) == 1 and cell["variant"] in (CLAIMED, "torch"):
            (kernel,) = cell["kernels"]
            told = [cell[part] for part in ("op", "shape", "dtype")] + [cell.get("options", "")]
            name = _and_pass(" ".join(part for part in told if part), cell["pass_"])
            lines.append(
                f"| {name} | {cell['variant']} "
                f"| {_percent(kernel['dram_pct'])} | {_percent(kernel['occupancy_pct'])} "
                f"| {_percent(kernel.get('issue_pct'))} |"
            )
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"


def boundary(recording: Recording) -> str:
    """What the evidence does not cover, as a list: cards, noise, cache effects, failures."""
    told = recording.provenance
    noisy = [
        f"{cell} over {base}"
        for cell, variants in _cells(recording).items()
        for base, up in variants.get(CLAIMED, {}).items()
        if base in OVER and up["verdict"] == RERUN
    ]
    lines = [
        f"- One card, {told['card']['name']}, and one run, on {told['date'][:10]}. Another card "
        "may decide otherwise.",
        "- In a graph: device time from a cold L2. From Python: back to back, from a warm one; a "
        "call takes the larger of what the host and the device need.",
        "- Noise asks for a rerun: " + ("; ".join(noisy) if noisy else "nowhere") + ".",
    ]
    if older := sources.age(told, sources.of_folder(ROOT)):
        lines.append(f"- {older}: the numbers are of the kernels as they were then.")
    profiled = told.get("profile", {})
    if profiled.get("commit") not in (None, told.get("commit")):
        lines.append(
            f"- DRAM bytes were profiled apart, on {profiled['date'][:10]} at commit "
            f"`{profiled['commit'][:10]}`, of the kernels as they were then."
        )
    for name, what in (
        ("cache_effects", "Faster than a copy, so a cache's doing"),
        ("rejected", "Rejected"),
        ("problems", "Went wrong"),
    ):
        lines += [f"- {what}: {sentence}." for sentence in told.get(name, [])]
    return "\n".join(lines)


def page(recording: Recording) -> str:
    """The report of one recording, as Markdown."""
    told = recording.provenance
    parts: Iterable[str] = [
        f"# Lab report: {recording.suite} on {told['card']['name']}",
        "",
        f"Recorded on {told['date']} by `{told['command']}`, commit {told.get('commit') or '–'}, "
        f"PyTorch {told.get('versions', {}).get('torch', '–')}, "
        f"Triton {told.get('versions', {}).get('triton', '–')}.",
        "",
        "## Decisions",
        "",
        "In a CUDA graph, the device alone:",
        "",
        decisions(recording),
        "",
        "From Python, the cost of the call included:",
        "",
        decisions(recording, "host"),
        "",
        "A claim is *supported* in a cell if the 95 % interval of the paired speed-up lies above 1 "
        "and the speed-up stands out of the noise.",
        "",
        "## Evidence",
        "",
        evidence(recording),
        "",
        "GB/s count the ideal bytes. An interval is of the median of paired ratios.",
        "",
        "## Counters",
        "",
        counters(recording),
        "",
        "## Boundary",
        "",
        boundary(recording),
        "",
    ]
    return "\n".join(parts)


def run(suite: str, gpu: str | None, out: Path | None, data_dir: Path = DATA_DIR) -> int:
    """Print the report of a recorded suite, or write it to `out`; return 0."""
    found = [r for r in recordings(suite, data_dir) if gpu in (None, r.gpu)]
    if not found:
        known = ", ".join(
            sorted(
                f"{path.parent.name}/{path.stem}"
                for path in data_dir.glob("*/*.csv")
                if path.name != proofs.FILE
            )
        )
        raise RefusalError(
            f"suite {suite!r} was recorded on no card{f' called {gpu!r}' if gpu else ''}; "
            f"recorded: {known or 'nothing'}"
        )
    text = "\n".join(page(recording) for recording in found)
    if out is None:
        print(text)
    else:
        out.write_text(text, encoding="utf-8")
        print(out)
    return 0
