"""09.8: a number of Python that is a constant of the graph, and a graph for each of its values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from kernels.grading.checks import call
from kernels.grading.closeness import changed, kind_fault, value_fault, wrong_elements
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.captured import Captured, breaks, plain
from kernels.grading.questions.kits.wrong_models import Tensor, drawn
from kernels.registry import Tolerance

RATES = (0.5, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)
MOST = 3
_STEPS = 6
_CLOSE = Tolerance(1e-5, 1e-4)


_CONSTANT = (
    "Each of these steps is a graph of its own. What Python takes from a list or a dict, decides "
    "by a branch, or counts in a loop is settled while the graph is captured, and holds for that "
    "step alone. An element of a tensor is found by the graph, each time it runs."
)
_NEW = "The caller goes on with its own tensors: return a new one."


class _Step(NamedTuple):
    """A step of which the output is known."""

    step: int
    output: Tensor


_LAST = len(RATES) - 1
_WRONG_RATES: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("Every step takes the rate of the first.", lambda step: RATES[0]),
    ("The rate is that of the step before.", lambda step: RATES[max(step - 1, 0)]),
    ("The rate is that of the step before.", lambda step: RATES[step - 1]),
    ("The rate is that of the next step.", lambda step: RATES[min(step + 1, _LAST)]),
    ("The rate is added; a step goes against the gradient.", lambda step: -RATES[step]),
    ("The rate is missing.", lambda step: 1.0),
    ("The number of the step is taken for the rate.", float),
    ("The rate is divided by; it multiplies.", lambda step: 1 / RATES[step]),
)


def _means(seen: Sequence[_Step], w: Tensor, grad: Tensor) -> str:
    """What every output means, if one wrong rate explains them all."""
    for what, rate in _WRONG_RATES:
        made = (w.double() - rate(step) * grad.double() for step, _ in seen)
        if all(
            torch.allclose(output.detach().double(), y, rtol=1e-4, atol=1e-5)
            for (_, output), y in zip(seen, made, strict=True)
        ):
            return what
    return ""


def _judge(
    attempt: Attempt, outputs: Sequence[tuple[int, Any]], w: Tensor, grad: Tensor, compiled: str
) -> None:
    """`Wrong` at the first step whose output is not the right one."""
    told = ""
    for step, output in outputs:
        if output is None or output is ...:
            raise NotAnswered
        where = f"{attempt.name} at step {step}{compiled}"
        if (fault := kind_fault(output, w)) is not None:
            raise Wrong(f"{where}: {fault}.")
        reference = w.double() - RATES[step] * grad.double()
        wrong = wrong_elements(output, reference, _CLOSE)
        if bool(wrong.any()) and not told:
            told = f"{where}: {value_fault(output, reference, wrong)}."
    if told:
        raise Wrong(told, _means([_Step(*one) for one in outputs], w, grad))


def grade_steps(attempt: Attempt) -> None:
    """Grade `updated(w, grad, step)`: right at each step, and few graphs for all of them."""
    attempt = plain(attempt)
    rng = random.Random(attempt.seed)
    shape = (rng.randrange(3, 9), rng.randrange(10, 40))
    w, grad = (drawn(rng, shape, torch.float32) for _ in range(2))
    outputs = []
    for step in range(len(RATES)):
        given = w.clone(), grad.clone()
        outputs.append((step, call(attempt, *given, step)))
        for name, before, after in zip(("w", "grad"), (w, grad), given, strict=True):
            if changed(before, after) is not None:
                raise Wrong(f"{attempt.name} at step {step} changed {name}.", _NEW)
    _judge(attempt, outputs, w, grad, "")
    attempt.held.append(f"right at {len(RATES)} steps")
    steps = rng.sample(range(len(RATES)), _STEPS)
    found = breaks(attempt, w.clone(), grad.clone(), steps[0])
    if found:
        raise Wrong(f"The graph of {attempt.name} ends before the function does.", found[0].means)
    captured = Captured(attempt)
    outputs = [(step, captured(w.clone(), grad.clone(), step)) for step in steps]
    _judge(attempt, outputs, w, grad, ", compiled")
    if captured.graphs == 0:
        raise Wrong(f"{attempt.name} holds no operation that the compiler captured.")
    if captured.graphs > MOST:
        raise Wrong(
            f"{attempt.name} is captured {captured.graphs} times for steps {steps}; {MOST} times "
            "are the most.",
            _CONSTANT,
        )
    attempt.held.append(f"{captured.graphs} graphs for {_STEPS} steps")
