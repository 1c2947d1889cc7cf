"""A reader's own copies of the exercises, in work/, and JupyterLab on them.

    python -m kernels.grading.working_copies [--lab [OPTION ...]]

`make work` and `make lab` call it. A copy is made once and never written again. When an exercise
has changed since, its new version is set beside the old copy, as `02_layernorm_by_hand-2.ipynb`.
Which version a copy is of is told by the digest that `generate.py` put into it. What follows
`--lab` is handed to JupyterLab.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.grading.generate import given_out
from kernels.paths import ROOT

FOLDER = "work"


def lay_out(root: Path) -> list[str]:
    """Copy each exercise below `root` that work/ lacks; one sentence for each copy.

    OSError if a copy can't be written; nothing of it stays then.
    """
    work, told = root / FOLDER, []
    work.mkdir(exist_ok=True)
    for exercise in sorted((root / "exercises").glob("*.ipynb")):
        text = exercise.read_bytes()
        taken, free = _places(work, exercise)
        if any(_same_version(copy, text) for copy in taken):
            continue
        _create(free, text)
        name = f"{FOLDER}/{free.name}"
        told.append(
            f"{name} is your copy of {exercise.name}."
            if free.name == exercise.name
            else f"{name} is a newer version of {exercise.name}; what was there stays as it is."
        )
    return told


def _places(work: Path, exercise: Path) -> tuple[list[Path], Path]:
    """The places for copies of an exercise that are taken, and the first that is free."""
    taken: list[Path] = []
    place = work / exercise.name
    while os.path.lexists(place):
        taken.append(place)
        place = work / f"{exercise.stem}-{len(taken) + 1}{exercise.suffix}"
    return taken, place


def _same_version(copy: Path, text: bytes) -> bool:
    try:
        there = copy.read_bytes()
    except OSError:  # a folder, say, or a link to nowhere
        return False
    return there == text or given_out(there) == given_out(text) != ""


def _create(place: Path, text: bytes) -> None:
    """Write a file that wasn't there, or none."""
    with open(place, "xb") as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a full disk may say so only now
        except BaseException:
            place.unlink()
            raise


def lab_command(root: Path, options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command that starts JupyterLab in work/ below `root`, and its environment.

    Its root is the clone, so that links to chapters open. Its kernel is that of this Python: one of
    the same name in the user's folder would lack what the exercises import.
    """
    command = [
        *(sys.executable, "-m", "jupyterlab"),
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{FOLDER}",
        *options,
    ]
    # What JUPYTER_PATH names comes before the user's folder.
    ours = Path(sys.prefix, "share", "jupyter")
    places = os.pathsep.join(filter(None, (str(ours), os.environ.get("JUPYTER_PATH"))))
    # The Makefile's "." would mean another folder in each notebook.
    return command, {**os.environ, "JUPYTER_PATH": places, "PYTHONPATH": str(root)}


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line; return the exit code. JupyterLab takes this process's place."""
    parser = argparse.ArgumentParser(description="Copy the exercises into work/.")
    parser.add_argument(
        "--lab", nargs=argparse.REMAINDER, metavar="OPTION", help="then start JupyterLab on them"
    )
    options = parser.parse_args(arguments)
    try:
        told = lay_out(root)
    except OSError as error:
        print(f"The exercises can't be copied: {error.filename}: {error.strerror}.")
        return 1
    print(*(told or [f"{FOLDER}/ has a copy of every exercise."]), sep="\n", flush=True)
    if options.lab is None:
        return 0
    if os.geteuid() == 0 and "--allow-root" not in options.lab:
        print("You are root, and JupyterLab wants to be told: make lab ARGS=--allow-root")
        return 1
    command, environment = lab_command(root, options.lab)
    os.chdir(root)
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    sys.exit(main())
