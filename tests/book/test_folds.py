"""Which cells of the chapters are folded: those that only build a table or a figure."""

import ast
import re
import symtable
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from book.tools.build import toc_notebooks
from kernels.paths import ROOT

CHAPTERS = [path for path in toc_notebooks(ROOT) if path.parent.name == "book"]
FEW = 4  # lines: as short as its fold
COUNTS = ("count_op", "measured")  # functions, and modules, that count or measure
MODULES = ("traffic", "aten")


def called(node: ast.expr) -> str:
    """`show` of `plots.show(…)` and of `show(…)`, "" of what is no call by a name."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", "") or getattr(function, "id", "")


def kept_only(tree: ast.AST) -> set[int]:
    """The nodes below `with recording()`, where launches are kept and nothing runs."""
    return {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.With)
        and any(called(item.context_expr) == "recording" for item in block.items)
        for node in ast.walk(block)
    }


def runs(tree: ast.AST, runners: set[str]) -> bool:
    """Whether code asserts, launches a kernel, counts or measures, itself or by a `runners`."""
    kept = kept_only(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            return True
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Subscript) and id(node) not in kept:
            return True
        owner = getattr(getattr(node.func, "value", None), "id", "")
        if called(node) in (*COUNTS, *runners) or owner in MODULES:
            return True
    return False


def returns_a_table(function: ast.FunctionDef) -> bool:
    returned = (node.value for node in ast.walk(function) if isinstance(node, ast.Return))
    return any(value is not None and called(value) == "Markdown" for value in returned)


def globals_of(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell gives to later ones, and those that it takes from earlier ones."""
    top = symtable.symtable(source, "cell", "exec")
    given = {one.get_name() for one in top.get_symbols() if one.is_assigned()}
    taken = {one.get_name() for one in top.get_symbols() if one.is_referenced()}
    below = top.get_children()
    while below:
        table = below.pop()
        taken |= {one.get_name() for one in table.get_symbols() if one.is_global()}
        below += table.get_children()
    return given, taken - given


def builds_only(sources: list[str]) -> Iterator[bool]:
    """For each cell: whether it does nothing but build a table or a figure.

    It ends in one, it runs and counts nothing, it checks no prediction, and no later cell takes a
    name from it, apart from functions that make tables.
    """
    trees = [ast.parse(source) for source in sources]
    names = [globals_of(source) for source in sources]
    tables, runners = set(), set()
    for number, (source, tree) in enumerate(zip(sources, trees, strict=True)):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                tables |= {node.name} if returns_a_table(node) else set()
                runners |= {node.name} if runs(node, runners) else set()
        last = tree.body[-1]
        ends = isinstance(last, ast.Expr) and called(last.value) in {"Markdown", "show", *tables}
        given, wanted = names[number][0] - tables, set()
        for later_given, later_taken in names[number + 1 :]:
            wanted |= given & later_taken
            given -= later_given
        short = len(source.splitlines()) <= FEW
        yield ends and not short and not wanted and not runs(tree, runners)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_only_builds_a_table_or_a_figure_is_folded(path: Path) -> None:
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    found = builds_only([cell.source for cell in cells])
    open_ones = [
        cell.id
        for cell, only in zip(cells, found, strict=True)
        if only and "hide-input" not in cell.metadata.get("tags", [])
    ]
    assert open_ones == []


PREDICTED = 'guess = 2\ncounted = count_op(OP, "fused")\nlines = [guess]\nx = 1\nMarkdown(lines)'
TABLE = 'lines = ["| a |"]\nfor row in rows:\n    lines.append(row)\nx = 1\nMarkdown(lines)'
KEPT = "with recording() as kept:\n    kernel[1, 2](x)\nlines = []\nx = kept\nMarkdown(lines)"


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ([TABLE], [True]),
        ([KEPT], [True]),
        ([TABLE, "print(x)"], [False, False]),
        ([TABLE, "x = 2\nprint(x)"], [True, False]),
        ([TABLE, "def f(x):\n    return x"], [True, False]),
        ([PREDICTED], [False]),
        ([TABLE.replace("x = 1", "assert rows")], [False]),
        ([TABLE.replace("x = 1", "kernel[1, 2](x)")], [False]),
        (["def f():\n    assert 1\n    return Markdown(1)\n\n\nf()"], [False]),
        (["Markdown(table())"], [False]),
    ],
)
def test_which_cells_only_build(sources: list[str], found: list[bool]) -> None:
    assert list(builds_only(sources)) == found


# ------------------------------------------------------------------ answers to a prediction

PREDICTION = re.compile(r"\*\*(?:Predict|Guess)")


def answers(cells: list[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """For each prediction, the first code cell behind it, in its section, that shows anything.

    An explorer shows no answer: a reader finds it there.
    """
    asked = False
    for cell in cells:
        if cell.cell_type == "markdown":
            *_, last = [0, *(found.start() for found in PREDICTION.finditer(cell.source))]
            new = PREDICTION.search(cell.source) is not None
            asked = (asked or new) and not re.search(r"^#", cell.source[last:], re.MULTILINE)
        elif asked and shows(cell.source):
            asked = False
            yield cell


def shows(source: str) -> bool:
    """Whether a cell prints, or ends in a value that is no explorer."""
    tree = ast.parse(source)
    if any(called(node) == "print" for node in ast.walk(tree) if isinstance(node, ast.Call)):
        return True
    last = tree.body[-1]
    return isinstance(last, ast.Expr) and not called(last.value).endswith("Explorer")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_answer_to_a_prediction_is_folded(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    shown = [c.id for c in answers(cells) if "hide-output" not in c.metadata.get("tags", [])]
    assert shown == []


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["**Predict** it:", "print(1)"], ["print(1)"]),
        (["**Guess** it:", "x = 1", "And run it:", "Markdown(x)"], ["Markdown(x)"]),
        (["**Predict** it.\n\n## Next", "print(1)"], []),
        (["## Next\n\n**Predict** it:", "RooflineExplorer()", "So:", "x = 1"], []),
        (["**Predict** it:", "print(1)", "Next:", "print(2)"], ["print(1)"]),
        (["Look:", "print(1)"], []),
    ],
)
def test_which_cells_answer(texts: list[str], found: list[str]) -> None:
    code = re.compile(r"print|x =|\w+\(")
    new = {True: nbformat.v4.new_code_cell, False: nbformat.v4.new_markdown_cell}
    cells = [new[code.match(text) is not None](text) for text in texts]
    assert [cell.source for cell in answers(cells)] == found
