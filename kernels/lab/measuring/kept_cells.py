"""The cells of a bench that runs, kept as they come: a run that is cut leaves them.

A file of lines in JSON. The first says what was measured with: sources, card, versions, seconds;
each other one is a cell, with its rows and what else the bench knows of it. A run that is told to
resume takes the cells from there, if it would have measured with the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernels.lab.measuring.cell_bench import Bench
from kernels.lab.records.data import Row
from kernels.lab.selection import Cell, RefusalError

# What the bench holds of each cell by the cell's name, beside its rows.
_BY_CELL = ("calls_in_graph", "copies", "speed_ups", "speed_ups_host")


def file_of(folder: Path, slug: str, suite: str) -> Path:
    """Return where the cells of a suite on a card are kept while it runs."""
    return folder / slug / f"{suite}.cells.jsonl"


class KeptCells:
    """The cells of a run at `path`, measured with what `measured_with` says (JSON's own types)."""

    def __init__(self, path: Path, measured_with: Mapping[str, Any], bench: Bench) -> None:
        self.path = path
        self.measured_with = json.loads(json.dumps(measured_with))
        self.bench = bench
        self.found: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}

    def begin(self, resume: bool) -> None:
        """Begin the file anew, or with `resume` read what a run left there.

        RefusalError if there is nothing, or if it was measured with something else. A last line
        that was cut is passed over.
        """
        if resume:
            self._read()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {"measured_with": self.measured_with, "seed": self.bench.seed}
        lines = [json.dumps(one) for one in (head, *self.found.values())]
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _read(self) -> None:
        if not self.path.exists():
            raise RefusalError(
                f"--resume finds no cells in {self.path}; name the cut run's --out or --run-id"
            )
        head, *lines = self.path.read_text(encoding="utf-8").splitlines()
        first = json.loads(head)
        was, would = first["measured_with"], self.measured_with
        other = sorted(key for key in was.keys() | would.keys() if was.get(key) != would.get(key))
        if other:
            raise RefusalError(
                f"--resume does not fit {self.path}: it was measured with other {', '.join(other)}"
            )
        self.bench.seed = first["seed"]
        for line in lines:
            try:
                one = json.loads(line)
            except json.JSONDecodeError:
                continue
            self.found[one["cell"], tuple(one["variants"])] = one

    def take(self, cell: Cell) -> list[Row] | None:
        """Return the rows of a cell that was kept, and tell the bench of it; None if it wasn't."""
        one = self.found.get((cell.name, _variants(cell)))
        if one is None:
            return None
        for name in _BY_CELL:
            if name in one:
                getattr(self.bench, name)[cell.name] = one[name]
        self.bench.problems += one["problems"]
        self.bench.timelines.update(one.get("timelines", {}))
        return [Row(**row) for row in one["rows"]]

    def keep(self, cell: Cell, rows: Sequence[Row], problems: Sequence[str] = ()) -> None:
        """Add a cell that was measured, with the problems that it had.

        A cell that is there already, as when its launches have been counted, is told anew: the
        last line of a cell counts.
        """
        known = self.found.get((cell.name, _variants(cell)), {})
        held = {name: getattr(self.bench, name) for name in _BY_CELL}
        timelines = self.bench.timelines
        one = {
            "cell": cell.name,
            "variants": _variants(cell),
            "rows": [asdict(row) for row in rows],
            **{name: of[cell.name] for name, of in held.items() if cell.name in of},
            "timelines": {
                row.place: timelines[row.place] for row in rows if row.place in timelines
            },
            "problems": [*known.get("problems", ()), *problems],
        }
        self.found[cell.name, _variants(cell)] = one
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(one) + "\n")

    def end(self) -> None:
        """Take the file away: all that it held stands in the suite's own."""
        self.path.unlink(missing_ok=True)


def _variants(cell: Cell) -> tuple[str, ...]:
    return tuple(variant.name for variant in cell.variants)
