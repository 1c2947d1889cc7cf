"""The page Status, from records to HTML, and the buttons that lead from a page to its notebook."""

import json
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbformat.v4 import new_markdown_cell, new_notebook

from book.tools import status
from book.tools.build import build_html, toc_notebooks
from book.tools.config import repository
from kernels.paths import ROOT
from tests.book.test_notebooks import AUTHORS_DESK

HOME = repository(ROOT)
CHAPTER, EXERCISE = "book/01_chapter.ipynb", "exercises/01_chapter.ipynb"
CPU = {"python": "3.11.7", "torch": "2.13.0", "triton": "3.7.1", "numpy": "2.4.6", "gpu": None}
GPU = {**CPU, "numpy": "2.5.2", "gpu": "A card"}


def ran(seconds: float, at: str, environment: dict[str, Any]) -> dict[str, Any]:
    return {"stamp": "0", "seconds": seconds, "executed_at": f"{at}+00:00", **environment}


def record(root: Path, name: str, **changed: Any) -> None:
    """Write a recorded suite of two rows."""
    path = root / "book/data" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("op,variant\nlayernorm,eager\nlayernorm,fused\n")
    told = {
        "card": {"name": "A card", "driver": "580.1", "cuda": "13.0"},
        "command": "python -m kernels.lab bench norms",
        "commit": "abcdef0123456789",
        "date": "2026-11-28T01:07:30Z",
        "dirty": False,
        "problems": [],
        "versions": {key: GPU[key] for key in ("python", "torch", "triton", "numpy")},
    }
    path.with_suffix(".json").write_text(json.dumps({**told, **changed}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A book as if executed: two notebooks, one recorded suite, the real repository and buttons."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    kept = {key: config[key] for key in ("title", "execute", "repository", "launch_buttons")}
    buttons = {key: value for key, value in config["html"].items() if key.startswith("use_")}
    (tmp_path / "_config.yml").write_text(yaml.safe_dump({**kept, "html": buttons}))
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nparts:\n"
        "- chapters:\n  - file: book/01_chapter\n  - file: exercises/01_chapter\n"
        "- caption: Appendices\n  chapters:\n  - file: book/status\n"
    )
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "book/tools").mkdir(parents=True)
    (tmp_path / "book/intro.md").write_text("# A book\n")
    for name, title in ((CHAPTER, "# 01 A chapter"), (EXERCISE, "# Exercises 01")):
        notebook = new_notebook(cells=[new_markdown_cell(f"{title}\n\nText.")])
        for path in (tmp_path / name, tmp_path / "_build/executed" / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, path)
    write_status(tmp_path, 12.34)
    record(tmp_path, "h100-sxm/norms")
    return tmp_path


def write_status(root: Path, seconds: float) -> None:
    runs = {
        EXERCISE: ran(3, "2026-11-27T23:59:58", GPU),
        CHAPTER: ran(seconds, "2026-11-28T00:01:02", CPU),
        "book/00_left_the_book.ipynb": ran(99, "2025-01-01T00:00:00", CPU),
    }
    (root / "_build/status.json").write_text(json.dumps(runs))


def page(root: Path) -> str:
    told = json.loads((root / "_build/status.json").read_text())
    return status.page(root, told, toc_notebooks(root))


def table(text: str, heading: str) -> list[list[str]]:
    """Return the rows of the table in the section that begins with `heading`."""
    section = text.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_it_tells_each_page_in_reading_order(root: Path) -> None:
    assert table(page(root), "Chapters") == [
        ["[01 A chapter](01_chapter.ipynb)", "12.3", "2026-11-28 00:01", "1"],
        ["[Exercises 01](../exercises/01_chapter.ipynb)", "3.0", "2026-11-27 23:59", "2"],
        ["all together", "15.3", "", ""],
    ]


def test_environments_are_told_once(root: Path) -> None:
    record(root, "h100-sxm/ceilings")  # as norms
    versions = ["3.11.7", "2.13.0", "3.7.1"]
    assert table(page(root), "Environments") == [
        ["1", "–", "–", "–", *versions, "2.4.6"],
        ["2", "A card", "–", "–", *versions, "2.5.2"],
        ["3", "A card", "580.1", "13.0", *versions, "2.5.2"],
    ]
    assert [row[-1] for row in table(page(root), "Recorded data")] == ["3", "3"]


def test_it_tells_where_recorded_data_comes_from(root: Path) -> None:
    data = f"{HOME.url}/blob/{HOME.branch}/book/data/h100-sxm/norms"
    commit = f"[`abcdef0`]({HOME.url}/commit/abcdef0123456789)"
    (row,) = table(page(root), "Recorded data")
    date = f"[2026-11-28 01:07]({data}.json)"
    assert row == [f"[h100-sxm/norms]({data}.csv)", "2", date, commit, "3"]
    assert "- h100-sxm/norms: `python -m kernels.lab bench norms`\n" in page(root)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"dirty": True}, "abcdef0123456789), changed |"),
        ({"dirty": None}, "abcdef0123456789), changed |"),
        ({"commit": None, "dirty": None}, "| – | 3 |"),
        ({"problems": ["two rows were rejected"]}, "told of a problem: two rows were rejected\n"),
        ({"profile": {"problems": ["ncu is missing"]}}, "told of a problem: ncu is missing\n"),
        (
            {"suite": "norms", "sources": {"layernorm": "0" * 16}},
            "\n- h100-sxm/norms: The sources of layernorm have changed since the recording.\n",
        ),
    ],
)
def test_what_weakens_a_recording_is_told(root: Path, changed: dict[str, Any], told: str) -> None:
    assert told not in page(root)
    record(root, "h100-sxm/norms", **changed)
    assert told in page(root)


def test_proofs_are_no_suite(root: Path) -> None:
    before = page(root)
    (root / "book/data/h100-sxm/proofs.csv").write_text("test,hash\n")
    assert page(root) == before


def test_the_books_own_records_say_nothing_of_where_it_was_written(root: Path) -> None:
    shutil.copytree(ROOT / "book/data", root / "book/data", dirs_exist_ok=True)
    text = page(root)
    files = (ROOT / "book/data").glob("*/*.csv")
    suites = {path.with_suffix("") for path in files if path.name != "proofs.csv"}
    assert all(f"[{path.parent.name}/{path.name}]" in text for path in suites)
    assert not AUTHORS_DESK.search(text)


def test_the_build_writes_it_and_its_buttons_lead_somewhere(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build_html(root) == 0
    html = root / "_build/html"
    built = (html / f"{status.PAGE}.html").read_text()
    assert "2026-11-28 00:01" in built
    assert 'href="../exercises/01_chapter.html"' in built
    assert f"{HOME.url}/edit/{HOME.branch}/book/tools/status.py" in built
    assert f"/{HOME.branch}/{status.PAGE}.md" not in built
    assert (ROOT / status.WRITER).exists()

    github = HOME.url.removeprefix("https://github.com/")
    for name in (CHAPTER, EXERCISE):
        colab = f"https://colab.research.google.com/github/{github}/blob/{HOME.branch}/{name}"
        assert f'href="{colab}"' in (html / name).with_suffix(".html").read_text()

    def builds() -> bool:
        capsys.readouterr()
        assert build_html(root) == 0
        return "building" in capsys.readouterr().out

    assert not builds()
    write_status(root, 12.5)
    assert builds()
    assert not builds()


def test_problems_that_say_the_same_are_told_once():
    problems = ["a bf16: OutOfMemoryError: full.", "cut", "b bf16: OutOfMemoryError: full."]
    assert status._alike([*problems, "c: ValueError: no."]) == [
        "a bf16, and 1 more like it: OutOfMemoryError: full.",
        "cut",
        "c: ValueError: no.",
    ]
