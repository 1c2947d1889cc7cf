"""The verdict on one answer, as text anywhere and as HTML in a notebook."""

from __future__ import annotations

import contextlib
import html
import sys
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, repr=False)
class Result:
    """A verdict. `message` is one sentence; `means` and `hints` explain a failure.

    `held` are the checks that passed, `rerun` the call that repeats the check on the same inputs
    ("" if there were none), `printed` what the answer printed, `pictures` figures as HTML. `bonus`
    points, for speed, are beyond `max_points`. `kept` says so if the file of points did not take
    the result as it should.
    """

    question: str
    title: str
    points: int
    max_points: int
    message: str
    means: str = ""
    hints: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    rerun: str = ""
    printed: str = ""
    pictures: tuple[str, ...] = ()
    bonus: int = 0
    kept: str = ""
    # The notebook cell that displayed it already: as that cell's value it isn't shown again.
    shown_in: int | None = field(default=None, compare=False)

    @property
    def passed(self) -> bool:
        """Whether it earned all points."""
        return 0 < self.points == self.max_points

    @property
    def headline(self) -> str:
        """The first line: a mark, the question and its points."""
        if not self.question:
            return "✗ nothing graded"
        mark = "✓ passed" if self.passed else "✗ not yet"
        points = f"{self.points} of {self.max_points} points"
        points += f" and {self.bonus} for speed" if self.bonus else ""
        return f"{mark} · {self.question} {self.title} · {points}"

    def _notes(self) -> list[tuple[str, str]]:
        notes = [("What it means", self.means), *(("Hint", hint) for hint in self.hints)]
        notes += [("The same inputs again", self.rerun), ("Your code printed", self.printed)]
        notes.append(("Your points", self.kept))
        return [(label, text) for label, text in notes if text]

    def __repr__(self) -> str:
        lines = [self.headline, f"  {self.message}"]
        lines += [f"  ✓ {held}" for held in self.held]
        lines += [f"  {label}: {text}" for label, text in self._notes()]
        lines += [f"  {words}" for words in map(_words, self.pictures)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def quoted(text: str) -> str:
            return html.escape(text).replace("\n", "<br>")

        parts = [f"<p><strong>{quoted(self.headline)}</strong><br>{quoted(self.message)}</p>"]
        if self.held:
            parts.append(f"<ul>{''.join(f'<li>✓ {quoted(h)}</li>' for h in self.held)}</ul>")
        for label, text in self._notes():
            tag = "code" if text is self.rerun else "span"
            parts.append(f"<p><em>{label}:</em> <{tag}>{quoted(text)}</{tag}></p>")
        return f"<div>{''.join(parts)}{''.join(self.pictures)}</div>"

    def _ipython_display_(self) -> None:
        shell = _shell()
        if shell is not None and shell.execution_count == self.shown_in:
            return
        from IPython.display import display

        display({"text/plain": repr(self), "text/html": self._repr_html_()}, raw=True)


def _words(picture: str) -> str:
    """A figure in words: its caption."""
    caption = picture.partition("<figcaption")[2].partition("</figcaption>")[0]
    return html.unescape(caption.partition(">")[2])


def _shell() -> Any:
    # If IPython runs, it is imported.
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def show(result: Result) -> Result:
    """Display `result` at once, in a notebook or on standard output, and return it."""
    # An output that is closed, or can't write a ✓, is no reason to lose the result.
    with contextlib.suppress(Exception):
        shell = _shell()
        if shell is None:
            print(result, flush=True)
        else:
            result._ipython_display_()
            result = replace(result, shown_in=shell.execution_count)
    return result
