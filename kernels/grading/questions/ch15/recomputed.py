"""15.5 and 15.7: a product behind GELU that keeps u alone, and its backward in no memory more."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kernels.grading.cases import Case
from kernels.grading.checks import call
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.ch15.mlps import (
    back_through,
    explaining,
    gelu,
    gelu_faults,
    held_to,
    sums,
    tanh_back,
    tanh_gelu,
    weight_faults,
    wide,
)
from kernels.grading.questions.kits.functions import differentiated, forward_cost
from kernels.grading.questions.kits.gradients import right_gradient
from kernels.grading.questions.kits.products import ProductCase
from kernels.grading.questions.kits.two_outputs import Part, are_two
from kernels.grading.questions.kits.wrong_models import EXACT, Tensor, drawn
from kernels.lab.counting.alive import Alive

NAMES = ("y", "du", "dweight", "dbias")
# Tokens, inner, width; in the last but one du is smaller than dweight.
_PLAN = ((8, 24, 12), (5, 30, 7), (1, 16, 16), (4, 20, 30), (9, 9, 9))


def _drawn(rng: random.Random, tokens: int, inner: int, width: int) -> dict[str, Tensor]:
    return {
        "u": drawn(rng, (tokens, inner), torch.float32),
        "weight": drawn(rng, (width, inner), torch.float32) * inner**-0.5,
        "bias": drawn(rng, (width,), torch.float32),
        "dy": 0.5 + drawn(rng, (tokens, width), torch.float32),
    }


def _shapes(rng: random.Random) -> list[tuple[int, int, int]]:
    more = (rng.randrange(9, 20), rng.randrange(20, 40), rng.randrange(9, 20))
    return [*_PLAN, more]


def _references(case: Case) -> Sequence[Case]:
    u, weight, bias, dy = wide(case).values()
    y = gelu(u) @ weight.T + bias
    rights = [y, *back_through(dy, u, weight).values()]
    return [held_to(case, one, sum(weight.shape) + len(dy)) for one in rights]


def _of_y(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    u, weight, bias, _ = t.values()
    yield "The bias is missing.", gelu(u) @ weight.T
    yield "GELU is missing: y is gelu(u) · weightᵀ + bias.", u @ weight.T + bias
    yield "That is GELU of the product: GELU comes first.", gelu(u @ weight.T + bias)
    yield "GELU is taken twice.", gelu(gelu(u)) @ weight.T + bias
    yield "That is ReLU, and not GELU.", u.relu() @ weight.T + bias


def _of_u(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    u, weight, _, dy = t.values()
    return gelu_faults(dy, u, weight)


def _of_weight(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return weight_faults(t["dy"], t["u"])


def _of_bias(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    dy = t["dy"]
    yield "dbias is the sum of dy over the tokens, and not their mean.", dy.mean(0)
    yield "dbias is the sum over all tokens: that is one of them.", dy[0]
    yield "dbias is the sum over all tokens: that is one of them.", dy[-1]
    yield "The sign of dbias is turned.", -dy.sum(0)
    yield "dbias is 0: y's gradient reaches the bias as it is, for each token.", 0 * dy[0]


# What explains y and each gradient.
_EXPLAINS = (
    explaining(_of_y, lambda t: tanh_gelu(t["u"]) @ t["weight"].T + t["bias"]),
    explaining(_of_u, lambda t: tanh_back(t["dy"] @ t["weight"], t["u"])),
    explaining(_of_weight, lambda t: t["dy"].T @ tanh_gelu(t["u"])),
    explaining(_of_bias),
)
_autograd: Any = torch.autograd
_ENGINE = "The answer went back through PyTorch's engine"


@contextlib.contextmanager
def _without_engine() -> Iterator[None]:
    """Refuse what torch.autograd.grad and .backward() call."""
    as_it_is = _autograd._engine_run_backward

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(_ENGINE)

    _autograd._engine_run_backward = refused
    try:
        yield
    finally:
        _autograd._engine_run_backward = as_it_is


def grade_recomputed(attempt: Attempt) -> None:
    """Grade `activated_product(u, weight, bias)`: right gradients, and u alone is kept."""
    rng = random.Random(attempt.seed)
    cases: list[Case] = [
        ProductCase(_drawn(rng, *one), (), torch.zeros(one[0], one[2]), EXACT)
        for one in _shapes(rng)
    ]
    try:
        with _without_engine():
            differentiated(attempt, cases, NAMES, _EXPLAINS, _references)
    except Wrong as wrong:
        if _ENGINE in wrong.sentence:
            wrong.means = (
                "torch.autograd.grad and .backward() go back through the graph of a forward that "
                "was made for it, a second one. Compute the gradients by their formulas."
            )
        raise
    for case in cases:
        took = forward_cost(attempt, case)
        if took.kept:
            raise Wrong(
                f"{attempt.name} keeps {took.kept:,} bytes on {case}, beside its arguments and y; "
                f"a has {sums([case.x]):,}.",
                "What ctx.save_for_backward takes stays alive until the backward, and so does "
                "whatever ctx holds by another name. u and weight are the caller's: to keep them "
                "costs nothing. y and a are not.",
            )
        if not isinstance(took.y.grad_fn, torch.autograd.function.BackwardCFunction):
            raise Wrong(
                f"The output of {attempt.name} comes from {type(took.y.grad_fn).__name__}; the "
                "question takes a torch.autograd.Function of yours.",
                "PyTorch's own checkpoint makes a whole forward again. With a forward and a "
                "backward of your own you say what is kept, and what is made again.",
            )
    attempt.held.append("no byte is kept beside u and weight")


def _back_cases(seed: int) -> tuple[list[Case], list[Case]]:
    """The same calls twice: graded by du, and by dweight."""
    rng = random.Random(seed)
    found: tuple[list[Case], list[Case]] = ([], [])
    for shape in _shapes(rng):
        t = _drawn(rng, *shape)
        given = {name: t[name] for name in ("dy", "u", "weight")}
        made = back_through(*(one.double() for one in given.values()))
        for cases, right in zip(found, made.values(), strict=False):
            case = ProductCase(given, (), right, EXACT)
            cases.append(held_to(case, right, sum(shape)))
    return found


def _back_of_u(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from gelu_faults(*t.values())
    dy, u, weight = t.values()
    yield "a stands where da should: du is da · gelu'(u).", gelu(u) * torch.ones_like(dy @ weight)


def _back_of_weight(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    dy, u, weight = t.values()
    yield from weight_faults(dy, u)
    over = "dweight was made of what lies where a was: make it before a is written over."
    yield over, dy.T @ (dy @ weight)
    yield over, dy.T @ back_through(dy, u, weight)["du"]


_EXPLAINS_BACK = (
    explaining(_back_of_u, lambda t: tanh_back(t["dy"] @ t["weight"], t["u"])),
    explaining(_back_of_weight, lambda t: t["dy"].T @ tanh_gelu(t["u"])),
)


def grade_in_place(attempt: Attempt) -> None:
    """Grade `product_backward(dy, u, weight)`: (du, dweight), nothing alive beside them."""
    of_u, of_weight = _back_cases(attempt.seed)
    are_two(attempt, of_u[0], "(du, dweight)")
    for place, (cases, name, explain) in enumerate(
        ((of_u, "du", _EXPLAINS_BACK[0]), (of_weight, "dweight", _EXPLAINS_BACK[1]))
    ):
        part = Attempt(Part(attempt.answer, place), attempt.seed)
        try:
            right_gradient(part, cases, explain, name, "")
        except Wrong as wrong:
            if "changed its input" in wrong.sentence:
                wrong.means = wrong.means or (
                    "u is the caller's, and so are dy and weight: others may read them later. da "
                    "is yours, of the same size."
                )
            if "returned the shape" in wrong.sentence:
                wrong.means = wrong.means or (
                    "du has the shape of u, and dweight that of weight, (E, I): dyᵀ · a. They are "
                    "returned in this order."
                )
            raise
    attempt.held.append(f"du and dweight right on {len(of_u)} random inputs")
    for case in of_u:
        given = [one.clone() for one in case.tensors.values()]
        with Alive(given) as alive:
            outputs = call(attempt, *given)
            peak = alive.peak
        results = sums(outputs)
        if peak > results:
            inner = sums([case.tensors["u"]])
            raise Wrong(
                f"{attempt.name} has {peak - results:,} bytes more alive at once than du and "
                f"dweight have, on {case}; a and da have {inner:,} each.",
                "While a is there, du isn't yet: a takes the memory that du will take. Make "
                "dweight of it, let go of it, and only then make da. du is written over da, "
                "element by element. What .contiguous(), .clone() or a slice's product makes is "
                "memory too.",
            )
    attempt.held.append("no byte is alive beside the arguments and the results")
