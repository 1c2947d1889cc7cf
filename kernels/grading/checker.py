"""`check`: grade one answer and say so. It never raises, whatever the answer does."""

from __future__ import annotations

import secrets
from typing import Any

import kernels.grading.questions  # noqa: F401  (registers the questions)
from kernels.grading.question import Attempt, NotAnswered, Question, Wrong, questions
from kernels.grading.result import Result, show

_MOST_SEED = 2**32


def check(question: str, answer: Any = None, *, seed: int | None = None) -> Result:
    """Grade `answer` to `question` ("02.2"), show the verdict, and return it.

    The inputs are random and fresh at every call; the verdict names their seed, and `seed` repeats
    them. Nothing is raised: what goes wrong is the verdict.
    """
    return show(_verdict(question, answer, seed))


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
    return _graded(question, Attempt(answer, seed))


def _graded(question: Question, attempt: Attempt) -> Result:
    rerun = ""
    try:
        rerun = f'check("{question.id}", {attempt.name}, seed={attempt.seed})'
        if not callable(attempt.answer):
            got = f"a {type(attempt.answer).__name__}"
            raise Wrong(f"The answer is {got}; the question takes the function {question.takes}.")
        question.grade(attempt)
    except NotAnswered:
        return _not_answered(question)
    except Wrong as wrong:
        message, means, hint = wrong.sentence, wrong.means, wrong.hint or question.hint
        return _lost(question, message, means, hint, tuple(attempt.held), rerun)
    except KeyboardInterrupt:
        return _lost(question, "The check was stopped before it ended.", rerun=rerun)
    except BaseException as error:  # whatever an answer does, the notebook goes on
        message = f"The check itself failed with {type(error).__name__}; please report it."
        return _lost(question, message, rerun=rerun)
    return Result(
        question.id,
        question.title,
        question.points,
        question.points,
        "Everything that was checked holds.",
        held=tuple(attempt.held),
        rerun=rerun,
    )


def _lost(
    question: Question,
    message: str,
    means: str = "",
    hint: str = "",
    held: tuple[str, ...] = (),
    rerun: str = "",
) -> Result:
    return Result(
        question.id, question.title, 0, question.points, message, means, hint, held, rerun
    )


def _not_answered(question: Question) -> Result:
    return _lost(question, f"Not answered yet: write {question.takes}, then run this cell again.")
