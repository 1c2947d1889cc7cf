"""09.6: a function that logs, mended so that its logging ends no graph."""

from __future__ import annotations

import random
from typing import Any

import torch

from kernels.grading.checks import call
from kernels.grading.closeness import changed, index_of, kind_fault, value_fault, wrong_elements
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.captured import Captured, one_graph, plain
from kernels.grading.questions.kits.numbers import kind
from kernels.grading.questions.kits.wrong_models import Tensor, drawn
from kernels.registry import Tolerance

_CLOSE = Tolerance(1e-5, 1e-4)
_SHAPES = ((5, 16, 24), (12, 40, 7), (3, 8, 8))


_EARLIER = 0.25  # an entry that is in the log before a call


def _given(rng: random.Random, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    rows, inner, cols = shape
    shift = rng.uniform(-0.5, 0.5)
    x = drawn(rng, (rows, inner), torch.float32, mean=shift)
    x[0] = 0.0  # so that sums are 0 as well as below it
    return x, drawn(rng, (inner, cols), torch.float32, mean=0.1)


def right(x: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """Return y and the share of zeros, in float64."""
    h = torch.relu(x.double() @ weight.double())
    return 2 * h, float((h == 0).double().mean())


def _entry(attempt: Attempt, log: list[Any], where: str) -> float:
    """Return the number that the call has logged; `Wrong` if there is none, or more than one."""
    # By type first: a tensor of many elements has no truth of its own.
    if not log or type(log[0]) is not float or log[0] != _EARLIER:
        raise Wrong(
            f"{attempt.name} on {where} changed what was in log before; a call appends one entry.",
            "The log is the caller's, and has the entries of earlier calls.",
        )
    log = log[1:]
    if len(log) != 1:
        had = "nothing" if not log else f"{len(log)} entries"
        raise Wrong(
            f"{attempt.name} on {where} appended {had} to log; a call appends one entry.",
            "The log is what the caller wants beside y. Without it the graph is whole, and the "
            "function does less than it did."
            if not log
            else "Who reads the log counts on one entry for each call.",
        )
    entry = log[0]
    if type(entry) in (int, float):
        return float(entry)
    if type(entry) is torch.Tensor and entry.numel() == 1:
        return float(entry.detach())
    shape = f" of shape {tuple(entry.shape)}" if type(entry) is torch.Tensor else ""
    raise Wrong(
        f"{attempt.name} on {where} appended {kind(entry)}{shape} to log; it takes one number, "
        "or a tensor of one."
    )


def _logged(h: Tensor, got: float) -> str:
    """What was logged in place of the share of zeros; "" if it is none of what is known."""
    zeros = (h == 0).double()
    known = (
        ("That is the share of elements that are not 0.", 1 - zeros.mean()),
        ("That is the number of zeros, and not their share.", zeros.sum()),
        ("That is the mean of h.", h.mean()),
        ("That is the sum of h.", h.sum()),
    )
    return next((what for what, value in known if abs(float(value) - got) < 1e-3), "")


def _judge(attempt: Attempt, output: Any, log: list[Any], given: tuple[Tensor, ...]) -> None:
    x, weight = given
    where = f"x of shape {tuple(x.shape)}"
    if output is None or output is ...:
        raise NotAnswered
    reference, share = right(x, weight)
    like = torch.empty((), dtype=x.dtype).expand(reference.shape)
    if (fault := kind_fault(output, like)) is not None:
        pair = type(output) in (tuple, list)
        raise Wrong(
            f"{attempt.name} on {where}: {fault}.",
            "What is logged goes into log; the function returns y alone." if pair else "",
        )
    wrong = wrong_elements(output, reference, _CLOSE)
    if bool(wrong.any()):
        raise Wrong(
            f"{attempt.name} on {where}: {value_fault(output, reference, wrong)}.",
            "y is 2 · relu(x @ weight), as it was given out.",
        )
    got = _entry(attempt, log, where)
    if not abs(got - share) < 1e-4:
        raise Wrong(
            f"{attempt.name} on {where} logs {got:.6g} and should log {share:.6g}.",
            _logged(reference / 2, got) or "What is logged is the share of zeros in h.",
        )


def grade_logs(attempt: Attempt) -> None:
    """Grade `activated(x, weight, log)`: the values, the log, and one graph."""
    attempt = plain(attempt)
    rng = random.Random(attempt.seed)
    cases = [_given(rng, shape) for shape in _SHAPES]
    for case in cases:
        log: list[Any] = [_EARLIER]
        given = tuple(t.clone() for t in case)
        output = call(attempt, *given, log)
        for name, before, after in zip(("x", "weight"), case, given, strict=True):
            if (first := changed(before, after)) is not None:
                place = index_of(first, tuple(before.shape))
                raise Wrong(
                    f"{attempt.name} changed its input {name}, first at {name}{place}.",
                    "The caller goes on with x and weight: return a new tensor.",
                )
        _judge(attempt, output, log, case)
    attempt.held.append("y and the logged share are right")
    one_graph(attempt, (*cases[0], []))
    captured = Captured(attempt)
    for case in (cases[0], _given(rng, _SHAPES[0])):
        log = [_EARLIER]
        _judge(attempt, captured(*(t.clone() for t in case), log), log, case)
    attempt.held.append("compiled, each call logs its own share")
