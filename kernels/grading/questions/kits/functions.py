"""Differentiable functions of a reader's: a gradient as an output, what they keep, what is alive.

The gradients are made node by node, since a check runs in a fork (`way_back`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import call
from kernels.grading.closeness import changed, index_of, kind_fault
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.gradients import right_gradient
from kernels.grading.questions.kits.way_back import gradient
from kernels.grading.questions.kits.wrong_models import Tensor
from kernels.lab.counting.alive import Alive

_CUT = "the result depends on no argument by autograd's graph: no gradient gets to"
_CUT_MEANS = (
    "What is written by .data, by .detach() or inside torch.no_grad() leaves no trace in the graph."
)
_NONE = "None says that an argument has no gradient: backward returns one for each, in their order."
_CALLERS = "What it is given belongs to the caller, and others may read it later."
_IN_PLACE = (
    "PyTorch counts what is written in place, and stops a backward that would read an overwritten "
    "tensor. .data hides the write from the count; the gradient is wrong all the same."
)
_SHAPES = (
    "A gradient has the shape of its argument: backward returns one for each argument of forward, "
    "in their order."
)


class Differentiated:
    """The reader's function: its output, or the gradient of one argument.

    It is called with the arguments and the gradient of the output. `place` is the argument's number
    and None for the output. The name and the lines are the reader's.
    """

    def __init__(self, answer: Any, place: int | None, name: str) -> None:
        self._answer = answer
        self._place = place
        self._of = name
        self.__name__ = Attempt(answer, 0).name
        self.__code__ = getattr(answer, "__code__", None)

    def __call__(self, *tensors: Any) -> Any:
        """Call the answer on leaves of a graph, and go back through it if a gradient is asked."""
        *given, dy = tensors
        leaves = [one.detach().requires_grad_() for one in given]
        # No leaves are handed on: what a layer is given was made by another one.
        handed = [leaf.clone() for leaf in leaves]
        y = self._answer(*handed)
        if self._place is None or kind_fault(y, dy) is not None:
            return y.detach() if type(y) is torch.Tensor else y
        before = [one.detach().clone() for one in handed]
        made = gradient(y, leaves[self._place], dy)
        if made is None and _reaches(y.grad_fn, leaves[self._place]):
            raise RuntimeError(f"the backward returns None as the gradient of {self._of}")
        if made is None:
            raise RuntimeError(f"{_CUT} {self._of}")
        for one, was, told in zip(handed, before, given, strict=True):
            if changed(was, one.detach()) is not None:
                told.copy_(one.detach())  # which the check holds to what it was
        return made.contiguous()


def _reaches(root: Any, leaf: Tensor) -> bool:
    """Whether a graph leads from a node to a leaf."""
    seen, stack = set(), [root]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", None) is leaf:
            return True
        stack += [following for following, _ in node.next_functions]
    return False


def differentiated(
    attempt: Attempt,
    cases: Sequence[Case],
    names: Sequence[str],
    explains: Sequence[Callable[[list[Run]], str]],
    references: Callable[[Case], Sequence[Case]],
) -> None:
    """Hold the output and the gradient of each argument to float64; `Wrong` at the first one off.

    names: what the output is called, and then each gradient. references: of a case, one for each.
    """
    asked = [references(case) for case in cases]
    for number, (name, explain) in enumerate(zip(names, explains, strict=True)):
        place = number - 1 if number else None
        one = Differentiated(attempt.answer, place, name.removeprefix("d"))
        try:
            right_gradient(Attempt(one, attempt.seed), [a[number] for a in asked], explain, name)
        except Wrong as wrong:
            if _CUT in wrong.sentence:
                wrong.means = wrong.means or _CUT_MEANS
            if "the backward returns None" in wrong.sentence:
                wrong.means = wrong.means or _NONE
            if "changed its input" in wrong.sentence:
                wrong.means = wrong.means or _CALLERS
            if "in-place operation" in wrong.sentence or "inplace operation" in wrong.sentence:
                wrong.means = wrong.means or _IN_PLACE
            if "is not expandable to size" in wrong.sentence:
                wrong.means = wrong.means or _SHAPES
            raise
    attempt.held.append(f"{' and '.join(names)} right on {len(cases)} random inputs")


@dataclass(frozen=True)
class Cost:
    """What a forward takes: bytes alive at most, and kept behind it, beside arguments and result.

    `at_most` has the result in it.
    """

    at_most: int
    kept: int
    y: Tensor


def _tensors() -> list[Tensor]:
    """All tensors that Python holds, by their types: a `__class__` may be made up."""
    return [one for one in gc.get_objects() if issubclass(type(one), Tensor)]


def _unseen(alive: Alive, there: Sequence[Tensor]) -> int:
    """Bytes that are held since then, and that no operator made."""
    old = {id(one) for one in there}
    new = [one for one in _tensors() if id(one) not in old]
    storages = {id(one.untyped_storage()): one.untyped_storage().nbytes() for one in new}
    return sum(size for key, size in storages.items() if key not in alive._seen)


def forward_cost(attempt: Attempt, case: Case, by_anyone: bool = False) -> Cost:
    """Call the answer on the arguments of a case, which takes the output's gradient at its end.

    by_anyone: what no operator made counts as kept too, as the state of a generator.
    """
    given = [one.clone().requires_grad_() for one in list(case.tensors.values())[:-1]]
    given = [one.clone() for one in given]
    before = [one.detach().clone() for one in given]
    saved: dict[int, Tensor] = {}

    there = _tensors() if by_anyone else []

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        Alive(given) as alive,
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        y = call(attempt, *given)
        at_most = alive.peak
        if type(y) is torch.Tensor and alive.now > y.untyped_storage().nbytes():
            gc.collect()  # what refers to itself is no longer kept
        now = alive.now + (_unseen(alive, there) if by_anyone else 0)
    if y is None or y is ...:
        raise NotAnswered
    for name, one, was in zip(case.tensors, given, before, strict=False):
        first = changed(was, one.detach())
        if first is not None:
            place = index_of(first, tuple(was.shape))
            raise Wrong(
                f"{attempt.name} on {case}: it changed its input {name}, first at {name}{place}.",
                _CALLERS,
            )
    known = {one.untyped_storage().data_ptr() for one in given}
    by_graph = sum(
        one.untyped_storage().nbytes() for place, one in saved.items() if place not in known
    )
    return Cost(at_most, max(now - y.untyped_storage().nbytes(), by_graph), y)
