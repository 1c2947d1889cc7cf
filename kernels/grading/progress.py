"""`progress()`: the points earned so far, as a picture; they are kept in a file of the reader's.

The file is `fusing-kernels/progress.json` in the user's data folder, or what the environment
variable KERNELS_PROGRESS names ("" keeps nothing; `~` is your home). Each question's best result is
kept. Only a regular file is touched, or what a link to one points at. One that holds something else
is put aside under a name that is free, never overwritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import html
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.grading.question import questions

VARIABLE = "KERNELS_PROGRESS"
_GREEN, _GREY = "#009e73", "#999999"
_MOST_BYTES = 2**20  # the file of a reader who answered all questions has some 10 kB
_MOST_NUMBER = 10**6
_WAIT_S = 2.0


@dataclass(frozen=True)
class Standing:
    """What one question has earned so far, and how often it failed since it last passed.

    `bonus` are the points for speed, which a GPU gives.
    """

    points: int = 0
    failed: int = 0
    bonus: int = 0


class _NotKept(Exception):  # noqa: N818
    """Why nothing is written, as one sentence."""


class _Foreign(Exception):  # noqa: N818
    """The file holds something else than points."""


def _file() -> Path | None:
    """The file by the name it was given, None if nothing is to be kept."""
    named = os.environ.get(VARIABLE)
    if named is None:
        data = os.environ.get("XDG_DATA_HOME") or Path("~", ".local", "share")
        named = os.path.join(data, "fusing-kernels", "progress.json")
    try:
        return Path(named).expanduser() if named else None
    except RuntimeError:  # no home, or none of that name
        raise _NotKept(f"there is no such folder as that of {_told(named)}") from None


def _told(file: str | Path) -> str:
    # A name may hold bytes that are no text.
    return os.fsencode(file).decode(errors="replace")


def _regular(file: Path) -> tuple[Path, os.stat_result | None]:
    """Where `file` lies once links are followed, and what is there, None if nothing is."""
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return Path(os.path.realpath(file)), None
    if not stat.S_ISREG(found.st_mode):
        raise _NotKept(f"{_told(file)} is no regular file")
    real = Path(os.path.realpath(file))
    if not os.path.samestat(os.stat(real), found):
        raise _NotKept(f"{_told(file)} can't be followed to a file")
    return real, found


def _number(entry: Any, name: str, default: int | None = None) -> int:
    value = entry.get(name, default)
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise ValueError(name)
    return value


def _read(real: Path) -> dict[str, Standing]:
    """The standings in a regular file; `_Foreign` if it holds something else."""
    # What became a pipe meanwhile must not make the check wait.
    with open(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _NotKept(f"{_told(real)} is no regular file")
        text = file.read(_MOST_BYTES + 1)
    if not text:
        return {}
    try:
        if len(text) > _MOST_BYTES:
            raise ValueError(len(text))
        return {
            name: Standing(
                _number(entry, "points"), _number(entry, "failed"), _number(entry, "bonus", 0)
            )
            for name, entry in json.loads(text).items()
        }
    except (ValueError, AttributeError, RecursionError, MemoryError):
        raise _Foreign from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other checks off the file; the lock is the folder's own, so it leaves nothing behind."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _NotKept(f"something else holds {_told(folder)}") from None
                time.sleep(0.01)
            except OSError:  # a file system without locks: then without
                break
        yield
    finally:
        os.close(place)


def _put_aside(file: Path, real: Path) -> str:
    """Give a foreign file a free name beside its own; return what became of it."""
    number = 1
    while True:
        aside = real.with_suffix(".unreadable" if number == 1 else f".unreadable-{number}")
        try:
            # The name is taken first: a file that is there already is never overwritten.
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            break
        except FileExistsError:
            number += 1
    try:
        os.replace(real, aside)
    except OSError:
        os.unlink(aside)
        raise
    return f"{_told(file)} held no points as they are kept here; what it held is now {_told(aside)}"


def _write(real: Path, found: os.stat_result | None, standings: dict[str, Standing]) -> None:
    """Replace the file whole, or leave it as it is and nothing beside it."""
    entries = {name: vars(standing) for name, standing in sorted(standings.items())}
    place, new = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.", suffix=".new")
    try:
        with open(place, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=1)
            if found is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
            file.flush()
            os.fsync(file.fileno())  # a full disk may say so only now
        os.replace(new, real)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _writable(file: Path, found: os.stat_result | None) -> None:
    # Root may write anywhere, but who took the right away from a file meant it.
    if found is not None and not (found.st_mode & 0o222 and os.access(file, os.W_OK)):
        raise _NotKept(f"{_told(file)} is read-only")


def _why(error: BaseException, file: Path | None) -> str:
    """The sentence for what kept a result from being written down."""
    if isinstance(error, _NotKept):
        why = str(error)
    else:
        why = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
        why = f"{_told(file)}: {why}" if file is not None else why
    return f"This result is not kept: {why}."


def standings() -> tuple[dict[str, Standing], str]:
    """What every question has earned, from the reader's file, and a sentence if it has no points.

    Without a file both are empty.
    """
    file = None
    try:
        file = _file()
        real, found = _regular(file) if file is not None else (Path(), None)
        if file is None or found is None:
            return {}, ""
        try:
            return _read(real), ""
        except _Foreign:
            _writable(file, found)
            with _locked(real.parent):
                return {}, f"{_put_aside(file, real)}."
    except Exception as error:  # whatever the file is, a notebook gets a sentence
        return {}, _why(error, file).replace("This result is not kept", "No points are known")


def note(question: str, points: int, bonus: int = 0) -> tuple[Standing, str]:
    """Write down a result; best points are never lost.

    Returns the question's standing, and a sentence if it was not kept, or a foreign file put aside.
    """
    new, told, file = Standing(points, 0 if points else 1, bonus), "", None
    try:
        file = _file()
        if file is None:
            return new, ""
        real, _ = _regular(file)
        real.parent.mkdir(parents=True, exist_ok=True)
        with _locked(real.parent):
            real, found = _regular(file)
            try:
                known = _read(real) if found is not None else {}
            except _Foreign:
                _writable(file, found)
                known, told, found = {}, f"{_put_aside(file, real)}.", None
            old = known.get(question, Standing())
            failed = 0 if points else old.failed + 1
            new = Standing(max(old.points, points), failed, max(old.bonus, bonus))
            if new != old:
                _writable(file, found)
                _write(real, found, {**known, question: new})
        return new, told
    except Exception as error:  # a full disk, say, costs the record, not the check
        return new, " ".join(filter(None, (told, _why(error, file))))


@dataclass(frozen=True, repr=False)
class Progress:
    """Points by exercise set: (set, [(question, points, most)]), and those for speed.

    `told` is a sentence about the reader's file if there is something to say of it.
    """

    sets: tuple[tuple[str, tuple[tuple[str, int, int], ...]], ...]
    bonus: int = 0
    told: str = ""

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
        lines += [f"  {self.told}"] * bool(self.told)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        height, width = 28 * len(self.sets) + 4, 0
        # So wide that its letters can be read on a phone, whatever the points of the longest set.
        longest = max((sum(row[2] for row in rows) for _, rows in self.sets), default=1)
        point_width = max(2, min(11, 310 // max(1, longest)))
        parts = []
        for place, (name, rows) in enumerate(self.sets):
            y = 4 + 28 * place
            parts.append(f'<text x="0" y="{y + 15}" fill="currentColor">Set {name}</text>')
            x = 60
            for question, points, most in rows:
                fill = _GREEN if points else "none"
                box = point_width * most
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{box}" height="20" rx="3" fill="{fill}" '
                    f'stroke="{_GREEN if points else _GREY}"><title>{question}: {points} of '
                    f"{most}</title></rect>"
                )
                if points:
                    mark = f'<text x="{x + box / 2 - 5}" y="{y + 15}" fill="#ffffff">✓</text>'
                    parts.append(mark)
                x += box + 4
            earned, total = sum(r[1] for r in rows), sum(r[2] for r in rows)
            told = f"{earned} of {total}"
            parts.append(f'<text x="{x + 6}" y="{y + 15}" fill="currentColor">{told}</text>')
            width = max(width, x + 6 + 8 * len(told))  # a character of 14 pixels is narrower
        label = html.escape(repr(self), quote=True)
        told = f"<br>{html.escape(self.told)}" if self.told else ""
        return (
            f"<p><strong>{self.headline}</strong>{told}</p>"
            f'<svg role="img" aria-label="{label}" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" style="max-width:100%;height:auto" font-size="14" '
            f'font-family="sans-serif">{"".join(parts)}</svg>'
        )


def progress() -> Progress:
    """The points of every question so far; a notebook shows them as a picture."""
    earned, told = standings()
    sets: dict[str, list[tuple[str, int, int]]] = {}
    bonus = 0
    for name, question in questions().items():
        standing = earned.get(name, Standing())
        points = min(standing.points, question.points)
        bonus += standing.bonus if question.speed is not None else 0
        sets.setdefault(name.split(".")[0], []).append((name, points, question.points))
    return Progress(tuple((name, tuple(rows)) for name, rows in sets.items()), bonus, told)
