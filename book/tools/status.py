"""The page Status: what the build ran, and where, when and how the recorded data was measured.

`page` writes it from `_build/status.json`, the `<suite>.json` beside each recorded suite and the
package's sources, and from nothing else: the same give the same text, so that an unchanged book
stays built.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from book.tools.config import Repository, repository

PAGE = "book/status"
WRITER = "book/tools/status.py"
# The key in a record, and the column it fills.
ENVIRONMENT = {
    "gpu": "GPU",
    "driver": "driver",
    "cuda": "CUDA",
    "python": "Python",
    "torch": "PyTorch",
    "triton": "Triton",
    "numpy": "NumPy",
}

INTRODUCTION = """\
# Status

What this copy of the book was made with. The build writes this page from its own records; nothing
here is typed by hand. A page runs again when its notebook, what it sees of the package and of the
data, or a pin changes.
"""
CHAPTERS = """\
## Chapters and exercises

Each page was executed from top to bottom, in a Python of its own. The last column is a row of the
table at the end.
"""
RECORDINGS = """\
## Recorded data

The times that a page shows as recorded come from these files. A file is one run, whole. Its date
leads to all that the run told of itself: clocks, power limit, method, launches.
"""
COMMANDS = """\
## How it was recorded

You can run each command on your own card, as it stands here.
"""
ENVIRONMENTS = """\
## Environments

A GPU is named where the run had one; `–` is what a record does not tell.
"""


class _Environments:
    """The different environments of the page, numbered as they come."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def number(self, record: Mapping[str, Any]) -> int:
        """Return the number, from 1, of the environment that `record` tells."""
        cells = tuple(str(record.get(key) or "–") for key in ENVIRONMENT)
        if cells not in self.seen:
            self.seen.append(cells)
        return self.seen.index(cells) + 1

    def table(self) -> str:
        return _table(
            ["environment", *ENVIRONMENT.values()],
            ([str(number), *cells] for number, cells in enumerate(self.seen, 1)),
        )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, [":--"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _minute(iso: str) -> str:
    """Return `2026-11-28 01:07` of a UTC time in ISO form."""
    return iso[:16].replace("T", " ")


def _title(notebook: Path) -> str:
    """Return the first heading of a notebook."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            for line in "".join(cell["source"]).splitlines():
                if line.startswith("# "):
                    return line.removeprefix("# ").strip()
    return notebook.stem


def _chapters(
    root: Path, status: Mapping[str, dict[str, Any]], notebooks: Sequence[Path], seen: _Environments
) -> str:
    rows, seconds = [], 0.0
    for path in notebooks:
        record = status[path.relative_to(root).as_posix()]
        link = os.path.relpath(path, (root / PAGE).parent)
        ran, seconds = record["seconds"], seconds + record["seconds"]
        when = _minute(record["executed_at"])
        rows.append([f"[{_title(path)}]({link})", f"{ran:.1f}", when, str(seen.number(record))])
    rows.append(["all together", f"{seconds:.1f}", "", ""])
    return _table(["page", "run time (s)", "run at (UTC)", "environment"], rows)


def _commit(told: Mapping[str, Any], home: Repository) -> str:
    if not told["commit"]:
        return "–"
    link = f"[`{told['commit'][:7]}`]({home.url}/commit/{told['commit']})"
    return link if told["dirty"] is False else f"{link}, changed"


def _recorded(root: Path) -> list[tuple[str, int, dict[str, Any]]]:
    """Return each recorded suite: its path without suffix below `root`, its rows, what it tells."""
    found = []
    for path in sorted((root / "book" / "data").glob("*/*.csv")):
        if path.name == "proofs.csv":
            continue
        rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
        told = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        found.append((path.with_suffix("").relative_to(root).as_posix(), rows, told))
    return found


def _recordings(
    recorded: Sequence[tuple[str, int, dict[str, Any]]], home: Repository, seen: _Environments
) -> str:
    rows = []
    for path, count, told in recorded:
        card = {**told["versions"], **told["card"], "gpu": told["card"]["name"]}
        rows.append(
            [
                f"[{'/'.join(path.split('/')[-2:])}]({home.file(f'{path}.csv')})",
                str(count),
                f"[{_minute(told['date'])}]({home.file(f'{path}.json')})",
                _commit(told, home),
                str(seen.number(card)),
            ]
        )
    return _table(["file", "rows", "recorded at (UTC)", "commit", "environment"], rows)


def _older(root: Path, recorded: Sequence[tuple[str, int, dict[str, Any]]]) -> str:
    """A sentence for each recording whose sources have changed since."""
    from kernels.lab.records import sources  # PyTorch comes with it: not before the chapters ran

    tree = sources.of_folder(root)
    found = [(path, sources.age(told, tree)) for path, _, told in recorded]
    return "".join(f"- {'/'.join(p.split('/')[-2:])}: {older}.\n" for p, older in found if older)


def _commands(recorded: Sequence[tuple[str, int, dict[str, Any]]]) -> str:
    lines = []
    for path, _, told in recorded:
        lines.append(f"- {'/'.join(path.split('/')[-2:])}: `{told['command']}`")
        problems = [*told["problems"], *told.get("profile", {}).get("problems", [])]
        lines += [f"  - It told of a problem: {problem}" for problem in _alike(problems)]
    return "\n".join(lines) + "\n"


def _alike(problems: Iterable[str]) -> list[str]:
    """Problems in their order, those that say the same of several cells as one."""
    cells: dict[str, list[str]] = {}
    for problem in problems:
        cell, _, said = problem.partition(": ")
        cells.setdefault(said, []).append(cell)
    told = []
    for said, of in cells.items():
        more = f", and {len(of) - 1} more like it" if len(of) > 1 else ""
        told.append(f"{of[0]}{more}" + (f": {said}" if said else ""))
    return told


def page(root: Path, status: Mapping[str, dict[str, Any]], notebooks: Sequence[Path]) -> str:
    """Return the page's Markdown.

    `status` is the content of `_build/status.json`, `notebooks` the executed ones below `root`, in
    reading order.
    """
    home, seen, recorded = repository(root), _Environments(), _recorded(root)
    parts = [INTRODUCTION, CHAPTERS, _chapters(root, status, notebooks, seen), RECORDINGS]
    parts += [
        _recordings(recorded, home, seen),
        _older(root, recorded),
        COMMANDS,
        _commands(recorded),
    ]
    return "\n".join([*parts, ENVIRONMENTS, seen.table()])
