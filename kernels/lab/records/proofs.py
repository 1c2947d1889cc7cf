"""Proofs: what only a GPU can show, kept as rows that hold while the sources stay as they were.

A test says what it proves by a marker beside `gpu`, in modules, files or folders (with `/`):

    @pytest.mark.proves("kernels.ops.norms.forward", "kernels/ops/norms/layernorm.cu")

`make gpu` runs these tests and writes a row for each that passed, in all its cases, into
`<gpu>/proofs.csv`. The row's hash is over what the sources are made of (see
`kernels.lab.records.sources`) and over the test (see `kernels.lab.records.slices`);
`proofs.json` beside it holds the hash of each file, so that a stale proof can say which one
changed. `make test` needs no GPU: it asks for every test marked `proves` that one card at least
has a row with the hash of today's sources. The versions of PyTorch and Triton stand in the row and
are no part of the hash: a GPU machine brings its own.

A test that failed loses the card's row. One with a skipped case proves nothing, and an earlier row
stays, unless the reason begins with `not on this card`: then the other cases are the proof.

Where sources changed and no GPU was at hand, a proof may be *owed*: `owed.csv` says why, with the
hash of the sources as they are. A further change of them is red again, as is an entry that has
been proved since.

    python -m kernels.lab proofs               # what is proved, where, when, valid or stale
    python -m kernels.lab proofs owe "why"     # write down what is not proved today
    python -m kernels.lab proofs adopt norms   # give older recordings the hashes of their commit
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from kernels.lab.records import slices, sources
from kernels.lab.records.sources import Tree

FILE = "proofs.csv"
OWED = "owed.csv"
PASSED = "passed"
NOT_HERE = "not on this card"
THE_TEST = "the test"  # stands among the paths of what a proof rests on


@dataclass(frozen=True)
class Declared:
    """A test marked `proves`, and the sources that it names."""

    test: str
    sources: tuple[str, ...]
    on_gpu: bool


@dataclass(frozen=True)
class Proof:
    """A row of `proofs.csv`: a test that passed on a card. `date` is UTC, in ISO form."""

    test: str
    hash: str
    outcome: str
    gpu: str
    date: str
    commit: str
    dirty: str
    torch: str
    triton: str


@dataclass(frozen=True)
class Case:
    """How one case of a test ended: passed, failed, skipped, or "" where it was not run."""

    name: str
    outcome: str = ""
    reason: str = ""


COLUMNS = tuple(f.name for f in fields(Proof))
Rests = Mapping[str, str]  # path -> hash of what a proof rests on


def _marked(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == "gpu" for part in ast.walk(node))


def declared(tree: Tree) -> list[Declared]:
    """Return the tests marked `proves`, in the order of their files.

    ValueError with one sentence where the marker is no decorator of a function of the file, or
    names no sources as plain strings.
    """
    found = []
    for path in sorted(tree.texts):
        if not path.startswith(slices.TESTS) or "mark.proves" not in tree.texts[path]:
            continue
        module = sources.parsed(tree.texts[path])
        marks = [
            part
            for part in ast.walk(module)
            if isinstance(part, ast.Attribute) and sources.is_proves(part)
        ]
        of_file = any(
            _marked(node)
            for node in module.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and target.id == "pytestmark"
        )
        for node in module.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in (d for d in node.decorator_list if sources.is_proves(d)):
                names = [a.value for a in getattr(mark, "args", []) if isinstance(a, ast.Constant)]
                if not names or len(names) != len(getattr(mark, "args", [])):
                    raise ValueError(f"{path}:{mark.lineno}: proves takes sources as plain strings")
                on_gpu = of_file or any(_marked(d) for d in node.decorator_list)
                found.append(Declared(f"{path}::{node.name}", tuple(map(str, names)), on_gpu))
                marks = [m for m in marks if m.lineno != mark.lineno]
        if marks:
            raise ValueError(f"{path}:{marks[0].lineno}: proves stands on a function of the file")
    return found


def rests_on(tree: Tree, test: Declared) -> dict[str, str]:
    """Return the path and hash of each file that a proof by the test rests on, and the test's."""
    key = ("rests", test.test, test.sources)  # asked for by every card, and for what is owed
    if key not in tree.known:
        tree.known[key] = {
            **sources.made_of(tree, test.sources),
            THE_TEST: slices.of_test(tree, test.test),
        }
    return dict(tree.known[key])


def wanted(tree: Tree) -> tuple[dict[Declared, Rests], list[str]]:
    """Return what each test marked `proves` rests on, and a sentence for each that cannot be."""
    found: dict[Declared, Rests] = {}
    faults = []
    for test in declared(tree):
        try:
            found[test] = rests_on(tree, test)
        except LookupError as error:
            faults.append(f"{test.test} cannot be proved: {error.args[0]}")
    return found, faults


def read(folder: Path) -> tuple[dict[str, Proof], dict[str, dict[str, str]]]:
    """Return a card's proofs, and what each rested on, by test; nothing where there is no file."""
    path = folder / FILE
    if not path.exists():
        return {}, {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [Proof(**line) for line in csv.DictReader(file)]
    beside = path.with_suffix(".json")
    told = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    return {row.test: row for row in rows}, told


def write(folder: Path, rows: Mapping[str, Proof], rests: Mapping[str, Rests]) -> Path:
    """Write a card's proofs and what they rest on, in the order of the tests' names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(rows[test]) for test in sorted(rows))
    lines = [
        f"  {json.dumps(test)}: {json.dumps(dict(rests[test]), sort_keys=True)}"
        for test in sorted(rows)
    ]
    path.with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return path


def judge(cases: Sequence[Case]) -> tuple[str, str]:
    """Return what the cases of a test come to: `passed`, `failed` or "" (open), and why."""
    failed = [case for case in cases if case.outcome == "failed"]
    if failed:
        return "failed", f"{len(failed)} of {len(cases)} cases failed, the first {failed[0].name}"
    for case in cases:
        if case.outcome == "skipped" and not case.reason.startswith(NOT_HERE):
            return "", f"{case.name} was skipped: {case.reason}"
        if case.outcome == "":
            return "", f"{case.name} was not run"
    if not any(case.outcome == PASSED for case in cases):
        return "", "none of its cases was run on this card"
    return PASSED, ""


def record(
    tests: Mapping[Declared, Rests],
    cases: Mapping[str, Sequence[Case]],
    stamp: Mapping[str, str],
    known: Path,
    out: Path,
) -> list[str]:
    """Write the proofs of a run to `out`, a card's folder; return what to say of it, in lines.

    `tests` are the declared ones and what they rest on, `cases` how the cases of each test ended,
    `stamp` the columns of a row besides test, hash and outcome. Rows in `known`, the card's folder
    in the book, stay where the run says nothing against them.
    """
    rows, rests = read(known)
    asked = {one.test: on for one, on in tests.items()}
    had = len(rows)
    rows = {test: row for test, row in rows.items() if test in asked}
    said, new = [], 0
    for test, on in asked.items():
        outcome, why = judge(cases.get(test, ()))
        if outcome == PASSED:
            rows[test] = Proof(test=test, hash=sources.together(on), outcome=outcome, **stamp)
            rests[test] = dict(on)
            new += 1
        elif outcome == "failed":
            gone = "; its earlier proof is removed" if rows.pop(test, None) else ""
            said.append(f"no proof: {test}: {why}{gone}")
        else:
            said.append(f"no proof: {test}: {why}")
    said.append(f"proofs: {new} of the {len(asked)} tests marked proves hold on {stamp['gpu']}")
    if rows or had:
        write(out, rows, {test: rests.get(test, {}) for test in rows})
    return said


def merged(known: Path, parts: Sequence[Path]) -> tuple[dict[str, Proof], dict[str, Rests]]:
    """Return the rows of a card after runs that each began from those in `known`, and their rests.

    `known` and each of `parts` are a card's folder. What a part proved anew is taken, and what it
    removed, since it failed, is gone.
    """
    before, told = read(known)
    rows, rests = dict(before), dict[str, Rests](told)
    for part in parts:
        if not (part / FILE).exists():
            continue  # it proved nothing, and had nothing to keep
        mine, theirs = read(part)
        for test in before.keys() - mine.keys():
            rows.pop(test, None)
        for test, row in mine.items():
            if row != before.get(test):
                rows[test], rests[test] = row, theirs.get(test, {})
    return rows, {test: rests.get(test, {}) for test in rows}


@dataclass(frozen=True)
class State:
    """A test marked `proves` beside a card's row of it; `changed` is empty where the row holds."""

    test: Declared
    proof: Proof | None
    changed: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the row is there, of a test that passed, and of today's sources."""
        return self.proof is not None and self.proof.outcome == PASSED and not self.changed


def states(tree: Tree, data_dir: Path) -> list[State]:
    """Return each test marked `proves` with its row of each card, or once without."""
    cards = [read(path.parent) for path in sorted(data_dir.glob(f"*/{FILE}"))]
    found = []
    for test, now in wanted(tree)[0].items():
        mine = []
        for rows, rests in cards:
            if (row := rows.get(test.test)) is None:
                continue
            changed = []
            if row.hash != sources.together(now):
                then = rests.get(test.test, {})
                paths = sorted(now.keys() | then.keys())
                changed = [path for path in paths if now.get(path) != then.get(path)]
                changed = changed or ["the row itself"]
            mine.append(State(test, row, tuple(changed)))
        found += mine or [State(test, None)]
    return found


def owed(data_dir: Path) -> dict[str, tuple[str, str]]:
    """Return {test: (hash of the sources that its proof is owed for, why)}."""
    path = data_dir / OWED
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["test"]: (row["hash"], row["why"]) for row in csv.DictReader(file)}


def owe(tree: Tree, data_dir: Path, why: str) -> list[str]:
    """Write down each test that no card's row proves today as owed, anew; return their names."""
    held = {state.test.test for state in states(tree, data_dir) if state.holds}
    rows = {
        test.test: (sources.together(now), why)
        for test, now in wanted(tree)[0].items()
        if test.test not in held
    }
    path = data_dir / OWED
    if not rows:
        path.unlink(missing_ok=True)
        return []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("test", "hash", "why"))
        writer.writerows((test, *rows[test]) for test in sorted(rows))
    return sorted(rows)


def _not_owed(tree: Tree, data_dir: Path) -> list[str]:
    """A sentence for each entry of what is owed that stands there without need."""
    known = {test.test for test in wanted(tree)[0]}
    held = {state.test.test for state in states(tree, data_dir) if state.holds}
    return [
        f"{test} stands in {OWED} and {'is proved' if test in held else 'is no test that proves'}; "
        f"remove its line"
        for test in owed(data_dir)
        if test in held or test not in known
    ]


def problems(tree: Tree, data_dir: Path) -> list[str]:
    """Return one sentence for each test marked `proves` that no card's row proves today.

    One that is owed, of today's sources, is none.
    """
    run = "run `make gpu` on a GPU and unpack its archive into book/data"
    found = [*wanted(tree)[1], *_not_owed(tree, data_dir)]
    debts = owed(data_dir)
    hashes = {test.test: sources.together(now) for test, now in wanted(tree)[0].items()}
    by_test: dict[Declared, list[State]] = {}
    for state in states(tree, data_dir):
        by_test.setdefault(state.test, []).append(state)
    for test, mine in by_test.items():
        if not test.on_gpu:
            found.append(f"{test.test} is marked proves but not gpu, so `make gpu` passes it by")
        if any(state.holds for state in mine):
            continue
        if debts.get(test.test, ("",))[0] == hashes[test.test]:
            continue
        told = [
            f"its row of {state.proof.gpu} is of other sources ({', '.join(state.changed)} changed)"
            if state.changed
            else f"its row of {state.proof.gpu} says {state.proof.outcome!r}"
            for state in mine
            if state.proof
        ]
        why = "; ".join(told) or f"no card has a row for it ({', '.join(test.sources)})"
        found.append(f"{test.test} is not proved: {why}; {run}")
    return found


def table(tree: Tree, data_dir: Path) -> str:
    """Return what is proved as Markdown: test, card, date, commit, and whether it holds."""
    debts = owed(data_dir)
    hashes = {test.test: sources.together(now) for test, now in wanted(tree)[0].items()}
    lines = ["| test | proves | card | date (UTC) | commit | |", "|:--|:--|:--|:--|:--|:--|"]
    for state in states(tree, data_dir):
        told = ["–", "–", "–", "missing"]
        if row := state.proof:
            commit = (row.commit[:7] or "–") + (", changed" if row.dirty == "yes" else "")
            holds = "valid" if state.holds else f"stale: {', '.join(state.changed) or row.outcome}"
            told = [row.gpu, row.date[:16].replace("T", " "), commit, holds]
        if not state.holds and debts.get(state.test.test, ("",))[0] == hashes[state.test.test]:
            told[-1] = f"{told[-1]}; owed: {debts[state.test.test][1]}"
        lines.append(f"| {' | '.join([state.test.test, ', '.join(state.test.sources), *told])} |")
    return "\n".join(lines)
