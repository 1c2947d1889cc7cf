"""What a page can see: the files of the clone that the outputs of a notebook may come from.

Read from the text; nothing is imported. The notebook's code names modules, those name others, and
so on. An import counts wherever it stands, within a function too. So does a module that a string
names, since it may be imported by it or run by it. Where the notebook's code can't be followed, it
sees all of the package. The build compares with what a notebook really loaded, so that a way to
import which is not known here fails the page instead of leaving it old.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "kernels"
_DOTTED = re.compile(r"\w+(?:\.\w+)*")
_ABSOLUTE = re.compile(rf"\b{PACKAGE}(?:\.\w+)+")
# Code that may import what no text names.
_UNKNOWN = frozenset("exec eval __import__ import_module run_module run_path get_ipython".split())
_METHODS = frozenset(["eval"])  # `layer.eval()`: of an object it is another
_DATA = re.compile(r"DATA_DIR|[\"'/]data[\"'/]")
_NAMES_THE_FOLDER = f"{PACKAGE}/paths.py"

# A module, and a name that is taken from it; without one, "", the module itself is.
Named = tuple[str, str]


@dataclass(frozen=True)
class _Text:
    """What a module's text names, and what stands behind the names that it loads when asked."""

    named: frozenset[Named]
    later: dict[str, Named]
    data: bool


def files_below(folder: Path) -> list[Path]:
    """Return every file below a folder, in order, Python's own caches left out."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def seen(notebook: Path, root: Path) -> list[Path]:
    """Return the files below `root` that a notebook's outputs may come from, itself apart.

    These are modules, what lies beside them, and the data if one of them names it.
    """
    code = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    data = files_below(root / "book" / "data")
    try:
        trees = [ast.parse(source) for source in code]
    except SyntaxError:  # a magic, say, or a command of the shell
        return [*files_below(root / PACKAGE), *data]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    if any(_calls_unknown(node) for node in nodes):
        return [*files_below(root / PACKAGE), *data]
    named = set(_named(nodes, ""))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for module in _ABSOLUTE.findall(node.value):
                named |= {(module, ""), (f"{module}.__main__", "")}
    modules = _reached(named, root)
    sees_data = any(_DATA.search(source) for source in code) or any(
        _read(file, package).data
        for file, package in modules.items()
        if file.relative_to(root).as_posix() != _NAMES_THE_FOLDER
    )
    found = {*modules, *(other for file in modules for other in _beside(file.parent))}
    return [*sorted(found), *(data if sees_data else [])]


def _calls_unknown(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        of_builtins = getattr(called.value, "id", "") == "builtins"
        return called.attr in _UNKNOWN and (called.attr not in _METHODS or of_builtins)
    return getattr(called, "id", "") in _UNKNOWN


def _reached(named: set[Named], root: Path) -> dict[Path, str]:
    """The files of the modules that are named, and of those that they name; each one's package."""
    reached: dict[Path, str] = {}
    texts: dict[str, _Text | None] = {}
    known: set[Named] = set()
    waiting = list(named)
    while waiting:
        one = waiting.pop()
        if one in known:
            continue
        known.add(one)
        for module, name in _found(one, root):
            parts = module.split(".")
            for length in range(1, len(parts) + 1):
                above = ".".join(parts[:length])
                if above not in texts:
                    texts[above], file = None, _file(above, root)
                    if file is not None:  # it is no folder without an __init__.py
                        package = above if file.stem == "__init__" else above.rpartition(".")[0]
                        texts[above], reached[file] = _read(file, package), package
                        waiting += _read(file, package).named
                text = texts[above]
                if length == len(parts) and text is not None and text.later:
                    waiting += [text.later[name]] if name in text.later else []
                    waiting += text.later.values() if name in ("", "*") else []
    return reached


def _found(one: Named, root: Path) -> Iterator[Named]:
    """What of it is there: the module with the name taken, or a module of the name itself."""
    module, name = one
    while module and _file(module, root) is None and not _folder(module, root).is_dir():
        # An object in a module, as in `kernels.lab.plots.bars`.
        module, _, name = module.rpartition(".")
    if not module:
        return
    inner = f"{module}.{name}" if name else module
    if name and _file(inner, root) is not None:
        yield inner, ""
    else:
        yield module, name


def _folder(module: str, root: Path) -> Path:
    return root.joinpath(*module.split("."))


def _file(module: str, root: Path) -> Path | None:
    path = _folder(module, root)
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file
    return None


def _beside(folder: Path) -> Iterator[Path]:
    """What a folder of modules holds beside them, its folders without modules included."""
    for path in folder.iterdir():
        if path.is_dir():
            if path.name != "__pycache__" and not (path / "__init__.py").exists():
                yield from files_below(path)
        elif path.suffix != ".py":
            yield path


def _read(file: Path, package: str) -> _Text:
    told = file.stat()
    return _parsed(file, package, told.st_mtime_ns, told.st_size)


@functools.cache
def _parsed(file: Path, package: str, changed_ns: int, size: int) -> _Text:
    """What a file's text names, read once for each state of it: pages see much the same files."""
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    table = _loaded_when_asked(tree)
    later: dict[str, Named] = {}
    told = set()
    if table is not None:
        told = {id(node) for node in ast.walk(table)}
        for key, value in zip(table.keys, table.values, strict=True):
            place, _, inside = str(getattr(value, "value", "")).partition(":")
            later[str(getattr(key, "value", ""))] = (f"{package}.{place}", inside)
    named = set(_named(nodes, package))
    imports_by_name = any(_calls_unknown(node) for node in nodes)
    for node in nodes:
        if not isinstance(node, ast.Constant) or id(node) in told:
            continue
        place, _, inside = node.value.partition(":") if isinstance(node.value, str) else ("",) * 3
        if _ABSOLUTE.fullmatch(place):
            named |= {(place, inside), (f"{place}.__main__", "")}
        elif imports_by_name and _DOTTED.fullmatch(place.lstrip(".")):
            named.add((f"{package}.{place.lstrip('.')}", inside))
    return _Text(frozenset(named), later, bool(_DATA.search(source)))


def _loaded_when_asked(tree: ast.Module) -> ast.Dict | None:
    """A module's table of the names that its `__getattr__` loads, as in `kernels/lab`."""
    if not any(isinstance(n, ast.FunctionDef) and n.name == "__getattr__" for n in tree.body):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            both = [*node.value.keys, *node.value.values]
            if all(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in both):
                return node.value
    return None


def _named(nodes: Iterable[ast.AST], package: str) -> Iterator[Named]:
    """What imports name, and `kernels.some.attribute`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute):
            holder = _dotted(node.value)
            if holder.split(".")[0] == PACKAGE:
                yield holder, node.attr


def _dotted(node: ast.AST) -> str:
    """`kernels.lab` of an expression that reads so, "" of any other."""
    if isinstance(node, ast.Attribute):
        holder = _dotted(node.value)
        return f"{holder}.{node.attr}" if holder else ""
    return node.id if isinstance(node, ast.Name) else ""
