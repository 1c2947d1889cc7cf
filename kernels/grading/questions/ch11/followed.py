"""What 11.3, 11.4 and 11.5 share: products with something behind them, and what goes wrong there.

x (M, K), the weights, whose rows are K long, and a bias (N,) lie row by row, in one dtype.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.questions.kits.products import (
    LONG,
    ProductCase,
    along_k,
    explain_tiles,
    sum_tolerance,
    unstored,
)
from kernels.grading.questions.kits.wrong_models import Models, Tensor, drawn, recognised
from kernels.registry import DTYPES, Tolerance

_STEPS = (16, 32, 64, 128)
_SHAPES = ((64, 64, 64), (17, 33, 50), (1, 100, 130), (70, 40, 96), (40, 40, 40), (5, 3, 1))


def gelu(h: Tensor) -> Tensor:
    """h · Φ(h), with the error function."""
    return 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))


def inputs(rng: random.Random, m: int, rows: int, k: int, name: str, trait: str) -> list[Tensor]:
    """Return x (m, k) and weight (rows, k): sums of size 1, with `LONG` all terms near 1."""
    x, weight = drawn(rng, (m, k), torch.float32), drawn(rng, (rows, k), torch.float32)
    if trait == LONG:
        x, weight = 1 + 0.1 * x, 1 + 0.1 * weight
    else:
        x, weight = 0.5 + x, (0.3 + weight) / math.sqrt(k)
    return [one.to(DTYPES[name]) for one in (x, weight)]


def gelu_case(rng: random.Random, m: int, n: int, k: int, name: str, trait: str = "") -> Case:
    """Return a call of y = GELU(x · weightᵀ + bias)."""
    dtype = DTYPES[name]
    x, weight = inputs(rng, m, n, k, name, trait)
    bias = drawn(rng, (n,), torch.float32)
    if trait == LONG:  # which takes most of the sum away: a digit that it lost before shows
        bias -= k
    bias = bias.to(dtype)
    sums = x.double() @ weight.double().T + bias.double()
    y = gelu(sums)
    terms = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    near = twice(sum_tolerance(terms, y, k, dtype))
    return ProductCase({"x": x, "weight": weight, "bias": bias}, (), y, near, trait)


def twice(one: Tolerance) -> Tolerance:
    """Room for an activation too, which makes a sum's error larger by a fifth and has its own."""
    return Tolerance(2 * one.relative_norm, 2 * one.largest)


def gelu_cases(seed: int, names: Sequence[str]) -> list[Case]:
    """Calls with whole tiles and ragged ones, one row, K of 1, and long sums, in dtypes `names`."""
    rng = random.Random(seed)
    shapes = [*_SHAPES, (rng.randrange(65, 100), rng.randrange(3, 120), rng.randrange(33, 99))]
    # The last has the first one's sizes, and other numbers: an output that was kept is wrong.
    shapes.append(shapes[0])
    count = len(names)
    cases = [gelu_case(rng, *one, names[i % count]) for i, one in enumerate(shapes[:-1])]
    cases += [gelu_case(rng, 9, 20, 2600, name, LONG) for name in names]
    return [*cases, gelu_case(rng, *shapes[-1], names[0])]


_INSIDE = (
    "GELU stands inside the K loop: it is taken of every partial sum. The sum is an output's once "
    "the last step is in it, and not before: bias and GELU come behind the loop."
)
_BEFORE = (
    "GELU comes before the bias. GELU(sum) + bias is another function than GELU(sum + bias): the "
    "bias is added to the sum first."
)
_EACH_STEP = (
    "The bias is added in every step of the K loop: it is added once, to the sum that is whole."
)


def _in_the_loop(x: Tensor, weight: Tensor, bias: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What comes out where the epilogue stands inside the loop, wholly or in part."""
    for size in _STEPS:
        steps = [x[:, i : i + size] @ weight[:, i : i + size].T for i in range(0, x.shape[1], size)]
        # Of the running sum, and of a step's own.
        for first in (torch.zeros_like(steps[0]), bias.expand_as(steps[0])):
            total = first
            for step in steps:
                total = gelu(total + step)
            yield _INSIDE, total
            yield _INSIDE, total + bias
            yield _INSIDE, gelu(total + bias)
        apart = torch.stack([gelu(step) for step in steps]).sum(0)
        yield _INSIDE, apart + bias
        yield _INSIDE, gelu(apart + bias)
        yield _INSIDE, torch.stack([gelu(step + bias) for step in steps]).sum(0)
        total = torch.zeros_like(steps[0])
        for step in steps:
            total = gelu(total + step + bias)
        yield _INSIDE, total
        yield _EACH_STEP, gelu(torch.stack([step + bias for step in steps]).sum(0))


def gelu_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    """Products with bias and GELU that have one fault each, in float64."""
    x, weight, bias = (case.tensors[name].double() for name in ("x", "weight", "bias"))
    sums, y = x @ weight.T, case.reference
    (m, k), n = x.shape, len(weight)
    yield _BEFORE, gelu(sums) + bias
    yield from _in_the_loop(x, weight, bias)
    yield "The bias is not added.", gelu(sums)
    yield "GELU is missing: that is the sum and the bias.", sums + bias
    yield "GELU is taken twice.", gelu(y)
    yield "The bias is taken away: it is added.", gelu(sums - bias)
    h = sums + bias
    tanh = torch.nn.functional.gelu(h, approximate="tanh")
    yield "That is GELU's tanh form, which is near: asked is h · Φ(h), with tl.erf.", tanh
    yield "That is h · σ(1.702 h), which is near: asked is h · Φ(h).", h * torch.sigmoid(1.702 * h)
    yield "That is ReLU, and not GELU.", h.relu()
    yield "That is Φ(h) alone: GELU is h · Φ(h).", 0.5 * (1 + torch.erf(h / math.sqrt(2)))
    inner = 0.5 * h * (1 + torch.erf(h))
    yield "erf takes h / √2: Φ(h) = (1 + erf(h / √2)) / 2.", inner
    if m <= n:
        yield (
            "The bias is indexed by the row: it has an element for each column.",
            gelu(sums + bias[:m, None]),
        )
    for edge in _STEPS:
        yield (
            "Each tile takes the first elements of the bias: a column's is bias[cols], with cols "
            "counted from the matrix' first column.",
            gelu(sums + bias[torch.arange(n) % edge]),
        )
    yield "y is stored transposed: element [m, n] lies at m · N + n.", y.T.reshape(m, n)
    if n == k:
        yield "That is x · weight: output n takes row n of weight.", gelu(x @ weight + bias)
    for what, faulty in along_k(x, weight):
        yield what, gelu(faulty + bias)
    yield from unstored(y)


def explain_followed(runs: list[Run], models: Models) -> str:
    """Return the fault that wrong outputs show; what stands behind the sum is asked first."""
    return recognised(runs, models) or explain_tiles(runs, models)


def explain_gelu(runs: list[Run]) -> str:
    """Return the fault that wrong outputs of a product with bias and GELU show, or ""."""
    return explain_followed(runs, gelu_models)
