"""Measured data as files: `book/data/<gpu>/<suite>.csv` and the provenance beside it.

One row is one timing of one variant at one shape. An empty cell means not measured; NaN is never
written. The newest run of a suite replaces the file whole, so that all its rows are of one run.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from kernels.paths import DATA_DIR


@dataclass(frozen=True)
class Row:
    """One row of a suite's file. Times are in µs; None is an empty cell: not measured.

    `pass_` stands in the file as `pass`. `timing` is `graph` (device time, replay of a CUDA
    graph), `events` (CUDA events around the call) or `host` (a call from Python, launch cost
    included). `error` is ‖out − ref‖ / ‖ref‖ against float64, the largest of several outputs, or of
    a backward's gradients. `count_method` says how the bytes were counted: `full` (every program
    interpreted), `linear` (a few rows or programs, extended linearly), `polynomial` (a few sizes,
    extended along several), `formula` (by `Variant.moves`, of kernels that no interpreter runs and
    where running all would take too long) or `aten` (PyTorch operators on fake tensors). `options`
    are the case's, as `causal window=1024`.
    """

    op: str
    variant: str
    pass_: str
    shape: str
    dtype: str
    timing: str
    time_us_p20: float | None = None
    time_us_p50: float | None = None
    time_us_p95: float | None = None
    samples: int | None = None
    launches: int | None = None
    bytes_ideal: int | None = None
    bytes_unique: int | None = None
    bytes_requested: int | None = None
    bytes_sectors: int | None = None
    bytes_dram_read: int | None = None
    bytes_dram_write: int | None = None
    count_method: str = ""
    flops: int | None = None
    error: float | None = None
    options: str = ""

    @property
    def cell(self) -> tuple[str, str, str, str, str]:
        """What a row shares with the others that it is compared with, whatever the timing."""
        return (self.op, self.pass_, self.shape, self.dtype, self.options)

    @property
    def key(self) -> tuple[str, ...]:
        """What makes a row unique in its file."""
        return (self.variant, *self.cell, self.timing)

    @property
    def cell_name(self) -> str:
        """The cell as a reader writes it: `layernorm 4096x4096 bf16`, `… bwd` for a backward."""
        told = (self.op, self.shape, self.dtype, self.options, self.pass_)
        return " ".join(part for part in told if part not in ("", "fwd"))

    @property
    def place(self) -> str:
        """The variant and its cell as one word: `layernorm:fused:4096x4096:bf16`, or `…:bwd`.

        Options stand before the pass: `attention:fused:2x16x4096x64:bf16:causal+window=1024:bwd`.
        Timelines stand under it, and `profile --cells` takes it.
        """
        pass_ = "" if self.pass_ == "fwd" else self.pass_
        told = (
            self.op,
            self.variant,
            self.shape,
            self.dtype,
            self.options.replace(" ", "+"),
            pass_,
        )
        return ":".join(part for part in told if part)


# In the file options stand beside the dtype, as a part of what names a row.
_FIRST = ("op", "variant", "pass_", "shape", "dtype", "options")
_FIELDS = (*_FIRST, *(field.name for field in fields(Row) if field.name not in _FIRST))
COLUMNS = tuple("pass" if name == "pass_" else name for name in _FIELDS)
_TYPES = {name: str(hint) for name, hint in get_type_hints(Row).items()}


def _to_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"a row holds {value}; leave a cell empty for what was not measured")
        return f"{value:.6g}"
    return str(value)


def _from_cell(name: str, cell: str) -> Any:
    hint = _TYPES[name]
    if hint == "<class 'str'>":
        return cell
    if cell == "":
        return None
    value = int(cell) if hint.startswith("int") else float(cell)
    if not math.isfinite(value):
        raise ValueError(f"column {name!r} holds {cell!r}; an unmeasured cell is empty")
    return value


def write_suite(path: Path, rows: Iterable[Row], provenance: dict[str, Any]) -> None:
    """Write `<suite>.csv` at `path` and `<suite>.json` (the provenance) beside it, both whole."""
    rows = list(rows)
    keys = [row.key for row in rows]
    doubled = {key for key in keys if keys.count(key) > 1}
    if doubled:
        raise ValueError(f"rows stand twice in {path.name}: {sorted(doubled)[0]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_to_cell(getattr(row, name)) for name in _FIELDS])
    write_provenance(path, provenance)


def write_provenance(path: Path, provenance: dict[str, Any]) -> None:
    """Write `<suite>.json` beside `<suite>.csv` at `path`."""
    path.with_suffix(".json").write_text(_told(provenance) + "\n", encoding="utf-8")


def _told(value: Any, level: int = 0) -> str:
    """JSON with a line for each cell: one for each number would be most of a recording."""
    entries = None
    if isinstance(value, dict) and level < 2:
        entries = [f"{json.dumps(k)}: {_told(value[k], level + 1)}" for k in sorted(value)]
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        entries = [_told(entry, 2) for entry in value]
    if not entries:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    start, end = "{}" if isinstance(value, dict) else "[]"
    indent = "\n" + "  " * level
    return start + indent + "  " + f",{indent}  ".join(entries) + indent + end


def read_suite(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Read a suite's rows and provenance; ValueError names the column that is not understood."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = tuple(reader.fieldnames or ())
        # A file that was recorded before operations had options has no column of them.
        known = COLUMNS if "options" in columns else tuple(c for c in COLUMNS if c != "options")
        if columns[: len(known)] != known:
            raise ValueError(f"{path} has the columns {columns}; it must begin with {COLUMNS}")
        names = {column: ("pass_" if column == "pass" else column) for column in known}
        rows = [
            Row(**{name: _from_cell(name, line[column]) for column, name in names.items()})
            for line in reader
        ]
    provenance = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return rows, provenance


@dataclass(frozen=True)
class Recording:
    """One suite recorded on one card: its rows, and where, when and how they were made."""

    gpu: str
    suite: str
    rows: tuple[Row, ...]
    provenance: dict[str, Any]

    def select(self, **wanted: str) -> list[Row]:
        """Return the rows whose columns equal what is wanted, e.g. `op="layernorm"`."""
        wanted = {("pass_" if name == "pass" else name): value for name, value in wanted.items()}
        return [
            row
            for row in self.rows
            if all(getattr(row, name) == value for name, value in wanted.items())
        ]

    def one(self, **wanted: str) -> Row:
        """Return the one row that fits; LookupError with one sentence otherwise."""
        found = self.select(**wanted)
        if len(found) != 1:
            raise LookupError(f"{len(found)} rows of {self.gpu}/{self.suite} fit {wanted}")
        return found[0]


def recordings(suite: str, data_dir: Path = DATA_DIR) -> list[Recording]:
    """Return a suite's recordings of every card, in the order of the cards' names."""
    found = []
    for path in sorted(data_dir.glob(f"*/{suite}.csv")):
        rows, provenance = read_suite(path)
        found.append(Recording(path.parent.name, suite, tuple(rows), provenance))
    return found
