"""The build's own execution step: what runs again, what doesn't, and what an error leaves."""

import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from book.tools.build import build_html, execute_all, executed, stamp, toc_files

CHAPTER = "book/01_chapter.ipynb"


def write_chapter(root: Path, *code: str) -> None:
    cells = [new_markdown_cell("# A chapter"), *map(new_code_cell, code)]
    nbformat.write(new_notebook(cells=cells), root / CHAPTER)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A book of one page and one chapter, which prints a number from a module and from data."""
    for folder in ("kernels", "book/data", "book/tools"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "kernels/__init__.py").touch()
    (tmp_path / "kernels/numbers.py").write_text("VALUE = 1\n")
    (tmp_path / "book/data/value.csv").write_text("10\n")
    (tmp_path / "book/intro.md").write_text("# A book\n")
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / "_config.yml").write_text('title: A book\nexecute: {execute_notebooks: "off"}\n')
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nparts:\n- caption: One\n"
        "  chapters:\n  - file: book/01_chapter\n"
    )
    write_chapter(
        tmp_path,
        "from kernels.numbers import VALUE",
        'print(VALUE + int(open("book/data/value.csv").read()))',
    )
    return tmp_path


def printed(root: Path) -> str:
    """Return what the last cell of the executed chapter printed."""
    notebook = nbformat.read(root / "_build/executed" / CHAPTER, as_version=4)
    return notebook.cells[-1].outputs[0].text.strip()


def status(root: Path) -> dict:
    return json.loads((root / "_build/status.json").read_text())


def test_the_toc_is_read_in_order(root: Path) -> None:
    assert toc_files(root) == ["book/intro", "book/01_chapter"]


@pytest.mark.parametrize(
    "changed",
    [
        CHAPTER,
        "kernels/numbers.py",
        "kernels/cuda/new.cu",
        "book/data/value.csv",
        "book/tools/build.py",
        "requirements.txt",
    ],
)
def test_a_stamp_changes_with_what_the_outputs_come_from(root: Path, changed: str) -> None:
    before = stamp(root / CHAPTER, root)
    (root / changed).parent.mkdir(exist_ok=True)
    with (root / changed).open("a") as file:
        file.write(" ")
    assert stamp(root / CHAPTER, root) != before


@pytest.mark.parametrize(
    "changed",
    [
        "kernels/__pycache__/numbers.pyc",
        "kernels/unseen.py",
        "book/tools/status.py",
        "book/intro.md",
    ],
)
def test_a_stamp_stays_otherwise(root: Path, changed: str) -> None:
    before = stamp(root / CHAPTER, root)
    (root / changed).parent.mkdir(exist_ok=True)
    (root / changed).write_text("changed")
    assert stamp(root / CHAPTER, root) == before


def test_a_changed_module_or_value_runs_the_chapter_again(root: Path) -> None:
    out = root / "_build"
    assert execute_all(root, out) == 0
    assert printed(root) == "11"
    first = status(root)
    assert first[CHAPTER]["seconds"] > 0
    assert {"python", "torch", "triton", "numpy", "gpu"} <= first[CHAPTER].keys()

    # A run would write the executed copy anew.
    executed = out / "executed" / CHAPTER
    written = executed.stat().st_mtime_ns
    assert execute_all(root, out) == 0
    assert executed.stat().st_mtime_ns == written
    assert status(root) == first

    (root / "kernels/numbers.py").write_text("VALUE = 2\n")
    assert execute_all(root, out) == 0
    assert printed(root) == "12"

    (root / "book/data/value.csv").write_text("20\n")
    assert execute_all(root, out) == 0
    assert printed(root) == "22"


def test_a_notebook_is_taken_as_the_build_ran_it_and_run_where_something_changed(
    root: Path,
) -> None:
    def shown() -> str:
        return executed(root / CHAPTER, root).cells[-1].outputs[0].text.strip()

    def forge() -> None:
        """Write into the build's copy what no run would print."""
        copy.write_text(built.replace('"11\\n"', '"forged\\n"'))

    assert shown() == "11"  # there is no build yet, and there is none now
    assert not (root / "_build").exists()
    assert execute_all(root, root / "_build") == 0
    copy = root / "_build/executed" / CHAPTER
    built = copy.read_text()
    forge()
    assert shown() == "forged"

    told = status(root)
    for key, other in {"gpu": "A card", "torch": "1.0", "stamp": "0"}.items():
        changed = {CHAPTER: {**told[CHAPTER], key: other}}
        (root / "_build/status.json").write_text(json.dumps(changed))
        assert shown() == "11"
    (root / "_build/status.json").write_text(json.dumps(told))
    assert shown() == "forged"

    (root / "kernels/numbers.py").write_text("VALUE = 2\n")
    assert shown() == "12"
    write_chapter(root, "value / 0  # the culprit")
    with pytest.raises(RuntimeError, match="the culprit"):
        shown()


def test_a_failing_cell_is_told_and_leaves_no_stamp(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_chapter(root, "value = 1", "value / 0  # the culprit")
    for _ in range(2):
        assert execute_all(root, root / "_build") == 1
        told = capsys.readouterr().out
        assert f"{CHAPTER}: FAILED" in told
        assert "cell 3" in told
        assert "value / 0  # the culprit" in told
        assert "ZeroDivisionError" in told
        assert CHAPTER not in status(root)


def test_a_dead_kernel_names_its_cell(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_chapter(root, "import os; os._exit(3)")
    assert execute_all(root, root / "_build") == 1
    assert "os._exit(3)" in capsys.readouterr().out


def test_a_warning_fails_the_html_until_it_is_mended(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute_all(root, root / "_build") == 0
    (root / "book/intro.md").write_text("# A book\n\n[lost](missing.md)\n")
    for _ in range(2):
        assert build_html(root) != 0
        assert "missing.md" in capsys.readouterr().out

    (root / "book/intro.md").write_text("# A book\n")
    assert build_html(root) == 0
    assert "building" in capsys.readouterr().out
    assert "11" in (root / "_build/html/book/01_chapter.html").read_text()

    assert build_html(root) == 0
    told = capsys.readouterr().out
    assert "building" not in told
    assert told.splitlines()[-1] == f"Open {root}/_build/html/index.html"
