"""What a notebook sees of the package, so that a change of it runs the notebook again."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from book.tools.build import execute_all, stamp, toc_notebooks
from book.tools.seen import seen
from kernels.paths import ROOT

FACE = """
from importlib import import_module
_PLACES = {"plots": "drawing.plots", "count": "counting.ledger:count"}
def __getattr__(name):
    place, _, inside = _PLACES[name].partition(":")
    module = import_module(f"{__name__}.{place}")
    return getattr(module, inside) if inside else module
"""
FILES = {
    "kernels/__init__.py": "",
    "kernels/paths.py": 'DATA_DIR = "book/data"',
    "kernels/alone.py": "VALUE = 1",
    "kernels/child.py": "",
    "kernels/launcher.py": "COMMAND = ['python', '-m', 'kernels.child']",
    "kernels/lazy.py": "def f():\n    from kernels.alone import VALUE\n    return VALUE",
    "kernels/by_name.py": "from importlib import import_module\nimport_module('.alone', 'kernels')",
    "kernels/talker.py": "SENTENCE = 'see `kernels.alone` for more'",
    "kernels/recorded.py": "from kernels.paths import DATA_DIR",
    "kernels/ops/__init__.py": "",
    "kernels/ops/norm.py": "from . import shared\nfrom .shared import VALUE",
    "kernels/ops/shared.py": "VALUE = 1",
    "kernels/ops/norm.cu": "// a kernel",
    "kernels/ops/runtime/main.cpp": "// no module lies beside it",
    "kernels/lab/__init__.py": FACE,
    "kernels/lab/__main__.py": "import kernels.alone",
    "kernels/lab/drawing/__init__.py": "",
    "kernels/lab/drawing/plots.py": "import kernels.lab.drawing.style",
    "kernels/lab/drawing/style.py": "",
    "kernels/lab/drawing/style.css": "",
    "kernels/lab/counting/__init__.py": "",
    "kernels/lab/counting/ledger.py": "def count(): pass",
    "book/data/card/norms.csv": "1",
}
DATA = {"book/data/card/norms.csv"}
PACKAGE = {name for name in FILES if name not in DATA}
START = {"kernels/__init__.py"}
OPS = {"kernels/ops/__init__.py", "kernels/ops/norm.cu", "kernels/ops/runtime/main.cpp"}
RECORDED = {*START, "kernels/recorded.py", "kernels/paths.py", *DATA}
SHARED = {*OPS, "kernels/ops/shared.py"}
NORM = {*SHARED, "kernels/ops/norm.py"}
LAB = {"kernels/lab/__init__.py"}
DRAWING = {name for name in FILES if "/drawing/" in name}
COUNTING = {name for name in FILES if "/counting/" in name}
MAIN = {"kernels/lab/__main__.py", "kernels/alone.py"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "kernels/__pycache__").mkdir()
    (tmp_path / "kernels/__pycache__/alone.pyc").touch()
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/page\n")
    return tmp_path


def write(root: Path, *code: str) -> Path:
    path = root / "book/page.ipynb"
    cells = [new_markdown_cell("`import kernels.alone`"), *map(new_code_cell, code)]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def names(root: Path, *code: str) -> set[str]:
    return {path.relative_to(root).as_posix() for path in seen(write(root, *code), root)}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch", set()),
        ("import kernels", START),
        ("import kernels.alone", {*START, "kernels/alone.py"}),
        ("from kernels.alone import VALUE", {*START, "kernels/alone.py"}),
        ("from kernels import alone", {*START, "kernels/alone.py"}),
        ("import kernels\nkernels.alone.VALUE", {*START, "kernels/alone.py"}),
        ("def f():\n    import kernels.alone", {*START, "kernels/alone.py"}),
        ("from kernels import lazy", {*START, "kernels/lazy.py", "kernels/alone.py"}),
        ("from kernels import by_name", {*START, "kernels/by_name.py", "kernels/alone.py"}),
        ("from kernels import launcher", {*START, "kernels/launcher.py", "kernels/child.py"}),
        ("from kernels import talker", {*START, "kernels/talker.py"}),
        ("run('python -m kernels.alone 3')", {*START, "kernels/alone.py"}),
        ("run(['python', '-m', 'kernels.lab'])", {*START, *LAB, *MAIN, *DRAWING, *COUNTING}),
        ("from kernels.ops import shared", {*START, *SHARED}),
        ("from kernels.ops.norm import f", {*START, *NORM}),
        ("from kernels.lab import plots", {*START, *LAB, *DRAWING}),
        ("from kernels.lab import count", {*START, *LAB, *COUNTING}),
        ("from kernels.lab.counting import ledger", {*START, *LAB, *COUNTING}),
        ("from kernels import lab\nlab.plots", {*START, *LAB, *DRAWING, *COUNTING}),
        ("import kernels.lab as l", {*START, *LAB, *DRAWING, *COUNTING}),
        ("from kernels import recorded", RECORDED),
        ("from kernels import paths", {*START, "kernels/paths.py"}),
        ("open('book/data/card/norms.csv')", DATA),
        ("from kernels import alone\nalone.layer().eval()", {*START, "kernels/alone.py"}),
        # What can't be followed.
        ("%matplotlib inline", {*PACKAGE, *DATA}),
        ("!python -m kernels.alone", {*PACKAGE, *DATA}),
        ("exec('import kernels.' + name)", {*PACKAGE, *DATA}),
        ("importlib.import_module(name)", {*PACKAGE, *DATA}),
        ("builtins.eval(name)", {*PACKAGE, *DATA}),
        ("get_ipython().run_line_magic('run', name)", {*PACKAGE, *DATA}),
    ],
)
def test_a_notebook_sees_what_its_code_names_and_what_that_names(root, code, expected):
    assert names(root, "x = 1", code) == expected


def test_what_is_seen_follows_a_changed_module(root):
    before = names(root, "import kernels.alone")
    (root / "kernels/alone.py").write_text("import kernels.child")
    assert names(root, "import kernels.alone") == {*before, "kernels/child.py"}


@pytest.mark.parametrize("name", FILES)
def test_a_stamp_changes_with_each_file_that_is_seen_and_with_no_other(root, name):
    path = write(root, "from kernels import recorded\nfrom kernels.ops import norm")
    before, saw = stamp(path, root), root / name in seen(path, root)
    assert saw == (name in {*RECORDED, *NORM})
    (root / name).write_text(FILES[name] + "\n# changed")
    assert (stamp(path, root) != before) == saw


def test_an_import_that_no_text_shows_fails_the_page(root, capsys):
    write(
        root,
        "import kernels\nfrom importlib import import_module as load",
        "load(kernels.__name__ + '.alone')",
    )
    assert execute_all(root, root / "_build") == 1
    told = capsys.readouterr().out
    assert "book/page.ipynb: FAILED" in told
    assert "kernels/alone.py, which book/tools/seen.py doesn't find" in told


def test_a_run_leaves_no_cell_of_its_own(root):
    write(root, "from kernels import alone", "print(alone.VALUE)")
    assert execute_all(root, root / "_build") == 0
    executed = nbformat.read(root / "_build/executed/book/page.ipynb", as_version=4)
    assert [cell.source for cell in executed.cells if cell.cell_type == "code"] == [
        "from kernels import alone",
        "print(alone.VALUE)",
    ]


CHAPTERS = {path.name[:2]: path for path in (ROOT / "book").glob("[0-9]*.ipynb")}


@pytest.mark.parametrize("path", toc_notebooks(ROOT), ids=lambda path: path.stem)
def test_the_questions_are_seen_by_the_exercises_alone(path):
    found = {file.relative_to(ROOT).as_posix() for file in seen(path, ROOT)}
    assert ("kernels/grading/checker.py" in found) == (path.parent.name == "exercises")
    assert "kernels/launch/hook.py" in found


@pytest.mark.parametrize(
    ("chapter", "files"),
    [
        ("03", "kernels/cuda/nvrtc.py kernels/cuda/emulator/runtime/memory.cpp"),
        ("03", "kernels/launch/arena.py kernels/launch/triton_compile.py"),
        ("05", "kernels/ops/norms/layernorm.cu kernels/ops/norms/layernorm_cuda.py"),
        ("06", "kernels/ops/norms/layernorm.py kernels/lab/counting/traffic.py"),
        ("06", "book/data/h100-sxm/norms.csv kernels/ops/norms/tuning.py"),
        ("01", "kernels/lab/drawing/explorers/roofline.js kernels/registry.py"),
        ("01", "kernels/lab/drawing/explorers/roofline.css kernels/lab/drawing/style.py"),
    ],
)
def test_a_chapter_sees_what_it_shows(chapter, files):
    found = {file.relative_to(ROOT).as_posix() for file in seen(CHAPTERS[chapter], ROOT)}
    assert found.issuperset(files.split())
