"""11.3 and 11.4: bias and GELU behind a product's loop, and the same within a budget."""

from __future__ import annotations

import random

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.ch11.followed import explain_gelu, gelu_case, gelu_cases
from kernels.grading.questions.kits.products import OUTSIDE, tiles, within_requests
from kernels.grading.questions.kits.tensor_cores import compiles_in_both, on_tensor_cores
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    masked_lanes_named,
    right_or_told,
)

EDGE = 64
MOST = 128
_OUTSIDE = f"{OUTSIDE} The bias takes cols < N."


def grade_place(attempt: Attempt) -> None:
    """Grade `my_linear_gelu(x, weight, bias)`: GELU behind the bias, both behind the loop."""
    cases = gelu_cases(attempt.seed, ("fp32", "fp16"))
    runs = right_or_told(attempt, cases, explain_gelu, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    masked_lanes_named(attempt, [r for r in runs if r.case.x.shape[-1] % 16])
    compiles(attempt, (r.case for r in runs))


def tile_budget(case: Case) -> int:
    """The bytes of x and weight that tiles of 64 × 64 ask for, ragged ones taken as whole."""
    return tiles(case, EDGE, EDGE) * 2 * EDGE * case.x.shape[-1] * case.x.itemsize


def ideal_bytes(case: Case) -> int:
    """Every input and the output once."""
    inputs = sum(t.numel() * t.itemsize for t in case.tensors.values())
    return inputs + case.reference.numel() * case.x.itemsize


def row_budget(case: Case) -> int:
    """What a tensor of N elements may be asked for: once by each row of tiles of 64 rows."""
    return -(-case.x.shape[0] // EDGE) * case.reference.shape[1]


def rows_of_tiles(attempt: Attempt, runs: list[Run], name: str) -> None:
    """`Wrong` if the tensor `name` (N,) is asked for more than once by a tile of 64 rows."""
    for r in runs:
        tensor = r.case.tensors[name]
        moved = r.traffic(tensor)
        budget = row_budget(r.case) * tensor.itemsize
        if moved.read_requested > budget:
            raise Wrong(
                f"{attempt.name} asks for {moved.read_requested:,} bytes of {name} on {r.case}; "
                f"the budget is {budget:,}: its columns once for each tile of {EDGE} rows.",
                f"{name} is the same for all rows of a tile, and for all steps along K: load "
                "BLOCK_N elements of it once, behind the loop, and broadcast them by [None, :].",
            )
    attempt.held.append(f"{name} is asked for once by each tile")


def grade_epilogue(attempt: Attempt) -> None:
    """Grade `linear_bias_gelu(x, weight, bias)`: right, in the budget, and it fits."""
    cases = gelu_cases(attempt.seed, ("fp32", "fp16", "bf16"))
    runs = right_or_told(attempt, cases, explain_gelu, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    what = "x, weight and bias read, y written"
    within_bytes(attempt, runs, ideal_bytes, what)
    within_requests(
        attempt, runs, ("x", "weight"), tile_budget, "64 rows of each for a tile of 64 × 64 outputs"
    )
    rows_of_tiles(attempt, runs, "bias")

    def least(case: Case) -> int:
        return tiles(case, MOST, MOST)

    enough_programs(attempt, runs, least, "one for every 128 × 128 outputs")
    masked_lanes_named(attempt, [r for r in runs if r.case.x.shape[-1] % 16])
    on_tensor_cores(attempt, [r.case for r in runs])
    compiles_in_both(attempt, [r.case for r in runs])


def linear_then_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """PyTorch's own, in two calls."""
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))


GELU_SPEED = Speed(
    lambda seed: gelu_case(random.Random(seed), 4096, 3072, 1024, "fp16"),
    0.5,
    against=linear_then_gelu,
)
