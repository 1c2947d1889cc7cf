"""What a test asks of the verdict on an answer that it knows to be wrong.

The test calls `check` itself, by its module's name: there each verdict is noted and counted.
"""

from typing import Any

from kernels.grading import Result
from kernels.paths import ROOT
from tests.grading.mutation import answer_of, graded


def fails(result: Result, *, message: str = "", means: str | None = "") -> None:
    """Nothing is earned, and the verdict has these words.

    A `means` of "" says that there is no remark; None doesn't ask.
    """
    assert result.points == 0, result
    assert message in result.message, result
    if means == "":
        assert not result.means, result
    elif means is not None:
        assert means in result.means, result


def given_out(question: str) -> Any:
    """The answer to a question as its exercise gives it out, faults and all."""
    (path,) = (ROOT / "exercises").glob(f"{question.partition('.')[0]}_*.ipynb")
    (asked,) = (one for one in graded(path) if one.question == question)
    return answer_of(asked)
