"""The package's modules import in one direction only, and its page names every folder."""

import ast
import re
from pathlib import Path

from kernels.paths import ROOT


def modules(root: Path) -> dict[str, Path]:
    """The modules of the package below `root`, by dotted name."""
    found = {}
    for path in sorted((root / "kernels").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(root: Path) -> dict[str, set[str]]:
    """What each module imports of the package: at its top, in a function, for types alone."""
    known = modules(root)
    graph = {}
    for name, path in known.items():
        wanted = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.level == 0, f"{path}:{node.lineno} imports relatively"
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    wanted.add(inner if inner in known else node.module)
        graph[name] = {one for one in wanted if one in known and one != name}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A chain of modules that leads back to its first, or nothing."""
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        path.append(name)
        for other in sorted(graph[name]):
            if found := visit(other):
                return found
        path.pop()
        done.add(name)
        return []

    for name in graph:
        if found := visit(name):
            return found
    return []


def test_the_page_on_the_package_says_what_lives_in_every_folder():
    told = (ROOT / "kernels/README.md").read_text(encoding="utf-8")
    sources = (
        path for path in (ROOT / "kernels").rglob("*") if path.suffix in (".py", ".cpp", ".cuh")
    )
    names = {path.parent.name for path in sources} - {"kernels"}
    chapters = {re.sub(r"^ch\d+$", "chNN", name) for name in names}
    assert [name for name in sorted(chapters) if f"{name}/" not in told] == []


def test_no_circle_of_imports():
    graph = imports(ROOT)
    assert len(graph) > 150
    assert circle(graph) == []


def of_other_chapters(graph: dict[str, set[str]]) -> list[str]:
    """Questions that import what stands in another chapter's folder, and kits that import any."""
    questions = "kernels.grading.questions."

    def folder(name: str) -> str:
        return name.removeprefix(questions).partition(".")[0] if name.startswith(questions) else ""

    return [
        f"{name} imports {other}"
        for name in sorted(graph)
        if folder(name)
        for other in sorted(graph[name])
        if folder(other).startswith("ch") and folder(other) != folder(name)
    ]


def test_a_chapters_questions_take_what_they_share_from_the_kits():
    graph = imports(ROOT)
    kits = {name for name in graph if name.startswith("kernels.grading.questions.kits.")}
    assert any(kits & graph[name] for name in graph if ".questions.ch" in name)
    assert of_other_chapters(graph) == []


def test_a_question_that_takes_from_another_chapter_is_found():
    one, two, kit = (f"kernels.grading.questions.{at}" for at in ("ch01.a", "ch02.b", "kits.c"))
    registers = {"kernels.grading.questions": {one, two}}
    assert of_other_chapters(registers | {one: {kit}, two: {kit}, kit: set()}) == []
    found = of_other_chapters({one: {two}, two: set(), kit: {one}})
    assert found == [f"{one} imports {two}", f"{kit} imports {one}"]


def test_a_circle_is_found_wherever_it_hides(tmp_path):
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from kernels import two\n")
    (package / "two.py").write_text("def call():\n    from kernels.three import name\n")
    (package / "three.py").write_text("name = 1\n")
    assert circle(imports(tmp_path)) == []
    (package / "three.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kernels.one\n"
    )
    assert circle(imports(tmp_path)) == [
        "kernels.one",
        "kernels.two",
        "kernels.three",
        "kernels.one",
    ]
