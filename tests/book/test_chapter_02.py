"""What chapter 02 shows stands in the package too, and what it derives is what is counted."""

import ast
import inspect
import json

import torch

from kernels.lab.counting.op_ledger import count_op
from kernels.ops.norms import layernorm
from kernels.paths import ROOT
from kernels.registry import get

CHAPTER = "02_layernorm_by_hand.ipynb"


def cells(kind, name=CHAPTER):
    """The texts of a chapter's code or Markdown cells."""
    chapter = json.loads((ROOT / "book" / name).read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in chapter["cells"] if c["cell_type"] == kind]


def plain(function):
    """A function without annotations and docstring, as text."""
    function.returns = None
    for argument in function.args.args:
        argument.annotation = None
    if isinstance(function.body[0], ast.Expr):
        function.body = function.body[1:]
    return ast.unparse(function)


def test_the_eager_function_on_the_page_is_the_packages():
    (shown,) = [
        node
        for source in cells("code")
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "eager"
    ]
    (kept,) = ast.parse(inspect.getsource(layernorm.eager)).body
    assert plain(shown) == plain(kept)


def test_the_derivation_on_the_page_is_what_the_ledger_counts():
    (page,) = [source for source in cells("markdown") if "The count, line by line" in source]
    table = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    told = [(row[0].count("`") // 2, int(row[-1])) for row in table]
    rows, cols = 256, 100_000  # so that statistics and parameters vanish in rounding
    ledger = count_op(get("layernorm"), "eager", (rows, cols), torch.bfloat16)
    counted = [round(step.bytes_unique / (rows * cols)) for step in ledger]
    # `+ eps` and `rsqrt` share a line.
    assert [operators for operators, _ in told] == [1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert [size for _, size in told] == counted[:6] + counted[7:]
    assert sum(counted) == 60
    assert "| **60** |" in page


def test_the_bytes_of_the_recorded_rows_are_those_that_are_counted_today():
    """Each variant in bf16 at every shape, in fp32 at one of each width, in fp16 at the narrowest.

    Elsewhere fp16 moves what bf16 does, and more rows move the same bytes a row.
    """
    from kernels.lab.records.data import recordings
    from kernels.registry import parse_dtype, parse_shape

    op = get("layernorm")
    first = {}  # of a variant, width and kind of dtype: the shape and dtype that are counted
    recorded = {
        one.gpu: [row for row in one.select(op="layernorm", pass_="fwd") if row.bytes_unique]
        for one in recordings("norms")
    }
    # A run may time alone, and leave the counts out of all of its rows. The H100's has them.
    assert recorded["h100-sxm"]
    for counted in filter(None, recorded.values()):
        assert {row.dtype for row in counted} == {"bf16", "fp16", "fp32"}
        for row in sorted(counted, key=lambda row: row.dtype):  # bf16 before fp16
            shape, dtype = parse_shape(row.shape), parse_dtype(row.dtype)
            kind = row.dtype if shape[1] == 1024 else dtype.itemsize
            like = first.setdefault((row.variant, shape[1], kind), (shape, dtype))
            if row.dtype == "bf16" or op.variant(row.variant).counted == "aten":
                like = shape, dtype
            ledger = count_op(op, row.variant, *like)
            of_parameters = sum(ledger.tensor(name).read_unique for name in ("weight", "bias"))
            of_rows = ledger.bytes_unique - of_parameters
            assert row.bytes_unique == of_parameters + of_rows * shape[0] / like[0][0]
            # Every operator of LayerNorm is one launch, as the profiler saw.
            assert row.launches == ledger.aten_ops + ledger.launches
