"""A remark explains every run that failed: of noise nothing is told, by any question.

No kernel runs here. The inputs are those of a check, and the outputs are made up.
"""

import importlib
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch

from kernels.grading import checks
from kernels.grading.cases import Case, Run
from kernels.grading.closeness import value_fault, wrong_elements
from kernels.grading.evidence import Evidence
from kernels.grading.question import Attempt, NotAnswered, Wrong, questions
from kernels.launch import Launches


def noise(case: Case) -> torch.Tensor:
    made = torch.randn(case.like.shape, generator=torch.Generator().manual_seed(case.x.numel()))
    return (7 + 9 * made).to(case.like.dtype)


def right(case: Case) -> torch.Tensor:
    return case.reference.to(case.like.dtype)


def nothing(case: Case) -> torch.Tensor:
    return torch.full(case.like.shape, torch.nan, dtype=case.like.dtype)


def zeros(case: Case) -> torch.Tensor:
    return torch.zeros(case.like.shape, dtype=case.like.dtype)


def run_of(case: Case, output: torch.Tensor) -> Run:
    wrong = wrong_elements(output, case.reference, case.tolerance)
    fault = value_fault(output, case.reference, wrong) if bool(wrong.any()) else None
    return Run(case, output, Launches("interpret"), (), fault, wrong)


class CaughtError(Exception):
    pass


Inputs = tuple[list[Case], Callable[[list[Run]], str]]


def inputs_of(question: str) -> Inputs | None:
    """The inputs of a question's check, and what its remarks are made by; None without outputs."""
    caught = []

    def remark(runs, explain):
        caught.append(([r.case for r in runs], explain))
        raise CaughtError

    def two(x, *others, **options):
        return x.clone(), x.clone()

    asked = questions()[question]
    for module in asked.needs:
        importlib.import_module(module)
    with (
        patch.object(checks, "run", lambda attempt, case, earlier=(): run_of(case, noise(case))),
        patch.object(checks, "evidence", lambda *_: Evidence()),
        patch.object(checks, "remark", remark),
        pytest.raises((CaughtError, NotAnswered, Wrong)),
    ):
        asked.grade(Attempt(two, 1))
    return caught[0] if caught else None


def told(runs_of: Inputs, outputs: Callable[[int, Case], torch.Tensor]) -> str:
    cases, explain = runs_of
    runs = [run_of(case, outputs(place, case)) for place, case in enumerate(cases)]
    return checks.remark(runs, explain)


# How many questions of a set are held to it; all of set 01 ask for numbers.
SETS = {
    "02": 4,
    "03": 6,
    "04": 7,
    "05": 5,
    "06": 5,
    "07": 5,
    "08": 7,
    "09": 2,
    "10": 4,
    "11": 5,
    "12": 3,
    "13": 5,
    "14": 3,
    "15": 4,
}


def test_all_sets_are_held_to_it():
    assert set(SETS) == {question.partition(".")[0] for question in questions()} - {"01"}


@pytest.mark.parametrize("chapter", SETS)
def test_a_remark_explains_all_that_failed_and_is_denied_by_what_passed(chapter):
    asked = {name: inputs_of(name) for name in questions() if name.startswith(f"{chapter}.")}
    asked = {name: inputs for name, inputs in asked.items() if inputs is not None}
    assert len(asked) == SETS[chapter], list(asked)
    for name, inputs in asked.items():
        cases, _ = inputs
        assert told(inputs, lambda at, case: noise(case)) == "", name
        # What explains the other outputs does not explain one that is noise.
        for odd, other in ((0, zeros), (len(cases) - 1, nothing)):
            mixed = told(inputs, lambda at, case, o=odd, f=other: (noise if at == o else f)(case))
            assert mixed == "", (name, odd, other)
        # One input of many is wrong, and nothing sets it apart from the others.
        plain = [place for place, case in enumerate(cases) if not case.trait]
        for odd in {plain[0], plain[-1]}:
            alone = told(inputs, lambda at, case, o=odd: (noise if at == o else right)(case))
            assert alone == "", (name, str(cases[odd]))
