"""15.3: a residual that is added where another gradient's input lies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.grading.cases import Case
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.ch15.mlps import explaining, gelu, held_to, slope, tanh_gelu, wide
from kernels.grading.questions.kits.functions import differentiated, forward_cost
from kernels.grading.questions.kits.products import ProductCase
from kernels.grading.questions.kits.wrong_models import EXACT, Tensor, drawn

NAMES = ("y", "dx", "dw1", "dw2")
_PLAN = ((8, 12, 24), (5, 7, 30), (1, 16, 16), (20, 8, 8))  # tokens, width, inner


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases: list[Case] = []
    more = (rng.randrange(9, 20), rng.randrange(9, 20), rng.randrange(20, 40))
    for tokens, width, inner in (*_PLAN, more):
        given = {
            "x": drawn(rng, (tokens, width), torch.float32),
            "w1": drawn(rng, (inner, width), torch.float32) * width**-0.5,
            "w2": drawn(rng, (width, inner), torch.float32) * inner**-0.5,
            "dy": 0.5 + drawn(rng, (tokens, width), torch.float32),
        }
        cases.append(ProductCase(given, (), torch.zeros(tokens, width), EXACT))
    return cases


def _parts(t: dict[str, Tensor], overwritten: Tensor | None = None) -> list[Tensor]:
    """y, dx, dw1 and dw2; dw1 of another x if one is given."""
    x, w1, w2, dy = t.values()
    u = x @ w1.T
    du = dy @ w2 * slope(u)
    read = x if overwritten is None else overwritten
    return [x + gelu(u) @ w2.T, dy + du @ w1, du.T @ read, dy.T @ gelu(u)]


def _references(case: Case) -> Sequence[Case]:
    terms = sum(case.tensors["w1"].shape)
    return [held_to(case, one, terms) for one in _parts(wide(case))]


_OVERWRITTEN = (
    "dw1 is duᵀ · x, and where x was the sum lies now: its product saved x, and read what stands "
    "there today. Write the sum over a tensor that no backward reads."
)


def _of_y(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    x, w1, w2, _ = t.values()
    u = x @ w1.T
    yield "The residual is missing: y is x + the MLP of x.", gelu(u) @ w2.T
    yield "GELU is missing.", x + u @ w2.T
    yield "The residual is added twice.", 2 * x + gelu(u) @ w2.T
    yield "The residual is taken away.", gelu(u) @ w2.T - x
    yield "The MLP is missing: y is x + the MLP of x.", x


def _of_x(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    x, w1, w2, dy = t.values()
    of_mlp = (dy @ w2 * slope(x @ w1.T)) @ w1
    yield (
        "Only the residual's part got to x: the MLP is cut off from the graph, by .data or "
        ".detach().",
        dy,
    )
    yield (
        "Only the MLP's part got to x: the residual passes dy on, and .data or .detach() cuts it "
        "off.",
        of_mlp,
    )
    yield "dy reaches x twice over the residual.", 2 * dy + of_mlp
    yield (
        "GELU's slope is taken of what lies where u was: u was overwritten.",
        dy + (dy @ w2 * slope(gelu(x @ w1.T))) @ w1,
    )


def _of_w1(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    x, w1, w2, _ = t.values()
    y = _parts(t)[0]
    yield _OVERWRITTEN, _parts(t, y)[2]
    yield _OVERWRITTEN, _parts(t, gelu(x @ w1.T) @ w2.T)[2]
    yield "x holds zeros where dw1 reads it.", _parts(t, torch.zeros_like(x))[2]


def _of_w2(t: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    x, w1, _, dy = t.values()
    u = x @ w1.T
    yield "dw2 is dyᵀ · a, and a was overwritten: its product saved it.", dy.T @ u
    yield "dw2 is dyᵀ · a, and a was overwritten: its product saved it.", dy.T @ gelu(gelu(u))


_FAULTS: tuple[Callable[..., Iterator[tuple[str, Tensor]]], ...] = (_of_y, _of_x, _of_w1, _of_w2)


def grade_residual(attempt: Attempt) -> None:
    """Grade `mlp_block(x, w1, w2)`: right gradients, and no tensor for the sum."""
    cases = _cases(attempt.seed)
    by_tanh = (lambda t: t["x"] + tanh_gelu(t["x"] @ t["w1"].T) @ t["w2"].T, None, None, None)
    explains = [explaining(*both) for both in zip(_FAULTS, by_tanh, strict=True)]
    differentiated(attempt, cases, NAMES, explains, _references)
    for case in cases:
        (tokens, width), inner = case.x.shape, len(case.tensors["w1"])
        budget = 4 * tokens * (2 * inner + width)
        took = forward_cost(attempt, case)
        if took.at_most > budget:
            raise Wrong(
                f"{attempt.name} has {took.at_most:,} bytes alive at once beside its arguments on "
                f"{case}; u, a and y are {budget:,}.",
                "One tensor of them is read by no backward, neither by GELU's nor by a product's: "
                "what a product leaves. The sum fits where that lies.",
            )
    attempt.held.append("u, a and y are all that is ever alive, and x is as it was")
