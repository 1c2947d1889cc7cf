"""04.3, 04.4 and 04.7: an addition, silu(a) · b, and the scaling of rows, element by element."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import reads_once, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.cuda_checks import in_cuda, within_sectors
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.cuda_cases import (
    Tensor,
    aligned,
    at_end,
    blocks_enough,
    nearly_right,
    right_in_cuda,
    unstored,
)
from kernels.grading.questions.kits.wrong_models import drawn, recognised
from kernels.registry import Tolerance

_EPS = 2.0**-23
_MANY = 16 * 2**20
_GUARD = (
    "The last block has more threads than there are elements left: whoever has i >= n must do "
    "nothing."
)


def _sizes(rng: random.Random) -> list[int]:
    ragged = [rng.randrange(2, 64), rng.randrange(1026, 4000)]
    return [1, 255, 256, 257, 1024, *ragged, 8 * rng.randrange(2049, 2200)]


def _elementwise(attempt: Attempt, runs: list[Run], names: tuple[str, ...]) -> None:
    """`Wrong` unless one launch reads each element once, stores it once, in whole sectors."""
    in_cuda(attempt, runs, launches=1)
    for name in names:
        reads_once(attempt, runs, name)

    def ideal(case: Case) -> int:
        return sum(t.numel() * 4 for t in case.tensors.values()) + case.reference.numel() * 4

    within_bytes(attempt, runs, ideal, f"{', '.join(names)} read, the output written")
    for name in (*names, "the output"):
        within_sectors(attempt, runs, name)
    blocks_enough(attempt, runs)
    compiles(attempt, (r.case for r in runs))


def _add_case(rng: random.Random, n: int) -> Case:
    inputs = {"x": drawn(rng, (n,), torch.float32), "y": drawn(rng, (n,), torch.float32)}
    total = inputs["x"].double() + inputs["y"].double()
    return Case(inputs, (), total, Tolerance(_EPS, _EPS))


def _add_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, y = (tensor.double() for tensor in case.tensors.values())
    yield "y is not added: the sum is x alone.", x
    yield "x is added to itself: the second load reads x, not y.", 2 * x
    yield "y is added to itself: the first load reads y, not x.", 2 * y
    yield "y is taken away from x.", x - y
    yield "x and y are multiplied.", x * y


def _explain_add(runs: list[Run]) -> str:
    if told := at_end(runs) or recognised(runs, _add_models):
        return told
    if nearly_right(runs):
        return "It is right to three digits: on its way a number went through 16 bits."
    return ""


def grade_add(attempt: Attempt) -> None:
    """Grade `my_add(x, y)`: both (n,) in fp32, their sum."""
    rng = random.Random(attempt.seed)
    cases = [_add_case(rng, n) for n in _sizes(rng)]
    runs = right_in_cuda(attempt, cases, _explain_add, _GUARD)
    _elementwise(attempt, runs, ("x", "y"))


ADD_SPEED = Speed(lambda seed: _add_case(random.Random(seed), _MANY), 0.8)


def _silu_case(rng: random.Random, n: int, spread: float = 2.0) -> Case:
    a, b = spread * drawn(rng, (n,), torch.float32), drawn(rng, (n,), torch.float32)
    # From |a| = 89 on, exp(|a|) is beyond fp32.
    trait = "values beyond ±89" if spread > 50 else ""
    if trait:
        a[: n // 2].abs_().add_(89.0)
        a[n // 2 :].abs_().add_(89.0).neg_()
    # An exponential that is off by 2 units in the last place, a sum, a quotient and a product.
    near = 8 * _EPS
    reference = a.double() * torch.sigmoid(a.double()) * b.double()
    return Case({"a": a, "b": b}, (), reference, Tolerance(near, near), trait)


def _silu_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    a, b = (tensor.double() for tensor in case.tensors.values())
    one = torch.sigmoid(a)
    yield "b is missing.", a * one
    yield "That is sigmoid(a) * b: silu is a * sigmoid(a).", one * b
    yield "silu is taken of b, not of a.", a * b * torch.sigmoid(b)
    yield "The sign of the exponent is lost: sigmoid(a) = 1 / (1 + exp(-a)).", a * (1 - one) * b
    yield "silu is taken of -a; it is taken of a.", -a * (1 - one) * b
    yield "b is added; it takes a product.", a * one + b
    yield "The sign in the quotient is lost: 1 + exp(-a).", a / (1 - torch.exp(-a)) * b
    yield "It is multiplied by 1 + exp(-a); silu is a divided by it.", a / one * b
    yield "a is multiplied by b, and no sigmoid is taken.", a * b
    yield "That is a * exp(-a) * b: the 1 + and the quotient are missing.", a * torch.exp(-a) * b


def _explain_silu(runs: list[Run]) -> str:
    if told := at_end(runs) or recognised(runs, _silu_models):
        return told
    failed = [r for r in runs if r.fault is not None]
    if all(r.case.trait and r.wrong.numel() and bool(r.output.isnan().any()) for r in failed):
        return (
            "It is right for small values. Beyond 89, exp(a) is infinite in fp32, and inf / inf "
            "is nan. 1 / (1 + exp(-a)) has one exponential and no such quotient."
        )
    return ""


def grade_silu(attempt: Attempt) -> None:
    """Grade `silu_mul(a, b)`: both (n,) in fp32, a · sigmoid(a) · b."""
    rng = random.Random(attempt.seed)
    cases = [_silu_case(rng, n) for n in _sizes(rng)]
    cases += [_silu_case(rng, 300, spread=60.0), _silu_case(rng, 200, spread=12.0)]
    runs = right_in_cuda(attempt, cases, _explain_silu, _GUARD)
    _elementwise(attempt, runs, ("a", "b"))


# An H100 ran an element a thread at 0.75 of the copy.
SILU_SPEED = Speed(lambda seed: _silu_case(random.Random(seed), _MANY), 0.7)


_SCALE_SHAPES = ((32, 64), (8, 32), (33, 40), (1, 1), (5, 300), (70, 17), (1, 2048), (300, 3))
_SCALE_GUARD = (
    "A row that doesn't exist and a column that doesn't exist take a guard each: row < n_rows and "
    "col < n_cols."
)


def _scale_case(rng: random.Random, rows: int, cols: int) -> Case:
    x, inverse = drawn(rng, (rows, cols), torch.float32), drawn(rng, (rows,), torch.float32)
    weight = drawn(rng, (cols,), torch.float32)
    reference = x.double() * inverse.double()[:, None] * weight.double()
    inputs = {"x": x, "inverse": inverse, "weight": weight}
    return Case(inputs, (), reference, Tolerance(2 * _EPS, 2 * _EPS))


def _scale_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, inverse, weight = (tensor.double() for tensor in case.tensors.values())
    yield "inverse is missing: row r takes inverse[r].", x * weight
    yield "weight is missing: column c takes weight[c].", x * inverse[:, None]
    yield "x is divided by inverse; it takes a product.", x / inverse[:, None] * weight
    yield "x is added; it takes a product of three.", x + inverse[:, None] * weight
    yield "weight is added; it takes a product of three.", x * inverse[:, None] + weight
    if len(inverse) == len(weight):
        yield (
            "inverse and weight have changed places: inverse belongs to rows, weight to columns.",
            x * inverse * weight[:, None],
        )


def _explain_scale(runs: list[Run]) -> str:
    if told := recognised(runs, _scale_models):
        return told
    if unstored(runs):
        return (
            "Elements that are nan were never stored: a guard is too strict, or the grid has too "
            "few blocks along one axis. Each axis takes its own quotient, rounded up, of what its "
            "threads walk along."
        )
    return ""


def grade_scale(attempt: Attempt) -> None:
    """Grade `my_scale(x, inverse, weight)`: right, one launch, x and y in whole sectors."""
    rng = random.Random(attempt.seed)
    shapes = [*_SCALE_SHAPES, (rng.randrange(2, 40), 8 * rng.randrange(5, 30)), (130, 64)]
    cases = [_scale_case(rng, *shape) for shape in shapes]
    runs = right_in_cuda(attempt, cases, _explain_scale, _SCALE_GUARD)
    in_cuda(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")

    def ideal(case: Case) -> int:
        return 4 * (2 * case.x.numel() + sum(case.x.shape))

    within_bytes(attempt, runs, ideal, "x, inverse and weight read, the output written")
    whole = aligned(runs)
    within_sectors(attempt, whole, "x")
    within_sectors(attempt, whole, "the output")
    blocks_enough(attempt, runs)
    compiles(attempt, (r.case for r in runs))


# An H100 ran tiles of 32 by 8 at 0.72 of the copy.
SCALE_SPEED = Speed(lambda seed: _scale_case(random.Random(seed), 8192, 2048), 0.65)
