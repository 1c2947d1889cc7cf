"""The first cell: one text in every notebook, at home in a clone and in a stand-in for Colab."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from book.tools.config import Repository, repository
from book.tools.setup_cell import TAGS, first_code_cell, put, setup_cell
from kernels.paths import ROOT
from tests.book.test_notebooks import NOTEBOOKS, label

HOME = repository(ROOT)
CELL = setup_cell(HOME)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOADED = """
assert sys.path[0] == str(root)
print(root, Path(kernels.__file__).parents[1])
"""
COUNT = """
import torch
from kernels.lab.counting.op_ledger import count_op
from kernels.ops.norms.layernorm import OP
assert sys.path[0] == str(root)
print(root, count_op(OP, "fused", (8, 64), torch.float32).bytes_unique)
"""
COUNTED = (8 * 64 + 2 * 64 + 8 * 64) * 4  # x, weight and bias, y


@pytest.mark.parametrize("path", NOTEBOOKS, ids=label)
def test_every_notebook_begins_with_it(path: Path) -> None:
    cell = first_code_cell(json.loads(path.read_text(encoding="utf-8")))
    assert "".join(cell["source"]) == CELL, "run `make exercises`"
    assert cell["metadata"]["tags"] == TAGS


def test_it_is_short_and_holds_the_address_of_the_config() -> None:
    assert len(CELL.splitlines()) < 32
    other = setup_cell(Repository("https://example.org/group/a-book", "trunk"))
    assert HOME.url not in other
    assert other == CELL.replace(HOME.url, "https://example.org/group/a-book").replace(
        f'"{HOME.name}"', '"a-book"'
    ).replace(f'"{HOME.branch}"', '"trunk"')


def test_the_package_tells_the_same_address() -> None:
    assert PROJECT["urls"]["Repository"] == HOME.url


def test_each_dependency_is_imported_by_its_name() -> None:
    """Where a name on the package index is not the module's, the cell would install it always."""
    for need in PROJECT["dependencies"]:
        name, _, version = need.partition(">=")
        assert importlib.util.find_spec(name), need
        assert version.replace(".", "").isdecimal(), f"{need} is not an open range"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("book", "solutions"):
        (tmp_path / folder).mkdir()
        for path in (ROOT / folder).glob("*.ipynb"):
            shutil.copy2(path, tmp_path / folder)
    shutil.copy2(ROOT / "_config.yml", tmp_path)
    return tmp_path


def test_a_changed_address_is_found_and_written(tree: Path) -> None:
    assert put(tree) == []
    before = (tree / "_config.yml").read_text()
    (tree / "_config.yml").write_text(before.replace(HOME.url, "https://example.org/a-book"))
    copies = [path for path in NOTEBOOKS if path.parent.name != "exercises"]
    assert put(tree) == [
        f"{label(path)}: its first code cell differs; run `make exercises`." for path in copies
    ]
    assert put(tree, write=True) == []
    assert put(tree) == []
    (tree / "_config.yml").write_text(before)
    assert put(tree, write=True) == []
    for path in copies:
        assert (tree / label(path)).read_bytes() == path.read_bytes()


def test_a_notebook_without_a_place_for_it_is_named(tree: Path) -> None:
    cells = [{"cell_type": "code", "metadata": {}, "source": ["import torch"]}]
    (tree / "book" / "99_new.ipynb").write_text(json.dumps({"cells": cells}))
    told = ["book/99_new.ipynb: its first code cell is not tagged 'setup'."]
    assert put(tree, write=True) == told


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=A reader", "-c", "user.email=reader@example.org"]
    command = ["git", *author, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the package as it stands here, which needs a module that nobody has."""
    folder = tmp_path_factory.mktemp("remote")
    shutil.copytree(ROOT / "book" / "data", folder / "book" / "data")
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__py*"))
    project = (ROOT / "pyproject.toml").read_text()
    needs = project.replace('"torch>=', '"nobody_has_this>=1.5", "torch>=')
    (folder / "pyproject.toml").write_text(needs)
    git(folder, "init", "--quiet", "--initial-branch", HOME.branch)
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "A past that no reader needs")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "The package")
    return folder


class Colab:
    """An empty folder to run code in, with a module `google.colab` and a pip that only notes."""

    def __init__(self, folder: Path) -> None:
        self.content, self.modules = folder / "content", folder / "modules"
        self.pip_log, self.git_config = folder / "pip.json", folder / "gitconfig"
        self.content.mkdir()
        for name in ("google/colab", "pip"):
            (self.modules / name).mkdir(parents=True)
            (self.modules / name / "__init__.py").touch()
        self.pip_does(f"json.dump(sys.argv[1:], open({str(self.pip_log)!r}, 'w'))")

    def pip_does(self, code: str) -> None:
        (self.modules / "pip" / "__main__.py").write_text(f"import json, sys\n{code}\n")

    def run(
        self, code: str, remote: Path | None = None, before: str = "import google.colab"
    ) -> subprocess.CompletedProcess[str]:
        """Run code in a new Python, where the book's address means `remote`, or none answers."""
        address = f"file://{remote}" if remote else "http://127.0.0.1:9/"
        self.git_config.write_text(f'[url "{address}"]\n\tinsteadOf = {HOME.url}\n')
        return subprocess.run(
            [sys.executable, "-c", f"{before}\n{code}"],
            cwd=self.content,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.content.parent),
                "PYTHONPATH": str(self.modules),
                "GIT_CONFIG_GLOBAL": str(self.git_config),
                "GIT_CONFIG_NOSYSTEM": "1",
                "LC_ALL": "C",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture
def colab(tmp_path: Path) -> Colab:
    return Colab(tmp_path)


def test_in_colab_it_fetches_the_clone_and_what_is_missing(colab: Colab, remote: Path) -> None:
    start = time.monotonic()
    done = colab.run(CELL + COUNT, remote)
    seconds = time.monotonic() - start
    clone = colab.content / HOME.name
    assert (done.stdout, done.stderr) == (f"{clone} {COUNTED}\n", "")
    # Nothing that is there is touched, and nothing is pinned.
    assert json.loads(colab.pip_log.read_text()) == ["install", "nobody_has_this>=1.5"]
    assert git(clone, "rev-list", "--count", "HEAD") == "1"
    assert seconds < 180

    # Run again, or after a restart: the clone is there, and no network is asked.
    again = colab.run(CELL + LOADED)
    assert (again.stdout, again.stderr) == (f"{clone} {clone}\n", "")


def test_in_colab_the_first_result_comes_within_three_minutes(
    colab: Colab, remote: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Chapter 02 from its first cell to the table's first row; on a GPU, measured there and then.

    The seconds are kept as a property of the suite: `pytest --junit-xml=FILE` writes them down.
    """
    chapter = json.loads((ROOT / "book" / "02_layernorm_by_hand.ipynb").read_text("utf-8"))
    cells = ["".join(c["source"]) for c in chapter["cells"] if c["cell_type"] == "code"]
    last = next(number for number, cell in enumerate(cells) if "measured(" in cell)
    show = "print(here.card, [row.variant for row in rows])"
    # Triton reads a kernel's source from its file.
    (colab.content / "chapter.py").write_text("\n".join([*cells[: last + 1], show]), "utf-8")
    start = time.monotonic()
    done = colab.run("import runpy\nrunpy.run_path('chapter.py')", remote)
    seconds = time.monotonic() - start
    record_testsuite_property("seconds_to_first_result", round(seconds, 1))
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()[-1]
    assert "'copy', 'eager', 'torch'" in told
    assert "'fused'" in told
    if torch.cuda.is_available():
        assert told.startswith(torch.cuda.get_device_name())
    assert seconds < 180


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What a failed run said, from the name of its exception on."""
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    return done.stderr[done.stderr.rindex("Error: ") :].removeprefix("Error: ").strip()


def test_without_a_network_it_says_so(colab: Colab) -> None:
    told = sentence(colab.run(CELL))
    assert told.startswith(f"{HOME.url} was not cloned; is there a network? fatal: ")
    assert "\n" not in told
    assert list(colab.content.iterdir()) == []
    assert not colab.pip_log.exists()


def test_a_failed_installation_is_told(colab: Colab, remote: Path) -> None:
    colab.pip_does("sys.exit('ERROR: no such release')")
    told = sentence(colab.run(CELL, remote))
    assert told == "['nobody_has_this>=1.5'] were not installed: ERROR: no such release"


def test_in_a_clone_it_is_silent_and_installs_nothing(colab: Colab, remote: Path) -> None:
    clone = colab.content / "a folder" / "my clone"
    shutil.copytree(remote, clone)
    colab.content = clone / "book" / "deeper"
    colab.content.mkdir(parents=True)
    done = colab.run(CELL + LOADED, before="")
    assert (done.stdout, done.stderr) == (f"{clone} {clone}\n", "")
    assert not colab.pip_log.exists()


def test_without_a_clone_it_says_where_it_looked(colab: Colab) -> None:
    told = sentence(colab.run(CELL, before=""))
    where = f"no clone of {HOME.url} in or above {colab.content}"
    assert told == f"{where}: clone it, open the notebook there"


def test_another_package_called_kernels_is_told(colab: Colab, remote: Path) -> None:
    shutil.copytree(remote, colab.content / HOME.name)
    (colab.modules / "kernels").mkdir()
    other = colab.modules / "kernels" / "__init__.py"
    other.touch()
    # On the path only, it gives way to the clone; imported before, it stays.
    assert colab.run(CELL).returncode == 0
    told = sentence(colab.run(CELL, before="import kernels"))
    assert told == f"<module 'kernels' from '{other}'> is not the book's: restart Python"
