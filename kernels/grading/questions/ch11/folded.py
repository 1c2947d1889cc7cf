"""11.9: a product of x as it is, whose epilogue puts the norm right, with statistics on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, within_bytes
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.ch11.folding import fold
from kernels.grading.questions.ch11.gelu import (
    MOST,
    ideal_bytes,
    rows_of_tiles,
    tile_budget,
)
from kernels.grading.questions.ch11.normed import (
    EPS,
    SMALL,
    STEPS,
    explain_norm,
    faulty_statistics,
    length_of,
    statistics,
)
from kernels.grading.questions.kits.products import (
    OUTSIDE,
    ProductCase,
    along_k,
    tiles,
    unstored,
    within_requests,
)
from kernels.grading.questions.kits.tensor_cores import compiles_in_both, on_tensor_cores
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    right_or_told,
)
from kernels.registry import DTYPES, Tolerance

TEN = "means of ten times the spread"
_PLAN: tuple[tuple[int, int, int, str, str], ...] = (
    (64, 64, 64, "fp32", ""),
    (17, 33, 50, "fp16", ""),
    (1, 70, 130, "bf16", ""),
    (70, 40, 96, "fp16", ""),
    (5, 3, 7, "fp32", ""),
    (20, 9, 200, "fp16", TEN),
    (12, 33, 70, "fp32", SMALL),
)
_OUTSIDE = f"{OUTSIDE} sums and bias take cols < N."


def _case(rng: random.Random, m: int, n: int, k: int, name: str, trait: str) -> Case:
    dtype = DTYPES[name]
    mean, spread = {TEN: (10.0, 1.0), SMALL: (0.002, 0.003)}.get(trait, (0.7, 1.5))
    x = mean + spread * drawn(rng, (m, k), torch.float32)
    if not trait:
        x = x * (1 + torch.arange(k) / k) + torch.arange(k) / k
    x = x.to(dtype)
    gamma, beta = 1 + 0.5 * drawn(rng, (k,), torch.float32), drawn(rng, (k,), torch.float32)
    weight, bias = drawn(rng, (n, k), torch.float32), drawn(rng, (n,), torch.float32)
    weight = 0.1 + weight / k**0.5
    layer = [one.to(dtype) for one in (gamma, 0.3 * beta, weight, 0.5 + bias)]
    folded, sums, added = fold(*layer)
    given = {"x": x, "folded": folded.to(dtype), "sums": sums.float(), "bias": added.float()}
    wide, w, c, b = (t.double() for t in given.values())
    mu, inv_std = statistics(wide)
    y = (wide @ w.T - mu * c) * inv_std + b
    # The difference of two sums in fp32, and a variance from the mean of squares.
    terms = (wide.abs() @ w.abs().T + (mu * c).abs()) * inv_std + b.abs()
    terms = terms + (1 + (mu * inv_std) ** 2) * (y - b).abs()
    sums_error = 2.0**-24 * length_of(k) * max(1.0, float(terms.max() / y.abs().max()))
    unit = torch.finfo(dtype).eps / 2
    near = Tolerance(unit + sums_error, 2 * unit + 2 * sums_error)
    return ProductCase(given, (), y, near, trait)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    plan = [*_PLAN, (rng.randrange(3, 40), rng.randrange(3, 90), rng.randrange(65, 96), "fp16", "")]
    return [_case(rng, *one) for one in (*plan, plan[0])]


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, w, c, b = (t.double() for t in case.tensors.values())
    m, n = len(x), len(w)
    mean, inv = statistics(x)
    total, y = x @ w.T, case.reference
    yield "mean · sums is not subtracted: the product is of x as it is.", total * inv + b
    yield "sums are subtracted as they are: it is mean · sums.", (total - c) * inv + b
    yield "mean · sums is added: it is subtracted.", (total + mean * c) * inv + b
    yield "The mean is subtracted without sums: it is mean · sums.", (total - mean) * inv + b
    yield (
        "mean · sums is subtracted behind the scale: inv_std multiplies the difference.",
        total * inv - mean * c + b,
    )
    yield "The bias is scaled: it is added behind inv_std.", (total - mean * c + b) * inv
    yield "The bias is not added.", (total - mean * c) * inv
    yield "inv_std is missing.", total - mean * c + b
    yield "It is divided by inv_std: multiply.", (total - mean * c) / inv + b
    yield "sums and bias have changed places.", (total - mean * b) * inv + c
    for edge in STEPS:
        at = torch.arange(n) % edge
        first = "Each tile takes the first elements of {}: a column's is at cols, counted from 0."
        yield first.format("sums"), (total - mean * c[at]) * inv + b
        yield first.format("bias"), (total - mean * c) * inv + b[at]
        yield first.format("sums and bias"), (total - mean * c[at]) * inv + b[at]
    for what, (mu, inverse) in faulty_statistics(x):
        yield what, (total - mu * c) * inverse + b
    for what, faulty in along_k(x, w):
        yield what, (faulty - mean * c) * inv + b
    yield "y is stored transposed: element [m, n] lies at m · N + n.", y.T.reshape(m, n)
    yield from unstored(y)


def _explain(runs: list[Run]) -> str:
    return explain_norm(runs, _models)


def grade_folded(attempt: Attempt) -> None:
    """Grade `folded_linear(x, folded, sums, bias)`: one launch, x asked for once a tile."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    within_bytes(attempt, runs, ideal_bytes, "x, folded, sums and bias read, y written")
    within_requests(
        attempt,
        runs,
        ("x", "folded"),
        tile_budget,
        "64 rows of each for a tile of 64 × 64 outputs, and nothing more for the statistics",
    )
    for name in ("sums", "bias"):
        rows_of_tiles(attempt, runs, name)

    def least(case: Case) -> int:
        return tiles(case, MOST, MOST)

    enough_programs(attempt, runs, least, "one for every 128 × 128 outputs")
    masked_lanes_named(attempt, [r for r in runs if r.case.x.shape[-1] % 16])
    on_tensor_cores(attempt, [r.case for r in runs])
    compiles_in_both(attempt, [r.case for r in runs])


def _as_torch(x: Tensor, folded: Tensor, sums: Tensor, bias: Tensor) -> Tensor:
    """Norm and product by PyTorch, in two calls, with the same bytes to read."""
    h = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPS)
    return torch.nn.functional.linear(h, folded, bias.to(x.dtype))


FOLDED_SPEED = Speed(
    lambda seed: _case(random.Random(seed), 4096, 3072, 1024, "fp16", ""), 0.5, against=_as_torch
)
