"""15.9: a norm's x̂ made again from its output, and which columns that can't be done for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import call
from kernels.grading.closeness import kind_fault
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.gradients import right_gradient
from kernels.grading.questions.kits.products import ProductCase
from kernels.grading.questions.kits.two_outputs import Part, are_two
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, recognised
from kernels.registry import DTYPES, Tolerance

_ONES = "no column lost"
_LARGEST = (
    "The largest |y| of a column decides, of all rows: a mean is smaller, and so may be one row's, "
    "or the size of the largest y."
)
_PLAN: tuple[tuple[int, int, str, float, str], ...] = (
    (6, 40, "bf16", 0.02, ""),
    (5, 17, "fp16", 0.01, ""),
    (8, 33, "fp32", 1e-6, ""),
    (3, 9, "bf16", 0.125, _ONES),
    (1, 24, "bf16", 0.05, ""),
)


class Given(NamedTuple):
    """The arguments of a call."""

    y: Tensor
    weight: Tensor
    bias: Tensor
    tolerance: float


def unit(y: Tensor) -> float:
    """What a rounding to the dtype of y takes of a number at most, of its size."""
    return float(torch.finfo(y.dtype).eps) / 2


def lost(y: Tensor, weight: Tensor, bias: Tensor, tolerance: float) -> Tensor:
    """Return which columns can't be made again, bool (cols,)."""
    most = y.double().abs().amax(0) * unit(y)
    return (most > tolerance * weight.double().abs()) | (weight == 0)


def x_hat(y: Tensor, weight: Tensor, bias: Tensor, tolerance: float) -> Tensor:
    """Return x̂ in float64, 0 in the columns that are lost."""
    gone = lost(y, weight, bias, tolerance)
    return torch.where(gone, 0.0, (y.double() - bias.double()) / weight.double())


def _given(
    rng: random.Random, rows: int, cols: int, name: str, tolerance: float, trait: str
) -> Given:
    dtype = DTYPES[name]
    x = drawn(rng, (rows, cols), torch.float32)
    weight, bias = 1 + 0.3 * drawn(rng, (cols,), torch.float32), drawn(rng, (cols,), torch.float32)
    weight = weight.abs().clamp(min=0.3) * torch.where(torch.arange(cols) % 3 == 1, -1.0, 1.0)
    if not trait:
        # Weights about the border, on either side, and by a factor that nobody reaches by chance.
        near = torch.arange(cols) % 4 == 2
        y = x * weight + bias
        border = y.abs().amax(0) * torch.finfo(dtype).eps / 2 / tolerance
        far = torch.tensor([rng.choice((0.3, 0.6, 1.6, 3.0)) for _ in range(cols)])
        weight = torch.where(near, border * far * weight.sign(), weight)
        weight[0], weight[4], bias[4] = 0.0, 0.0, 0.0
        bias[2] = 6.0  # far above what its weight makes of x̂
        weight[2] = 0.3 * 6 * torch.finfo(dtype).eps / 2 / tolerance
        # Without a bias weight cancels: a single number, far out in its row, makes a column lost.
        weight[6], bias[6] = 1.0, 0.0
        # The same with a negative weight: a bound that has its sign is below any tolerance.
        weight[10], bias[10] = -weight[2], 6.0
        x[:, 6] *= 0.1
        x[-1, 6] = -2 * tolerance / (torch.finfo(dtype).eps / 2)
    else:
        # Exactly as large as tolerance, in powers of two: that is not larger.
        weight[0], bias[0] = 4 * torch.finfo(dtype).eps / 2 / tolerance, 0.0
        x[:, 0] = (x[:, 0] * weight[0]).clamp(-4, 4) / weight[0]
        x[0, 0] = 4 / weight[0]
    for _ in range(20):
        given = _rounded(x, weight, bias, dtype, tolerance)
        share = _most(given) * unit(given.y) / (tolerance * given.weight.double().abs())
        close = (share > 0.75) & (share < 1.35)
        close[0] &= not trait
        weight = torch.where(close, 3 * weight, weight)
    return _rounded(x, weight, bias, dtype, tolerance)


def _rounded(
    x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, tolerance: float
) -> Given:
    weight, bias = weight.to(dtype), bias.to(dtype)
    return Given((x * weight.float() + bias.float()).to(dtype), weight, bias, tolerance)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    more = (rng.randrange(3, 9), rng.randrange(20, 60), "fp16", 0.03, "")
    cases: list[Case] = []
    for one in (*_PLAN, more):
        given = _given(rng, *one)
        named = {"y": given.y, "weight": given.weight, "bias": given.bias}
        near = Tolerance(2.0**-22, 2.0**-21)
        right = x_hat(*given)
        # (y - bias) / weight in fp32 loses what y and bias have in common.
        size = float((given.y.double().abs() + given.bias.double().abs()).max())
        small = given.weight.double().abs()[~lost(*given)].min()
        wide = 2.0**-23 * size / float(small) / float(right.abs().max())
        near = Tolerance(near.relative_norm + wide, near.largest + wide)
        cases.append(
            ProductCase(named, (given.tolerance,), right, near, one[-1], dtype=torch.float32)
        )
    return cases


def _of(case: Case) -> Given:
    y, weight, bias = case.tensors.values()
    return Given(y, weight, bias, *case.options)


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    given = _of(case)
    y, weight, bias = (one.double() for one in given[:3])
    gone = lost(*given)
    raw = (y - bias) / weight
    yield (
        "Columns that are lost hold what the division gave: set them to 0, by torch.where.",
        raw,
    )
    yield (
        "Columns that are lost hold what the division gave, unless it was nan or infinite: set "
        "all of them to 0.",
        torch.where(weight == 0, 0.0, raw),
    )
    yield (
        "Columns that are lost hold what the division gave, unless it was nan or infinite: set "
        "all of them to 0.",
        raw.nan_to_num(),
    )
    for what, other in (
        ("bias is not taken away: x_hat is (y - bias) / weight.", y / weight),
        ("bias is added: x_hat is (y - bias) / weight.", (y + bias) / weight),
        ("The difference comes first: (y - bias) / weight.", y - bias / weight),
        ("It is multiplied by weight: x_hat is (y - bias) / weight.", (y - bias) * weight),
        ("It is not divided by weight.", y - bias),
        ("weight and bias have changed places.", (y - weight) / bias),
    ):
        yield what, torch.where(gone, 0.0, other)
    yield (
        "Lost columns are kept, and the others are 0: torch.where takes what holds first.",
        torch.where(gone, raw, 0.0),
    )
    yield (
        "Lost columns hold nan: they are to hold 0.",
        torch.where(gone, torch.nan, raw),
    )
    halved = (given.y - given.bias) / given.weight
    yield (
        "It is computed in the dtype of y: convert y, weight and bias to fp32 first.",
        torch.where(gone, 0.0, halved.double()),
    )
    for what, rule in RULES:
        other = rule(given)
        if other.shape == gone.shape:
            yield what, torch.where(other, 0.0, raw)


def _most(given: Given) -> Tensor:
    return given.y.double().abs().amax(0)


def _border(given: Given, most: Tensor, of: float = 1.0) -> Tensor:
    weight = given.weight.double().abs()
    return (most * unit(given.y) * of > given.tolerance * weight) | (weight == 0)


# What people take for lost, and what is wrong about it.
RULES: tuple[tuple[str, Callable[[Given], Tensor]], ...] = (
    (
        "A weight of 0 is not all: where weight is small, y's rounding is divided by it, and "
        "little of x_hat is left.",
        lambda g: g.weight == 0,
    ),
    (
        "A column whose weight is 0 is lost, though its y and bias be 0 as well: 0 > 0 doesn't "
        "hold.",
        lambda g: _most(g) * unit(g.y) > g.tolerance * g.weight.double().abs(),
    ),
    (
        "A rounding takes half of eps at most, of a number's size.",
        lambda g: _border(g, _most(g), 2),
    ),
    (
        "A rounding takes half of eps at most, of a number's size.",
        lambda g: _border(g, _most(g), 0.5),
    ),
    (
        "The rounding is that of y's dtype: torch.finfo(y.dtype).eps, and not fp32's.",
        lambda g: _border(g, _most(g), torch.finfo(torch.float32).eps / 2 / unit(g.y)),
    ),
    (_LARGEST, lambda g: _border(g, g.y.double().abs().mean(0))),
    (_LARGEST, lambda g: _border(g, g.y.double().amax(0).abs())),
    (_LARGEST, lambda g: _border(g, g.y.double().abs()[0])),
    (_LARGEST, lambda g: _border(g, g.y.double().abs().amin(0))),
    (
        "The largest of |y| decides: y may be negative.",
        lambda g: _border(g, g.y.double().amax(0)),
    ),
    (
        "Each column has its own largest |y|: that is the largest of all.",
        lambda g: _border(g, _most(g).max().expand_as(_most(g))),
    ),
    (
        "weight may be negative: it is |weight| that y's rounding is divided by.",
        lambda g: (_most(g) * unit(g.y) / g.weight.double() > g.tolerance) | (g.weight == 0),
    ),
    (
        "weight may be negative: it is |weight| that y's rounding is divided by.",
        lambda g: (_most(g) * unit(g.y) > g.tolerance * g.weight.double()) | (g.weight == 0),
    ),
    (
        "Of y all digits are rounded, those of bias too: it is |y|, and not |y - bias|.",
        lambda g: _border(g, (g.y.double() - g.bias.double()).abs().amax(0)),
    ),
    (
        "A column whose bound is as large as tolerance is not lost: larger ones are.",
        lambda g: (_most(g) * unit(g.y) >= g.tolerance * g.weight.double().abs()) | (g.weight == 0),
    ),
    (
        "The sign is turned: that is which columns can be made again.",
        lambda g: ~lost(*g),
    ),
    (
        "weight isn't held against y's rounding: a small weight does no harm where y is small.",
        lambda g: g.weight.double().abs() < g.tolerance,
    ),
    (
        "It takes y's size too: the rounding is eps / 2 · |y|.",
        lambda g: _border(g, torch.ones_like(_most(g))),
    ),
    ("No column is called lost.", lambda g: torch.zeros_like(g.weight == 0)),
    ("Every column is called lost.", lambda g: torch.ones_like(g.weight == 0)),
)


def _explain(runs: list[Run]) -> str:
    return recognised(runs, _models)


def grade_inverted(attempt: Attempt) -> None:
    """Grade `rebuilt(y, weight, bias, tolerance)`: x̂ again, and which columns are lost."""
    cases = _cases(attempt.seed)
    are_two(attempt, cases[0], "(x_hat, lost)")
    told = [_lost_told(attempt, case) for case in cases]
    for case, got in zip(cases, told, strict=True):
        right = lost(*_of(case))
        if not torch.equal(got, right):
            at = int((got != right).int().argmax())
            given = _of(case)
            raise Wrong(
                f"{attempt.name} on {case}: lost[{at}] is {bool(got[at])} and should be "
                f"{bool(right[at])}: weight[{at}] is {float(given.weight[at]):.3g}, y's largest "
                f"there is {float(_most(given)[at]):.3g}, and tolerance is {given.tolerance:g}.",
                next(
                    (
                        what
                        for what, rule in RULES
                        if all(
                            torch.equal(one, rule(_of(c)))
                            for c, one in zip(cases, told, strict=True)
                        )
                    ),
                    "",
                ),
            )
    part = Attempt(Part(attempt.answer, 0), attempt.seed)
    right_gradient(part, cases, _explain, "x_hat", "")
    attempt.held.append(f"x_hat again, and what is lost, of {len(cases)} norms")


def _lost_told(attempt: Attempt, case: Case) -> Tensor:
    told = call(attempt, *(t.clone() for t in case.tensors.values()), *case.options)
    if told is None or told is ...:
        raise NotAnswered
    if type(told) not in (tuple, list) or len(told) != 2:
        raise Wrong(f"{attempt.name} returned no tuple (x_hat, lost) on {case}.")
    like = torch.empty(case.x.shape[1], dtype=torch.bool)
    fault = kind_fault(told[1], like)
    if fault is not None:
        means = ""
        if type(told[1]) is torch.Tensor and told[1].shape == case.x.shape[:1]:
            means = "lost has an element for each column: the largest runs down the rows, dim 0."
        raise Wrong(f"{attempt.name} on {case}: as lost {fault}.", means)
    result: Tensor = told[1]
    return result
