"""Each verdict on an answer that a test knows to be wrong is noted, to be counted at the end."""

import re

import pytest

from tests.grading.counted import PROPERTY

_FILE = re.compile(r"test_questions_\d\d\w*\.py$")


def is_of_wrong_answers(test: pytest.Item) -> bool:
    """Whether a test's checks are of answers that it knows to be wrong."""
    name = getattr(test, "originalname", "") or ""
    return bool(_FILE.search(test.path.name)) and name.endswith("_wrong")


@pytest.fixture(autouse=True)
def noted_answers(request, monkeypatch):
    """Note each verdict on an answer that a test knows to be wrong."""
    test = request.node
    if not is_of_wrong_answers(test):
        return
    check = test.module.check

    def noting(question, answer, **how):
        result = check(question, answer, **how)
        told = [result.question, result.passed, bool(result.means)]
        test.user_properties.append((PROPERTY, told))
        return result

    # The test's own name for it: a check that finds the package changed grades nothing.
    monkeypatch.setattr(test.module, "check", noting)
