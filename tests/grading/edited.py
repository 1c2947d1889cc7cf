"""A solution with a slip in it: words of its cells replaced, as a reader would mistype them."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from typing import Any

from kernels.paths import ROOT
from tests.grading.mutation import Graded, graded


@functools.cache
def _solutions() -> dict[str, Graded]:
    paths = sorted((ROOT / "solutions").glob("*.ipynb"))
    return {one.question: one for path in paths for one in graded(path)}


def _is_source(node: ast.AST) -> bool:
    """Whether a cell's line keeps a text, a number, or a module of CUDA C++."""
    if not isinstance(node, ast.Assign):
        return False
    value = node.value
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "cuda"
    parts = [value.left, value.right] if isinstance(value, ast.BinOp) else [value]
    return all(isinstance(part, ast.Constant | ast.Name) for part in parts)


def edited(question: str, *edits: tuple[str, str]) -> Any:
    """The answer of a question's solution, each of `edits` made wherever its first text stands."""
    asked = _solutions()[question]
    module = types.ModuleType(f"edited_{question.replace('.', '_')}")
    left = dict(edits)
    for cell, source in asked.cells:
        for before, after in edits:
            if before in source:
                left.pop(before, None)
            source = source.replace(before, after)
        name = f"<{question} {cell} {hash(edits)}>"
        # Triton reads a kernel's source from here, as in a notebook.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
        wanted = [n for n in ast.parse(source).body if isinstance(n, kept) or _is_source(n)]
        exec(compile(ast.Module(wanted, []), name, "exec"), module.__dict__)
    assert not left, f"{question} has nowhere {list(left)}"
    return module.__dict__[asked.answer]
