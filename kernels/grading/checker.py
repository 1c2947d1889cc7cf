"""`check`: grade one answer and say so. It never raises, whatever the answer does.

The answer runs in a process of its own, with limits of time and memory; the verdict comes back as
text. So an endless loop, a crash or a patched function ends there, and the notebook lives.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import secrets
import types
from typing import Any

import torch

import kernels.grading.questions  # noqa: F401  (registers the questions)
from kernels.grading import compiled_checks
from kernels.grading.integrity import Snapshot
from kernels.grading.isolation import isolated
from kernels.grading.origin import refuse_package
from kernels.grading.progress import VARIABLE, note
from kernels.grading.question import Attempt, NotAnswered, Question, Wrong, questions
from kernels.grading.result import Result, show
from kernels.grading.speed import timed
from kernels.grading.surroundings import NoFolder, as_usual

_MOST_SEED = 2**32
_AS_WRITTEN = Snapshot()


def check(question: str, answer: Any = None, *, seed: int | None = None) -> Result:
    """Grade `answer` to `question` ("02.2"), show the verdict, and return it.

    The inputs are random and fresh at every call; the verdict names their seed, and `seed` repeats
    them. Nothing is raised: what goes wrong is the verdict. What passes is kept for `progress()`.
    """
    try:
        return show(_verdict(question, answer, seed))
    except KeyboardInterrupt:
        failed = "The check was stopped before it ended."
    except NoFolder as error:
        failed = str(error)
    except OSError as error:
        failed = f"The check could not run: {error.strerror or type(error).__name__}."
    except Exception as error:  # of a signal's handler, say
        failed = f"The check itself failed with {type(error).__name__}; please report it."
    known = questions().get(question) if type(question) is str else None
    return show(_lost(known, failed) if known else Result("", "", 0, 0, failed))


def _verdict(name: Any, answer: Any, seed: Any) -> Result:
    known = questions()
    if type(name) is not str or name not in known:
        what = f"There is no question {name!r}" if type(name) is str else "A question is a string"
        return Result("", "", 0, 0, f"{what}; the questions are: {', '.join(known)}.")
    question = known[name]
    if seed is None:
        seed = secrets.randbelow(_MOST_SEED)
    elif type(seed) is not int or not 0 <= seed < _MOST_SEED:
        return _lost(question, f"seed takes a whole number from 0 to {_MOST_SEED - 1}.")
    if answer is None or answer is ...:
        return _not_answered(question)
    with as_usual():
        return _graded(question, Attempt(answer, seed, predicts=question.kind == "predict"))


def _graded(question: Question, attempt: Attempt) -> Result:
    for module in question.needs:
        importlib.import_module(module)
    compiled_checks.prepare()
    ended = isolated(lambda: _grade(question, attempt), _file_of(attempt.answer))
    told = ended.told
    if told is None:
        name = _own_name(attempt.answer)
        told = {"message": f"{name} {ended.reason}", "rerun": _rerun(question, name, attempt.seed)}
    if told.get("untouched"):
        return _not_answered(question, told.get("message", ""))
    bonus = _timed(question, attempt, told) if told.get("passed") is True else 0
    passed = told.get("passed") is True
    points = question.points if passed else 0
    standing, kept = note(question.id, points, bonus)
    return Result(
        question.id,
        question.title,
        points,
        question.points,
        told["message"],
        told.get("means", ""),
        () if passed else question.hints(standing.failed, told.get("hint", "")),
        tuple(told.get("held", ())),
        told.get("rerun", ""),
        ended.printed.strip(),
        tuple(told.get("pictures", ())),
        bonus,
        kept,
    )


def _timed(question: Question, attempt: Attempt, told: dict[str, Any]) -> int:
    """Run a right answer on the GPU, if there is one; amend `told` and return the bonus earned."""
    if question.speed is None or not torch.cuda.is_available():
        return 0
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _refuse_patches()
            measured = timed(attempt, question.speed)
            _refuse_patches()
    except Wrong as wrong:
        wrong = _patched() or wrong
        told |= {"passed": False, "message": wrong.sentence, "means": wrong.means}
        return 0
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # out of memory, say: no bonus, and no harm to the points
        told["held"] = [*told["held"], f"no time on the GPU: {type(error).__name__}"]
        return 0
    told["held"] = [*told["held"], measured.sentence]
    return measured.bonus


def _grade(question: Question, attempt: Attempt) -> dict[str, Any]:
    """Grade in the process that this runs in; what is told is plain text."""
    told: dict[str, Any] = {}
    os.environ[VARIABLE] = ""  # points are written down outside, by the verdict
    try:
        _refuse_patches()
        told["rerun"] = _rerun(question, attempt.name, attempt.seed)
        if not callable(attempt.answer):
            got = f"a {type(attempt.answer).__name__}"
            raise Wrong(f"The answer is {got}; the question takes the function {question.takes}.")
        refuse_package(attempt)
        question.grade(attempt)
        _refuse_patches()
        told |= {"passed": True, "message": "Everything that was checked holds."}
    except NotAnswered as untouched:
        return {"untouched": True, "message": str(untouched)}
    except Wrong as wrong:
        # A patch made by the answer explains more than what came of it.
        wrong = _patched() or wrong
        told |= {"message": wrong.sentence, "means": wrong.means, "hint": wrong.hint}
        told["pictures"] = wrong.pictures
    except KeyboardInterrupt:
        told["message"] = "The check was stopped before it ended."
    except BaseException as error:  # whatever an answer does, the verdict is a sentence
        patched = _patched()
        what = f"The check itself failed with {type(error).__name__}; please report it."
        told["message"] = patched.sentence if patched else what
    return told | {"held": attempt.held}


def _rerun(question: Question, name: str, seed: int) -> str:
    """The call that repeats a check on the same inputs."""
    return f'check("{question.id}", {name}, seed={seed})'


def _patched() -> Wrong | None:
    changed = _AS_WRITTEN.changed()
    if changed is None:
        return None
    return Wrong(
        f"{changed} is not the one that was imported: something replaced it.",
        "A check rests on that function, and grades nothing while it is replaced. Restart Python "
        "to have it back.",
        "Answer the question itself: nothing outside your functions has to change.",
    )


def _refuse_patches() -> None:
    if (patched := _patched()) is not None:
        raise patched


# In the notebook's own process only a plain function is asked anything: its attributes run no code.
def _file_of(answer: Any) -> str | None:
    return answer.__code__.co_filename if type(answer) is types.FunctionType else None


def _own_name(answer: Any) -> str:
    return Attempt(answer, 0).name if type(answer) is types.FunctionType else "The answer"


def _lost(question: Question, message: str) -> Result:
    return Result(question.id, question.title, 0, question.points, message, hints=(question.hint,))


def _not_answered(question: Question, what: str = "") -> Result:
    told = what or f"write {question.takes}, then run this cell again."
    return Result(question.id, question.title, 0, question.points, f"Not answered yet: {told}")
