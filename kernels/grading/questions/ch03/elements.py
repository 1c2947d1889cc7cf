"""03.3 and 03.4: a copy and an addition, one block of elements a program."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, reads_once, within_bytes
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt, Speed
from kernels.grading.questions.kits.wrong_models import (
    EXACT,
    Tensor,
    drawn,
    only_end_missing,
    recognised,
    right_or_told,
    stored_in_each,
)
from kernels.registry import Tolerance

_OUTSIDE = (
    "The mask has to compare each lane's own offset, its program's part included, with n, and "
    "stand in every load and store."
)
_END = (
    "Only elements at the end were never stored: the last program is missing, or its mask is too "
    "strict. The grid takes triton.cdiv(n, BLOCK), which rounds up, and the mask offsets < n."
)
# A question that hands out the two faults leaves the cure to its reader.
_END_OF_ADD = (
    "Only elements at the end were never stored: no program has taken them, or its mask has "
    "switched them off. How many programs does the grid have for that n, and what does each cover?"
)
_DTYPES = (torch.float32, torch.float16)


def _sizes(rng: random.Random) -> list[int]:
    return [1, 1000, 1024, 1025, rng.randrange(2, 64), rng.randrange(1026, 4000)]


def _at_end(runs: list[Run], end: str = _END) -> str:
    """What elements that are missing at the end say, or "" if something else is wrong."""
    if not only_end_missing(runs):
        return ""
    stored = stored_in_each(runs)
    if len(stored) == 1 and 0 not in stored:
        return (
            f"Only the first {stored.pop()} elements were stored, whatever n is: one program ran. "
            "The grid takes a program for every block."
        )
    return end


def _wide(rng: random.Random) -> int:
    """So many elements that one program for all is too few; few enough to interpret."""
    return rng.randrange(16385, 17500)


_MANY = 16 * 2**20


def _enough(attempt: Attempt, runs: list[Run]) -> None:
    def least(case: Case) -> int:
        return math.ceil(case.x.numel() / 8192)

    enough_programs(attempt, runs, least, "one for every 8192 elements")


def _copy_case(rng: random.Random, n: int, dtype: torch.dtype) -> Case:
    x = drawn(rng, (n,), dtype)
    return Case({"x": x}, (), x.double(), EXACT)


def _copy_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.reference
    yield "The values went through 16 bits: store what was loaded.", x.half().double()
    yield "The elements are in the opposite order.", x.flip(0)
    yield "The elements are moved by one: load and store at the same offset.", x.roll(1)
    yield "The elements are moved by one: load and store at the same offset.", x.roll(-1)


def _explain_copy(runs: list[Run]) -> str:
    return _at_end(runs) or recognised(runs, _copy_models)


def grade_copy(attempt: Attempt) -> None:
    """Grade `my_copy(x)`: x (n,) in fp32 or fp16, the same values in new memory."""
    rng = random.Random(attempt.seed)
    cases = [_copy_case(rng, n, dtype) for n in _sizes(rng) for dtype in _DTYPES]
    cases.append(_copy_case(rng, _wide(rng), torch.float32))
    runs = right_or_told(attempt, cases, _explain_copy, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    reads_once(attempt, runs, "x")
    within_bytes(attempt, runs, lambda c: 2 * c.x.numel() * c.x.itemsize, "x read, y written")
    _enough(attempt, runs)
    compiles(attempt, (r.case for r in runs))


COPY_SPEED = Speed(lambda seed: _copy_case(random.Random(seed), _MANY, torch.float32), 0.9)


def _add_case(rng: random.Random, n: int, dtype: torch.dtype) -> Case:
    inputs = {"x": drawn(rng, (n,), dtype), "y": drawn(rng, (n,), dtype)}
    total = inputs["x"].double() + inputs["y"].double()
    # One rounding to the dtype, of half an epsilon at most.
    one = torch.finfo(dtype).eps
    return Case(inputs, (), total, Tolerance(one, one))


def _add_models(case: Case) -> Iterator[tuple[str, Tensor]]:
    x, y = (tensor.double() for tensor in case.tensors.values())
    yield "y is not added: the sum is x alone.", x
    yield "x is added to itself: the second load reads x, not y.", 2 * x
    yield "y is added to itself: the first load reads y, not x.", 2 * y
    yield "y is taken away from x.", x - y
    yield "x and y are multiplied.", x * y


def _explain_add(runs: list[Run]) -> str:
    return _at_end(runs, _END_OF_ADD) or recognised(runs, _add_models)


def grade_add(attempt: Attempt) -> None:
    """Grade `my_add(x, y)`: both (n,) in fp32 or fp16, their sum in the same dtype."""
    rng = random.Random(attempt.seed)
    cases = [_add_case(rng, n, dtype) for n in _sizes(rng) for dtype in _DTYPES]
    cases.append(_add_case(rng, _wide(rng), torch.float32))
    runs = right_or_told(attempt, cases, _explain_add, _OUTSIDE)
    computed_by_kernels(attempt, runs, launches=1)
    for name in ("x", "y"):
        reads_once(attempt, runs, name)
    within_bytes(attempt, runs, lambda c: 3 * c.x.numel() * c.x.itemsize, "x, y read, sum written")
    _enough(attempt, runs)
    compiles(attempt, (r.case for r in runs))


ADD_SPEED = Speed(lambda seed: _add_case(random.Random(seed), _MANY, torch.float32), 0.9)
