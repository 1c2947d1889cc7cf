"""09.7: a branch on a value made a choice inside the graph, with a gradient everywhere."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch

from kernels.grading.checks import call
from kernels.grading.closeness import changed, kind_fault, value_fault, wrong_elements
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.captured import Captured, one_graph, plain
from kernels.grading.questions.kits.way_back import gradient as gradient_of
from kernels.grading.questions.kits.wrong_models import Tensor, drawn
from kernels.registry import Tolerance

_CLOSE = Tolerance(1e-5, 1e-4)
LIMIT = 2.0
_ABOVE, _BELOW, _ZERO = "a norm above limit", "a norm below limit", "a norm of 0"


class Kind(NamedTuple):
    """A vector to clip, the gradient that comes from above, and what is special about it."""

    g: Tensor
    upstream: Tensor
    trait: str


def right(g: Tensor, upstream: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Return the clipped vector and its gradient, in float64."""
    g, upstream = g.double(), upstream.double()
    norm = g.norm()
    if float(norm) <= limit:
        return g, upstream
    unit = g / norm
    return g * (limit / norm), limit / norm * (upstream - unit * (unit @ upstream))


def _kinds(rng: random.Random, n: int, limit: float) -> list[Kind]:
    found = []
    for size, trait in ((3.0, _ABOVE), (0.3, _BELOW), (0.0, _ZERO), (1.5, _ABOVE)):
        g = drawn(rng, (n,), torch.float32)
        g = g * (size * limit / g.norm())
        found.append(Kind(g, drawn(rng, (n,), torch.float32), trait))
    return found


def _values(known: Kind, limit: float) -> list[tuple[str, Tensor]]:
    g = known.g.double()
    norm = g.norm()
    scaled = g * (limit / norm) if float(norm) else g
    return [
        ("It is scaled always: below limit it stays as it is.", scaled),
        ("Nothing is clipped.", g),
        ("Each element is clamped by itself: the norm of all is what is limited.",
         g.clamp(-limit, limit)),
        ("It is divided by its norm: the norm becomes limit, not 1.",
         g / norm if float(norm) else g),
        ("It is multiplied by norm / limit: limit / norm makes it shorter.", g * (norm / limit)),
        ("The branches are exchanged.", scaled if float(norm) <= limit else g),
        ("The norm is the root: that scales by the sum of the squares.",
         g * (limit / norm**2) if float(norm**2) > limit else g),
    ]  # fmt: skip


def _means(known: Kind, output: Tensor, limit: float) -> str:
    if bool(output.isnan().any()):
        return (
            "0 / 0 is nan, and inf · 0 too. Both sides of a choice are computed: keep the one that "
            "is not taken finite, by a norm that is limit at least."
        )
    for what, model in _values(known, limit):
        if torch.allclose(output.detach().double(), model, rtol=1e-3, atol=1e-6):
            return what
    return ""


def _slope(known: Kind, got: Tensor, limit: float) -> str:
    if not bool(got.isfinite().all()):
        return (
            "The value is right, and its way back is not finite. Both sides of a choice are "
            "differentiated: the one that wasn't taken gets a gradient of 0, and its own slope at "
            "norm 0 is infinite. 0 · inf is nan. Keep that side finite: divide by the larger of "
            "norm and limit."
        )
    if not bool(got.any()):
        return "No gradient comes through: something is detached, or made outside the graph."
    scale = min(1.0, limit / max(float(known.g.norm()), 1e-30))
    if torch.allclose(got.double(), known.upstream.double() * scale, rtol=1e-3, atol=1e-6):
        return (
            "The factor is taken for a constant. It depends on g through the norm, and a .detach() "
            "or a number of Python loses that part of the gradient."
        )
    return ""


def _judge(attempt: Attempt, answer: Any, known: Kind, limit: float, compiled: str) -> None:
    """Call `answer` once and judge value and gradient."""
    leaf = known.g.clone().requires_grad_(True)
    output = answer(leaf, limit)
    if output is None or output is ...:
        raise NotAnswered
    where = f"{attempt.name} on {known.trait}{compiled}"
    if (fault := kind_fault(output, known.g)) is not None:
        raise Wrong(f"{where}: {fault}.")
    if changed(known.g, leaf.detach()) is not None:
        raise Wrong(f"{where} changed its input g.", "Return a new tensor: g is the caller's.")
    value, gradient = right(known.g, known.upstream, limit)
    wrong = wrong_elements(output, value, _CLOSE)
    if bool(wrong.any()):
        raise Wrong(f"{where}: {value_fault(output, value, wrong)}.", _means(known, output, limit))
    if not output.requires_grad:
        raise Wrong(
            f"{where}: what it returned has no gradient.", _slope(known, torch.zeros(1), limit)
        )
    got = gradient_of(output, leaf, known.upstream)
    got = torch.zeros_like(known.g) if got is None else got
    wrong = wrong_elements(got, gradient, _CLOSE)
    if bool(wrong.any()):
        told = value_fault(got, gradient, wrong).replace("y[", "dg[", 1)
        raise Wrong(f"{where}: {told}.", _slope(known, got, limit))


def grade_clips(attempt: Attempt) -> None:
    """Grade `clipped(g, limit)`: values, gradients, and one graph for every value of g."""
    attempt = plain(attempt)
    rng = random.Random(attempt.seed)
    limit = round(rng.uniform(0.5, 3.0), 3)
    kinds = _kinds(rng, rng.randrange(20, 60), limit)
    for known in kinds:
        _judge(attempt, lambda *args: call(attempt, *args), known, limit, "")
    attempt.held.append("values and gradients right: above limit, below it, and at 0")
    for known in kinds[:3]:
        leaf = known.g.clone().requires_grad_(True)
        one_graph(Attempt(attempt.answer, attempt.seed), (leaf, limit), f" on {known.trait}")
    captured = Captured(attempt)
    for known in kinds:
        _judge(attempt, captured, known, limit, ", compiled")
    if captured.graphs != 1:
        raise Wrong(
            f"{attempt.name} was captured {captured.graphs} times for {len(kinds)} vectors of one "
            "length; once will do.",
            "A graph that holds for some values only is checked at each call, and captured again "
            "where it doesn't hold.",
        )
    attempt.held.append("one graph serves every value of g")
