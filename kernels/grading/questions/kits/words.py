"""Asking for one word of several, and naming a mistake by all the words that it gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, kind

T = TypeVar("T")


@dataclass(frozen=True)
class Words(Generic[T]):
    """A question that takes a word for each of many things, all of one kind.

    `noun` is what one of the things is called, `shown` how a sentence shows it. `mistakes` are
    what each wrong rule means, and the rule; `tells` says by what to know each right word.
    """

    known: tuple[str, ...]
    noun: str
    shown: Callable[[T], str]
    mistakes: Sequence[tuple[str, Callable[[T], str]]]
    tells: Mapping[str, str]

    def grade(self, attempt: Attempt, made: Sequence[tuple[str, T]]) -> None:
        """Ask for the word of each thing in `made`, behind its right word; `Wrong` if one isn't."""
        things = [thing for _, thing in made]
        said = [self._word(attempt, thing) for thing in things]
        for (wanted, thing), told in zip(made, said, strict=True):
            if told != wanted:
                raise Wrong(
                    f"{attempt.name} says {told!r} and should say {wanted!r}: {self.shown(thing)}.",
                    self._means(things, said, wanted),
                )

    def _word(self, attempt: Attempt, thing: T) -> str:
        told = answered(attempt, thing)
        if type(told) is not str or told not in self.known:
            got = repr(told[:40]) if type(told) is str else kind(told)
            known = ", ".join(repr(name) for name in self.known)
            raise Wrong(f"{attempt.name} returned {got}; it takes one of {known}.")
        return told

    def _means(self, things: Sequence[T], said: Sequence[str], right: str) -> str:
        if len(set(said)) == 1:
            return f"You give the same word for every {self.noun}; they have different ones."
        for means, rule in self.mistakes:
            if all(rule(thing) == told for thing, told in zip(things, said, strict=True)):
                return means
        return self.tells[right]
