"""What only a GPU can prove is proved on a card, and of today's sources; and how that goes red."""

import csv
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from kernels.lab.__main__ import main
from kernels.lab.measuring.gpu_tests import PLACES
from kernels.lab.records import proofs, slices, sources
from kernels.lab.records.proofs import Case
from kernels.paths import DATA_DIR, ROOT

FORWARD = '''\
"""A kernel."""

import functools

import triton
import triton.language as tl

from kernels.ops.shared.rows import stride

CU = "norm.cu"


@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr, BLOCK)  # one store


def forward(x):
    """Launch."""
    return kernel[(1,)](x, stride(x))
'''
TEST = """\
import pytest

from tests.helpers import WIDTHS, close

pytestmark = pytest.mark.gpu
BOUND = 1e-3
CASES = {}
for width in WIDTHS:
    CASES[width] = width + 1


@pytest.fixture
def scale():
    return 1.0


@pytest.mark.proves("kernels.ops.norms.forward")
@pytest.mark.parametrize("width", CASES)
def test_it_is_right(width, scale):
    assert close(scale * width, width, BOUND)


def test_a_neighbour():
    assert 1 + 1 == 2
"""
HELPERS = """\
WIDTHS = (1, 3)


def close(one, other, bound):
    return abs(one - other) <= bound


def unused():
    return 1
"""
FILES = {
    "kernels/__init__.py": "",
    "kernels/ops/__init__.py": "",
    "kernels/ops/norms/__init__.py": "",
    "kernels/ops/norms/forward.py": FORWARD,
    "kernels/ops/norms/backward.py": "def backward(dy):\n    return dy\n",
    "kernels/ops/norms/norm.cu": '#include "half.cuh"\n// a comment\nint f() { return 1; }\n',
    "kernels/cuda/include/half.cuh": "/* of\n two lines */\nint half = 2;\n",
    "kernels/ops/shared/rows.py": "def stride(x):\n    return 1\n",
    "tests/helpers.py": HELPERS,
    "tests/gpu/test_it.py": TEST,
}
IT = "tests/gpu/test_it.py::test_it_is_right"
STAMP = {
    "gpu": "t4",
    "date": "2031-01-27T10:00:00Z",
    "commit": "abcdef0123456789",
    "dirty": "no",
    "torch": "2.13.0",
    "triton": "3.7.1",
}


@pytest.fixture
def root(tmp_path) -> Path:
    """A small clone, in which a run on a T4 proved its one test."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    prove(tmp_path)
    assert red(tmp_path) == []
    return tmp_path


def prove(root, gpu="t4", *cases, out=None):
    tree = sources.of_folder(root)
    tests, _ = proofs.wanted(tree)
    ended = {IT: cases or [Case("[1]", "passed"), Case("[3]", "passed")]}
    known = root / "book/data" / gpu
    return proofs.record(tests, ended, {**STAMP, "gpu": gpu}, known, out or known)


def red(root):
    return proofs.problems(sources.of_folder(root), root / "book/data")


def edit(root, name, old, new):
    path = root / name
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))


def test_every_test_marked_proves_is_proved():
    found = proofs.problems(sources.of_folder(ROOT), DATA_DIR)
    assert not found, "\n".join(["", *found])
    for test, (_, why) in proofs.owed(DATA_DIR).items():
        warnings.warn(f"a proof is owed to a GPU: {test} ({why})", stacklevel=1)


def test_a_proof_may_be_owed_for_the_sources_as_they_are(root):
    edit(root, "kernels/ops/shared/rows.py", "return 1", "return 2")
    assert len(red(root)) == 1
    data, tree = root / "book/data", sources.of_folder(root)
    assert proofs.owe(tree, data, "no GPU was at hand") == [IT]
    assert red(root) == []
    assert "owed: no GPU was at hand" in proofs.table(tree, data)
    edit(root, "kernels/ops/shared/rows.py", "return 2", "return 3")
    (sentence,) = red(root)  # another change is red again
    assert "is not proved" in sentence
    prove(root)
    (sentence,) = red(root)
    assert sentence == f"{IT} stands in owed.csv and is proved; remove its line"
    assert proofs.owe(sources.of_folder(root), data, "") == []
    assert red(root) == []


def test_the_command_shows_them(capsys):
    found = proofs.problems(sources.of_folder(ROOT), DATA_DIR)
    assert main(["proofs"]) == (1 if found else 0)
    out = capsys.readouterr().out
    assert out.startswith("| test | proves | card |")
    assert all(sentence in out for sentence in found)
    assert main(["proofs", "adopt"]) == 2
    assert "adopt takes a suite" in capsys.readouterr().err


def test_make_gpu_runs_every_test_marked_proves():
    assert proofs.declared(sources.of_folder(ROOT))
    for test in proofs.declared(sources.of_folder(ROOT)):
        assert test.on_gpu, test.test
        assert test.test.startswith(PLACES), test.test


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kernels/ops/norms/forward.py", "store(x_ptr, BLOCK)", "store(x_ptr, 2 * BLOCK)"),
        ("kernels/ops/norms/forward.py", "BLOCK: tl.constexpr", "BLOCK"),
        ("kernels/ops/shared/rows.py", "return 1", "return 2"),
        ("kernels/ops/norms/norm.cu", "return 1", "return 2"),
        ("kernels/cuda/include/half.cuh", "half = 2", "half = 3"),
    ],
)
def test_an_edited_source_is_red_and_named(root, name, old, new):
    edit(root, name, old, new)
    (told,) = red(root)
    assert told.startswith(f"{IT} is not proved: its row of t4 is of other sources ({name} changed")
    assert "`make gpu`" in told
    prove(root)
    assert red(root) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("tests/gpu/test_it.py", "BOUND = 1e-3", "BOUND = 1e-1"),
        ("tests/gpu/test_it.py", "assert close(scale", "assert True or close(scale"),
        ("tests/gpu/test_it.py", 'parametrize("width", CASES)', 'parametrize("width", [1])'),
        ("tests/gpu/test_it.py", "return 1.0", "return 0.0"),
        ("tests/gpu/test_it.py", "= width + 1", "= width + 2"),
        ("tests/gpu/test_it.py", "pytest.mark.gpu", "[pytest.mark.gpu, pytest.mark.xfail]"),
        ("tests/gpu/test_it.py", "import WIDTHS, close", "import WIDTHS, unused as close"),
        ("tests/helpers.py", "abs(one - other) <= bound", "True"),
        ("tests/helpers.py", "WIDTHS = (1, 3)", "WIDTHS = (1,)"),
    ],
)
def test_a_weakened_test_is_red(root, name, old, new):
    edit(root, name, old, new)
    (told,) = red(root)
    assert "of other sources (the test changed)" in told


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kernels/ops/norms/forward.py", "  # one store", "  # the only store"),
        ("kernels/ops/norms/forward.py", '"""Launch."""', '"""Launch it, once."""'),
        ("kernels/ops/norms/forward.py", "forward(x):", "forward(x: int) -> None:"),
        (
            "kernels/ops/norms/forward.py",
            "(x, stride(x))",
            "(\n        x,\n        stride(x),\n    )",
        ),
        ("kernels/ops/norms/norm.cu", "// a comment\n", "// another\n\n"),
        ("kernels/cuda/include/half.cuh", "two lines", "two"),
        ("kernels/ops/norms/backward.py", "return dy", "return 2 * dy"),
        ("tests/gpu/test_it.py", "1 + 1 == 2", "True"),
        ("tests/helpers.py", "    return 1\n", "    return 2\n"),
    ],
)
def test_what_proves_nothing_asks_for_no_gpu(root, name, old, new):
    edit(root, name, old, new)
    assert red(root) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("tests/gpu/test_sectors_gpu.py", "WITHIN = 0.02", "WITHIN = 0.2"),
        ("tests/gpu/test_sectors_gpu.py", "ended.returncode == 0", "ended.returncode < 9"),
        ("tests/gpu/sectors_child.py", "(33, 1000)", "(1, 1000)"),
        ("tests/gpu/sectors_child.py", "torch.cuda.profiler.stop()", "pass"),
    ],
)
def test_what_a_test_of_the_book_is_made_of(name, old, new):
    test = "tests/gpu/test_sectors_gpu.py::test_the_emulators_sectors_are_the_cards"
    tree = sources.of_folder(ROOT)
    assert tree.texts[name].count(old) == 1
    other = sources.Tree({**tree.texts, name: tree.texts[name].replace(old, new)})
    assert slices.of_test(other, test) != slices.of_test(tree, test)


def test_a_deleted_row_is_red(root):
    path = root / "book/data/t4/proofs.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    (told,) = red(root)
    assert "no card has a row for it (kernels.ops.norms.forward)" in told
    path.unlink()
    assert red(root) == [told]


def test_a_row_of_a_failed_run_is_red(root):
    edit(root, "book/data/t4/proofs.csv", ",passed,", ",failed,")
    (told,) = red(root)
    assert "its row of t4 says 'failed'" in told


def test_a_hash_put_in_by_hand_is_red(root):
    (row,) = proofs.read(root / "book/data/t4")[0].values()
    edit(root, "book/data/t4/proofs.csv", row.hash, "0123456789abcdef")
    (told,) = red(root)
    assert "the row itself changed" in told


def test_a_failure_removes_the_older_row_and_says_so(root):
    said = prove(root, "t4", Case("[1]", "passed"), Case("[3]", "failed"))
    assert said[0].startswith(f"no proof: {IT}: 1 of 2 cases failed, the first [3]; its earlier")
    assert said[-1] == "proofs: 0 of the 1 tests marked proves hold on t4"
    assert proofs.read(root / "book/data/t4") == ({}, {})
    assert len(red(root)) == 1


def test_what_was_not_run_leaves_the_older_row(root):
    before = proofs.read(root / "book/data/t4")
    said = prove(root, "t4", Case("[1]", "passed"), Case("[3]"))
    assert said[0] == f"no proof: {IT}: [3] was not run"
    assert proofs.read(root / "book/data/t4") == before
    assert red(root) == []


def test_an_archive_holds_the_rows_that_the_run_left_alone(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("archive")
    prove(root, "t4", Case("[1]", "skipped", "no ncu here"), out=out)
    assert proofs.read(out) == proofs.read(root / "book/data/t4")


def test_one_card_is_enough(root):
    edit(root, "kernels/ops/shared/rows.py", "return 1", "return 2")
    prove(root, "h200")
    assert red(root) == []
    told = proofs.table(sources.of_folder(root), root / "book/data").splitlines()[2:]
    assert [line.split(" | ")[2:] for line in told] == [
        ["h200", "2031-01-27 10:00", "abcdef0", "valid |"],
        ["t4", "2031-01-27 10:00", "abcdef0", "stale: kernels/ops/shared/rows.py |"],
    ]


def test_a_test_that_make_gpu_passes_by_is_red(root):
    edit(root, "tests/gpu/test_it.py", "pytestmark = pytest.mark.gpu\n", "")
    prove(root)
    (told,) = red(root)
    assert told == f"{IT} is marked proves but not gpu, so `make gpu` passes it by"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"kernels.ops.norms.forward"', "FORWARD", "plain strings"),
        ('("kernels.ops.norms.forward")', "", "plain strings"),
        ("pytest.mark.gpu", '[pytest.mark.gpu, pytest.mark.proves("a")]', "on a function"),
    ],
)
def test_a_marker_that_cannot_be_read_is_refused(root, old, new, told):
    edit(root, "tests/gpu/test_it.py", old, new)
    with pytest.raises(ValueError, match=told):
        proofs.declared(sources.of_folder(root))


def test_a_source_that_is_not_there_is_red(root):
    edit(root, "tests/gpu/test_it.py", "norms.forward", "norms.sideways")
    (told,) = red(root)
    assert told.startswith(f"{IT} cannot be proved: source 'kernels.ops.norms.sideways' is no mod")


@pytest.mark.parametrize(
    ("cases", "outcome"),
    [
        ((), ""),
        ((Case("a", "passed"),), "passed"),
        ((Case("a", "passed"), Case("b", "failed")), "failed"),
        ((Case("a", "passed"), Case("b")), ""),
        ((Case("a", "passed"), Case("b", "skipped", "needs ncu")), ""),
        ((Case("a", "passed"), Case("b", "skipped", "not on this card: no bf16")), "passed"),
        ((Case("a", "skipped", "not on this card: no bf16"),), ""),
    ],
)
def test_every_case_must_have_passed(cases, outcome):
    assert proofs.judge(cases)[0] == outcome


RUN = """\
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture
def broken():
    yield
    raise RuntimeError


@pytest.mark.proves("kernels.ops.shared.rows")
@pytest.mark.parametrize("n", [1, 2])
def test_passes(n):
    pass


@pytest.mark.proves("kernels.ops.shared.rows")
@pytest.mark.parametrize("n", [1, 2])
def test_fails(n):
    assert n == 1


@pytest.mark.proves("kernels.ops.shared.rows")
def test_ends_badly(broken):
    pass


@pytest.mark.proves("kernels.ops.shared.rows")
@pytest.mark.parametrize("n", [1, 2])
def test_skips(n):
    if n == 2:
        pytest.skip("no ncu here")


@pytest.mark.proves("kernels.ops.shared.rows")
@pytest.mark.parametrize("n", [1, 2])
def test_cannot_all_be_here(n):
    if n == 2:
        pytest.skip("not on this card: no bf16")


@pytest.mark.proves("kernels.ops.shared.rows")
@pytest.mark.parametrize("n", [1, 2])
def test_left_out(n):
    pass


@pytest.mark.proves("kernels.ops.shared.rows")
@pytest.mark.xfail(reason="it does not work")
def test_is_expected_to_fail():
    raise AssertionError


def test_proves_nothing():
    pass
"""


def test_a_run_of_pytest_leaves_the_rows(root):
    (root / "tests/gpu/test_it.py").write_text(RUN)
    (root / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["gpu", "proves(*sources)"]\n'
        'addopts = ["--import-mode=importlib"]\n'
    )
    out = root / "archive"
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-m", "gpu", "-q"]
    options += ["-k", "not left_out or 1", "--rootdir", str(root)]
    options += ["-c", str(root / "pyproject.toml")]
    options += ["-p", "kernels.lab.records.proofs_plugin"]
    options += ["--proofs", str(out), "--proofs-card", "t4"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(root / "tests"), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    with (out / "t4/proofs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [row["test"].partition("::")[2] for row in rows]
    assert names == ["test_cannot_all_be_here", "test_passes"], done.stdout
    assert {row["gpu"] for row in rows} == {"t4"}
    assert all(row["outcome"] == "passed" and row["date"] and row["torch"] for row in rows)
    for told in (
        "test_fails: 1 of 2 cases failed, the first tests/gpu/test_it.py::test_fails[2]",
        "test_ends_badly: 1 of 1 cases failed",
        "test_skips[2] was skipped: no ncu here",
        "test_left_out[2] was not run",
        "was skipped: expected to fail: it does not work",
        "proofs: 2 of the 7 tests marked proves hold on t4",
    ):
        assert told in done.stdout
    missing = {line.split(" ")[0] for line in proofs.problems(sources.of_folder(root), out)}
    assert len(missing) == 5
