"""Whether a check passes an answer, found out at the first input on which it is wrong.

For a reader, a check runs a wrong answer on every input and once more traced, and compares its
outputs with models of what people get wrong. Of a mutant only the verdict is asked.
"""

import faulthandler
import importlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from kernels.grading import checks, compiled_checks, isolation
from kernels.grading.cases import Case, Run
from kernels.grading.evidence import Evidence
from kernels.grading.isolation import Ended, isolated
from kernels.grading.question import Attempt, NotAnswered, Question, Wrong, questions
from tests.grading.counted import PROPERTY
from tests.grading.mutation import Graded, Mutant, answer_of, formula_mutants, reworded

# Answers to a fork. Much of what a fork takes is what any first answer finds out, and most of a
# wrong one's time; few enough that what one of them leaves behind can't fill the memory.
_AT_ONCE = 24
_COUNTED = 4


class Verdict(NamedTuple):
    """What a check has against an answer, "" for nothing, and what that means, "" if not told."""

    fault: str
    means: str = ""


def fault(question: str, answer: Any, seed: int = 1) -> str:
    """What a check has against `answer`, in a sentence; "" where `check(...).passed` is true.

    AssertionError where the check itself fails, since it catches nothing then.
    """
    asked = _prepared(question)
    return _told(isolated(lambda: _graded(asked, Attempt(answer, seed)))).fault


def faults(question: str, answers: Sequence[Any], seed: int = 1) -> list[str]:
    """What `fault` tells of each answer, many of them in one fork.

    An answer that takes the time of a check ends its fork, and the others go on in another. One
    that ends it in another way is asked again by itself.
    """
    return [one.fault for one in verdicts(question, answers, seed)]


def verdicts(
    question: str, answers: Sequence[Any], seed: int = 1, whole: bool = False
) -> list[Verdict]:
    """As `faults`; if `whole`, every input is run, and the remark is the one that a reader gets."""
    asked = _prepared(question)
    told: list[Verdict] = []
    while len(told) < len(answers):
        some = [Attempt(answer, seed) for answer in answers[len(told) : len(told) + _AT_ONCE]]
        told += (got := _some(asked, some, whole))
        if len(got) < len(some):
            alone = some[len(got)]
            told.append(_told(isolated(lambda one=alone: _graded(asked, one, whole))))
    return told


def count_some(
    question: str, answers: Sequence[Any], told: Sequence[str], note: Callable[[str, object], None]
) -> None:
    """Note for the counts what a reader is told of `_COUNTED` answers that `told` refuses."""
    wrong = [answer for answer, why in zip(answers, told, strict=True) if why]
    some = wrong[:: -(-len(wrong) // _COUNTED)]
    for one in verdicts(question, some, whole=True):
        note(PROPERTY, [question, not one.fault, bool(one.means)])


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


def _some(asked: Question, attempts: Sequence[Attempt], whole: bool) -> list[Verdict]:
    """What is told of the attempts, up to the first one that ends the fork or takes too long."""
    limit_s = isolation.LIMIT_S
    with tempfile.TemporaryFile("w+") as lines, tempfile.TemporaryFile("w+") as late:

        def grade() -> dict[str, Any]:
            for attempt in attempts:
                # Ends this process then, whatever it is doing.
                faulthandler.dump_traceback_later(limit_s, exit=True, file=late)
                told = _graded(asked, attempt, whole)
                faulthandler.cancel_dump_traceback_later()
                lines.write(json.dumps(told) + "\n")
                lines.flush()
            return {}

        ended = isolated(grade, limit_s=limit_s * (len(attempts) + 1))
        lines.seek(0)
        told = [_verdict(json.loads(line)) for line in lines if line.endswith("\n")]
        if late.seek(0, os.SEEK_END):
            told.append(Verdict(replace(ended, seconds=limit_s, stopped=True).reason))
        return told


def _prepared(question: str) -> Question:
    asked = questions()[question]
    for module in asked.needs:
        importlib.import_module(module)
    compiled_checks.prepare()
    return asked


def _told(ended: Ended) -> Verdict:
    return Verdict(ended.reason) if ended.told is None else _verdict(ended.told)


def _verdict(told: dict[str, Any]) -> Verdict:
    assert "broken" not in told, told
    return Verdict(told["fault"], told.get("means", ""))


def _graded(asked: Question, attempt: Attempt, whole: bool = False) -> dict[str, Any]:
    run = checks.run

    def run_or_stop(attempt: Attempt, case: Case, earlier: Any = ()) -> Run:
        ran = run(attempt, case, earlier)
        if ran.fault is not None and not whole:
            raise Wrong(f"{attempt.name} on {case}: {ran.fault}")
        return ran

    try:
        with (
            # What `right_everywhere` calls for each input; questions that import it keep theirs.
            patch.object(checks, "run", run_or_stop),
            # The figures of a wrong output take another run, and no remark needs them.
            patch.object(checks, "evidence", lambda *_: Evidence()),
        ):
            asked.grade(attempt)
    except NotAnswered:
        return {"fault": "It is not answered."}
    except Wrong as wrong:
        return {"fault": wrong.sentence, "means": wrong.means}
    except BaseException as error:
        return {"broken": repr(error)}
    return {"fault": ""}
