"""08.7: dropout in CUDA C++ with a call of Philox for eight elements, in packs of 16 bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.compiled_checks import compiles
from kernels.grading.cuda_checks import lines_of
from kernels.grading.question import Attempt, Speed, Wrong
from kernels.grading.questions.kits.cuda_cases import Tensor, right_in_cuda, unstored
from kernels.grading.questions.kits.flat_packs import (
    GUARD,
    REST,
    SEVERAL,
    elementwise,
    explain_packs,
    sizes,
)
from kernels.grading.questions.kits.masks import only_when_infinite
from kernels.grading.questions.kits.packs import rounded_once
from kernels.grading.questions.kits.wrong_models import drawn
from kernels.philox import keeps, scale, threshold
from kernels.registry import Tolerance

# What dropout_words loads of seed_offset at each call.
_CALL_BYTES = 16
_IDLE = 1024


def _dropout_case(rng: random.Random, n: int, p: float, trait: str = "") -> Case:
    x = drawn(rng, (n,), torch.float16)
    x = torch.where(x == 0, 1.0, x).half()  # so that a zero of the output was dropped
    seed, offset = rng.getrandbits(63), rng.getrandbits(40)
    kept = torch.from_numpy(keeps((n,), p, seed, offset))
    if trait:
        x[~kept] = torch.inf
    reference = torch.where(kept, x.double() * scale(p), 0.0)
    # All may be dropped; then every element is exactly 0.
    near = rounded_once(reference) if bool(kept.any()) else Tolerance(2.0**-11, 0.0)
    inputs = {"x": x, "seed_offset": torch.tensor([seed, offset])}
    return Case(inputs, (threshold(p), scale(p)), reference, near, trait)


def _dropout_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    seed, offset = case.tensors["seed_offset"].tolist()
    dropped, factor = case.options
    p = dropped / 65536
    n = len(x)
    kept = torch.from_numpy(keeps((n,), p, seed, offset))

    def masked(mask: Tensor, by: float = factor) -> Tensor:
        return torch.where(mask, x * by, 0.0)

    yield "Kept values are not multiplied by scale.", masked(kept, 1.0)
    yield "What is kept and what is dropped have changed places.", masked(~kept)
    yield "Nothing is dropped.", masked(torch.ones(n, dtype=torch.bool))
    yield "Everything is dropped.", masked(torch.zeros(n, dtype=torch.bool))
    yield (
        "All eight elements of a block take the first number: element i of the eight takes number "
        "i.",
        masked(kept[::8].repeat_interleave(8)[:n]),
    )
    first = torch.from_numpy(keeps((8,), p, seed, offset))
    yield (
        "Every eight elements take the numbers of block 0: the block of element e is e / 8.",
        masked(first.repeat(n // 8 + 1)[:n]),
    )
    rest = torch.arange(n) >= n // 8 * 8
    yield REST, torch.where(rest, torch.nan, masked(kept))
    yield "The offset is left out of the counter.", masked(torch.from_numpy(keeps((n,), p, seed)))
    each = torch.from_numpy(keeps((8 * n,), p, seed, offset))
    yield (
        "The block is the element's own index: it takes that divided by 8, the number of the "
        "eight.",
        masked(each.view(n, 8)[torch.arange(n), torch.arange(n) % 8]),
    )
    strided = each.view(-1, 8)[torch.arange(n) // 8 * 8, torch.arange(n) % 8]
    yield "The block is the first element's index: it takes that divided by 8.", masked(strided)


def _explain_dropout(runs: list[Run]) -> str:
    if told := explain_packs(runs, _dropout_models):
        return told
    if unstored(runs):
        return "Elements that are nan were never stored: each of the eight has a store."
    return only_when_infinite(runs)


def _calls(attempt: Attempt, runs: list[Run]) -> None:
    """`Wrong` if `dropout_words` is called more than once for eight elements."""
    for r in runs:
        n = r.case.x.numel()
        if n < 4096:
            continue
        loads = lines_of(r, r.case.tensors["seed_offset"])
        calls = sum(line.bytes_requested for _, line in loads) // _CALL_BYTES
        if calls > n / 8 + _IDLE:
            raise Wrong(
                f"seed_offset is asked for {calls:,} times on {r.case}: a call of dropout_words "
                f"for every {n / calls:.1f} elements. {-(-n // 8):,} calls will do.",
                "A call makes the numbers of eight elements. A thread that takes one element "
                "throws seven of them away, and its ten rounds cost more than the memory.",
                hint="Give a thread the eight elements of one block: 8 * i to 8 * i + 7.",
            )
    attempt.held.append("a call of Philox makes the numbers of eight elements")


def grade_dropout(attempt: Attempt) -> None:
    """Grade `my_cuda_dropout(x, seed_offset, threshold, scale)`: x (n,) in fp16, to the bit."""
    rng = random.Random(attempt.seed)
    chances = [0.1, 0.5, 0.25, rng.choice((0.3, 0.7))]
    cases = [_dropout_case(rng, n, chances[i % 4]) for i, n in enumerate(sizes(rng))]
    cases += [_dropout_case(rng, 500, p) for p in (0.0, 1.0)]
    cases.append(_dropout_case(rng, 300, 0.5, "infinite where it is dropped"))
    runs = right_in_cuda(attempt, cases, _explain_dropout, GUARD, met=SEVERAL)
    _calls(attempt, runs)
    elementwise(attempt, runs, ("x",))
    compiles(attempt, (r.case for r in runs))


DROPOUT_SPEED = Speed(lambda seed: _dropout_case(random.Random(seed), 32 * 2**20, 0.1), 0.8)
