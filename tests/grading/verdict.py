"""Whether a check passes an answer, found out at the first input on which it is wrong.

For a reader, a check runs a wrong answer on every input and once more traced, and compares its
outputs with models of what people get wrong. Of a mutant only the verdict is asked.
"""

import faulthandler
import importlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from kernels.grading import checks, compiled_checks, isolation
from kernels.grading.cases import Case, Run
from kernels.grading.isolation import Ended, isolated
from kernels.grading.question import Attempt, NotAnswered, Question, Wrong, questions
from tests.grading.mutation import Graded, Mutant, answer_of, formula_mutants, reworded

# Answers to a fork. Much of what a fork takes is what any first answer finds out, and most of a
# wrong one's time; few enough that what one of them leaves behind can't fill the memory.
_AT_ONCE = 24


def fault(question: str, answer: Any, seed: int = 1) -> str:
    """What a check has against `answer`, in a sentence; "" where `check(...).passed` is true.

    AssertionError where the check itself fails, since it catches nothing then.
    """
    asked = _prepared(question)
    return _told(isolated(lambda: _graded(asked, Attempt(answer, seed))))


def faults(question: str, answers: Sequence[Any], seed: int = 1) -> list[str]:
    """What `fault` tells of each answer, many of them in one fork.

    An answer that takes the time of a check ends its fork, and the others go on in another. One
    that ends it in another way is asked again by itself.
    """
    asked = _prepared(question)
    told: list[str] = []
    while len(told) < len(answers):
        some = [Attempt(answer, seed) for answer in answers[len(told) : len(told) + _AT_ONCE]]
        told += (got := _some(asked, some))
        if len(got) < len(some):
            told.append(fault(question, some[len(got)].answer, seed))
    return told


def survivors(asked: Graded, made: Sequence[Mutant]) -> list[str]:
    """What is told of the mutants that the check of their question passes."""
    told = faults(asked.question, [answer_of(asked, one) for one in made])
    return [one.told for one, why in zip(made, told, strict=True) if not why]


def reworded_survivors(
    asked: Graded, changes: tuple[str, Sequence[tuple[str, str, str]]]
) -> list[str]:
    """What is told of the changes that a check passes: a cell, and those that `reworded` takes."""
    return survivors(asked, reworded(asked, *changes))


def formula_survivors(asked: Graded, cell: str) -> list[str]:
    """What is told of the mutants of a right formula, three or more, that its check passes."""
    assert fault(asked.question, answer_of(asked)) == ""
    made = list(formula_mutants(asked, cell))
    assert len(made) >= 3
    return survivors(asked, made)


def _some(asked: Question, attempts: Sequence[Attempt]) -> list[str]:
    """What is told of the attempts, up to the first one that ends the fork or takes too long."""
    limit_s = isolation.LIMIT_S
    with tempfile.TemporaryFile("w+") as lines, tempfile.TemporaryFile("w+") as late:

        def grade() -> dict[str, Any]:
            for attempt in attempts:
                # Ends this process then, whatever it is doing.
                faulthandler.dump_traceback_later(limit_s, exit=True, file=late)
                told = _graded(asked, attempt)
                faulthandler.cancel_dump_traceback_later()
                lines.write(json.dumps(told) + "\n")
                lines.flush()
            return {}

        ended = isolated(grade, limit_s=limit_s * (len(attempts) + 1))
        lines.seek(0)
        told = [_sentence(json.loads(line)) for line in lines if line.endswith("\n")]
        if late.seek(0, os.SEEK_END):
            told.append(replace(ended, seconds=limit_s, stopped=True).reason)
        return told


def _prepared(question: str) -> Question:
    asked = questions()[question]
    for module in asked.needs:
        importlib.import_module(module)
    compiled_checks.prepare()
    return asked


def _told(ended: Ended) -> str:
    return ended.reason if ended.told is None else _sentence(ended.told)


def _sentence(told: dict[str, Any]) -> str:
    assert "broken" not in told, told
    return str(told["fault"])


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
