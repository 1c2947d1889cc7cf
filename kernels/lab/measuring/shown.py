"""What a chapter shows of times: measured here if there is a GPU, and recorded rows beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels.lab.records.data import Recording, Row, recordings
from kernels.paths import DATA_DIR
from kernels.registry import Case, Options, Shape, dtype_name, get, options_name, shape_name


@dataclass(frozen=True)
class Measured:
    """The rows of one operation at one shape, dtype and pass on one card."""

    card: str
    date: str
    live: bool
    rows: tuple[Row, ...]
    command: str = ""
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    def row(self, variant: str, timing: str = "graph") -> Row:
        """Return a variant's row; LookupError with one sentence if there is none."""
        for row in self.rows:
            if (row.variant, row.timing) == (variant, timing):
                return row
        raise LookupError(f"no {timing} row of {variant!r} was measured on {self.card}")

    def graph(self, *variants: str) -> list[Row]:
        """Return the graph rows of the variants that were measured, in this order; of none, all."""
        there = {row.variant: row for row in self.rows if row.timing == "graph"}
        return [there[name] for name in variants or there if name in there]

    def kernels(self, variant: str) -> list[dict[str, Any]]:
        """Return what Nsight Compute told of each of a variant's kernels, in their order.

        LookupError with one sentence if the variant was not profiled here.
        """
        row = self.rows[0]  # all are of one operation, shape, dtype, options and pass
        wanted = (row.op, variant, row.shape, row.dtype, row.pass_, row.options)
        for cell in self.provenance.get("profile", {}).get("cells", []):
            told = [cell[key] for key in ("op", "variant", "shape", "dtype", "pass_")]
            if (*told, cell.get("options", "")) == wanted:
                return list(cell["kernels"])
        raise LookupError(f"{variant!r} was not profiled on {self.card}")

    def note(self) -> str:
        """Say in one sentence where the numbers come from."""
        if self.live:
            return f"Measured just now on your card, {self.card}."
        return f"Recorded on one {self.card} on {self.date} by `{self.command}`."

    def timeline(self, variant: str) -> list[tuple[str, float, float]]:
        """Return a variant's launches: (kernel, start in µs, duration in µs)."""
        row = self.row(variant)
        if row.place not in self.provenance.get("timelines", {}):
            raise LookupError(f"no timeline of {row.place} was recorded on {self.card}")
        timeline = self.provenance["timelines"][row.place]
        return [(name, start, took) for name, start, took in timeline]


def recorded(
    op_name: str,
    shape: Shape,
    dtype: torch.dtype,
    gpu: str | None = None,
    data_dir: Path = DATA_DIR,
    pass_: str = "fwd",
    options: Options = (),
) -> list[Measured]:
    """Return what recorded cards measured of an operation in one case, in one pass.

    `gpu` is a card's short name such as `h100-sxm`, as the folders of the data have it; all cards
    if None.
    """
    found = []
    for recording in recordings(get(op_name).suite, data_dir):
        if gpu not in (None, recording.gpu):
            continue
        rows = recording.select(
            op=op_name,
            shape=shape_name(shape),
            dtype=dtype_name(dtype),
            options=options_name(options),
            pass_=pass_,
        )
        if rows:
            found.append(_of(recording, rows))
    return found


def _of(recording: Recording, rows: list[Row]) -> Measured:
    told = recording.provenance
    return Measured(
        card=told["card"]["name"],
        date=str(told["date"])[:10],
        live=False,
        rows=tuple(rows),
        command=f"python -m kernels.lab bench {recording.suite}",
        provenance=told,
    )


def measured(
    op_name: str,
    shape: Shape,
    dtype: torch.dtype,
    seconds: float = 0.2,
    data_dir: Path = DATA_DIR,
    pass_: str = "fwd",
    options: Options = (),
) -> list[Measured]:
    """Return the measurements to show: this machine's GPU first if there is one, then recordings.

    `pass_` is `fwd`, `bwd` or `train`; `options` are as `(("causal", True),)`. A GPU without the
    dtype measures nothing. LookupError with one sentence if nothing is there to show.
    """
    found = recorded(op_name, shape, dtype, data_dir=data_dir, pass_=pass_, options=options)
    if torch.cuda.is_available():
        found = [*_live(op_name, shape, dtype, seconds, pass_, options), *found]
    if not found:
        told = f"{op_name} {Case(shape, dtype, options).name} {pass_}"
        raise LookupError(
            f"{told} was recorded on no card, and this machine has no GPU that measures it"
        )
    return found


def _live(
    op_name: str, shape: Shape, dtype: torch.dtype, seconds: float, pass_: str, options: Options
) -> list[Measured]:
    from kernels.lab.cards import devices
    from kernels.lab.measuring import cell_bench
    from kernels.lab.selection import Cell

    if cell_bench.unsupported(dtype) is not None:
        return []
    op = get(op_name)
    case = Case(shape, dtype, options)
    chosen = tuple(v for v in op.variants.values() if v.has(pass_) and v.belongs(case))
    if not chosen:
        return []
    cell = Cell(op, case, pass_, chosen)
    with torch.no_grad():
        bench = cell_bench.Bench(seconds)
        bench.rows = bench.measure(cell)
        bench.count_launches(cell)
    return [
        Measured(
            card=str(devices.describe(bench.device.index)["name"]),
            date="",
            live=True,
            rows=tuple(bench.rows),
            provenance={"timelines": bench.timelines},
        )
    ]


def ceilings_here(dtype: str, data_dir: Path = DATA_DIR) -> Recording:
    """Return a recording of the suite `ceilings` to draw a roof from.

    With a GPU its own, measured now: a large copy, and the largest product in `dtype` (`fp16`,
    `bf16` or `fp32`). Without one, or where the GPU has no such dtype, a recorded card's.
    LookupError with one sentence if none was recorded.
    """
    if torch.cuda.is_available():
        rows = _live_ceilings(dtype)
        if rows:
            from kernels.lab.cards import devices
            from kernels.lab.records import provenance

            card = devices.describe(torch.cuda.current_device())
            told = {"card": card, "live": True, "date": provenance.utc_now()}
            return Recording(card["slug"], "ceilings", tuple(rows), told)
    found = recordings("ceilings", data_dir)
    if not found:
        raise LookupError("no card's ceilings were recorded, and this machine has no GPU")
    return found[0]


@torch.no_grad()
def _live_ceilings(dtype: str) -> list[Row]:
    from kernels.lab.measuring import cell_bench
    from kernels.lab.selection import select

    bench = cell_bench.Bench(seconds=0.2)
    copies = [cell for cell in select("ceilings", "torch,kernel") if cell.op.name == "copy"]
    products = [
        cell
        for cell in select("ceilings", "torch")
        if cell.op.name == "matmul" and dtype_name(cell.case.dtype) == dtype
    ]
    if any(cell_bench.unsupported(cell.case.dtype) for cell in products):
        return []
    # The second-largest copy fits a small card and is far larger than any L2.
    return [row for cell in (copies[-2], *products) for row in bench.measure(cell)]
