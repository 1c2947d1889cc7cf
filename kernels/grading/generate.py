"""Write exercises/NN_slug.ipynb from every solutions/NN_slug.ipynb.

    python -m kernels.grading.generate [--check]

In a code cell, the lines between `### BEGIN SOLUTION` and `### END SOLUTION` give way to one that
raises "your turn". Where an exercise hands out code instead, as a fault to fix, its lines stand
commented out in the block, after `### GIVEN`. In a string of CUDA C++ the markers stand behind
`//`, and `#error your turn` is what is left. Cells tagged `solution` are left out. What is written
depends on the solution alone, byte for byte.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernels.grading.question import PLACEHOLDER
from kernels.paths import ROOT

BEGIN, GIVEN, END = "### BEGIN SOLUTION", "### GIVEN", "### END SOLUTION"

Cell = dict[str, Any]


class SolutionError(ValueError):
    """A solution that no exercise can be made of; the message is one sentence."""


def exercise_of(notebook: dict[str, Any]) -> dict[str, Any]:
    """The exercise notebook of a solution notebook, both as their JSON.

    SolutionError names the cell if its markers don't match, or if what is left is no Python.
    """
    cells = notebook["cells"]
    kept = [cell for cell in cells if "solution" not in cell["metadata"].get("tags", [])]
    return {
        "cells": [_exercise_cell(cell) for cell in kept],
        "metadata": {
            key: value
            for key, value in notebook["metadata"].items()
            if key in ("kernelspec", "language_info")
        },
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


def written(notebook: dict[str, Any]) -> str:
    """A notebook's text: sorted keys, one space of indentation, a newline at the end."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def generate(root: Path, check: bool = False) -> list[str]:
    """Write every exercise below `root`, or with `check` only compare; return what differs.

    Each entry is one sentence that names the file.
    """
    solutions, exercises = root / "solutions", root / "exercises"
    faults, names = [], set()
    for path in sorted(solutions.glob("*.ipynb")):
        names.add(path.name)
        target = exercises / path.name
        try:
            text = written(exercise_of(json.loads(path.read_text(encoding="utf-8"))))
        except SolutionError as error:
            faults.append(f"solutions/{path.name}: {error}.")
            continue
        if check:
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                faults.append(
                    f"exercises/{path.name} differs from its solution; run `make exercises`."
                )
        else:
            exercises.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
    for path in sorted(exercises.glob("*.ipynb")):
        if path.name not in names:
            faults.append(f"exercises/{path.name} has no solution: delete it, or write one.")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Write exercises/ from solutions/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if they differ")
    options = parser.parse_args(arguments)
    faults = generate(ROOT, options.check)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
