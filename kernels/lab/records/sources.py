"""A hash of what matters of a source, and of the sources that a module is made of.

What a GPU proved holds while these stay as they were. A comment, a docstring, a blank line or a
type annotation proves nothing and is left out, so that a better sentence needs no GPU.

- A Python file is told by its syntax tree, written here field by field: `ast.dump` differs between
  versions of Python (type_params since 3.12, empty fields left out since 3.13). Empty fields are
  left out always, strings are written in ASCII, and parts of an f-string are joined, so that 3.11
  and newer agree. Annotations stay in functions with a decorator `jit` or `kernel`, and where they
  say `constexpr`: Triton compiles them.
- A source in C++ is told by its lines without comments.

A module is made of itself and of what it imports, also within functions, as far as that lies in
`kernels/ops` or in `kernels/philox*.py`, which kernels call; then of the CUDA sources that a string
in them names, and of the headers these include. A list by hand would forget one: the forward's
launch lies in a file, its strides in another. The instruments (`kernels/lab`), the registry and the
launcher count only where they are named, file by file or as a folder: they change often, and each
is tested with no GPU.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

C_SUFFIXES = (".cu", ".cuh", ".cpp", ".h")
SUFFIXES = (".py", *C_SUFFIXES)
FOLDERS = ("kernels", "tests")
FOLLOWED = ("kernels/ops/", "kernels/philox")
DIGITS = 16  # of a hash that is written down

# Fields that hold nothing, or only what tools read.
_SILENT = ("ctx", "kind", "returns", "type_comment", "type_params")
_C_WORDS = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL
)
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Tree:
    """The sources of a clone: their paths below its root, with `/`, and the text of each."""

    texts: Mapping[str, str]

    @functools.cached_property
    def known(self) -> dict[tuple[Any, ...], Any]:
        """What was found out of the texts so far: many proofs rest on the same files."""
        return {}

    @functools.cached_property
    def by_name(self) -> dict[str, list[str]]:
        """The paths of each file name."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.texts):
            found.setdefault(PurePosixPath(path).name, []).append(path)
        return found


def of_folder(root: Path) -> Tree:
    """Return the sources as they lie below `root`."""
    paths = [path for name in FOLDERS for path in (root / name).rglob("*.*")]
    return Tree(
        {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for path in paths
            if path.suffix in SUFFIXES and path.is_file()
        }
    )


def of_commit(root: Path, commit: str) -> Tree:
    """Return the sources as they were at a commit; LookupError if the clone does not have it."""
    command = ["git", "-C", str(root), "archive", "--format=tar", commit, *FOLDERS]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise LookupError(f"commit {commit[:10]} is not in this clone: git fetch --unshallow")
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name.endswith(SUFFIXES) else None
            if file is not None:
                texts[member.name] = file.read().decode("utf-8")
    return Tree(texts)


def _names(node: ast.AST) -> Iterator[str]:
    """Every name and attribute in a piece of code, and every string."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def is_proves(decorator: ast.AST) -> bool:
    """Whether a decorator is `pytest.mark.proves(…)`."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "proves"


def _says_nothing(node: object) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _joined(parts: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string, its neighbouring strings as one."""
    found: list[ast.expr] = []
    for part in parts:
        last = found[-1] if found else None
        if not isinstance(part, ast.Constant):
            found.append(part)
        elif isinstance(last, ast.Constant):
            found[-1] = ast.Constant(str(last.value) + str(part.value))
        elif part.value:
            found.append(part)
    return found


def told(value: object, compiled: bool = False) -> str:
    """Return a piece of syntax tree as text, the same in every version of Python.

    `compiled` says that it stands in a kernel, whose annotations matter.
    """
    if isinstance(value, list):
        return f"[{', '.join(told(v, compiled) for v in value if not _says_nothing(v))}]"
    if not isinstance(value, ast.AST):
        return ascii(value)
    fields: dict[str, Any] = dict(ast.iter_fields(value))
    name = type(value).__name__
    if isinstance(value, ast.FunctionDef | ast.AsyncFunctionDef):
        fields["decorator_list"] = [d for d in value.decorator_list if not is_proves(d)]
        said = {name for decorator in value.decorator_list for name in _names(decorator)}
        compiled = compiled or bool(said & {"jit", "kernel"})
    elif isinstance(value, ast.JoinedStr):
        fields["values"] = _joined(value.values)
    annotation = fields.get("annotation")
    if annotation is not None and not compiled and "constexpr" not in " ".join(_names(annotation)):
        del fields["annotation"]
        if isinstance(value, ast.AnnAssign) and value.value is not None:
            name, fields = "Assign", {"targets": [value.target], "value": value.value}
    kept = sorted((k, v) for k, v in fields.items() if k not in _SILENT and v not in (None, []))
    return f"{name}({', '.join(f'{k}={told(v, compiled)}' for k, v in kept)})"


def hashed(text: str) -> str:
    """Return the hash of a text as it is written down."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@functools.cache
def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(text)


@functools.cache
def digest(text: str, python: bool) -> str:
    """Return the hash of what matters of a source, in Python or in C++."""
    if python:
        return hashed(told(parsed(text).body))
    bare = _C_WORDS.sub(lambda match: match[1] or " ", text)
    return hashed("\n".join(line.strip() for line in bare.splitlines() if line.strip()))


def module_path(tree: Tree, module: str) -> str | None:
    """Return the path of a module by dotted name, of a package its `__init__.py`."""
    stem = module.replace(".", "/")
    return next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if p in tree.texts), None)


def imported(tree: Tree, node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """What an import brings from the tree: the name here, the file, and the name there or ""."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if path := module_path(tree, alias.name):
                yield alias.asname or alias.name.partition(".")[0], path, ""
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            here = alias.asname or alias.name
            if path := module_path(tree, f"{node.module}.{alias.name}"):
                yield here, path, ""
            elif path := module_path(tree, node.module):
                yield here, path, alias.name


def _file(tree: Tree, beside: str, name: str) -> list[str]:
    """The file that a string or an include in the source `beside` names: next to it, or below."""
    near = str(PurePosixPath(beside).parent / name)
    return [near] if near in tree.texts else tree.by_name.get(PurePosixPath(name).name, [])


def _leads_to(tree: Tree, path: str) -> set[str]:
    if ("leads", path) not in tree.known:
        tree.known["leads", path] = _found_in(tree, path)
    return tree.known["leads", path]


def _found_in(tree: Tree, path: str) -> set[str]:
    """The files that a source imports, names or includes."""
    text = tree.texts[path]
    if not path.endswith(".py"):
        return {file for name in _INCLUDE.findall(text) for file in _file(tree, path, name)}
    found = set()
    for node in ast.walk(parsed(text)):
        found |= {file for _, file, _ in imported(tree, node)}
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and re.fullmatch(r"[\w./-]+\.cuh?", value):
            found |= set(_file(tree, path, value))
    return found


def named(tree: Tree, source: str) -> list[str]:
    """Return the files of a module, a file or a folder (with `/` at its end).

    LookupError with one sentence if the tree has none.
    """
    if source in tree.texts:
        return [source]
    below = [path for path in tree.texts if source.endswith("/") and path.startswith(source)]
    one = module_path(tree, source)
    if not below and one is None:
        raise LookupError(f"source {source!r} is no module, file or folder (with /) of the package")
    return sorted(below) or [str(one)]


def made_of(
    tree: Tree, sources: Iterable[str], within: tuple[str, ...] = FOLLOWED
) -> dict[str, str]:
    """Return the path and hash of every file that the sources are made of, in order of paths.

    Imports are followed to files whose path begins with one of `within`.
    """
    pending = [path for source in sources for path in named(tree, source)]
    seen: set[str] = set()
    while pending:
        path = pending.pop()
        if path not in seen:
            seen.add(path)
            pending += [
                other
                for other in _leads_to(tree, path)
                if other.endswith(C_SUFFIXES) or other.startswith(within)
            ]
    return {path: digest(tree.texts[path], path.endswith(".py")) for path in sorted(seen)}


def together(hashes: Mapping[str, str]) -> str:
    """Return one hash of many, each with its path."""
    return hashed("\n".join(f"{path} {hashes[path]}" for path in sorted(hashes)))


def of_operations(tree: Tree, suite: str, names: Iterable[str]) -> dict[str, str]:
    """Return the hash of what each operation of a suite is made of, by the operation's name.

    Its module is the file of its name in `kernels/ops`; the ceilings share one in `kernels/lab`.
    One that has no file of its name is left out.
    """
    found = {}
    for name in names:
        file = "ceilings.py" if suite == "ceilings" else f"{name}.py"
        below = "kernels/lab/" if suite == "ceilings" else "kernels/ops/"
        paths = [path for path in tree.by_name.get(file, []) if path.startswith(below)]
        if len(paths) == 1:
            beside = f"{PurePosixPath(paths[0]).parent}/"
            found[name] = together(made_of(tree, paths, (*FOLLOWED, beside)))
    return found


def changed_since(record: Mapping[str, Any], tree: Tree) -> list[str]:
    """Return the operations of a suite's `<suite>.json` whose sources have changed since."""
    then: Mapping[str, str] = record.get("sources", {})
    now = of_operations(tree, str(record.get("suite", "")), then)
    return [name for name in then if now.get(name) != then[name]]


def age(record: Mapping[str, Any], tree: Tree) -> str | None:
    """Return one sentence about a recording that is older than its sources, or None."""
    changed = changed_since(record, tree)
    if not changed:
        return None
    return f"The sources of {', '.join(changed)} have changed since the recording"
