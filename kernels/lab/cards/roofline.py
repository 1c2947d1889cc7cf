"""The roofline: FLOP/s against FLOPs per byte, under the ceilings of a card.

Left of the ridge a kernel waits for memory, right of it for arithmetic. Ceilings are measured: a
large copy, and the largest matrix product of the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kernels.lab.records.data import Recording, Row

DRAM, UNIQUE = "DRAM", "unique"


@dataclass(frozen=True)
class Point:
    """One measured variant: its FLOPs, its time in µs, and its bytes.

    `bytes_of` says which bytes they are: `DRAM` (measured) or `unique` (counted).
    """

    variant: str
    flops: int
    bytes: int
    time_us: float
    bytes_of: str = UNIQUE

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        """FLOPs per second."""
        return self.flops / self.time_us * 1e6


@dataclass(frozen=True)
class IntensityLine:
    """A kernel with no time, as a line: its FLOPs per byte, and a name."""

    label: str
    intensity: float


@dataclass(frozen=True)
class Ceilings:
    """What a card can do at most: bytes per second and FLOPs per second.

    `source` says where both come from: measured, or the maker's documents.
    """

    card: str
    bandwidth_bytes_per_s: float
    bandwidth_label: str
    compute_flops_per_s: float
    compute_label: str
    source: str = ""

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both ceilings meet."""
        return self.compute_flops_per_s / self.bandwidth_bytes_per_s

    def bound(self, intensity: float) -> float:
        """FLOPs per second that a kernel of this intensity can reach at most."""
        return min(self.compute_flops_per_s, intensity * self.bandwidth_bytes_per_s)


def ceilings_of(recording: Recording, dtype: str) -> Ceilings:
    """Return the ceilings in a recording of suite `ceilings`, the arithmetic's in `dtype`.

    They are the fastest copy of the largest size (op `copy`) and the largest product (op `matmul`,
    variant `torch`), timing `graph`; `tf32` is the product `torch_tf32` of fp32 tensors.
    LookupError with one sentence if either is missing.
    """

    def largest(op: str, size: str, **wanted: str) -> float:
        rows = recording.select(op=op, timing="graph", **wanted)
        rows = [row for row in rows if row.time_us_p50 and getattr(row, size)]
        if not rows:
            which = f"{op} in {dtype}" if "dtype" in wanted else op
            raise LookupError(f"{recording.gpu}/{recording.suite} has no timed {which}")
        most = max(getattr(row, size) for row in rows)
        times = [row.time_us_p50 or math.inf for row in rows if getattr(row, size) == most]
        return float(most / min(times) * 1e6)

    bandwidth = largest("copy", "bytes_ideal")
    stored, variant = ("fp32", "torch_tf32") if dtype == "tf32" else (dtype, "torch")
    compute = largest("matmul", "flops", variant=variant, dtype=stored)
    return Ceilings(recording.gpu, bandwidth, "copy", compute, f"{dtype} product")


def points_of(rows: Iterable[Row]) -> tuple[list[Point], list[str]]:
    """Return the rows as points, and the variants that cannot be placed.

    A point takes its DRAM bytes where they were measured, else the counted unique bytes. A row
    without either, or without FLOPs or a time, cannot be placed.
    """
    points, unplaced = [], []
    for row in rows:
        if row.bytes_dram_read is not None and row.bytes_dram_write is not None:
            moved, source = row.bytes_dram_read + row.bytes_dram_write, DRAM
        else:
            moved, source = row.bytes_unique or 0, UNIQUE
        if moved and row.flops and row.time_us_p50:
            points.append(Point(row.variant, row.flops, moved, row.time_us_p50, source))
        else:
            unplaced.append(row.variant)
    return points, unplaced
