"""`make work` and `make lab`: copies that are made once, and JupyterLab on them."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kernels.grading.working_copies as module
from kernels.grading.generate import generate
from kernels.grading.where_to_work import DRIVE, WHERE
from kernels.grading.working_copies import lab_command, lay_out, main
from kernels.paths import ROOT
from tests.grading.test_exercises import SETS, answer, change, edit

FIRST, SECOND = SETS[:2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for folder in ("solutions", "exercises"):
        (tmp_path / folder).mkdir()
        for name in (FIRST, SECOND):
            shutil.copy2(ROOT / folder / name, tmp_path / folder)
    return tmp_path


def work(clone: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((clone / "work").iterdir())}


def given(clone: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((clone / "exercises").iterdir())}


def test_every_exercise_is_copied_once(clone: Path) -> None:
    assert [told.split(" is your copy")[0] for told in lay_out(clone)] == [
        f"work/{FIRST}",
        f"work/{SECOND}",
    ]
    assert work(clone) == given(clone)
    assert lay_out(clone) == []


def test_an_answered_copy_stays_byte_for_byte(clone: Path) -> None:
    lay_out(clone)
    change(clone / "work" / FIRST, answer)
    before = work(clone)
    assert lay_out(clone) == []
    assert work(clone) == before


def test_a_newer_version_is_set_beside_the_copy(clone: Path) -> None:
    lay_out(clone)
    change(clone / "work" / FIRST, answer)
    mine = work(clone)
    for number, text in ((2, "# So:"), (3, "# Or so:")):
        edit(clone / "solutions" / FIRST, text)
        assert generate(clone) == []
        beside = FIRST.replace(".ipynb", f"-{number}.ipynb")
        told = f"work/{beside} is a newer version of {FIRST}; what was there stays as it is."
        assert lay_out(clone) == [told]
        assert lay_out(clone) == []
        mine[beside] = given(clone)[FIRST]
        assert work(clone) == mine


@pytest.mark.parametrize("text", [b"", b"<<<<<<< mine", b"[" * 100_000, b'{"metadata": {}}'])
def test_what_cannot_be_read_is_kept_and_the_exercise_set_beside_it(clone, text) -> None:
    (clone / "work").mkdir()
    (clone / "work" / FIRST).write_bytes(text)
    assert len(lay_out(clone)) == 2
    assert lay_out(clone) == []
    assert work(clone)[FIRST] == text
    assert work(clone)[FIRST.replace(".ipynb", "-2.ipynb")] == given(clone)[FIRST]


def test_links_are_not_written_through(clone: Path) -> None:
    (clone / "work").mkdir()
    (clone / "work" / FIRST).symlink_to(clone / "elsewhere.ipynb")
    lay_out(clone)
    assert not (clone / "elsewhere.ipynb").exists()
    assert (clone / "work" / FIRST.replace(".ipynb", "-2.ipynb")).exists()


def test_a_copy_that_was_moved_away_is_made_afresh(clone: Path) -> None:
    lay_out(clone)
    (clone / "work" / FIRST).rename(clone / "work" / FIRST.replace(".ipynb", "-old.ipynb"))
    assert lay_out(clone) == [f"work/{FIRST} is your copy of {FIRST}."]


def test_a_full_disk_leaves_no_part_of_a_copy(clone: Path) -> None:
    script = f"""
import resource, signal
from pathlib import Path
from kernels.grading.working_copies import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
raise SystemExit(main([], Path({str(clone)!r})))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1, done.stderr
    assert re.fullmatch(r"The exercises can't be copied: .*File too large\.\n", done.stdout)
    assert work(clone) == {}


def test_a_file_called_work_is_one_sentence(clone: Path, capsys) -> None:
    (clone / "work").write_text("mine")
    assert main([], clone) == 1
    assert capsys.readouterr().out.startswith("The exercises can't be copied: ")
    assert (clone / "work").read_text() == "mine"


def test_git_ruff_and_make_leave_the_folder_alone() -> None:
    assert "/work/" in (ROOT / ".gitignore").read_text().splitlines()
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "work/01.ipynb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "work/" not in done.stdout
    for goal in ("clean", "exercises"):
        recipe = (ROOT / "Makefile").read_text().split(f"\n{goal}:")[1].split("\n\n")[0]
        assert not re.search(r"\bwork\b(?! stay|/ stay)", recipe), recipe


@pytest.mark.parametrize("goal", ["work", "lab"])
def test_make_calls_it(goal: str, tmp_path: Path) -> None:
    """With a stand-in for the Python of `.venv`, which says what it was called with."""
    shutil.copy2(ROOT / "Makefile", tmp_path)
    shutil.copy2(ROOT / "requirements.txt", tmp_path)
    (tmp_path / "work").mkdir()  # a folder of the goal's name doesn't make it up to date
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\n')
    python.chmod(0o755)
    pins = hashlib.sha256((ROOT / "requirements.txt").read_bytes()).hexdigest()[:16]
    (tmp_path / ".venv" / f"requirements-{pins}").touch()
    command = ["make", "-s", goal, "ARGS=--no-browser --port 9000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    options = " --lab --no-browser --port 9000" if goal == "lab" else ""
    assert done.stdout == f". -m kernels.grading.working_copies{options}\n"


def test_jupyterlab_begins_in_the_folder(clone, monkeypatch) -> None:
    started = []
    monkeypatch.setattr(module.os, "execve", lambda *command: started.append(command))
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    monkeypatch.chdir(ROOT)
    main(["--lab", "--no-browser", "--port=9000"], clone)
    assert Path.cwd() == clone
    ((program, command, environment),) = started
    assert (program, command[:3]) == (sys.executable, [sys.executable, "-m", "jupyterlab"])
    assert command[3:] == [
        f"--ServerApp.root_dir={clone}",
        "--LabApp.default_url=/lab/tree/work",
        "--no-browser",
        "--port=9000",
    ]
    assert environment["PYTHONPATH"] == str(clone)
    assert work(clone) == given(clone)


def test_its_kernel_is_this_pythons_and_not_the_users(tmp_path: Path) -> None:
    """Even where the user's own folder is said to come first."""
    theirs = tmp_path / "jupyter" / "kernels" / "python3"
    theirs.mkdir(parents=True)
    told = {"argv": ["/usr/bin/false"], "display_name": "theirs", "language": "python"}
    (theirs / "kernel.json").write_text(json.dumps(told))
    find = "from jupyter_client.kernelspec import find_kernel_specs as f; print(f()['python3'])"
    user = {"JUPYTER_DATA_DIR": str(tmp_path / "jupyter"), "JUPYTER_PREFER_ENV_PATH": "0"}
    found = []
    for environment in (dict(os.environ), lab_command(ROOT, [])[1]):
        done = subprocess.run(
            [sys.executable, "-c", find],
            env={**environment, **user},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(Path(done.stdout.strip()))
    assert found == [theirs, Path(sys.prefix, "share", "jupyter", "kernels", "python3")]


def test_root_is_told_how_to_start_it(clone: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module.os, "execve", lambda *command: pytest.fail("started"))
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    assert main(["--lab"], clone) == 1
    assert capsys.readouterr().out.endswith("make lab ARGS=--allow-root\n")


def test_the_pins_hold_jupyterlab() -> None:
    assert re.search(r"^jupyterlab==\d", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert lab_command(ROOT, [])[0][2] == "jupyterlab"


@pytest.mark.parametrize("name", SETS)
def test_every_set_says_where_to_work(name: str) -> None:
    cells = json.loads((ROOT / "exercises" / name).read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    setup = next(i for i, c in enumerate(cells) if "setup" in c["metadata"].get("tags", []))
    assert texts[setup - 1] == WHERE
    assert texts[setup + 1] == DRIVE.rstrip("\n")
    assert [cell["cell_type"] for cell in cells[setup : setup + 2]] == ["code", "code"]
    # What it names is there: the second code cell, and the last one.
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code[1] is cells[setup + 1]
    assert texts[-1] == "progress()"
    assert any(
        line.startswith("from kernels.grading import") and "progress" in line
        for text in texts
        for line in text.splitlines()
    )


@pytest.mark.parametrize("wanted", [False, True])
def test_points_lie_on_the_drive_if_asked(wanted: bool, tmp_path: Path, own_progress) -> None:
    """In a stand-in for Colab, whose `drive.mount` only notes what it mounts."""
    colab = tmp_path / "modules" / "google" / "colab"
    colab.mkdir(parents=True)
    (colab / "__init__.py").touch()
    (colab / "drive.py").write_text("def mount(place):\n    print('mounted', place)\n")
    cell = DRIVE.replace("/content/drive", str(tmp_path / "drive"))
    script = cell.replace("= False", f"= {wanted}") + "\n".join(
        ["from kernels.grading.progress import note", 'print("told", note("02.3", 3)[1])']
    )
    search = os.pathsep.join([str(tmp_path / "modules"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=True,
    )
    kept = tmp_path / "drive" / "MyDrive" / "fusing-kernels" / "progress.json"
    assert done.stdout == (f"mounted {tmp_path}/drive\n" if wanted else "") + "told \n"
    assert (kept.exists(), own_progress.exists()) == (wanted, not wanted)


def test_readme_and_front_page_say_how() -> None:
    for name in ("README.md", "book/intro.md"):
        text = (ROOT / name).read_text()
        for word in ("make lab", "VS Code", "Colab", "macOS", "g++", "GB", "minutes"):
            assert word in text, (name, word)
    assert "points_on_drive" in (ROOT / "README.md").read_text()


ANSWERS = """
from kernels.grading import check, progress
import torch, triton, triton.language as tl

@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)

def my_copy(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(len(x), 1024),)](x, y, len(x), BLOCK=1024)
    return y

check("03.3", my_copy)
print(progress().points)
"""


def test_a_file_of_answers_is_checked_in_a_terminal(tmp_path: Path, own_progress) -> None:
    text = (ROOT / "README.md").read_text()
    assert "run `PYTHONPATH=. .venv/bin/python work/answers.py` in the clone" in text
    (tmp_path / "answers.py").write_text(ANSWERS)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "answers.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "✓ passed · 03.3 A copy · 2 of 2 points" in done.stdout, done.stdout + done.stderr
    assert done.stdout.endswith("\n2\n")
