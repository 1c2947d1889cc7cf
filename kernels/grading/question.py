"""The shape of a question, and the registry that `check` looks it up in.

A question is one small declarative object. Its `grade` function takes an `Attempt`, notes what
held on the way, and raises `Wrong` at the first thing that does not. Points are all or nothing: a
question's checks stand for one another only together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

KINDS = ("predict", "read", "fix", "write", "optimise", "explain")
# What an untouched exercise raises; the generator writes it where a solution stood.
PLACEHOLDER = "your turn"


class NotAnswered(Exception):  # noqa: N818  (it ends a grading and is no error)
    """The exercise is as it was given out; the argument, if there is one, says what of it."""


class Wrong(Exception):  # noqa: N818
    """What is wrong, in one sentence; what that means; a hint for it; and figures as HTML.

    `beyond` is what a kernel calls the tensor past whose end it went, None of other faults.
    """

    def __init__(
        self, sentence: str, means: str = "", hint: str = "", pictures: tuple[str, ...] = ()
    ) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.means = means
        self.hint = hint
        self.pictures = pictures
        self.beyond: str | None = None


@dataclass
class Attempt:
    """A reader's answer while it is graded.

    All random inputs come from `seed`. `held` collects a sentence for every check that passed. An
    answer that `predicts` launches nothing.
    """

    answer: Any
    seed: int
    held: list[str] = field(default_factory=list)
    predicts: bool = False

    @property
    def name(self) -> str:
        """The answer's own name, as its sentences call it."""
        try:
            name = self.answer.__name__
        except BaseException:  # it has none, or a strange one
            return "answer"
        return name if type(name) is str and name.isidentifier() else "answer"


@dataclass(frozen=True)
class Speed:
    """A call to time: `make(seed)` is its `Case` on the CPU, `share` the rate to reach.

    It is a share of a copy's rate that moves as many bytes as have to move, inputs and output once.
    Where bytes are not what binds, it is a share of the rate of PyTorch's function `against`, which
    is called with the case's tensors.
    """

    make: Callable[[int], Any]
    share: float
    against: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Question:
    """One question. `takes` says what an answer is, as `merge(a, b)`.

    `hint` is shown at the first failure, after the hint that belongs to what failed if there is
    one; each of `more_hints` at one failure more. A reader sees three at most. `needs` names the
    slow modules that grading imports: the checker's own process loads them, once, before it forks.
    `speed` is what a GPU times for a bonus point.
    """

    id: str
    title: str
    kind: str
    points: int
    takes: str
    hint: str
    grade: Callable[[Attempt], None]
    more_hints: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    speed: Speed | None = None

    def hints(self, failed: int, first: str = "") -> tuple[str, ...]:
        """The hints after `failed` failures, `first` being the one for what failed."""
        own = (self.hint, *self.more_hints)
        known = (first, *own) if first else own
        return known[: min(max(failed, 1), 3)]


_QUESTIONS: dict[str, Question] = {}


def register(question: Question) -> Question:
    """Put `question` into the registry and return it; ValueError if it doesn't fit."""
    if question.id in _QUESTIONS:
        raise ValueError(f"question {question.id!r} is registered already")
    if question.kind not in KINDS:
        raise ValueError(f"kind {question.kind!r} of {question.id!r} is unknown; kinds: {KINDS}")
    _QUESTIONS[question.id] = question
    return question


def questions() -> dict[str, Question]:
    """All registered questions by id, in the order of registration."""
    return dict(_QUESTIONS)
