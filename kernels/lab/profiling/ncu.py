"""Reading Nsight Compute's CSV: kernels with their metrics, told apart by a marker kernel.

`ncu --csv --page raw` prints one line a kernel, with a second header line that holds the units.
Before each cell the profiled program launches a kernel called MARKER, so that the kernels between
two markers are one cell's, whatever their names.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARKER = "cell_marker"

READ = "dram__bytes_read.sum"
WRITE = "dram__bytes_write.sum"
DURATION = "gpu__time_duration.sum"
DRAM_PCT = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
ISSUE = "sm__inst_issued.avg.pct_of_peak_sustained_active"
# The instructions that each kind of pipe of an SM takes, of those that it could. `fmaheavy` is the
# half of `fma` that multiplies whole numbers too; cards from 10.0 on don't tell it apart.
PIPES = {
    pipe: f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_active"
    for pipe in ("alu", "fma", "fmaheavy", "xu", "lsu")
}
# The clocks in which a kind of pipe is busy: more than its instructions' share where one of them
# holds it for longer than the quickest does. `tensor_op_gmma` are a Hopper's tensor cores.
BUSY = {
    pipe: f"sm__pipe_{pipe}_cycles_active.avg.pct_of_peak_sustained_active"
    for pipe in ("alu", "fma", "fmaheavy", "xu", "tensor_op_gmma")
}
# How many warps of a scheduler wait, on the average, while it starts an instruction, and for what:
# `barrier` is another warp, `long_scoreboard` memory beyond an SM, `short_scoreboard` its own
# memory and the slow pipes, `wait` what an instruction always takes, `not_selected` its turn.
WAITS = {
    what: f"smsp__average_warps_issue_stalled_{what}_per_issue_active.ratio"
    for what in (
        *("barrier", "long_scoreboard", "short_scoreboard", "wait", "not_selected"),
        *("math_pipe_throttle", "mio_throttle", "lg_throttle", "dispatch_stall", "gmma"),
    )
}
LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
# What SMs get and send, by loads, stores and the copy engine; and what the L2 is asked for, which
# is less: what SMs side by side ask for at about one time goes to it once.
SM_READ = "l1tex__m_xbar2l1tex_read_bytes.sum"
SM_WRITE = "l1tex__m_l1tex2xbar_write_bytes.sum"
L2_READ_SECTORS = "lts__t_sectors_srcunit_tex_op_read.sum"

METRICS: Mapping[str, tuple[str, ...]] = {
    "single": (
        *(READ, WRITE, DURATION, DRAM_PCT, OCCUPANCY, ISSUE),
        *(L2_READ_SECTORS, *PIPES.values(), *BUSY.values(), *WAITS.values()),
    ),
    "chain": (READ, WRITE, DURATION),  # few enough for one pass
    "sectors": (LOAD_SECTORS, STORE_SECTORS),
    "requested": (SM_READ, SM_WRITE, L2_READ_SECTORS, READ, WRITE),
}

# To bytes and to µs. ncu prints base units when asked to; older versions name them otherwise.
_UNITS = {
    "byte": 1.0,
    "kbyte": 1e3,
    "mbyte": 1e6,
    "gbyte": 1e9,
    "ns": 1e-3,
    "nsecond": 1e-3,
    "us": 1.0,
    "usecond": 1.0,
    "ms": 1e3,
    "msecond": 1e3,
    "s": 1e6,
    "second": 1e6,
}


@dataclass(frozen=True)
class ProfiledKernel:
    """One profiled kernel: times in µs, bytes of DRAM, percentages of the peak, 32-byte sectors.

    What was not asked for is None. `load_sectors` and `store_sectors` are those that the warps'
    loads and stores of global memory touch, before any cache. `sm_read` and `sm_write` are bytes
    that SMs get and send, whoever asked for them, `l2_read_sectors` what the L2 is asked for.
    `pipes_pct`, `busy_pct` and `waits` are those that a card tells of, by the names of PIPES, BUSY
    and WAITS.
    """

    name: str
    duration_us: float | None = None
    dram_read: int | None = None
    dram_write: int | None = None
    dram_pct: float | None = None
    occupancy_pct: float | None = None
    issue_pct: float | None = None
    load_sectors: int | None = None
    store_sectors: int | None = None
    l2_read_sectors: int | None = None
    sm_read: int | None = None
    sm_write: int | None = None
    pipes_pct: Mapping[str, float] | None = None
    busy_pct: Mapping[str, float] | None = None
    waits: Mapping[str, float] | None = None


@dataclass(frozen=True)
class CellProfile:
    """The kernels of one call of a variant in one case."""

    op: str
    variant: str
    pass_: str
    shape: str
    dtype: str
    mode: str
    kernels: list[ProfiledKernel] = field(default_factory=list)
    options: str = ""

    @property
    def key(self) -> tuple[tuple[str, ...], str]:
        """The cell and the variant, as their row has them."""
        return (self.op, self.pass_, self.shape, self.dtype, self.options), self.variant

    @property
    def dram_read(self) -> int:
        """Bytes read from DRAM, all kernels together."""
        return sum(kernel.dram_read or 0 for kernel in self.kernels)

    @property
    def dram_write(self) -> int:
        """Bytes written to DRAM, all kernels together."""
        return sum(kernel.dram_write or 0 for kernel in self.kernels)


def _number(cell: str, unit: str) -> float | None:
    text = cell.replace(",", "").strip()
    try:
        value = float(text) * _UNITS.get(unit.strip().lower(), 1.0)
    except ValueError:
        return None  # "n/a" or empty: not measured
    return value if math.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _shares(
    metrics: Mapping[str, str], values: Mapping[str, float | None]
) -> Mapping[str, float] | None:
    told = {name: values.get(metric) for name, metric in metrics.items()}
    return {name: share for name, share in told.items() if share is not None} or None


def parse_csv(text: str, needed: Sequence[str] = (READ, WRITE)) -> list[ProfiledKernel]:
    """Return the kernels of ncu's CSV output in the order of their launches.

    Lines before the header (`==PROF== …` and the program's own) are passed over. ValueError if
    there is no header or a metric that is `needed` is missing: then nothing was profiled.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith('"ID",')]
    if not starts:
        raise ValueError("the output holds no table of kernels")
    table = [line for line in lines[starts[0] :] if line.startswith('"')]
    header, *body = csv.reader(table)
    units = dict.fromkeys(header, "")
    if body and body[0] and body[0][0] == "":
        units = dict(zip(header, body.pop(0), strict=False))
    missing = [name for name in ("Kernel Name", *needed) if name not in header]
    if missing:
        raise ValueError(f"the table of kernels has no column {missing[0]!r}")
    kernels = []
    for cells in body:
        if len(cells) != len(header) or cells[0] == "ID":
            continue
        line = dict(zip(header, cells, strict=True))
        values = {name: _number(line.get(name, ""), units.get(name, "")) for name in header}
        kernels.append(
            ProfiledKernel(
                name=line["Kernel Name"],
                duration_us=values.get(DURATION),
                dram_read=_whole(values.get(READ)),
                dram_write=_whole(values.get(WRITE)),
                dram_pct=values.get(DRAM_PCT),
                occupancy_pct=values.get(OCCUPANCY),
                issue_pct=values.get(ISSUE),
                load_sectors=_whole(values.get(LOAD_SECTORS)),
                store_sectors=_whole(values.get(STORE_SECTORS)),
                l2_read_sectors=_whole(values.get(L2_READ_SECTORS)),
                sm_read=_whole(values.get(SM_READ)),
                sm_write=_whole(values.get(SM_WRITE)),
                pipes_pct=_shares(PIPES, values),
                busy_pct=_shares(BUSY, values),
                waits=_shares(WAITS, values),
            )
        )
    return kernels


def cells_from_kernels(
    kernels: Sequence[ProfiledKernel], done: Sequence[Mapping[str, Any]], mode: str
) -> list[CellProfile]:
    """Return one profile for each cell that the profiled program did without error.

    `done` is what the program wrote: a cell for each marker, in order. ValueError if the numbers
    of markers and cells differ, since then no kernel can be given to a cell.
    """
    groups: list[list[ProfiledKernel]] = []
    for kernel in kernels:
        if MARKER in kernel.name:
            groups.append([])
        elif groups:
            groups[-1].append(kernel)
    if len(groups) != len(done):
        raise ValueError(f"{len(groups)} markers were profiled for {len(done)} cells")
    return [
        CellProfile(
            op=cell["op"],
            variant=cell["variant"],
            pass_=cell["pass"],
            shape=cell["shape"],
            dtype=cell["dtype"],
            mode=mode,
            kernels=group,
            options=cell["options"],
        )
        for cell, group in zip(done, groups, strict=True)
        if not cell["error"] and group and all(k.dram_read is not None for k in group)
    ]


def passes_in_log(text: str) -> int | None:
    """Return the largest number of passes that ncu needed for a kernel, None if it told none."""
    found = [int(number) for number in re.findall(r"- (\d+) pass(?:es)?\b", text)]
    return max(found, default=None)
