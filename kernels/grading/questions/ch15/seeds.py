"""15.6: a dropout that the backward makes again, with the numbers of its own forward."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch

from kernels.grading.checks import call
from kernels.grading.closeness import kind_fault
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.ch15.mlps import gelu, slope, sums
from kernels.grading.questions.kits.functions import forward_cost
from kernels.grading.questions.kits.products import ProductCase
from kernels.grading.questions.kits.way_back import gradient
from kernels.grading.questions.kits.wrong_models import EXACT, Tensor, drawn
from kernels.philox import scale

P = 0.25
_SEED_BYTES = 64  # a seed and an offset, and room for a state of that size
# Tokens, inner, width: with as many outputs as both, y and dweight tell what each number was.
_PLAN = ((8, 16, 20), (6, 24, 24), (20, 12, 21))


class Called(NamedTuple):
    """A call: its leaves, its output, and by what each number of gelu(u) was multiplied."""

    u: Tensor
    weight: Tensor
    dy: Tensor
    y: Tensor
    factors: Tensor


def _inputs(rng: random.Random, tokens: int, inner: int, width: int) -> tuple[Tensor, ...]:
    u = drawn(rng, (tokens, inner), torch.float32)
    # Neither gelu nor its slope is near 0 here, so that every factor shows.
    u = 0.4 + u.abs().clamp(max=2.5)
    weight = torch.linalg.qr(drawn(rng, (width, inner), torch.float64))[0].float()
    dy = torch.linalg.qr(drawn(rng, (width, tokens), torch.float64))[0].T.contiguous().float()
    return u, weight.contiguous(), dy


def _called(attempt: Attempt, given: tuple[Tensor, ...]) -> Called:
    u, weight, dy = given
    leaves = [one.detach().clone().requires_grad_() for one in (u, weight)]
    y = call(attempt, *(leaf.clone() for leaf in leaves))
    if y is None or y is ...:
        raise NotAnswered
    fault = kind_fault(y, dy)
    if fault is not None:
        raise Wrong(f"{attempt.name} on u {tuple(u.shape)}, weight {tuple(weight.shape)}: {fault}.")
    made = y.detach().double() @ weight.double()  # weight's columns are orthonormal
    return Called(leaves[0], leaves[1], dy, y, made / gelu(u.double()))


def _near(one: Tensor, other: Any) -> bool:
    return bool((((one - other).abs() < 1e-3) | one.isnan()).all())


def _is_dropout(attempt: Attempt, one: Called) -> None:
    """`Wrong` unless the forward kept numbers, scaled, or dropped them."""
    kept, dropped = (one.factors - scale(P)).abs() < 1e-3, one.factors.abs() < 1e-3
    if bool((kept | dropped).all()):
        return
    means = ""
    if _near(one.factors, 1.0):
        means = "Nothing is dropped: a is gelu(u) times the factors of dropout."
    elif bool((((one.factors - 1).abs() < 1e-3) | dropped).all()):
        means = "What is kept lacks the scale: factors(...) has it."
    elif bool((((one.factors - scale(P) ** 2).abs() < 1e-3) | dropped).all()):
        means = "The scale is applied twice: factors(...) has it already."
    else:
        u = one.u.detach().double()
        before = gelu(u * scale(P)) / gelu(u)
        if bool((((one.factors - before).abs() < 1e-3) | dropped).all()):
            means = "GELU is taken of what is dropped and scaled: it comes first, then the factors."
    raise Wrong(
        f"The output of {attempt.name} is not gelu(u) with each number dropped or times "
        f"{scale(P):.4g}, in the product with weight.",
        means,
    )


def _told(factors: Tensor, one: Called, later: Called, what: str) -> str:
    """What is wrong about the factors that a gradient was made with."""
    if _near(factors, 1.0):
        return f"{what} has no dropout in it: what was dropped forward has no gradient."
    if _near(factors, (one.factors != 0).double()) or _near(factors, one.factors / scale(P)):
        return f"{what} has the mask and not the scale: it is that of what forward multiplied by."
    if _near(factors, one.factors**2):
        return f"{what} has the factors of dropout twice."
    if _near(factors, later.factors):
        return (
            "The backward takes the mask of the call that was made last. A model calls the "
            "function in each layer before it goes back through the first: what belongs to a "
            "call stands on its ctx."
        )
    share = float((factors.abs() < 1e-3).double().mean())
    kept = (factors - scale(P)).abs() < 1e-3
    if bool((kept | (factors.abs() < 1e-3) | factors.isnan()).all()) and 0.02 < share < 0.6:
        return (
            "The backward drops other numbers than its forward: draw() gives another seed each "
            "time. Draw once, in forward, keep the seed, and make the factors again from it."
        )
    return ""


def _back(one: Called, leaf: Tensor) -> Tensor:
    made = gradient(one.y, leaf, one.dy)
    if made is None:
        raise RuntimeError("no gradient gets to an argument: it is cut off from autograd's graph")
    return made


def _right_back(attempt: Attempt, one: Called, later: Called) -> None:
    u, weight, dy = (t.detach().double() for t in (one.u, one.weight, one.dy))
    rights = (
        ("du", one.u, dy @ weight * slope(u) * one.factors),
        ("dweight", one.weight, dy.T @ (gelu(u) * one.factors)),
    )
    for what, leaf, right in rights:
        made = call(Attempt(_Named(attempt, lambda leaf=leaf: _back(one, leaf)), attempt.seed))
        fault = kind_fault(made, leaf)
        if fault is not None:
            raise Wrong(f"The backward of {attempt.name}: as {what} {fault}.")
        got = made.double()
        if bool(((got - right).abs() <= 1e-4 * right.abs().max()).all()):
            continue
        da = dy @ weight * slope(u)
        if what == "du":  # what is divided by nearly 0 tells nothing
            factors = torch.where(da.abs() > 0.02 * da.abs().max(), got / da, torch.nan)
        else:
            factors = dy @ got / gelu(u)  # dy's rows are orthonormal
        first = int(((got - right).abs() > 1e-4 * right.abs().max()).flatten().int().argmax())
        at = tuple(int(i) for i in divmod(first, right.shape[1]))
        raise Wrong(
            f"{what}{list(at)} of {attempt.name} is {float(got[at]):.6g} and should be "
            f"{float(right[at]) + 0.0:.6g}, by the numbers that its forward dropped.",
            _told(factors, one, later, what),
        )


class _Named:
    """A callable in a reader's name."""

    def __init__(self, attempt: Attempt, function: Any) -> None:
        self._function = function
        self.__name__ = attempt.name
        self.__code__ = getattr(attempt.answer, "__code__", None)

    def __call__(self) -> Any:
        return self._function()


def grade_seeds(attempt: Attempt) -> None:
    """Grade `dropped_product(u, weight)`: a fresh mask each call, the same one back, none kept."""
    rng = random.Random(attempt.seed)
    # What the answer draws is of the check's own seed.
    torch.manual_seed(rng.getrandbits(40))
    shapes = [*_PLAN, (rng.randrange(6, 12), rng.randrange(12, 20), 33)]
    for shape in shapes:
        given = _inputs(rng, *shape)
        one, later = _called(attempt, given), _called(attempt, given)
        for call_ in (one, later):
            _is_dropout(attempt, call_)
        # From here on exactly 0 or the scale, without the output's rounding.
        one, later = (
            c._replace(factors=torch.where(c.factors.abs() < 1e-3, 0.0, scale(P)).double())
            for c in (one, later)
        )
        dropped = float((one.factors.abs() < 1e-3).double().mean())
        if not 0.05 < dropped < 0.5:
            raise Wrong(f"{attempt.name} drops {dropped:.0%} of the numbers; it is {P:.0%}.")
        if _near(one.factors, later.factors):
            raise Wrong(
                f"{attempt.name} drops the same numbers in two calls.",
                "With one mask for ever the same numbers of a layer are never trained: each call "
                "draws its seed.",
            )
        _right_back(attempt, one, later)
        _right_back(attempt, later, later)
    attempt.held.append(f"du and dweight by each forward's own mask, on {2 * len(shapes)} calls")
    given = _inputs(rng, 16, 24, 40)
    named = dict(zip(("u", "weight", "dy"), given, strict=True))
    case = ProductCase(named, (), torch.zeros(16, 40), EXACT)
    took = forward_cost(attempt, case, by_anyone=True)
    if took.kept > _SEED_BYTES:
        raise Wrong(
            f"{attempt.name} keeps {took.kept:,} bytes on {case}, beside its arguments and y; a "
            f"seed has 16, a mask of bool {case.x.numel():,}, and a {sums([case.x]):,}.",
            "The factors are a function of the seed and of each number's place: keep the seed "
            "alone.",
        )
    attempt.held.append("16 bytes are kept beside u and weight")
