"""10.5: a tiled product on the tensor cores, within a budget of requested bytes."""

from __future__ import annotations

import random

import torch

from kernels.grading.cases import Case
from kernels.grading.checks import computed_by_kernels
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.products import (
    OUTSIDE,
    explain_product,
    product_case,
    product_cases,
    tiles,
    within_requests,
)
from kernels.grading.questions.kits.tensor_cores import compiles_in_both, on_tensor_cores
from kernels.grading.questions.kits.wrong_models import masked_lanes_named, right_or_told

_EDGE = 64
_LARGEST = 128


def budget(case: Case) -> int:
    """The bytes that tiles of 64 × 64 ask for, ragged ones taken as whole."""
    return tiles(case, _EDGE, _EDGE) * 2 * _EDGE * case.x.shape[-1] * case.x.itemsize


def grade_tile(attempt: Attempt) -> None:
    """Grade `tiled_product(x, weight)`: right, in the budget, on tensor cores, and it fits."""
    cases = product_cases(attempt.seed, ("fp32", "fp16", "bf16"))
    runs = right_or_told(attempt, cases, explain_product, OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    within_requests(
        attempt, runs, ("x", "weight"), budget, "64 rows of each for a tile of 64 × 64 outputs"
    )

    def least(case: Case) -> int:
        return tiles(case, _LARGEST, _LARGEST)

    enough_programs(attempt, runs, least, "one for every 128 × 128 outputs")
    masked_lanes_named(attempt, [r for r in runs if r.case.x.shape[-1] % 16])
    on_tensor_cores(attempt, [r.case for r in runs])
    compiles_in_both(attempt, [r.case for r in runs])


TILE_SPEED = Speed(
    lambda seed: product_case(random.Random(seed), 2048, 2048, 2048, "fp16"),
    0.5,
    against=torch.nn.functional.linear,
)
