"""Write exercises/NN_slug.ipynb from every solutions/NN_slug.ipynb.

    python -m kernels.grading.generate [--check | --unanswered]

In a code cell, the lines between `### BEGIN SOLUTION` and `### END SOLUTION` give way to one that
raises "your turn". Where an exercise hands out code instead, as a fault to fix, its lines stand
commented out in the block, after `### GIVEN`. In a string of CUDA C++ the markers stand behind
`//`, and `#error your turn` is what is left. Cells tagged `solution` are left out. What is written
depends on the solution alone, byte for byte.

An exercise that somebody answered is never overwritten: as long as there is one, nothing is
written. Each exercise holds a digest of the text of its cells as they were given out, so that work
in it shows without git, and an older exercise that nobody touched still counts as untouched. So
does one whose cells git's last commit holds: nothing of it can be lost.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernels.grading.question import PLACEHOLDER
from kernels.grading.where_to_work import with_a_place_to_work
from kernels.paths import ROOT

BEGIN, GIVEN, END = "### BEGIN SOLUTION", "### GIVEN", "### END SOLUTION"

# Where a notebook's metadata keep the digest of what was given out.
_OURS, _GIVEN_OUT = "fusing_kernels", "given"

Cell = dict[str, Any]


class SolutionError(ValueError):
    """A solution that no exercise can be made of; the message is one sentence."""


def exercise_of(notebook: dict[str, Any]) -> dict[str, Any]:
    """The exercise notebook of a solution notebook, both as their JSON.

    After the title it says where to work, after the setup cell how Colab keeps the points.
    SolutionError names the cell if its markers don't match, or if what is left is no Python.
    """
    cells = notebook["cells"]
    kept = [cell for cell in cells if "solution" not in cell["metadata"].get("tags", [])]
    given = [_exercise_cell(cell) for cell in with_a_place_to_work(kept)]
    metadata = {
        key: value
        for key, value in notebook["metadata"].items()
        if key in ("kernelspec", "language_info")
    }
    return {
        "cells": given,
        "metadata": metadata | {_OURS: {_GIVEN_OUT: _digest(given)}},
        "nbformat": notebook["nbformat"],
        "nbformat_minor": notebook["nbformat_minor"],
    }


def _exercise_cell(cell: Cell) -> Cell:
    if "id" not in cell:
        raise SolutionError("a cell has no id: it would get a new one at every run")
    lines = "".join(cell["source"]).splitlines()
    made: Cell = {key: cell[key] for key in ("cell_type", "id", "metadata")}
    if cell["cell_type"] == "code":
        lines = list(_stripped(lines, cell["id"]))
        made |= {"execution_count": None, "outputs": []}
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            raise SolutionError(f"cell {cell['id']!r}, once stripped: {error}") from None
    made["source"] = "\n".join(lines).splitlines(keepends=True)
    return made


def _stripped(lines: list[str], cell_id: str) -> Iterator[str]:
    """The lines of a code cell, each solution block replaced by what the exercise gives."""
    block: list[str] | None = None
    for line in lines:
        marker = _marker(line)
        if marker == BEGIN and block is None:
            block, indent = [], line[: len(line) - len(line.lstrip())]
            cpp = line.lstrip().startswith("//")
        elif marker == END and block is not None:
            yield from _given(block, indent, cpp)
            block = None
        elif marker in (BEGIN, END):
            raise SolutionError(f"cell {cell_id!r} has {marker!r} where none is due")
        elif block is None:
            yield line
        else:
            block.append(line)
    if block is not None:
        raise SolutionError(f"cell {cell_id!r} has {BEGIN!r} without {END!r}")


def _marker(line: str) -> str:
    return line.strip().removeprefix("//").lstrip()


def _given(block: list[str], indent: str, cpp: bool) -> list[str]:
    given = [line for line in block if _marker(line) == GIVEN]
    if not given:
        turn = f"#error {PLACEHOLDER}" if cpp else f'raise NotImplementedError("{PLACEHOLDER}")'
        return [indent + turn]
    lines = block[block.index(given[0]) + 1 :]
    return [line.replace("// " if cpp else "# ", "", 1) for line in lines]


def _texts(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """What cells say. An editor's empty cells, ids and line ends say nothing."""
    told = [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in cells]
    return [(kind, text) for kind, text in told if text]


def _digest(cells: Sequence[Cell]) -> str:
    return hashlib.sha256(json.dumps(_texts(cells)).encode()).hexdigest()[:16]


def given_out(text: bytes) -> str:
    """The digest that an exercise's file holds of what was given out; "" if it holds none."""
    try:
        told = json.loads(text)["metadata"][_OURS][_GIVEN_OUT]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return told if type(told) is str else ""


def _in_the_way(target: Path, text: str) -> str:
    """What forbids to write `text` over `target`, as the rest of a sentence; "" if nothing does."""
    if not target.exists() or (there := target.read_bytes()) == text.encode():
        return ""
    try:
        notebook = json.loads(there)
        cells, told = notebook["cells"], _texts(notebook["cells"])
        given = notebook["metadata"].get(_OURS, {}).get(_GIVEN_OUT)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "is no notebook that can be read"
    untouched = told == _texts(json.loads(text)["cells"]) or given == _digest(cells)
    return "" if untouched or told == _committed(target) else "holds answers"


def _committed(target: Path) -> list[tuple[str, str]] | None:
    """What a notebook's cells say in git's last commit; None without git, or if it has none."""
    command = ["git", "show", f"HEAD:./{target.name}"]
    try:
        done = subprocess.run(command, cwd=target.parent, capture_output=True, check=True)
        return _texts(json.loads(done.stdout)["cells"])
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError, TypeError):
        return None


def written(notebook: dict[str, Any]) -> str:
    """A notebook's text: sorted keys, one space of indentation, a newline at the end."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def generate(root: Path, check: bool = False, only_look: bool = False) -> list[str]:
    """Write every exercise below `root`, or with `check` only compare; return what differs.

    Each entry is one sentence that names the file. Where an exercise holds answers nothing is
    written, and they alone are told; `only_look` writes nothing and looks for nothing else.
    """
    solutions, exercises = root / "solutions", root / "exercises"
    faults, answered, texts = [], [], {}
    for path in sorted(solutions.glob("*.ipynb")):
        try:
            text = written(exercise_of(json.loads(path.read_text(encoding="utf-8"))))
        except SolutionError as error:
            faults.append(f"solutions/{path.name}: {error}.")
            continue
        texts[exercises / path.name] = text
    for target, text in texts.items():
        name = f"exercises/{target.name}"
        if held := _in_the_way(target, text):
            answered.append(
                f"{name} {held}: move it to work/, where answers belong, then run `make exercises`."
            )
        elif check and (not target.exists() or target.read_text(encoding="utf-8") != text):
            faults.append(f"{name} differs from its solution; run `make exercises`.")
    if only_look or (answered and not check):
        return answered
    if not check:
        exercises.mkdir(exist_ok=True)
        for target, text in texts.items():
            target.write_text(text, encoding="utf-8")
    known = {path.name for path in solutions.glob("*.ipynb")}
    for path in sorted(exercises.glob("*.ipynb")):
        if path.name not in known:
            faults.append(f"exercises/{path.name} has no solution: delete it, or write one.")
    return answered + faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Write exercises/ from solutions/.")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="write nothing; exit 1 if they differ")
    only.add_argument(
        "--unanswered", action="store_true", help="write nothing; exit 1 if one holds answers"
    )
    options = parser.parse_args(arguments)
    faults = generate(ROOT, options.check, options.unanswered)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
