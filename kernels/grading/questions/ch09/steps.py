"""09.8: a number of Python that is a constant of the graph, and a graph for each of its values."""

from __future__ import annotations

import random
from typing import Any

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


def _models(w: Tensor, grad: Tensor, step: int) -> list[tuple[str, Tensor]]:
    w, grad = w.double(), grad.double()
    last = len(RATES) - 1
    return [
        ("Every step takes the rate of the first.", w - RATES[0] * grad),
        ("The rate is that of the step before.", w - RATES[max(step - 1, 0)] * grad),
        ("The rate is that of the next step.", w - RATES[min(step + 1, last)] * grad),
        ("The rate is added; a step goes against the gradient.", w + RATES[step] * grad),
        ("The rate is missing.", w - grad),
        ("The number of the step is taken for the rate.", w - step * grad),
    ]


def _judge(
    attempt: Attempt, output: Any, w: Tensor, grad: Tensor, step: int, compiled: str
) -> None:
    if output is None or output is ...:
        raise NotAnswered
    where = f"{attempt.name} at step {step}{compiled}"
    if (fault := kind_fault(output, w)) is not None:
        raise Wrong(f"{where}: {fault}.")
    reference = w.double() - RATES[step] * grad.double()
    wrong = wrong_elements(output, reference, _CLOSE)
    if bool(wrong.any()):
        known = _models(w, grad, step)
        told = (m for m, y in known if torch.allclose(output.detach().double(), y, rtol=1e-4))
        raise Wrong(f"{where}: {value_fault(output, reference, wrong)}.", next(told, ""))


def grade_steps(attempt: Attempt) -> None:
    """Grade `updated(w, grad, step)`: right at each step, and few graphs for all of them."""
    attempt = plain(attempt)
    rng = random.Random(attempt.seed)
    shape = (rng.randrange(3, 9), rng.randrange(10, 40))
    w, grad = (drawn(rng, shape, torch.float32) for _ in range(2))
    for step in range(len(RATES)):
        given = w.clone(), grad.clone()
        _judge(attempt, call(attempt, *given, step), w, grad, step, "")
        if changed(w, given[0]) is not None:
            raise Wrong(f"{attempt.name} at step {step} changed w; it returns a new tensor.")
        if changed(grad, given[1]) is not None:
            raise Wrong(f"{attempt.name} at step {step} changed grad.")
    attempt.held.append(f"right at {len(RATES)} steps")
    steps = rng.sample(range(len(RATES)), _STEPS)
    found = breaks(attempt, w.clone(), grad.clone(), steps[0])
    if found:
        raise Wrong(f"The graph of {attempt.name} ends before the function does.", found[0].means)
    captured = Captured(attempt)
    for step in steps:
        output = captured(w.clone(), grad.clone(), step)
        _judge(attempt, output, w, grad, step, ", compiled")
    if captured.graphs == 0:
        raise Wrong(f"{attempt.name} holds no operation that the compiler captured.")
    if captured.graphs > MOST:
        each = captured.graphs == _STEPS
        raise Wrong(
            f"{attempt.name} is captured {captured.graphs} times for steps {steps}; {MOST} times "
            "are the most.",
            "Each new step is a new graph: the number that Python took from the list is a constant "
            "of the graph, and holds for that step alone. An element of a tensor is found by the "
            "graph, each time it runs."
            if each
            else "Some values of step have a graph of their own. A branch or a loop by step, or a "
            "list that it picks from, is settled while the graph is captured.",
        )
    attempt.held.append(f"{captured.graphs} graphs for {_STEPS} steps")
