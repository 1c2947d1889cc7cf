"""The page for planning says what the chapters say, and names every one of them."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from book.tools import planning
from book.tools.build import toc_notebooks
from kernels.paths import ROOT

NOTEBOOKS = toc_notebooks(ROOT)
CHAPTERS = planning.chapters(NOTEBOOKS)
TOLD = tomllib.loads((ROOT / planning.WRITER).read_text(encoding="utf-8"))
PAGE = planning.page(ROOT, NOTEBOOKS)


def written(path: Path, *texts: str) -> Path:
    cells = [{"cell_type": "markdown", "source": [text]} for text in texts]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return path


def a_chapter(number: str, *needs: str) -> planning.Chapter:
    return planning.Chapter(number, f"{number} Title", needs, 10, Path(f"{number}.ipynb"))


def test_every_chapter_has_its_needs_minutes_cards_and_weeks() -> None:
    assert len(CHAPTERS) >= 7
    for one in CHAPTERS:
        source = one.path.read_text(encoding="utf-8")
        assert f"**Time:** {one.minutes} minutes" in source
        row = re.search(rf"^\| \[{re.escape(one.title)}\]\(.*$", PAGE, re.MULTILINE)[0]
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert cells[2] == str(one.minutes)
        assert re.findall(r"\d\d", cells[1]) == list(one.needs)
        assert PAGE.count(f"[{one.title}](") == 2  # the second is in the table of cards
        assert TOLD["chapters"][one.number].keys() == {
            *("core", "skip", "exercises", "none", "t4", "l4")
        }
    core = {number for number, own in TOLD["chapters"].items() if own["core"] == "yes"}
    assert all(set(one.needs) <= core for one in CHAPTERS if one.number in core)
    numbers = [one.number for one in CHAPTERS]
    for weeks, most in ((TOLD["six"], 6), (TOLD["twelve"], 12)):
        assert len(weeks) == most
        assert [number for week in weeks for number in week["chapters"]] == numbers


def test_no_chapter_needs_a_later_one_and_the_drawing_says_all_needs() -> None:
    said = re.search(r"<title[^>]*>(.*?)</title>", PAGE)[1]
    for one in CHAPTERS:
        assert all(need < one.number for need in one.needs)
        told = re.search(rf"\b{one.number} needs ([^.]*)\.", said)[1]
        assert re.findall(r"\d\d", told) == list(one.needs)
    assert PAGE.count("<path") == len(planning.arrows(CHAPTERS))


def test_a_line_is_read_with_its_ranges(tmp_path: Path) -> None:
    line = "**You need** chapters [02](a.ipynb) to [04](b.ipynb) and [06](c.ipynb). "
    path = written(tmp_path / "07_x.ipynb", "# 07 A title", f"{line}**Time:** 90 minutes, in two.")
    found = planning.chapter(path)
    assert (found.number, found.title, found.minutes) == ("07", "07 A title", 90)
    assert found.needs == ("02", "03", "04", "06")
    with pytest.raises(planning.PlanningError, match="08_y.ipynb has no line 'You need"):
        planning.chapter(written(tmp_path / "08_y.ipynb", "# 08 Another"))


def test_an_arrow_is_left_out_where_the_way_leads_over_another_chapter() -> None:
    found = [a_chapter("01"), a_chapter("02", "01"), a_chapter("03", "01", "02")]
    assert planning.arrows(found) == [("01", "02"), ("02", "03")]


def test_an_exercise_pages_own_minutes_are_taken(tmp_path: Path) -> None:
    own = written(tmp_path / "own.ipynb", "# Exercises\n\n**Time:** about 45 minutes.")
    assert planning.exercise_minutes(own, 60) == 45
    assert planning.exercise_minutes(written(tmp_path / "no.ipynb", "# Exercises"), 60) == 60


def test_a_new_chapter_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "book/tools").mkdir(parents=True)
    (tmp_path / planning.WRITER).write_text((ROOT / planning.WRITER).read_text(encoding="utf-8"))
    line = "**You need** Python. **Time:** 5 minutes."
    new = written(tmp_path / "book/99_new.ipynb", "# 99 New", line)
    with pytest.raises(planning.PlanningError, match="says nothing of chapter 99"):
        planning.page(tmp_path, [new])
