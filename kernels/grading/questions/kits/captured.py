"""What questions about torch.compile share: a function captured, its graphs counted and run.

Nothing here needs a GPU or a C++ compiler: the front of the compiler captures as it always does,
and each graph runs, operator by operator, as it was captured.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels.grading.checks import call
from kernels.grading.question import Attempt, Wrong

# What a question of this kind `needs`: seconds of import, once, before a check forks.
COMPILER = ("torch._dynamo",)

_NUMBER = (
    "needs a number of a tensor in Python. Nobody has that number while the graph is captured, so "
    "the graph ends there, and on a GPU the host waits for all work under way. What stays a tensor "
    "stays in the graph."
)
_BRANCH = (
    "branches on the value of a tensor. A graph has no branch: it ends where one is chosen. "
    "torch.where, or a minimum or maximum, chooses inside it."
)
# By words of the compiler's own reason for ending a graph: what it means.
_REASONS = (
    ("generic_jump", _BRANCH),
    ("Data-dependent branching", _BRANCH),
    ("item()", _NUMBER),
    ("tolist()", _NUMBER),
    ("Data dependent operator", _NUMBER),
    (
        "Dynamic shape",
        "makes a tensor whose shape depends on values. torch.where chooses and keeps the shape.",
    ),
    (
        "disable()",
        "calls a function that the compiler was told to skip: it runs between two graphs.",
    ),
    ("graph_break()", "asks for the end of the graph itself."),
    ("print", "prints. A graph holds operations on tensors alone: print outside the function."),
)


# The compiler's own settings, whatever a reader has set: the questions are about these.
_AS_DELIVERED: dict[str, Any] = {
    "disable": False,
    "capture_scalar_outputs": False,
    "capture_dynamic_output_shape_ops": False,
    "specialize_int": False,
    "automatic_dynamic_shapes": True,
    "recompile_limit": 8,
}


@contextlib.contextmanager
def _as_delivered() -> Iterator[None]:
    """Let the compiler work as it does by itself, and warn in no check's printed lines.

    `Wrong` if one of the settings is another at the end.
    """
    log = logging.getLogger("torch._dynamo")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with torch._dynamo.config.patch(**_AS_DELIVERED):
            yield
            settings = torch._dynamo.config
            for name, value in _AS_DELIVERED.items():
                if getattr(settings, name) != value:
                    raise Wrong(
                        f"The answer sets torch._dynamo.config.{name}.",
                        "The question is about the function, as the compiler takes it by itself: "
                        "whoever uses it would have to know of the setting.",
                    )
    finally:
        log.setLevel(before)


def plain(attempt: Attempt) -> Attempt:
    """Return the attempt with the function below `@torch.compile`, if a reader put that on it."""
    answer = attempt.answer
    for _ in range(10):
        inner = None
        with contextlib.suppress(BaseException):  # a strange object's own attributes
            inner = vars(answer).get("_torchdynamo_orig_callable")
        if not callable(inner):
            break
        answer = inner
    return Attempt(answer, attempt.seed, attempt.held, attempt.predicts)


class _Named:
    """A callable in a reader's name, whose lines are those of the reader's cell."""

    def __init__(self, attempt: Attempt, function: Callable[..., Any]) -> None:
        self._function = function
        self.__name__ = attempt.name
        self.__code__ = getattr(attempt.answer, "__code__", None)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


class Captured:
    """The reader's function, compiled without any code generator: it only counts its `graphs`.

    What an earlier `Captured` compiled is forgotten. `dynamic` is that of `torch.compile`.
    """

    def __init__(self, attempt: Attempt, dynamic: bool | None = None) -> None:
        torch._dynamo.reset()
        self.graphs = 0

        def backend(graph: Any, _: Any) -> Any:
            self.graphs += 1
            return graph.forward

        compiled = torch.compile(attempt.answer, backend=backend, dynamic=dynamic)
        self._attempt = Attempt(_Named(attempt, compiled), attempt.seed)

    def __call__(self, *args: Any) -> Any:
        """Call the function, capturing what is new; `Wrong` for what it raises."""
        with _as_delivered():
            return call(self._attempt, *args)


@dataclass(frozen=True)
class Broken:
    """Where a graph ends: the line of the reader's cell, if known, and what it means."""

    line: int | None
    reason: str

    @property
    def means(self) -> str:
        """Why the graph ends there, as a sentence; "" if the reason is a rare one."""
        where = f"Line {self.line} of the cell" if self.line else "It"
        return next((f"{where} {told}" for words, told in _REASONS if words in self.reason), "")


def breaks(attempt: Attempt, *args: Any) -> list[Broken]:
    """Return where the graphs of one call end before the function does."""
    with _as_delivered():
        told = torch._dynamo.explain(attempt.answer)(*args)
    found = []
    for one in told.break_reasons:
        own = getattr(attempt.answer, "__code__", None)
        file = getattr(own, "co_filename", None)
        lines = [frame.lineno for frame in one.user_stack if frame.filename == file]
        found.append(Broken(lines[-1] if lines else None, str(one.reason)))
    return found


def one_graph(attempt: Attempt, args: tuple[Any, ...], what: str = "") -> None:
    """`Wrong` unless a call with `args`, twice the same, is captured whole, as one graph."""
    captured = Captured(attempt)
    captured(*args)
    found = breaks(attempt, *args)
    if captured.graphs == 0 and not found:
        raise Wrong(
            f"{attempt.name} holds no operation that the compiler captured.",
            "A function whose work is hidden from the compiler runs as it always did, operator by "
            "operator.",
        )
    means = found[0].means if found else ""
    if captured.graphs > 1:
        raise Wrong(
            f"{attempt.name} falls into {captured.graphs} graphs{what}; it should be one.", means
        )
    if found:
        raise Wrong(f"The graph of {attempt.name} ends before the function does{what}.", means)
    attempt.held.append("captured whole, as one graph")
