"""What a run says of its rows: how each stands to the copy, which are cache effects, a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kernels.lab.measuring.copying import COPY
from kernels.lab.records.data import Row
from kernels.lab.selection import Cell

# A row is above the copy's bandwidth when it takes less than 1 / 1.05 of the copy's time: two
# medians of one run differ by a few per cent.
ABOVE_COPY = 1.05
# Above this many times the L2 a row cannot owe its speed to the cache. A copy reads as much as it
# writes, and a kernel that reads more is faster (on an H200 three tensors read and two written take
# 0.95 of the copy's time): but none is faster than the memory's own rate.
REJECT_L2 = 4


Group = tuple[tuple[str, ...], str]


def row_group(row: Row) -> Group:
    """Return what a row shares with the others that it is compared with: cell and timing."""
    return row.cell, row.timing


def copy_times(rows: Iterable[Row]) -> dict[Group, float]:
    """Return the copy's median time in µs of each group."""
    return {
        row_group(row): row.time_us_p50
        for row in rows
        if row.variant == COPY and row.time_us_p50 is not None
    }


def name(row: Row) -> str:
    """Return a row as a reader names it."""
    told = (row.op, row.variant, row.shape, row.dtype, row.options, row.pass_, row.timing)
    return " ".join(part for part in told if part)


def judge(
    rows: Sequence[Row], l2_bytes: int, bytes_per_s: float | None = None
) -> tuple[list[Row], list[str], list[str]]:
    """Return the rows to write, a sentence for each above the copy, one for each row rejected.

    `bytes_per_s` is the maker's figure of the card's memory: a row far larger than the L2 is not
    believed if it beats it, or, on a card of which none is known, if it beats the copy. Only
    `graph` rows are judged: a `host` row runs from a warm cache, and says so by its name.
    """
    copies = copy_times(rows)
    kept, flagged, rejected = [], [], []
    for row in rows:
        copy_us = copies.get(row_group(row))
        time_us = row.time_us_p50
        if (
            row.timing != "graph"
            or row.variant == COPY
            or copy_us is None
            or time_us is None
            or time_us * ABOVE_COPY >= copy_us
        ):
            kept.append(row)
            continue
        told = f"{name(row)}: {time_us:.1f} µs where a copy of the ideal bytes takes {copy_us:.1f}"
        ideal = row.bytes_ideal or 0
        if ideal <= REJECT_L2 * l2_bytes:
            kept.append(row)
            flagged.append(f"{told}: a cache effect")
        elif bytes_per_s is not None and ideal <= time_us * 1e-6 * bytes_per_s:
            kept.append(row)
            rate = f"{bytes_per_s / 1e12:.2f} TB/s"
            flagged.append(f"{told}: above a copy, below the memory's {rate}")
        else:
            size = f"{ideal >> 20} MiB are more than {REJECT_L2} times the L2"
            rejected.append(f"{told}; {size}, so no cache explains it: the row is not written")
    return kept, flagged, rejected


def line(rows: Sequence[Row]) -> str:
    """Return a cell's graph times in one line, each against the copy."""
    copies = copy_times(rows)
    told = []
    for row in rows:
        if row.timing == "graph" and row.time_us_p50 is not None:
            copy_us = copies.get(row_group(row))
            ratio = f" ({copy_us / row.time_us_p50:.2f})" if copy_us and row.variant != COPY else ""
            told.append(f"{row.variant} {row.time_us_p50:.1f}{ratio}")
    return ", ".join(told) + " µs" if told else "nothing measured"


def table(rows: Sequence[Row]) -> str:
    """Return the graph rows as text: time, bandwidth or rate, share of the copy, launches, error.

    GB/s counts the ideal bytes, whatever a variant moves; `host` is the time of a call from Python.
    """
    copies = copy_times(rows)
    host = {(row.cell, row.variant): row.time_us_p50 for row in rows if row.timing == "host"}
    head = f"{'op':<10} {'shape':<16} {'dtype':<5} {'pass':<4} {'variant':<20} "
    head += f"{'µs':>9} {'host µs':>9} "
    lines = [head + f"{'GB/s':>7} {'TFLOP/s':>8} {'of copy':>8} {'launches':>8} {'error':>8}"]
    for row in rows:
        if row.timing != "graph" or not row.time_us_p50:
            continue
        time_us = row.time_us_p50
        copy_us = copies.get(row_group(row))
        host_us = host.get((row.cell, row.variant))
        cells = [
            f"{row.op:<10} {f'{row.shape} {row.options}':<16} {row.dtype:<5} {row.pass_:<4} "
            f"{row.variant:<20} "
            f"{time_us:>9.2f}",
            f"{host_us:>9.2f}" if host_us is not None else f"{'':>9}",
            f"{(row.bytes_ideal or 0) / time_us / 1e3:>7.0f}",
            f"{(row.flops or 0) / time_us / 1e6:>8.1f}",
            f"{copy_us / time_us:>8.2f}" if copy_us else f"{'':>8}",
            f"{row.launches:>8}" if row.launches is not None else f"{'':>8}",
            f"{row.error:>8.1e}" if row.error is not None else f"{'':>8}",
        ]
        lines.append(" ".join(cells))
    return "\n".join(lines)


def fill_bytes(
    rows: Sequence[Row], cells: Sequence[Cell], problem: Callable[[str], None]
) -> list[Row]:
    """Return the rows with the ledgers' bytes, empty where a variant cannot be counted.

    `problem` is told of a count that failed. Bytes asked for stay empty for PyTorch operators:
    what the lanes of their kernels ask for is not counted.
    """
    try:
        from kernels.lab.counting import in_processes
    except ImportError as error:
        problem(f"no bytes are counted: {error}")
        return list(rows)
    counted: dict[tuple[tuple[str, ...], str], dict[str, object]] = {}
    to_count: dict[tuple[tuple[str, ...], str], in_processes.Task] = {}
    named: dict[tuple[tuple[str, ...], str], str] = {}
    for cell in cells:
        for variant in cell.variants:
            key = cell.key, variant.name
            if not variant.counted or not any((row.cell, row.variant) == key for row in rows):
                continue
            if variant.counted == "formula":
                assert variant.moves is not None  # the registry asks for it
                moved = variant.moves(cell.case, cell.pass_)
                counted[key] = {
                    "bytes_unique": moved.unique,
                    "bytes_requested": moved.requested,
                    "count_method": "formula",
                }
            else:
                to_count[key] = cell.op.name, variant.name, cell.case, cell.pass_
                named[key] = f"{cell.name} {variant.name}"
    found = in_processes.count_all(list(to_count.values()))
    for told, ledger in zip(to_count, found, strict=True):
        if isinstance(ledger, str):
            problem(f"bytes of {named[told]}: {ledger}")
            continue
        counted[told] = {
            "bytes_unique": ledger.bytes_unique,
            "bytes_requested": ledger.bytes_requested,
            "bytes_sectors": ledger.bytes_sectors,
            "count_method": ledger.method,
        }
    return [
        replace(row, **counted.get((row.cell, row.variant), {}))  # type: ignore[arg-type]
        for row in rows
    ]
