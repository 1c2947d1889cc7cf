"""10.9: a product of few tiles, its sum shared by several programs a tile, and added up."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, within_bytes
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.diagnosis import only_where
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.gradients import no_atomics
from kernels.grading.questions.kits.products import (
    LONG,
    OUTSIDE,
    PEAK,
    explain_product,
    explain_sums,
    product_case,
    tiles,
    within_requests,
)
from kernels.grading.questions.kits.tensor_cores import compiles_in_both, on_tensor_cores
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    masked_lanes_named,
    recognised,
    right_or_told,
)

_EDGE = 64
# M, N, K, dtype, what is special, splits: with K that splits don't divide, and splits without a
# share.
_PLAN: tuple[tuple[int, int, int, str, str, int], ...] = (
    (32, 48, 512, "fp32", "", 4),
    (17, 33, 500, "fp16", "", 3),
    (1, 100, 1000, "bf16", "", 8),
    (64, 64, 300, "fp16", "", 5),
    (20, 9, 40, "fp32", "", 8),
    (20, 9, 9, "fp32", "", 8),
    (3, 5, 7, "fp16", "", 2),
    (70, 16, 200, "bf16", "", 1),
    (32, 48, 512, "fp32", "", 4),
    (9, 20, 2600, "fp16", LONG, 4),
    (9, 20, 2600, "bf16", LONG, 4),
    (20, 9, 700, "fp16", PEAK, 2),
)
_OUTSIDE = (
    f"{OUTSIDE} A split's share ends at the next one's begin or at K, whichever comes first. Split "
    "s has its partial sums at s · M · N."
)


class _SplitCase(Case):
    """A call whose splits are told."""

    def __str__(self) -> str:
        (m, k), n = self.x.shape, self.reference.shape[1]
        trait = f", {self.trait}" if self.trait else ""
        return f"M = {m}, N = {n}, K = {k} in {self.x.dtype}, splits = {self.options[0]}{trait}"


def _case(
    rng: random.Random, m: int, n: int, k: int, name: str, trait: str, splits: int
) -> _SplitCase:
    made = product_case(rng, m, n, k, name, trait)
    return _SplitCase(made.tensors, (splits,), made.reference, made.tolerance, trait)


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, weight = (case.tensors[name].double() for name in ("x", "weight"))
    (splits,) = case.options
    k = x.shape[1]

    def part(first: int, last: int) -> Tensor:
        return x[:, first:last] @ weight[:, first:last].T

    # Where a fault does no harm its model is right, so that a right output doesn't deny it.
    yield (
        "The end of K is missing: K // splits rounds down, and what is left over is nobody's.",
        part(0, k // splits * splits),
    )
    for step in (1, 16, 32, 64, 128):
        each = math.ceil(math.ceil(k / splits) / step) * step
        yield (
            "The first split's partial sums alone were taken: the last launch adds up all.",
            part(0, each),
        )
        yield (
            "One split's partial sums alone are in y: the last launch adds up all, and each split "
            "stores to a place of its own.",
            part((splits - 1) * each, k),
        )
        yield (
            "All splits take the same share of K: a split's begins at its number times the share.",
            splits * part(0, each),
        )
        for block in (16, 32, 64, 128):
            length = math.ceil(each / block) * block
            shares = [part(first, min(k, first + length)) for first in range(0, k, each)]
            yield (
                "Shares overlap: the last step of a share goes on into the next one's. A share is "
                "a multiple of BLOCK_K, or its steps are masked at its end.",
                torch.stack(shares).sum(0),
            )
    yield "Every split sums all of K: y is so many times too large.", splits * case.reference
    yield "That is the mean of the partial sums: they are added up.", case.reference / splits


def _explain(runs: list[Run]) -> str:
    if told := explain_sums(runs) or recognised(runs, _models):
        return told
    failed = [r for r in runs if r.fault is not None]
    few = only_where(runs, lambda r: bool(r.case.x.shape[1] < 32 * r.case.options[0]))
    if few and all(r.wrong.numel() for r in failed):
        return (
            "It is right where each split has a share of K. One without stores zeros: the last "
            "launch adds its partial sums too, and new memory holds anything."
        )
    return explain_product(runs)


def _enough(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if the first launch has fewer programs than splits a tile."""

    def least(case: Case) -> int:
        return int(case.options[0]) * tiles(case, _EDGE, _EDGE)

    for r in runs:
        first = r.launches.seen[0]
        count = math.prod(first.grid)
        if count < least(r.case):
            raise Wrong(
                f"{first.name} runs {count} program{'s' * (count != 1)} on {r.case}; the question "
                f"takes {least(r.case)} at least: splits for each tile of 64 × 64.",
                "With one program a tile, so many SMs work and the others idle, however long the "
                "sum is. Let several programs share it: a third axis of the grid, and a share of "
                "K for each.",
            )
    attempt.held.append("as many programs share a tile's sum as the call says")


def grade_splits(attempt: Attempt) -> None:
    """Grade `split_product(x, weight, splits)`: two launches, partial sums in fp32, no atomics."""
    rng = random.Random(attempt.seed)
    plan = [
        *_PLAN,
        (rng.randrange(2, 60), rng.randrange(2, 60), rng.randrange(300, 900), "fp32", "", 6),
    ]
    cases: list[Case] = [_case(rng, *one) for one in plan]
    runs = right_or_told(attempt, cases, _explain, _OUTSIDE)
    no_atomics(attempt, cases[1])
    if any(len(r.launches) for r in runs):
        _enough(attempt, [r for r in runs if len(r.launches)])
    computed_by_kernels(attempt, runs, launches=2)

    def ideal(case: Case) -> int:
        inputs = sum(t.numel() * t.itemsize for t in case.tensors.values())
        y = case.reference.numel()
        return inputs + y * case.x.itemsize + 8 * int(case.options[0]) * y

    what = "x and weight read, a partial sum a split and output written and read in fp32, y written"
    within_bytes(attempt, runs, ideal, what)

    def budget(case: Case) -> int:
        return tiles(case, _EDGE, _EDGE) * 2 * _EDGE * case.x.shape[-1] * case.x.itemsize

    within_requests(
        attempt, runs, ("x", "weight"), budget, "64 rows of each for a tile of 64 × 64 outputs"
    )

    def finishers(case: Case) -> int:
        return -(-case.reference.numel() // 1024)

    enough_programs(attempt, runs, finishers, "one for every 1024 outputs")
    masked_lanes_named(attempt, [r for r in runs if r.case.x.shape[-1] % 16])
    on_tensor_cores(attempt, [r.case for r in runs])
    compiles_in_both(attempt, [r.case for r in runs])


SPLIT_SPEED = Speed(
    lambda seed: _case(random.Random(seed), 128, 128, 32768, "fp16", "", 32),
    0.5,
    against=torch.nn.functional.linear,
)
