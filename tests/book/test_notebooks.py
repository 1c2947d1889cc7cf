"""What holds for every notebook, so that it reads as well in Colab as in the book."""

import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from book.tools.build import WRITTEN, toc_files
from kernels.paths import ROOT

FOLDERS = ("book", "exercises", "solutions")
NOTEBOOKS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]
CHAPTERS = [path for path in NOTEBOOKS if path.parent.name == "book"]
PAGES = [path for path in NOTEBOOKS if path.parent.name != "solutions"]
TEXTS = [*sorted((ROOT / "book").rglob("*.md")), ROOT / "README.md"]

MYST_ONLY = re.compile(
    r"^\s*`{3,}\{"  # ```{directive}
    r"|\{[\w:+-]+\}<code>"  # {role}`...`
    r"|^\s*:{3,}"  # ::: fence
    r"|^\([\w-]+\)=\s*$",  # (label)=
    re.MULTILINE,
)
MEASURED = re.compile(
    r"\d(?:\s|~|\\[,;: ])*(?:\\(?:text|mathrm)\{\s*)?"
    r"(?:(?:[GT]B/s|[GT]FLOP/s|[µμum]s)(?![\w/])|\\?%\s+of\s+(?:the\s+)?copy\b)"
)
SOURCED = re.compile(r"\[[^\]]+\]")
KERNEL = re.compile(r"^@triton\.jit|__global__")
COLUMNS = 84  # of code: at 1280 pixels they fit beside both sidebars
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Where a page was written is no part of it.
AUTHORS_DESK = re.compile(
    r"/(?:home|mnt|root|tmp|work)/|\bshared/|\b(?:sandbox|sessions?|lent machines?)\b",
    re.IGNORECASE,
)


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def cells(path: Path, cell_type: str) -> list[nbformat.NotebookNode]:
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == cell_type]


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def myst_only(text: str) -> re.Match[str] | None:
    """Find syntax that Colab would show raw. What stands in inline code is none."""
    return MYST_ONLY.search(re.sub(r"`[^`\n]+`", "<code>", text))


def unsourced(cell: nbformat.NotebookNode) -> list[str]:
    """Return the lines of a Markdown cell with a measured number that comes from nowhere."""
    if "source" in tags(cell):
        return []
    lines = cell.source.splitlines()
    return [line for line in lines if MEASURED.search(line) and not SOURCED.search(line)]


every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=label)
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=label)


@every_notebook
def test_is_valid_and_holds_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    for cell in cells(path, "code"):
        assert not cell.outputs, cell.source
        assert cell.execution_count is None, cell.source


@every_notebook
def test_code_cells_are_short(path: Path) -> None:
    for cell in cells(path, "code"):
        # A kernel that is taught whole may be longer.
        most = 50 if KERNEL.search(cell.source) else 25
        assert len(cell.source.splitlines()) <= most or "hide-input" in tags(cell), cell.source


@every_notebook
def test_no_line_of_code_is_wider_than_its_box(path: Path) -> None:
    shown = [cell.source for cell in cells(path, "code")]
    shown += [code for cell in cells(path, "markdown") for code in FENCED.findall(cell.source)]
    lines = [line for code in shown for line in code.splitlines()]
    assert not [line for line in lines if len(line) > COLUMNS]


@every_notebook
def test_nothing_is_imported_by_star(path: Path) -> None:
    for cell in cells(path, "code"):
        assert not re.search(r"^\s*from\s+\S+\s+import\s+\*", cell.source, re.MULTILINE)


@every_notebook
def test_prose_is_plain_markdown(path: Path) -> None:
    for cell in cells(path, "markdown"):
        assert not myst_only(cell.source), cell.source


@every_notebook
def test_says_nothing_of_where_it_was_written(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not AUTHORS_DESK.search(cell.source), cell.source


@pytest.mark.parametrize("path", TEXTS, ids=label)
def test_texts_say_nothing_of_where_they_were_written(path: Path) -> None:
    assert not AUTHORS_DESK.search(path.read_text())


@every_chapter
def test_a_sentence_stands_between_code_cells(path: Path) -> None:
    for above, below in pairwise(nbformat.read(path, as_version=4).cells):
        assert not above.cell_type == below.cell_type == "code", below.source


@pytest.mark.parametrize("path", [path for path in CHAPTERS if path.name[0].isdigit()], ids=label)
def test_a_chapter_says_how_long_it_takes(path: Path) -> None:
    """Some 4000 words of text are an hour, or 350 lines of code that is not folded."""
    words = sum(len(cell.source.split()) for cell in cells(path, "markdown"))
    open_cells = [cell for cell in cells(path, "code") if "hide-input" not in tags(cell)]
    lines = sum(len(cell.source.splitlines()) for cell in open_cells)
    (told,) = re.findall(r"\*\*Time:\*\* (\d+) minutes", cells(path, "markdown")[0].source)
    assert int(told) >= 0.9 * 60 * max(words / 4000, lines / 350)


@pytest.mark.parametrize(
    "path", [path for path in PAGES if path.parent.name == "exercises"], ids=label
)
def test_an_exercise_page_says_how_long_it_takes(path: Path) -> None:
    assert re.search(r"\*\*Time:\*\* about \d+ minutes", cells(path, "markdown")[0].source)


@every_chapter
def test_measured_numbers_have_a_source(path: Path) -> None:
    assert not [line for cell in cells(path, "markdown") for line in unsourced(cell)]


def test_every_page_is_in_the_table_of_contents() -> None:
    pages = [*PAGES, *(ROOT / "book").glob("*.md")]
    names = [label(path.with_suffix("")) for path in pages]
    # The build writes some pages itself; a file of such a name would be overwritten.
    assert sorted(toc_files(ROOT)) == sorted([*names, *WRITTEN])


@pytest.mark.parametrize(
    "text",
    [
        "It takes 184 µs.",
        "A copy moves 3.02 TB/s here.",
        r"That is $2.7\,\text{TB/s}$.",
        "It reaches 97 % of the copy.",
        "About 694 TFLOP/s, in 12ms.",
    ],
)
def test_a_typed_measurement_is_found(text: str) -> None:
    assert unsourced(nbformat.v4.new_markdown_cell(text))


@pytest.mark.parametrize(
    "text",
    [
        "The H200 moves 4.8 TB/s ([data sheet](https://example.com)).",
        "x takes 33,554,432 bytes, and 2 users wait.",
        "Multiply by GB/s.",
    ],
)
def test_a_sourced_number_or_a_count_is_not(text: str) -> None:
    assert not unsourced(nbformat.v4.new_markdown_cell(text))


@pytest.mark.parametrize("text", ["```{note}\nHi\n```", "See {ref}`x`.", ":::{tip}", "(here)=\n"])
def test_myst_only_syntax_is_found(text: str) -> None:
    assert myst_only(text)


@pytest.mark.parametrize("text", ["```python\nx = {1}\n```", "$\\sum_{i}$ and `{x}`", "a (b)=c"])
def test_plain_markdown_passes(text: str) -> None:
    assert not myst_only(text)
