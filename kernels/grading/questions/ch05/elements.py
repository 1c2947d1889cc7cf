"""05.4 and 05.5: three kernels fused, and an addition in packs."""

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
    blocks_enough,
    nearly_right,
    right_in_cuda,
    unstored,
)
from kernels.grading.questions.kits.flat_packs import (
    GUARD,
    REST,
    SEVERAL,
    elementwise,
    explain_packs,
    sizes,
)
from kernels.grading.questions.kits.packs import ideal_bytes, rounded_once
from kernels.grading.questions.kits.wrong_models import drawn, recognised

_ROUNDED = (
    "It is right to three digits: on its way a value went through fp16. Convert to float when you "
    "load, and back when you store."
)


def _gate_case(rng: random.Random, rows: int, cols: int, size: float = 1.0) -> Case:
    x, residual = (drawn(rng, (rows, cols), torch.float16) for _ in range(2))
    x = (size * x).to(torch.float16)
    bias = drawn(rng, (cols,), torch.float16)
    v = x.double() + bias.double()
    reference = residual.double() + v * torch.sigmoid(v)
    inputs = {"x": x, "bias": bias, "residual": residual}
    return Case(inputs, (), reference, rounded_once(reference))


def _gate_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, bias, residual = (tensor.double() for tensor in case.tensors.values())
    v = x + bias
    silu = v * torch.sigmoid(v)
    yield "residual is not added.", silu
    yield "bias is not added.", residual + x * torch.sigmoid(x)
    yield "That is x + bias + residual: silu is missing.", residual + v
    other = x - bias
    yield "bias is taken away; it is added.", residual + other * torch.sigmoid(other)
    yield "silu is taken away from residual; it is added.", residual - silu
    yield "The sign in the quotient is lost: 1 + exp(-v).", residual + v / (1 - torch.exp(-v))
    yield (
        "It is multiplied by 1 + exp(-v); silu is v divided by it.",
        residual + v * (1 + torch.exp(-v)),
    )
    yield "That is the sigmoid: silu(v) is v * sigmoid(v).", residual + torch.sigmoid(v)
    yield "The sign of the exponent is lost: sigmoid(v) = 1 / (1 + exp(-v)).", residual + v - silu
    yield "silu is taken of -v; it is taken of v.", residual + silu - v
    whole = v + residual
    yield "silu is taken of all three: residual is added last.", whole * torch.sigmoid(whole)
    yield "Only the sigmoid takes the bias: v = x + bias is both.", residual + x * torch.sigmoid(v)
    if len(x) > 1:
        first = x + bias[0]
        yield (
            "All rows and columns take bias[0]: column c takes bias[c].",
            residual + first * torch.sigmoid(first),
        )


def _explain_gate(runs: list[Run]) -> str:
    if told := recognised(runs, _gate_models):
        return told
    if unstored(runs):
        return (
            "Elements that are nan were never stored: a guard is too strict, or the grid has too "
            "few blocks. Their number is a quotient rounded up."
        )
    return _ROUNDED if nearly_right(runs) else ""


def grade_gate(attempt: Attempt) -> None:
    """Grade `my_gate(x, bias, residual)`: residual + silu(x + bias) in fp16, in one launch."""
    rng = random.Random(attempt.seed)
    shapes = [(32, 64), (3, 17), (5, 300), (1, 1), (70, 1), (2, 1030), (130, 64)]
    shapes.append((rng.randrange(2, 40), rng.randrange(65, 300)))
    cases = [_gate_case(rng, *shape) for shape in shapes]
    cases.append(_gate_case(rng, 3, 40, size=60.0))  # whose exponentials are infinite in fp32
    runs = right_in_cuda(attempt, cases, _explain_gate, GUARD)
    in_cuda(attempt, runs, launches=1)
    for name in ("x", "residual"):
        reads_once(attempt, runs, name)
    within_bytes(attempt, runs, ideal_bytes, "x, bias and residual read, the output written")
    for name in ("x", "residual", "the output"):
        within_sectors(attempt, [r for r in runs if r.case.x.shape[1] % 16 == 0], name)
    blocks_enough(attempt, runs)
    compiles(attempt, (r.case for r in runs))


GATE_SPEED = Speed(lambda seed: _gate_case(random.Random(seed), 8192, 4096), 0.5)


def _add_case(rng: random.Random, n: int) -> Case:
    inputs = {name: drawn(rng, (n,), torch.float16) for name in ("x", "y")}
    reference = inputs["x"].double() + inputs["y"].double()
    return Case(inputs, (), reference, rounded_once(reference))


def _add_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, y = (tensor.double() for tensor in case.tensors.values())
    yield "y is not added: the sum is x alone.", x
    yield "x is added to itself.", 2 * x
    n = len(x)
    whole = torch.arange(n) < n // 8 * 8
    lost = torch.full_like(x, torch.nan)
    yield REST, torch.where(whole, x + y, lost)
    yield (
        "Of each pack only the first element was stored: a pack has 8, each with a sum of its own.",
        torch.where(whole & (torch.arange(n) % 8 > 0), lost, x + y),
    )
    yield "Only the elements behind the last whole pack are right.", torch.where(whole, x, x + y)
    for wrong in (torch.ones_like(whole), whole, ~whole):
        yield "y is taken away; it is added.", torch.where(wrong, x - y, x + y)
    half = whole & (torch.arange(n) % 8 >= 4)
    for rest in (x, y):
        yield (
            "Half of each pack is not added: a pack has 8 elements.",
            torch.where(half, rest, x + y),
        )


def _explain_add(runs: list[Run]) -> str:
    return explain_packs(runs, _add_models)


def grade_packed_add(attempt: Attempt) -> None:
    """Grade `packed_add(x, y)`: both (n,) in fp16, their sum, 16 bytes an access."""
    rng = random.Random(attempt.seed)
    cases = [_add_case(rng, n) for n in sizes(rng)]
    runs = right_in_cuda(attempt, cases, _explain_add, GUARD, met=SEVERAL)
    elementwise(attempt, runs, ("x", "y"))
    compiles(attempt, (r.case for r in runs))


ADD_SPEED = Speed(lambda seed: _add_case(random.Random(seed), 32 * 2**20), 0.85)
