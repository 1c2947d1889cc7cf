"""Whether a check passes an answer, found out at the first input on which it is wrong.

For a reader, a check runs a wrong answer on every input and once more traced, and compares its
outputs with models of what people get wrong. Of a mutant only the verdict is asked.
"""

import importlib
from typing import Any
from unittest.mock import patch

from kernels.grading import checks, hardware
from kernels.grading.cases import Case, Run
from kernels.grading.isolation import isolated
from kernels.grading.question import Attempt, NotAnswered, Question, Wrong, questions


def fault(question: str, answer: Any, seed: int = 1) -> str:
    """What a check has against `answer`, in a sentence; "" where `check(...).passed` is true.

    AssertionError where the check itself fails, since it catches nothing then.
    """
    asked = questions()[question]
    for module in asked.needs:
        importlib.import_module(module)
    hardware.prepare()
    ended = isolated(lambda: _graded(asked, Attempt(answer, seed)))
    if ended.told is None:
        return ended.reason
    assert "broken" not in ended.told, ended.told
    return str(ended.told["fault"])


def _graded(asked: Question, attempt: Attempt) -> dict[str, Any]:
    whole = checks.run

    def run_or_stop(attempt: Attempt, case: Case, earlier: Any = ()) -> Run:
        ran = whole(attempt, case, earlier)
        if ran.fault is not None:
            raise Wrong(f"{attempt.name} on {case}: {ran.fault}")
        return ran

    try:
        # What `right_everywhere` calls for each input; questions that import it keep theirs.
        with patch.object(checks, "run", run_or_stop):
            asked.grade(attempt)
    except NotAnswered:
        return {"fault": "It is not answered."}
    except Wrong as wrong:
        return {"fault": wrong.sentence}
    except BaseException as error:
        return {"broken": repr(error)}
    return {"fault": ""}
