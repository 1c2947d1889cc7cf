"""10.5: a tiled product on the tensor cores, within a budget of requested bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from kernels.grading.cases import Case
from kernels.grading.checks import computed_by_kernels
from kernels.grading.compiled_checks import built_for, compiles, enough_programs
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.products import (
    OUTSIDE,
    explain_product,
    product_case,
    product_cases,
    tiles,
    within_requests,
)
from kernels.grading.questions.kits.wrong_models import masked_lanes_named, right_or_told

_EDGE = 64
_LARGEST = 128


def on_tensor_cores(attempt: Attempt, cases: Sequence[Case]) -> None:
    """`Wrong` unless the product's launches on sm_80 multiply fp16 by matrix instructions.

    fp32 has to be multiplied as fp32: a matrix instruction would round its operands to tf32.
    """
    for dtype in (torch.float16, torch.float32):
        known = [case for case in cases if case.x.dtype == dtype]
        if not known:
            continue
        case = max(known, key=lambda one: one.x.shape[-1])
        built = [one for _, one in built_for(attempt, case, 80)]
        tf32 = any("tf32" in one.ptx for one in built if one.matrix_instruction)
        where = f"compiled for sm_80, on {case},"
        if dtype == torch.float16 and not any(one.matrix_instruction for one in built):
            raise Wrong(
                f"{attempt.name}, {where} has no matrix instruction: it multiplies and adds number "
                "by number.",
                "The tensor cores take what tl.dot makes of two tiles of 16 bits, each edge 16 or "
                "more. A sum of products by tl.sum, or operands in fp32, go to the ordinary cores, "
                "at a small part of the rate.",
            )
        if dtype == torch.float16 and tf32:
            raise Wrong(
                f"{attempt.name}, {where} multiplies tf32, and its operands are fp16.",
                "They were converted to fp32 before tl.dot. The tensor cores take 16 bits as they "
                "are, twice as many at a time, and their sum is fp32 all the same.",
            )
        if dtype == torch.float32 and tf32:
            raise Wrong(
                f"{attempt.name}, {where} multiplies tf32: each operand is rounded to 11 bits.",
                "That is tl.dot's choice for fp32. The interpreter multiplies exactly, so no value "
                'here shows it. input_precision="ieee" asks for fp32.',
            )
    attempt.held.append("16 bits go to the tensor cores of sm_80, fp32 stays fp32")


def compiles_in_both(attempt: Attempt, cases: Sequence[Case]) -> None:
    """`Wrong` unless the launches in fp16 and those in fp32 compile for both cards, and fit."""
    for dtype in (torch.float16, torch.float32):
        compiles(attempt, [case for case in cases if case.x.dtype == dtype])
    attempt.held.pop()  # it says the same of both


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
