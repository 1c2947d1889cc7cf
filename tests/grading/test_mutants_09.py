"""The checks of set 09 catch mutants of its answers in Python; `test_mutants` has the kernels'."""

import ast
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from kernels.grading.generate import BEGIN
from kernels.paths import ROOT
from tests.grading.mutation import Graded, Mutant, answer_of, graded
from tests.grading.verdict import fault, survivors

PATH = ROOT / "solutions" / "09_what_compilers_fuse.ipynb"
WRITTEN = ("09.1", "09.2", "09.3", "09.4", "09.5", "09.6", "09.7", "09.8", "09.10")
_SWAPPED: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
}
# Mutants that compute the same, each with the reason.
_PROMOTED = "PyTorch converts the narrower of two operands to the dtype of the other"
SAME = {
    (question, f"without .float(): {name}.float()"): _PROMOTED
    for question, names in (("09.2", "bc"), ("09.3", "abc"))
    for name in names
}


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """What can be done to a node: what it is called, and what stands in its place then."""
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
        yield "operator swapped", ast.BinOp(node.left, _SWAPPED[type(node.op)], node.right)
        yield "left alone", node.left
        if isinstance(node.op, ast.Add | ast.Mult):
            yield "right alone", node.right
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "one more", ast.Constant(node.value + 1)
    if isinstance(node, ast.Constant) and type(node.value) is float:
        yield "ten times", ast.Constant(node.value * 10)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "negated", ast.Constant(not node.value)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
        yield "equal or not", ast.Compare(node.left, [ast.NotEq()], node.comparators)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args == []:
        yield f"without .{node.func.attr}()", node.func.value


class _Replace(ast.NodeTransformer):
    """Put another node in the place of one."""

    def __init__(self, target: ast.AST, by: ast.AST) -> None:
        self._target, self._by = target, by

    def visit(self, node: ast.AST) -> ast.AST:
        return self._by if node is self._target else super().generic_visit(node)


def mutants(asked: Graded) -> Iterator[Mutant]:
    """Every mutant of the function that answers a question."""
    cell, source = next(
        (cell, source)
        for cell, source in asked.cells
        if BEGIN in source and f"def {asked.answer}(" in source
    )
    count = len(list(ast.walk(ast.parse(source))))
    for number in range(count):
        tree = ast.parse(source)
        target = list(ast.walk(tree))[number]
        for place, (name, by) in enumerate(list(_changes(target))):
            tree = ast.parse(source)
            target = list(ast.walk(tree))[number]
            name, by = list(_changes(target))[place]
            told = f"{name}: {ast.unparse(target)}"
            changed = _Replace(target, copy.deepcopy(by)).visit(tree)
            yield Mutant(cell, ast.unparse(ast.fix_missing_locations(changed)), told)


@pytest.mark.parametrize("question", WRITTEN)
def test_mutants_are_caught(question):
    (asked,) = (one for one in graded(PATH) if one.question == question)
    made = list(mutants(asked))
    assert len(made) >= 3
    assert fault(question, answer_of(asked)) == ""
    lived = survivors(asked, made)
    assert [one for one in lived if (question, one) not in SAME] == []
