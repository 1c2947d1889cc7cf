"""The page for planning: what needs what, how long it takes, what to leave out, two syllabi.

`page` writes it from the chapters' own lines, "You need … Time: … minutes", and from
`planning.toml`, which holds what no chapter says of itself.
"""

from __future__ import annotations

import html
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = "book/planning"
WRITER = "book/tools/planning.toml"
_BOX = (290, 36)  # width and height of a chapter in the drawing
_ROW, _WIDTH, _LETTERS = 70, 640, 14

INTRODUCTION = """\
# Courses and planning

What needs what, how long it takes, and what you may leave out. The needs and the minutes of the
chapters are the chapters' own.
"""
NEEDS = """\
## What needs what

Read downwards. An arrow leads from a chapter to one that needs it; where the way already leads over
another chapter, it is not drawn a second time.
"""
MINUTES = """\
## How long it takes

A chapter's minutes are for reading it and running its cells. Exercises vary more: the minutes are a
guess for someone who has just read the chapter.
"""
CARDS = """\
## With which GPU

The exercises need none: a check counts bytes, and a right answer is right without a GPU. A T4 is
the free card in Colab, compute capability 7.5; an L4 has 8.9. This table is read off the chapters'
code: nobody has told us yet how it went on either card.
"""
SIX = """\
## Six weeks

For readers who give it an evening and half a weekend each week.
"""
TWELVE = """\
## Twelve weeks

For a course with a session of two hours a week, exercises at home.
"""


class PlanningError(ValueError):
    """A chapter that can't be planned with; the message is one sentence."""


@dataclass(frozen=True)
class Chapter:
    """What a chapter says of itself: its number, title, the numbers it needs, its minutes."""

    number: str
    title: str
    needs: tuple[str, ...]
    minutes: int
    path: Path


def _markdown(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def chapter(path: Path) -> Chapter:
    """Read a chapter's own lines; PlanningError, with its path, if it lacks one of them."""
    text = _markdown(path)
    title = re.search(r"^# ((\d\d) .+)$", text, re.MULTILINE)
    told = re.search(r"\*\*You need\*\* (.+?)\*\*Time:\*\* (\d+) minutes", text)
    if not title or not told:
        raise PlanningError(f"{path} has no line 'You need … Time: … minutes' below its title.")
    needs: list[str] = []
    for between, number in re.findall(r"([^\[\]]*)\[(\d\d)\]", told[1]):
        if re.search(r"\bto $", between):
            needs += [f"{one:02}" for one in range(int(needs[-1]) + 1, int(number))]
        needs.append(number)
    return Chapter(title[2], title[1].strip(), tuple(needs), int(told[2]), path)


def chapters(notebooks: Sequence[Path]) -> list[Chapter]:
    """Return the chapters among the pages of the book, in order."""
    return [chapter(p) for p in notebooks if p.parent.name == "book" and p.name[:2].isdigit()]


def exercise_minutes(path: Path, guess: int) -> int:
    """Return the minutes that an exercise page tells, `Time: about 45 minutes`, or the guess."""
    told = re.search(r"\bTime:\W* (?:about )?(\d+) minutes", _markdown(path))
    return int(told[1]) if told else guess


def arrows(found: Sequence[Chapter]) -> list[tuple[str, str]]:
    """Return (needed, needing) for each need that no other need leads to already."""
    needs = {one.number: set(one.needs) for one in found}

    def reach(number: str) -> set[str]:
        return set().union(*({near} | reach(near) for near in needs[number]))

    return [
        (need, one.number)
        for one in found
        for need in one.needs
        if not any(need in reach(other) for other in one.needs if other != need)
    ]


def _drawing(found: Sequence[Chapter]) -> str:
    level: dict[str, int] = {}
    for one in found:
        level[one.number] = 1 + max((level[need] for need in one.needs), default=-1)
    rows = [[c for c in found if level[c.number] == n] for n in range(max(level.values()) + 1)]
    middle = {
        one.number: (_WIDTH * (2 * place + 1) / (2 * len(row)), _ROW * n + 4)
        for n, row in enumerate(rows)
        for place, one in enumerate(row)
    }
    wide, high = _BOX
    parts = []
    for above, below in arrows(found):
        (x, y), (to_x, to_y) = middle[above], middle[below]
        y += high
        parts.append(
            f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}m-5 -8l5 8l5 -8"/>'
            if x == to_x
            else f'<path d="M{x:g} {y:g}C{x:g} {y + 20:g} {to_x:g} {to_y - 20:g} {to_x:g} {to_y:g}'
            'm-5 -8l5 8l5 -8"/>'
        )
    for one in found:
        x, y = middle[one.number]
        parts.append(
            f'<rect x="{x - wide / 2:g}" y="{y:g}" width="{wide}" height="{high}" rx="5" '
            'fill="#0072B2" fill-opacity="0.12"/>'
            f'<text x="{x:g}" y="{y + 23:g}" text-anchor="middle" fill="currentColor" '
            f'stroke="none">{html.escape(one.title)}</text>'
        )
    said = " ".join(
        f"{one.number} needs {_listed(one.needs)}." if one.needs else f"{one.number} needs none."
        for one in found
    )
    least = -(-10 * _WIDTH // _LETTERS)  # pixels at which the letters have ten
    return (
        f'<figure>\n<svg viewBox="0 0 {_WIDTH} {_ROW * len(rows) - _ROW + high + 8}" role="img" '
        'aria-labelledby="what-needs-what" fill="none" stroke="currentColor" stroke-width="1.5" '
        f'font-family="inherit" font-size="{_LETTERS}" '
        f'style="min-width:{least}px;max-width:100%;height:auto">\n'
        f'<title id="what-needs-what">{said}</title>\n' + "\n".join(parts) + "\n</svg>\n"
        "<figcaption>The chapters, from what needs nothing down. The table below says the same in "
        "words.</figcaption>\n</figure>\n"
    )


def _listed(numbers: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(numbers[:-1]), numbers[-1]])) if numbers else "–"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    rule = ["--:" if place in right else ":--" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows)) + "\n"


def _hours(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"


def _weeks(plan: Sequence[Mapping[str, Any]]) -> str:
    rows = [[str(n), _listed(week["chapters"]), week["does"]] for n, week in enumerate(plan, 1)]
    return _table(["week", "new chapters", "what you do"], rows, right=[0])


def page(root: Path, notebooks: Sequence[Path]) -> str:
    """Return the page's Markdown; PlanningError where a chapter or `planning.toml` lacks a line.

    `notebooks` are those of the book below `root`, in reading order.
    """
    found = chapters(notebooks)
    told = tomllib.loads((root / WRITER).read_text(encoding="utf-8"))
    lacking = [one.number for one in found if one.number not in told["chapters"]]
    if lacking:
        raise PlanningError(f"{WRITER} says nothing of chapter {_listed(lacking)}.")
    links = {c.number: f"[{c.title}]({os.path.relpath(c.path, root / 'book')})" for c in found}
    spent, rows, cards = {}, [], []
    for one in found:
        own = told["chapters"][one.number]
        exercises = root / "exercises" / one.path.name
        about = exercise_minutes(exercises, own["exercises"]) if exercises.exists() else 0
        spent[one.number] = one.minutes + about
        with_exercises = f"about {about}" if about else "–"
        cells = [links[one.number], _listed(one.needs), str(one.minutes), with_exercises]
        rows.append([*cells, own["core"], own["skip"]])
        cards.append([links[one.number], own["none"], own["t4"], own["l4"]])
    reading = sum(one.minutes for one in found)
    whole = _hours(sum(spent.values()))
    total = f"All chapters take {_hours(reading)} hours, with their exercises {whole}."
    head = ["chapter", "needs", "minutes", "exercises", "core", "may be skipped"]
    parts = [INTRODUCTION, NEEDS, _drawing(found), MINUTES, _table(head, rows, right=[2, 3])]
    parts += [f"{total}\n", CARDS, _table(["chapter", "no GPU", "T4", "L4"], cards)]
    longest = max(sum(spent[n] for n in week["chapters"]) for week in told["six"])
    six = f"{SIX}\nThe fullest week takes {_hours(longest)} hours, exercises included.\n"
    for title, plan in ((six, told["six"]), (TWELVE, told["twelve"])):
        parts += [title, _weeks(plan)]
    return "\n".join(parts)
