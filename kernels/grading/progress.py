"""`progress()`: the points earned so far, as a picture; they are kept in a file of the reader's.

The file is `fusing-kernels/progress.json` in the user's data folder, or what the environment
variable KERNELS_PROGRESS names ("" keeps nothing). Each question's best result is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import html
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.grading.question import questions

VARIABLE = "KERNELS_PROGRESS"
_GREEN, _GREY = "#009e73", "#999999"


@dataclass(frozen=True)
class Standing:
    """What one question has earned so far, and how often it failed since it last passed.

    `bonus` are the points for speed, which a GPU gives.
    """

    points: int = 0
    failed: int = 0
    bonus: int = 0


def _file() -> Path | None:
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "fusing-kernels" / "progress.json"


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(file: Path) -> dict[str, Standing]:
    """The standings in `file`; one that can't be read is put aside, not overwritten."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        return {
            str(name): Standing(
                int(entry["points"]), int(entry["failed"]), int(entry.get("bonus", 0))
            )
            for name, entry in told.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        with contextlib.suppress(OSError):
            os.replace(file, file.with_suffix(".unreadable"))
        return {}


def _write(file: Path, standings: dict[str, Standing]) -> None:
    entries = {name: vars(standing) for name, standing in sorted(standings.items())}
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=file.parent, suffix=".new", delete=False
    ) as new:
        json.dump(entries, new, indent=1)
    os.replace(new.name, file)


def standings() -> dict[str, Standing]:
    """What every question has earned, from the reader's file; empty if there is none."""
    file = _file()
    if file is None:
        return {}
    with contextlib.suppress(OSError), _locked(file):
        return _read(file)
    return {}


def note(question: str, points: int, bonus: int = 0) -> Standing:
    """Write down a result and return the question's standing; best points are never lost."""
    file = _file()
    new = Standing(points, 0 if points else 1, bonus)
    if file is None:
        return new
    # A disk that is full or read-only costs the record, not the check.
    with contextlib.suppress(OSError), _locked(file):
        known = _read(file)
        old = known.get(question, Standing())
        failed = 0 if points else old.failed + 1
        new = Standing(max(old.points, points), failed, max(old.bonus, bonus))
        known[question] = new
        _write(file, known)
    return new


@dataclass(frozen=True, repr=False)
class Progress:
    """Points by exercise set: (set, [(question, points, most)]), and those for speed."""

    sets: tuple[tuple[str, tuple[tuple[str, int, int], ...]], ...]
    bonus: int = 0

    @property
    def points(self) -> int:
        """All points earned."""
        return sum(points for _, rows in self.sets for _, points, _ in rows)

    @property
    def max_points(self) -> int:
        """All points there are."""
        return sum(most for _, rows in self.sets for _, _, most in rows)

    @property
    def headline(self) -> str:
        """All points in words."""
        more = f", and {self.bonus} for speed" if self.bonus else ""
        return f"{self.points} of {self.max_points} points{more}"

    def __repr__(self) -> str:
        lines = [self.headline]
        for name, rows in self.sets:
            marks = "".join("■" if points else "□" for _, points, _ in rows)
            earned, most = sum(r[1] for r in rows), sum(r[2] for r in rows)
            lines.append(f"  set {name}  {marks}  {earned} of {most}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        height = 28 * len(self.sets) + 4
        parts = []
        for place, (name, rows) in enumerate(self.sets):
            y = 4 + 28 * place
            parts.append(f'<text x="0" y="{y + 15}" fill="currentColor">Set {name}</text>')
            x = 60
            for question, points, most in rows:
                fill = _GREEN if points else "none"
                width = 14 * most
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{width}" height="20" rx="3" fill="{fill}" '
                    f'stroke="{_GREEN if points else _GREY}"><title>{question}: {points} of '
                    f"{most}</title></rect>"
                )
                if points:
                    mark = f'<text x="{x + width / 2 - 5}" y="{y + 15}" fill="#ffffff">✓</text>'
                    parts.append(mark)
                x += width + 4
            earned, total = sum(r[1] for r in rows), sum(r[2] for r in rows)
            told = f"{earned} of {total}"
            parts.append(f'<text x="{x + 6}" y="{y + 15}" fill="currentColor">{told}</text>')
        label = html.escape(repr(self), quote=True)
        return (
            f"<p><strong>{self.headline}</strong></p>"
            f'<svg role="img" aria-label="{label}" width="520" height="{height}" '
            f'viewBox="0 0 520 {height}" style="max-width:100%" font-size="14" '
            f'font-family="sans-serif">{"".join(parts)}</svg>'
        )


def progress() -> Progress:
    """The points of every question so far; a notebook shows them as a picture."""
    earned: dict[str, Any] = standings()
    sets: dict[str, list[tuple[str, int, int]]] = {}
    bonus = 0
    for name, question in sorted(questions().items()):
        standing = earned.get(name, Standing())
        points = min(standing.points, question.points)
        bonus += standing.bonus if question.speed is not None else 0
        sets.setdefault(name.split(".")[0], []).append((name, points, question.points))
    return Progress(tuple((name, tuple(rows)) for name, rows in sets.items()), bonus)
