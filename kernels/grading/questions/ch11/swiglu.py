"""11.5: gate and up in one product, their rows by turns, and SwiGLU of each pair of sums."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, within_bytes
from kernels.grading.compiled_checks import enough_programs
from kernels.grading.question import Attempt
from kernels.grading.questions.ch11.followed import explain_followed, inputs, twice
from kernels.grading.questions.ch11.gelu import EDGE, MOST, ideal_bytes
from kernels.grading.questions.kits.products import (
    LONG,
    ProductCase,
    along_k,
    sum_tolerance,
    tiles,
    unstored,
    within_requests,
)
from kernels.grading.questions.kits.tensor_cores import compiles_in_both, on_tensor_cores
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    masked_lanes_named,
    right_or_told,
)
from kernels.registry import DTYPES

_PLAN: tuple[tuple[int, int, int, str, str], ...] = (
    (64, 64, 64, "fp32", ""),
    (17, 33, 50, "fp16", ""),
    (1, 70, 130, "bf16", ""),
    (70, 24, 48, "fp32", ""),
    (5, 3, 1, "fp16", ""),
    (9, 20, 2600, "fp16", LONG),
    (9, 20, 2600, "bf16", LONG),
)
_OUTSIDE = (
    "weight has 2 · N rows: its mask is rows < 2 * N, and y's is cols < N. x takes (rows < M) & "
    "(k < K)."
)


def _activated(gate: Tensor, up: Tensor) -> Tensor:
    return gate * torch.sigmoid(gate) * up


def _case(rng: random.Random, m: int, n: int, k: int, name: str, trait: str) -> Case:
    x, weight = inputs(rng, m, 2 * n, k, name, "")
    if trait == LONG:
        # up is a long sum of terms near 1 and gate a short one: their product stays in fp16.
        x, long = inputs(rng, m, n, k, name, LONG)
        weight = torch.stack([weight[::2] / 4, long], 1).flatten(0, 1)
        weight[::2, 64:] = 0
    wide, sums = x.double(), x.double() @ weight.double().T
    gate, up = sums[:, ::2], sums[:, 1::2]
    y = _activated(gate, up)
    terms = wide.abs() @ weight.double().abs().T
    near = terms[:, ::2] * up.abs() + gate.abs() * terms[:, 1::2]
    return ProductCase(
        {"x": x, "weight": weight}, (), y, twice(sum_tolerance(near, y, k, DTYPES[name])), trait
    )


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    plan = [*_PLAN, (rng.randrange(33, 90), rng.randrange(33, 60), 40, "fp16", "")]
    # Of the first one's sizes, and with other numbers: an output that was kept is wrong.
    return [_case(rng, *one) for one in (*plan, plan[0])]


_HALVES = (
    "That takes the first N rows of weight for gate, and the others for up. Here they come by "
    "turns: row 2n is gate's, row 2n + 1 is up's."
)
_TURNS = (
    "The columns of a tile are split into a left and a right half. Neighbours belong together: "
    "reshape to (BLOCK_M, BLOCK_N, 2), and tl.split takes the last axis apart."
)


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, weight = (case.tensors[name].double() for name in ("x", "weight"))
    sums, y = x @ weight.T, case.reference
    (m, _), n = x.shape, len(weight) // 2
    gate, up = sums[:, ::2], sums[:, 1::2]
    yield (
        "gate and up have changed places: SiLU is taken of the even rows' sums.",
        _activated(up, gate),
    )
    yield _HALVES, _activated(sums[:, :n], sums[:, n:])
    yield "That is the sigmoid of gate times up: SiLU is gate · σ(gate).", torch.sigmoid(gate) * up
    yield "SiLU is missing: that is gate · up.", gate * up
    yield "up is missing: that is SiLU(gate).", gate * torch.sigmoid(gate)
    yield "gate and up are added: they are multiplied.", gate * torch.sigmoid(gate) + up
    yield "The sign in σ is wrong: σ(g) = 1 / (1 + exp(-g)).", gate * torch.sigmoid(-gate) * up
    gelu = torch.nn.functional.gelu(gate) * up
    yield "That is GEGLU: SwiGLU takes SiLU of gate, g · σ(g).", gelu
    yield "SiLU is taken of the product of gate and up.", (gate * up) * torch.sigmoid(gate * up)
    yield "SiLU is taken of up as well.", _activated(gate, up) * torch.sigmoid(up)
    known = torch.where(torch.arange(2 * n) < n, sums, 0.0)
    yield (
        "The mask of weight's rows ends at N, and weight has 2 · N of them.",
        _activated(known[:, ::2], known[:, 1::2]),
    )
    for half in (8, 16, 32, 64, 128):
        # A tile of 2 · half columns whose left half is taken as gate.
        padded = torch.nn.functional.pad(sums, (0, -2 * n % (2 * half)))
        parts = padded.reshape(m, -1, 2, half)
        yield _TURNS, _activated(parts[:, :, 0], parts[:, :, 1]).reshape(m, -1)[:, :n]
    for what, faulty in along_k(x, weight):
        yield what, _activated(faulty[:, ::2], faulty[:, 1::2])
    yield "y is stored transposed: element [m, n] lies at m · N + n.", y.T.reshape(m, n)
    yield from unstored(y)


def _explain(runs: list[Run]) -> str:
    for r in runs:
        shape = tuple(getattr(r.output, "shape", ()))
        if shape != r.case.reference.shape and shape == (len(r.case.x), 2 * len(r.case.like[0])):
            return "y has N columns, one for each pair of weight's rows: weight has 2 · N of them."
    return explain_followed(runs, _models)


def _budget(case: Case) -> int:
    # Tiles of 64 × 64 sums make 64 × 32 outputs.
    rows = 2 * EDGE * case.x.shape[-1] * case.x.itemsize
    return tiles(case, EDGE, EDGE // 2) * rows


def grade_swiglu(attempt: Attempt) -> None:
    """Grade `swiglu(x, weight)`: one product for gate and up, whose sums never leave the tile."""
    runs = right_or_told(attempt, _cases(attempt.seed), _explain, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    within_bytes(attempt, runs, ideal_bytes, "x and weight read, y written")
    within_requests(
        attempt, runs, ("x", "weight"), _budget, "64 rows of each for a tile of 64 × 32 outputs"
    )

    def least(case: Case) -> int:
        return tiles(case, MOST, MOST)

    enough_programs(attempt, runs, least, "one for every 128 × 128 outputs")
    masked_lanes_named(attempt, [r for r in runs if r.case.x.shape[-1] % 16])
    on_tensor_cores(attempt, [r.case for r in runs])
    compiles_in_both(attempt, [r.case for r in runs])
