"""The hash of sources: the same in every Python, of what a module is made of, now and then."""

import ast
import json
import subprocess
from types import SimpleNamespace

import pytest

import kernels.ops  # noqa: F401
from kernels import registry
from kernels.lab import selection
from kernels.lab.measuring import bench
from kernels.lab.measuring.ceilings import ceiling_ops
from kernels.lab.records import adopt, lab_report, sources
from kernels.lab.records.data import read_suite, recordings, write_suite
from kernels.paths import DATA_DIR, ROOT
from tests.lab.test_data import a_row

EVERYTHING = '''\
"""A file with what versions of Python write down differently."""
from __future__ import annotations

import triton.language as tl

ä = "naïve \\N{GREEK SMALL LETTER MU}" f"{1 + 2:>{3}}" "" f"a" f"{ä!r}b" "c"
n: int = -1
u = u"text"


class C:
    """Fields."""

    x: int
    y: float = 1e-5


async def f(a: int, /, *, b: str = "", **rest: object) -> None:
    match a:
        case {"k": [1, *_]} | C(x=0):
            return
    async with b as c, a:
        await c[1:, ...]


@triton.jit
def kernel(x_ptr, n: tl.int64, BLOCK: tl.constexpr):
    try:
        del x_ptr
    except* ValueError:
        lambda q=1: (yield q)
'''
# Written down from Python 3.11: a version that tells the tree otherwise fails.
ITS_HASH = "d96de37e79867051"


def test_the_hash_is_the_one_that_every_python_gives():
    assert sources.digest(EVERYTHING, True) == ITS_HASH


def test_fields_that_later_pythons_add_or_leave_out_change_nothing(monkeypatch):
    plain = sources.told(ast.parse(EVERYTHING).body)
    later = ast.parse(EVERYTHING)
    for node in ast.walk(later):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.type_params = []  # since 3.12
            node._fields = (*node._fields, "type_params")
        elif isinstance(node, ast.JoinedStr):  # parts of 3.11 and of 3.12 break elsewhere
            node.values = [
                half
                for part in node.values
                for half in (
                    [ast.Constant(part.value[:1]), ast.Constant(part.value[1:])]
                    if isinstance(part, ast.Constant)
                    else [part, ast.Constant("")]
                )
            ]
        for name in ("returns", "type_comment", "kind"):
            if name in node._fields and getattr(node, name, None) is None:
                node._fields = tuple(field for field in node._fields if field != name)
    assert sources.told(later.body) == plain


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = None", "x = []"),
        ("f(a, b)", "f(b, a)"),
        ("f(*a)", "f(a)"),
        ('x = f"{a}"', 'x = f"{a!r}"'),
        ("@jit\ndef f(n: int): 0", "@jit\ndef f(n: long): 0"),
        ("def f(n: constexpr): 0", "def f(n): 0"),
        ("async def f(): 0", "def f(): 0"),
        ("x = 'a'", "x = b'a'"),
        ("x = -1", "x = 1"),
        ("if a: b\nelse: c", "if a: c\nelse: b"),
    ],
)
def test_what_means_something_else_has_another_hash(one, other):
    assert sources.digest(one, True) != sources.digest(other, True)


def test_comments_in_cpp_go_and_strings_stay():
    text = 'int a = 1; // one\n\n/* two\n lines */\nauto s = "// no comment";\nchar c = \'"\';\n'
    bare = 'int a = 1;\nauto s = "// no comment";  // s\nchar c = \'"\';'
    assert sources.digest(text, False) == sources.digest(bare, False)
    for changed in (text.replace("// no", "//no"), text.replace("a = 1", "a = 2")):
        assert sources.digest(changed, False) != sources.digest(text, False)


def test_a_module_is_made_of_what_it_launches():
    tree = sources.of_folder(ROOT)
    made = sources.made_of(tree, ["kernels.ops.norms.layernorm_cuda"])
    assert {"kernels/ops/norms/layernorm.cu", "kernels/ops/shared/rows.py"} <= made.keys()
    chain = sources.made_of(tree, ["kernels.ops.chains.bias_gelu_dropout_residual"])
    assert {"kernels/cuda/include/philox.cuh", "kernels/philox.py"} <= chain.keys()
    for path in (*made, *chain):
        assert not path.startswith(("kernels/lab/", "kernels/launch/", "kernels/registry"))


def test_every_operation_has_a_hash():
    tree = sources.of_folder(ROOT)
    for suite in registry.SUITES:
        ops = ceiling_ops() if suite == "ceilings" else registry.ops(suite)
        found = sources.of_operations(tree, suite, [op.name for op in ops])
        assert list(found) == list(dict.fromkeys(op.name for op in ops))


def test_a_bench_writes_them_down(monkeypatch):
    monkeypatch.setattr(bench.timing, "time_windows", lambda *_, **__: {"empty": [1.0]})
    stand_in = SimpleNamespace(stream=SimpleNamespace(l2_bytes=1 << 20), seconds=0.1, seed=0)
    tree = sources.of_folder(ROOT)
    for suite in ("norms", "ceilings"):
        record = bench._provenance(bench.Options(suite), stand_in, {})
        assert record["sources"] == sources.of_operations(tree, suite, record["sources"])
        assert {"norms": "softmax", "ceilings": "copy"}[suite] in record["sources"]
        assert sources.age(record, tree) is None


def git(root, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(root), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path):
    """A clone with one operation, recorded at its first commit, before the field was there."""
    path = tmp_path / "kernels/ops/norms/layernorm.py"
    path.parent.mkdir(parents=True)
    path.write_text("def layer_norm(x):\n    return x\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    told = {"suite": "norms", "commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False}
    write_suite(tmp_path / "book/data/t4/norms.csv", [a_row()], told)
    return tmp_path


def test_a_recording_adopts_the_hashes_of_its_commit(clone, capsys):
    data = clone / "book/data"
    rows = (data / "t4/norms.csv").read_bytes()
    then = sources.of_operations(sources.of_folder(clone), "norms", ["layernorm"])
    path = clone / "kernels/ops/norms/layernorm.py"
    path.write_text("def layer_norm(x):\n    return 2 * x\n")
    (before,) = recordings("norms", data)
    assert sources.age(before.provenance, sources.of_folder(clone)) is None  # nothing tells
    assert adopt.run("norms", clone, data) == 0
    (after,) = recordings("norms", data)
    assert after.provenance == {**before.provenance, "sources": then}
    assert (data / "t4/norms.csv").read_bytes() == rows
    told = "The sources of layernorm have changed since the recording"
    assert sources.age(after.provenance, sources.of_folder(clone)) == told
    path.unlink()
    assert sources.age(after.provenance, sources.of_folder(clone)) == told
    git(clone, "checkout", "-q", "--", ".")
    assert sources.age(after.provenance, sources.of_folder(clone)) is None
    assert adopt.run("norms", clone, data) == 0
    assert "already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"dirty": True}, "no commit without changes"),
        ({"commit": None}, "no commit without changes"),
        ({"commit": "0" * 40}, "commit 0000000000 is not in this clone"),
    ],
)
def test_what_cannot_be_known_is_refused(clone, changed, told):
    path = clone / "book/data/t4/norms.csv"
    rows, before = read_suite(path)
    write_suite(path, rows, before | changed)
    with pytest.raises(selection.RefusalError, match=told):
        adopt.run("norms", clone, clone / "book/data")
    with pytest.raises(selection.RefusalError, match="recorded on no card"):
        adopt.run("attention", clone, clone / "book/data")


def test_the_report_says_that_a_recording_is_older_than_its_kernels():
    tree = sources.of_folder(ROOT)
    recording = next(iter(recordings("norms")))
    hashes = sources.of_operations(tree, "norms", ["layernorm", "softmax"])
    recording.provenance["sources"] = hashes
    assert "The sources of" not in lab_report.boundary(recording)
    recording.provenance["sources"] = hashes | {"softmax": "0" * 16}
    assert "- The sources of softmax have changed since the recording: " in lab_report.boundary(
        recording
    )


def test_what_is_recorded_tells_its_sources():
    for path in DATA_DIR.glob("*/*.json"):
        rows_of = path.with_suffix(".csv")
        if path.name != "proofs.json" and rows_of.exists():  # what stands beside suites has none
            told = json.loads(path.read_text(encoding="utf-8"))
            rows, _ = read_suite(rows_of)
            assert told["sources"].keys() == {row.op for row in rows}, path
