"""What questions about two outputs share: a part of an answer, its second, h of (y, h)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kernels.grading.cases import Case, Run
from kernels.grading.checks import call, index_told, right_everywhere
from kernels.grading.closeness import kind_fault, wrong_elements
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.numbers import pair
from kernels.grading.questions.kits.wrong_models import Tensor, recognised
from kernels.launch import interpreting


class Part:
    """The reader's function, returning one of its two tensors; its name and lines are theirs.

    `returned` collects what it returned, call by call.
    """

    def __init__(self, answer: Any, place: int) -> None:
        self._answer = answer
        self._place = place
        self.returned: list[Any] = []
        self.__name__ = Attempt(answer, 0).name
        self.__code__ = getattr(answer, "__code__", None)

    def __call__(self, *args: Any) -> Any:
        """Call the answer, keep what it returns, hand on the part that is graded."""
        result = self._answer(*args)
        self.returned.append(result)
        two = type(result) in (tuple, list) and len(result) == 2
        return result[self._place] if two else (result,)


def _sums(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, residual = case.tensors["x"].double(), case.tensors["residual"].double()
    yield "h is x - residual.", x - residual
    yield "h is x alone: the residual is not added.", x
    yield "h is the residual alone: x is not added.", residual


def residual_rounded(cases: Sequence[Case], outputs: Sequence[Any]) -> str:
    """What to say if each wrong h is the sum of x and a residual rounded to the dtype of x, or "".

    Such an h is within that dtype's rounding of the right one, so it is held to the bound of h.
    """
    if not outputs:  # the first call gave none
        return ""
    found = False
    for case, h in zip(cases, outputs, strict=True):
        if kind_fault(h, case.like) is not None:
            return ""
        if not bool(wrong_elements(h, case.reference, case.tolerance).any()):
            continue
        x, narrow = case.tensors["x"], case.tensors["residual"].to(case.tensors["x"].dtype)
        sums = (x.float() + narrow.float(), x + narrow)
        if all(bool(wrong_elements(h, s.double(), case.tolerance).any()) for s in sums):
            return ""
        found = True
    told = "residual was rounded to the dtype of x before the sum: convert x, not residual."
    return told if found else ""


def _explain_h(runs: list[Run]) -> str:
    told = residual_rounded([r.case for r in runs], [r.output for r in runs])
    return told or recognised(runs, _sums)


def is_pair(attempt: Attempt, case: Case) -> None:
    """`Wrong` unless the answer, called on a case, returns a tuple or list of two."""
    with index_told(Attempt(Part(attempt.answer, 0), attempt.seed), case), interpreting():
        told = call(attempt, *(t.clone() for t in case.tensors.values()), *case.options)
    if told is None or told is ...:
        raise NotAnswered
    if type(told) not in (tuple, list) or len(told) != 2:
        size = f" of {len(told)}" if type(told) in (tuple, list) else ""
        raise Wrong(
            f"{attempt.name} returned a {type(told).__name__}{size}; it takes the two tensors "
            f"(y, h)."
        )


def are_two(attempt: Attempt, case: Case, what: str) -> None:
    """`Wrong` unless the answer, called on a case, returns two; `what` is "(dx, dweight)"."""
    with interpreting():
        told = call(attempt, *(t.clone() for t in case.tensors.values()), *case.options)
    if told is None or told is ...:
        raise NotAnswered
    pair(told, attempt.name, what)


def graded_second(
    cases: list[Case], runs: list[Run], pairs: list[Any], again: Callable[[], list[Run]]
) -> list[Run]:
    """The runs of the first of each pair as runs of the second, that `cases` grade.

    Where one is wrong, `again()` runs it by itself, for all that is told of a wrong output.
    """
    found = []
    for case, r, (_, output) in zip(cases, runs, pairs, strict=True):
        wrong = kind_fault(output, case.like) is not None or bool(
            wrong_elements(output, case.reference, case.tolerance).any()
        )
        if wrong:
            return again()
        found.append(replace(r, case=replace(case, tensors=r.case.tensors), output=output))
    return found


def reads_no_h(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if h is read back from memory."""
    for r in runs:
        back = r.traffic(r.output).read_unique
        if back and not r.operators:
            count = len(r.launches)
            raise Wrong(
                f"{attempt.name} reads {back:,} bytes of h back on {r.case}, in "
                f"{count} launch{'es' if count != 1 else ''}.",
                "h was in registers when it was stored, and the sums of its row can take it from "
                "there. Store it, and go on with the variable.",
            )


def graded_h(attempt: Attempt, cases: list[Case], y_runs: list[Run], pairs: list[Any]) -> list[Run]:
    """The runs of y as runs of h; `Wrong` if one is wrong."""
    runs = []
    for case, r, (_, h) in zip(cases, y_runs, pairs, strict=True):
        wrong = kind_fault(h, case.like) is not None or bool(
            wrong_elements(h, case.reference, case.tolerance).any()
        )
        if wrong:
            # Once more by itself, for all that is told of a wrong output.
            part = Attempt(Part(attempt.answer, 1), attempt.seed)
            try:
                return right_everywhere(part, cases, _explain_h)
            except Wrong as found:
                found.sentence = found.sentence.replace(": y[", ": h[", 1)
                raise
        runs.append(replace(r, output=h))
    return runs
