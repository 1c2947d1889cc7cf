"""What one emulated launch did: bytes per argument, sectors and bank conflicts per source line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kernels.launch.arena import Access
from kernels.launch.storage import Offsets

KINDS = ("load", "store", "atomic")
SECTOR_BYTES = 32


@dataclass(frozen=True)
class WarpAccess(Access):
    """One request of one warp: an `Access` whose active lanes are `threads` of their block.

    `threads` are linear, x + nx·(y + ny·z), in lane order, as `offsets` are.
    """

    threads: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class ArgumentBytes:
    """Distinct and requested bytes of one argument, read and written."""

    name: str
    read_unique: int
    read_requested: int
    write_unique: int
    write_requested: int


@dataclass(frozen=True)
class LineTraffic:
    """What one source line asked of global memory for one argument, by one kind of access.

    A request is one instruction in one warp; `bytes_distinct` counts an address that several lanes
    of a request share once; `sectors` are the 32-byte sectors that the requests touched.
    """

    line: int | None
    argument: str
    kind: str
    width: int
    requests: int
    bytes_requested: int
    bytes_distinct: int
    sectors: int

    @property
    def efficiency(self) -> float:
        """The part of the sectors' bytes that the warps wanted: 1.0 is fully coalesced."""
        return self.bytes_distinct / (self.sectors * SECTOR_BYTES) if self.sectors else 1.0


@dataclass(frozen=True)
class LineBanks:
    """What one source line asked of shared memory; a conflict is one extra pass over the banks."""

    line: int | None
    kind: str
    width: int
    requests: int
    bytes_requested: int
    wavefronts: int
    conflicts: int


@dataclass(frozen=True)
class Counts:
    """The exact counts of one launch on the emulator.

    `trace` holds every warp request on an argument, in order, where it was asked for.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[ArgumentBytes, ...]
    lines: tuple[LineTraffic, ...]
    banks: tuple[LineBanks, ...]
    trace: tuple[WarpAccess, ...] = field(default=(), repr=False)
    note: str = ""

    def totals(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield (name, read unique, read requested, write unique, write requested) in bytes.

        Two arguments that view the same bytes count them once, under the first one's name.
        """
        for one in self.arguments:
            yield (
                one.name,
                one.read_unique,
                one.read_requested,
                one.write_unique,
                one.write_requested,
            )

    @property
    def bytes_unique(self) -> int:
        """Distinct bytes read plus distinct bytes written."""
        return sum(one.read_unique + one.write_unique for one in self.arguments)

    @property
    def bytes_requested(self) -> int:
        """Bytes that active lanes asked for, reads plus writes."""
        return sum(one.read_requested + one.write_requested for one in self.arguments)

    @property
    def bytes_sectors(self) -> int:
        """32-byte sectors per warp request, in bytes."""
        return SECTOR_BYTES * sum(line.sectors for line in self.lines)

    def __str__(self) -> str:
        """Return a table per argument, then one row for each line that is not at its best."""
        rows = [
            f"{self.kernel}: {self.bytes_unique:,} bytes unique, {self.bytes_requested:,} "
            f"requested, {self.bytes_sectors:,} in sectors"
        ]
        rows += [
            f"  {a.name}: read {a.read_unique:,} (asked {a.read_requested:,}), "
            f"written {a.write_unique:,} (asked {a.write_requested:,})"
            for a in self.arguments
        ]
        rows += [
            f"  line {one.line}, {one.kind} of {one.argument}: {one.sectors:,} sectors, "
            f"{one.efficiency:.0%} of their bytes wanted"
            for one in self.lines
            if one.efficiency < 1
        ]
        rows += [
            f"  line {one.line}, shared {one.kind}: {one.conflicts:,} bank conflicts in "
            f"{one.requests:,} requests"
            for one in self.banks
            if one.conflicts
        ]
        return "\n".join(rows)
