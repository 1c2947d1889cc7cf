"""The generator, and what the two notebooks of a set earn: solutions all points, exercises none."""

import ast
import copy
import json
import linecache
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from kernels.grading import Result
from kernels.grading.generate import SolutionError, exercise_of, generate, main, written
from kernels.grading.question import questions
from kernels.lab.counting import aten
from kernels.ops.norms.layernorm import eager
from kernels.paths import ROOT

SETS = sorted(path.name for path in (ROOT / "solutions").glob("*.ipynb"))


def code_cells(path: Path) -> list[tuple[str, str]]:
    cells = json.loads(path.read_text())["cells"]
    return [(c["id"], "".join(c["source"])) for c in cells if c["cell_type"] == "code"]


def results_of(path: Path) -> list[Result]:
    """Run a notebook's code cells in one module, and return the verdicts its cells end in."""
    module = types.ModuleType(f"{path.parent.name}_{path.stem}")
    sys.modules[module.__name__] = module
    results = []
    try:
        for cell_id, source in code_cells(path):
            name = f"{path}:{cell_id}"
            # Triton reads a kernel's source, as it does in a notebook: from here.
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            tree = ast.parse(source)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), module.__dict__)
            if isinstance(last, ast.Expr):
                results.append(
                    eval(compile(ast.Expression(last.value), name, "eval"), vars(module))
                )
    finally:
        del sys.modules[module.__name__]
    return [result for result in results if isinstance(result, Result)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("solutions", "exercises"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns(".*"))
    return tmp_path


@pytest.mark.parametrize("name", SETS)
def test_a_solution_earns_every_point(name):
    results = results_of(ROOT / "solutions" / name)
    chapter = name.split("_")[0]
    asked = [question for question in questions() if question.startswith(f"{chapter}.")]
    assert [result.question for result in results] == asked
    assert all(result.passed for result in results), results


@pytest.mark.parametrize("name", SETS)
def test_an_untouched_exercise_earns_nothing(name):
    results = results_of(ROOT / "exercises" / name)
    assert results
    assert all(result.points == 0 < result.max_points for result in results), results


def test_the_exercises_are_in_step():
    assert generate(ROOT, check=True) == []


def test_it_writes_the_same_bytes_again(tree):
    before = {path.name: path.read_bytes() for path in (tree / "exercises").iterdir()}
    shutil.rmtree(tree / "exercises")
    assert generate(tree) == []
    assert {path.name: path.read_bytes() for path in (tree / "exercises").iterdir()} == before
    assert all(text.endswith(b"}\n") for text in before.values())


def test_a_difference_is_found_and_named(tree, monkeypatch, capsys):
    monkeypatch.setattr("kernels.grading.generate.ROOT", tree)
    assert main(["--check"]) == 0
    edit(tree / "solutions" / SETS[0], "# So:")
    before = contents(tree)
    assert main(["--check"]) == 1
    told = f"exercises/{SETS[0]} differs from its solution; run `make exercises`.\n"
    assert capsys.readouterr().out == told
    assert contents(tree) == before
    assert main([]) == 0
    assert main(["--check"]) == 0


def contents(tree: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in tree.rglob("*.ipynb") if path.is_file()}


def edit(solution: Path, text: str) -> None:
    """Put a line into the first cell of a solution that an exercise leaves to the reader."""
    notebook = json.loads(solution.read_text())
    cells = notebook["cells"]
    cell = next(cell for cell in cells if "### BEGIN SOLUTION" in "".join(cell["source"]))
    cell["source"] = [f"{text}\n", *cell["source"]]
    solution.write_text(json.dumps(notebook))


def change(path: Path, how) -> None:
    """Change a notebook as an editor does, and save it in the editor's own way."""
    notebook = json.loads(path.read_text())
    how(notebook["cells"])
    path.write_text(json.dumps(notebook, indent=2))


def answer_cell(cells: list) -> dict:
    return next(cell for cell in cells if "your turn" in "".join(cell["source"]))


def answer(cells: list) -> None:
    cell = answer_cell(cells)
    cell["source"] = "".join(cell["source"]).replace('raise NotImplementedError("your turn")', "x")


def begin_an_answer(cells: list) -> None:
    cell = answer_cell(cells)
    cell["source"] = "".join(cell["source"]).replace("raise", "x = 1\n    raise")


def add_a_cell(cells: list) -> None:
    cells.append({"cell_type": "code", "id": "own", "metadata": {}, "source": "my_answer = 4"})


def answer_in_words(cells: list) -> None:
    cell = next(cell for cell in cells if cell["cell_type"] == "markdown")
    cell["source"] = [*cell["source"], "\n\nMy answer: 4."]


ANSWERS = [answer, begin_an_answer, add_a_cell, answer_in_words]


@pytest.mark.parametrize("how", ANSWERS)
def test_answers_are_never_overwritten(tree, monkeypatch, capsys, how):
    monkeypatch.setattr("kernels.grading.generate.ROOT", tree)
    change(tree / "exercises" / SETS[1], how)
    # Another exercise is out of step, and a third is missing: neither is written.
    edit(tree / "solutions" / SETS[0], "# So:")
    (tree / "exercises" / SETS[2]).unlink()
    before = contents(tree)
    for arguments in ([], ["--unanswered"]):
        assert main(arguments) == 1
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"exercises/{SETS[1]} holds answers: move it to work/")
        assert contents(tree) == before
    assert main(["--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"exercises/{SETS[1]} holds answers")
    assert contents(tree) == before


def test_what_is_no_notebook_any_more_is_not_overwritten(tree):
    path = tree / "exercises" / SETS[0]
    path.write_text("<<<<<<< mine\n" + path.read_text())
    before = contents(tree)
    (fault,) = generate(tree)
    assert fault.startswith(f"exercises/{SETS[0]} is no notebook that can be read: move it")
    assert contents(tree) == before


def run_without_answering(cells: list) -> None:
    """What running leaves behind in JupyterLab: outputs, counts, and an empty cell at the end."""
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            cell |= {"execution_count": number, "outputs": [{"output_type": "stream"}]}
        cell["id"], cell["metadata"] = f"new{number}", {"scrolled": True}
    cells.append({"cell_type": "code", "id": "last", "metadata": {}, "source": []})


def test_outputs_are_no_answers(tree):
    for name in SETS:
        change(tree / "exercises" / name, run_without_answering)
    assert generate(tree, only_look=True) == []
    assert generate(tree) == []
    assert generate(tree, check=True) == []


def test_a_maintainer_writes_again_and_again(tree):
    for text in ("# Once.", "# Twice.", "# And again."):
        edit(tree / "solutions" / SETS[0], text)
        assert generate(tree) == []
        assert text in (tree / "exercises" / SETS[0]).read_text()


def test_what_git_holds_may_be_written_over(tree):
    """As an exercise that an older generator wrote, without a digest."""
    path = tree / "exercises" / SETS[0]
    old = json.loads(path.read_text())
    old["metadata"].pop("fusing_kernels")
    answer(old["cells"])
    path.write_text(written(old))
    git = ["git", "-c", "user.name=a", "-c", "user.email=b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "c"]):
        assert [fault.split(":")[0] for fault in generate(tree, only_look=True)] == [
            f"exercises/{SETS[0]} holds answers"
        ]
        subprocess.run([*git, *command], cwd=tree, check=True)
    assert generate(tree) == []
    assert generate(tree, check=True) == []


def test_make_looks_for_answers_before_it_writes_anything():
    recipe = (ROOT / "Makefile").read_text().split("\nexercises:")[1].split("\n\n")[0]
    looks, *writes = recipe.splitlines()[1:]
    assert looks.endswith("kernels.grading.generate --unanswered")
    assert len(writes) == 2


def test_a_missing_exercise_and_one_without_a_solution_are_named(tree):
    (tree / "exercises" / SETS[0]).rename(tree / "exercises" / "99_lost.ipynb")
    missing, lost = generate(tree, check=True)
    assert missing.startswith(f"exercises/{SETS[0]} differs")
    assert lost.startswith("exercises/99_lost.ipynb has no solution")


def notebook(*sources: str) -> dict:
    cells = [
        {
            "cell_type": "code",
            "execution_count": 7,
            "id": f"c{number}",
            "metadata": {},
            "outputs": [{"output_type": "stream"}],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(sources)
    ]
    return {"cells": cells, "metadata": {"widgets": {}}, "nbformat": 4, "nbformat_minor": 5}


def stripped(source: str) -> str:
    return "".join(exercise_of(notebook(source))["cells"][0]["source"])


def test_a_solution_gives_way_to_an_exception():
    source = "def f(x):\n    # say x\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n"
    assert stripped(source) == 'def f(x):\n    # say x\n    raise NotImplementedError("your turn")'


def test_given_lines_come_out_of_their_comments():
    source = (
        "x = 1\n### BEGIN SOLUTION\ny = x\n### GIVEN\n# if x:\n#     y = 0\n### END SOLUTION\ny"
    )
    assert stripped(source) == "x = 1\nif x:\n    y = 0\ny"


def test_outputs_and_cells_of_the_solution_are_left_out():
    given = notebook("x = 1", "x = 2")
    given["cells"][1]["metadata"]["tags"] = ["solution"]
    before = copy.deepcopy(given)
    made = exercise_of(given)
    assert given == before
    assert len(made["cells"]) == 1
    assert made["cells"][0]["outputs"] == []
    assert made["cells"][0]["execution_count"] is None
    assert made["metadata"].keys() == {"fusing_kernels"}
    assert written(made) == written(exercise_of(before))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("### BEGIN SOLUTION\nx = 1", "without '### END SOLUTION'"),
        ("x = 1\n### END SOLUTION", "where none is due"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "where none is due"),
        ("### BEGIN SOLUTION\n### GIVEN\n# def\n### END SOLUTION", "once stripped"),
    ],
)
def test_a_solution_that_no_exercise_can_be_made_of(source, sentence):
    with pytest.raises(SolutionError, match=sentence):
        exercise_of(notebook(source))


def test_a_bad_solution_is_named(tree):
    path = tree / "solutions" / SETS[0]
    path.write_text(path.read_text().replace("### END SOLUTION", "### THE END"))
    (fault,) = generate(tree)
    assert fault.startswith(f"solutions/{SETS[0]}: cell 'q1-answer'")


def test_no_exercise_holds_its_solution():
    for name in SETS:
        text = (ROOT / "exercises" / name).read_text()
        assert "SOLUTION" not in text
        assert "### GIVEN" not in text
        assert "### Why" not in text


def test_the_operators_on_the_page_of_02_1_are_those_of_eager():
    cells = json.loads((ROOT / "exercises" / "02_layernorm_by_hand.ipynb").read_text())["cells"]
    (text,) = ("".join(cell["source"]) for cell in cells if cell["id"] == "q1-text")
    listing = text.split("```python\n")[1].split("```")[0]

    def as_shown(x, weight, bias, eps=1e-5):
        exec(listing, {"torch": torch}, {"x": x, "weight": weight, "bias": bias, "eps": eps})

    for dtype in (torch.float32, torch.bfloat16):
        tensors = (torch.empty(5, 9, dtype=dtype), *torch.empty(2, 9, dtype=dtype))
        shown, ours = aten.count(as_shown, *tensors), aten.count(eager, *tensors)
        assert [step.name for step in shown] == [step.name for step in ours]
        assert shown.bytes_unique == ours.bytes_unique
