"""Mutants of a solution's kernels: one small change each, of the kind that readers make."""

from __future__ import annotations

import ast
import copy
import json
import linecache
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.paths import ROOT

_SWAPPED: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
}


@dataclass(frozen=True)
class Graded:
    """One question's code cells in a solution notebook, and the answer that its check names."""

    question: str
    answer: str
    cells: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Mutant:
    """A cell with one change; `told` says which, as `mask dropped: tl.load(...)`."""

    cell: str
    source: str
    told: str


def graded(path: Path) -> Iterator[Graded]:
    """Every question of a solution notebook, with all code cells up to its check."""
    cells: list[tuple[str, str]] = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code" or "setup" in cell["metadata"].get("tags", []):
            continue
        source = "".join(cell["source"])
        last = ast.parse(source).body[-1]
        call = last.value if isinstance(last, ast.Expr) else None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and (call.func.id == "check")
        ):
            question, answer = call.args
            yield Graded(ast.literal_eval(question), ast.unparse(answer), tuple(cells))
        else:
            cells.append((cell["id"], source))


def asked_in(slug: str) -> dict[str, Graded]:
    """Every question of the solution notebook `slug`, by its number."""
    return {one.question: one for one in graded(ROOT / "solutions" / f"{slug}.ipynb")}


def _is_constant(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    values = node.value.elts if isinstance(node.value, ast.List) else [node.value]
    return all(isinstance(value, ast.Constant) for value in values)


def _is_kernel(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list
    )


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """What can be done to a node: what it is called, and a function that does it in place."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tl.load", "tl.store"):
        if any(keyword.arg == "mask" for keyword in node.keywords):

            def unmask(call: Any) -> None:
                call.keywords = [k for k in call.keywords if k.arg not in ("mask", "other")]

            yield "mask dropped", unmask
        if any(keyword.arg == "other" for keyword in node.keywords):

            def fill(call: Any) -> None:
                for keyword in call.keywords:
                    if keyword.arg == "other":
                        keyword.value = ast.Constant(1.0)

            yield "other filled", fill
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):

        def widen(compare: Any) -> None:
            compare.ops[0] = ast.LtE()

        def narrow(compare: Any) -> None:
            compare.comparators[0] = ast.BinOp(compare.comparators[0], ast.Sub(), ast.Constant(1))

        yield "bound one up", widen
        yield "bound one down", narrow
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:

        def swap(operation: Any) -> None:
            operation.op = _SWAPPED[type(operation.op)]

        yield "operator swapped", swap
    if isinstance(node, ast.Attribute) and node.attr == "float32":

        def half(attribute: Any) -> None:
            attribute.attr = "float16"

        yield "accumulator narrowed", half


def mutants(asked: Graded, cell: str) -> Iterator[Mutant]:
    """Every mutant of the kernels in one cell."""
    tree = ast.parse(dict(asked.cells)[cell])
    # Positions stay the same in a copy: a node is found again by where it is in the walk.
    for place, kernel in enumerate(tree.body):
        if not _is_kernel(kernel):
            continue
        for number, node in enumerate(ast.walk(kernel)):
            for name, change in _changes(node):
                changed = copy.deepcopy(tree)
                target = list(ast.walk(changed.body[place]))[number]
                before = ast.unparse(target)
                change(target)
                told = f"{name}: {before} -> {ast.unparse(target)}"
                yield Mutant(cell, ast.unparse(ast.fix_missing_locations(changed)), told)


def formula_mutants(asked: Graded, cell: str) -> Iterator[Mutant]:
    """Every mutant of a cell that launches nothing, with the changes that kernels get."""
    tree = ast.parse(dict(asked.cells)[cell])
    for number, node in enumerate(ast.walk(tree)):
        for name, change in _changes(node):
            changed = copy.deepcopy(tree)
            target = list(ast.walk(changed))[number]
            before = ast.unparse(target)
            change(target)
            source = ast.unparse(ast.fix_missing_locations(changed))
            yield Mutant(cell, source, f"{asked.question} {name}: {before}")


def reworded(asked: Graded, cell: str, changes: Sequence[tuple[str, str, str]]) -> list[Mutant]:
    """One mutant for each change of a cell: what it is called, a pattern, what stands there then.

    Only the first match is changed; AssertionError where there is none.
    """
    source = dict(asked.cells)[cell]
    made = []
    for told, there, then in changes:
        changed, count = re.subn(there, then, source, count=1)
        assert count, told
        made.append(Mutant(cell, changed, told))
    return made


def answer_of(asked: Graded, mutant: Mutant | None = None) -> Any:
    """The function that answers a question, with one cell replaced by its mutant."""
    module = types.ModuleType(f"solution_{asked.question.replace('.', '_')}")
    for cell, source in asked.cells:
        if mutant is not None and cell == mutant.cell:
            source = mutant.source
        name = f"<{asked.question} {cell} {mutant.told if mutant else ''}>"
        # Triton reads a kernel's source from here, as in a notebook.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        wanted = [
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)
            or _is_constant(node)
        ]
        exec(compile(ast.Module(wanted, []), name, "exec"), module.__dict__)
    return module.__dict__[asked.answer]
