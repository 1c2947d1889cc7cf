"""The counts of wrong answers tell where a set refuses too few, or tells too few why."""

from collections import Counter
from pathlib import Path

import pytest

from kernels.grading.question import questions
from tests.grading.conftest import is_of_wrong_answers
from tests.grading.counted import ENOUGH, Count, counted


def test_verdicts_are_counted_by_set():
    noted = [("05.1", False, True), ("02.3", False, False), ("02.1", True, False)]
    assert counted(noted) == {"02": Count(2, 1, 0), "05": Count(1, 1, 1)}


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (Count(100, 98, 79), ""),
        (Count(100, 97, 90), "97 of 100 refused, 97.0%, and 98% is the least"),
        (Count(100, 100, 79), "79 of 100 of these told why, 79.0%, and 80% is the least"),
        (Count(19, 0, 0), ""),
    ],
)
def test_too_few_are_told(count, told):
    assert count.faults == told


def test_every_set_has_answers_that_are_counted(request):
    files = {path.name for path in Path(__file__).parent.glob("test_questions_*.py")}
    wrong, collected = Counter(), set()
    for item in request.session.items:
        if item.path.name in files:
            collected.add(item.path.name)
            wrong[item.path.name[len("test_questions_") :][:2]] += is_of_wrong_answers(item)
    if collected != files:
        pytest.skip("only some of the tests run")
    assert wrong.keys() == {question.partition(".")[0] for question in questions()}
    assert min(wrong.values()) >= 3 * ENOUGH, wrong
