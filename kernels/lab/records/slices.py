"""What a test is made of: its function, and what that uses of its file and of other tests' files.

A bound, a list of shapes or a helper decides as much as the function's own lines, so these count
too; a neighbouring test does not.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from kernels.lab.records import sources
from kernels.lab.records.sources import Tree

TESTS = "tests/"
_PLAIN = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.Import,
    ast.ImportFrom,
)


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds, also deep within it."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield part.name


def _own(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a file binds in the file."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):  # also `CASES["one"] = …`
        for target in node.targets:
            yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
    else:
        yield from _bound(node)


def _used(node: ast.AST) -> Iterator[str]:
    """The names that a statement mentions: also its arguments (fixtures) and its strings."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


@functools.cache  # a file's statements are kept with it, and asked once for every name
def _names(node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a statement of a file binds in the file, and those that it mentions."""
    return frozenset(_own(node)), frozenset(_used(node))


def _is_automatic(node: ast.stmt) -> bool:
    """Whether it is a fixture that every test of the file gets unasked."""
    decorators = getattr(node, "decorator_list", [])
    return any(
        isinstance(part, ast.keyword) and part.arg == "autouse"
        for decorator in decorators
        for part in ast.walk(decorator)
    )


class _Slice:
    """The statements that count, gathered from one name on."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.kept: set[str] = set()
        self._seen: set[tuple[str, str]] = set()

    def _body(self, path: str) -> list[ast.stmt]:
        return sources.parsed(self.tree.texts[path]).body

    def _keep(self, path: str, node: ast.stmt) -> None:
        text = f"{path} {sources.told(node)}"
        if text in self.kept:
            return
        self.kept.add(text)
        for name in sorted(_names(node)[1]):
            self.name(path, name)
        for part in ast.walk(node):
            for _, file, name in sources.imported(self.tree, part):
                self._other(file, name)

    def _import(self, path: str, node: ast.Import | ast.ImportFrom, name: str) -> None:
        """Keep where a name comes from, as another's `reference` is another test."""
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) == name:
                self.kept.add(f"{path} {name}: {getattr(node, 'module', '')} {alias.name}")
        for here, file, there in sources.imported(self.tree, node):
            if here == name:
                self._other(file, there)

    def _other(self, file: str, name: str) -> None:
        """Follow an import of another file of the tests; a module that is taken whole counts so."""
        if file.startswith(TESTS):
            if name:
                self.name(file, name)
            else:
                self.whole(file)

    def name(self, path: str, name: str) -> None:
        """Keep what gives a name of a file its value, and what that uses."""
        if (path, name) in self._seen:
            return
        self._seen.add((path, name))
        if name.startswith("tests.") and (file := sources.module_path(self.tree, name)):
            self.whole(file)  # run as a program of its own
        for node in self._body(path):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(path, node, name)
            elif name in _names(node)[0] or (
                not isinstance(node, _PLAIN) and name in _names(node)[1]
            ):
                self._keep(path, node)  # a loop that fills a table counts as its value

    def whole(self, path: str) -> None:
        """Keep all of a file."""
        for node in self._body(path):
            self._keep(path, node)


def of_test(tree: Tree, test: str) -> str:
    """Return the hash of a test, `tests/gpu/test_norms_gpu.py::test_the_same_bits`."""
    path, _, name = test.partition("::")
    found = _Slice(tree)
    found.name(path, name)
    found.name(path, "pytestmark")
    for node in sources.parsed(tree.texts[path]).body:
        if _is_automatic(node):
            found.name(path, str(getattr(node, "name", "")))
    return sources.hashed("\n".join(sorted(found.kept)))
