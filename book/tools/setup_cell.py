"""The first code cell of every notebook, written from the repository's address in `_config.yml`.

    python -m book.tools.setup_cell [--write]

The cell makes `import kernels` find the book's package. In a clone it finds the clone's root and is
silent. Colab, where a notebook comes alone, gets the clone and the dependencies that it lacks, in
the ranges of pyproject.toml: exact pins would replace the PyTorch that Colab's driver fits.

Without `--write` the notebooks are only compared. Exercises take their cell from the solutions, by
`make exercises`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from book.tools.config import ROOT, Repository, repository

FOLDERS = ("book", "solutions")
TAGS = ["setup", "hide-input"]

_CELL = """\
# Finds the book's clone; Colab gets it here, with the packages it lacks.
import importlib.util
import sys
import tomllib
from pathlib import Path
from subprocess import run

url = "{url}"
clone = Path.cwd() / "{name}"
roots = (p for p in (clone, *clone.parents) if (p / "kernels" / "launch").is_dir())
root, colab = next(roots, None), "google.colab" in sys.modules
if colab and root is None:
    git = ["git", "clone", "-q", "--depth", "1", "--branch", "{branch}"]
    done = run([*git, url, root := clone], capture_output=True, text=True)
    why = f"is there a network? {{done.stderr}}"
    assert done.returncode == 0, f"{{url}} was not cloned; {{why}}"
why = "clone it, open the notebook there"
assert root, f"no clone of {{url}} in or above {{Path.cwd()}}: {{why}}"
if colab:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needs = {{need: need.split(">")[0] for need in project["dependencies"]}}
    have = importlib.util.find_spec
    if lacks := [need for need, name in needs.items() if not have(name)]:
        pip = [sys.executable, "-m", "pip", "install", *lacks]
        done = run(pip, capture_output=True, text=True)
        assert done.returncode == 0, f"{{lacks}} were not installed: {{done.stderr}}"
sys.path.insert(0, str(root))
import kernels

why = f"{{kernels}} is not the book's: restart Python"
assert Path(kernels.__file__).is_relative_to(root), why
"""


class SetupCellError(ValueError):
    """A notebook that has no place for the cell; the message is one sentence."""


def setup_cell(home: Repository) -> str:
    """Return the cell's text."""
    return _CELL.format(url=home.url, name=home.name, branch=home.branch).rstrip("\n")


def first_code_cell(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the first code cell of a notebook's JSON; SetupCellError if it is not tagged setup."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            if "setup" in cell["metadata"].get("tags", []):
                found: dict[str, Any] = cell
                return found
            break
    raise SetupCellError("its first code cell is not tagged 'setup'")


def put(root: Path, write: bool = False) -> list[str]:
    """Compare the cell of every chapter and solution below `root`, or `write` it into them.

    Returns what is at fault, one sentence that names the file each.
    """
    text, faults = setup_cell(repository(root)), []
    for path in sorted(path for folder in FOLDERS for path in (root / folder).glob("*.ipynb")):
        name = path.relative_to(root).as_posix()
        notebook = json.loads(path.read_text(encoding="utf-8"))
        try:
            cell = first_code_cell(notebook)
        except SetupCellError as error:
            faults.append(f"{name}: {error}.")
            continue
        if "".join(cell["source"]) == text and cell["metadata"].get("tags") == TAGS:
            continue
        if not write:
            faults.append(f"{name}: its first code cell differs; run `make exercises`.")
            continue
        cell["source"], cell["metadata"]["tags"] = text.splitlines(keepends=True), TAGS
        told = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False)
        path.write_text(told + "\n", encoding="utf-8")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare the first cell of every notebook.")
    parser.add_argument("--write", action="store_true", help="put it into chapters and solutions")
    options = parser.parse_args(arguments)
    faults = put(ROOT, options.write)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
