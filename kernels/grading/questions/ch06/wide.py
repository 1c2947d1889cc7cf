"""06.3 and 06.6: rows that no program holds, of which states are merged tile by tile."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch
import triton

from kernels.grading.cases import Case, Run
from kernels.grading.checks import computed_by_kernels, within_bytes
from kernels.grading.compiled_checks import compiles
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.ch06.kit import OUTSIDE
from kernels.grading.questions.kits.row_norms import normalised
from kernels.grading.questions.kits.wrong_models import (
    Tensor,
    drawn,
    masked_lanes_named,
    recognised,
    right_or_told,
)
from kernels.registry import DTYPES, Tolerance

_PLAN: tuple[tuple[int, int, str], ...] = (
    (3, 64, "fp32 fp16"),
    (2, 17, "fp32 bf16"),
    (1, 1000, "fp32 fp16"),
    (2, 1, "fp32"),
    (1, 4096, "bf16"),
    (1, 9001, "fp32"),
    (1, 40000, "fp32"),
)


def _blocks(n: int) -> list[int]:
    """The widths of a block that a reader may well take for rows of n columns."""
    widths = {2**power for power in range(4, 15) if n <= 64 * 2**power}
    return sorted(widths | {triton.next_power_of_2(n)})


def _twice(attempt: Attempt, runs: list[Run], thrice: str) -> None:
    """`Wrong` if a launch asks for an element of x more than twice."""
    for r in runs:
        times = r.traffic(r.case.x).times_read
        if times > 2:
            raise Wrong(f"x is read {times:.1f} times on {r.case}; twice will do.", thrice)
    attempt.held.append("x is read 2.0 times at most")


def _graded(attempt: Attempt, runs: list[Run], thrice: str) -> None:
    computed_by_kernels(attempt, runs, launches=1)
    _twice(attempt, runs, thrice)
    within_bytes(attempt, runs, lambda c: 2 * c.x.numel() * c.x.itemsize, "x read, y written")
    masked_lanes_named(attempt, runs)
    compiles(attempt, (r.case for r in runs))


# 06.3


def _moments(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    (eps,) = case.options
    n = x.shape[-1]
    mean = x.mean(-1, keepdim=True)
    squares = ((x - mean) ** 2).sum(-1, keepdim=True)

    def made(squares: Tensor, mean: Tensor = mean) -> Tensor:
        return (x - mean) / torch.sqrt(squares / n + eps)

    unused = "eps is not added to the variance, or it is not the one given."
    yield unused, made(squares - eps * n)
    yield unused, made(squares - eps * n + 1e-5 * n)
    multiplied = "A sum is multiplied by the number of columns; a mean is divided by it."
    yield multiplied, made(squares * n * n)
    yield "eps is taken away from the variance; it is added.", made(squares - 2 * eps * n)
    root = torch.sqrt(squares / n)
    yield "eps is added to the root; it belongs under it.", (x - mean) / (root + eps)
    yield (
        "eps is added to the reciprocal of the root; it belongs under the root.",
        (x - mean) * (1 / root + eps),
    )
    for count in (n - 1, max(n - 1, 1)):
        yield (
            "The variance is divided by N - 1, not by N.",
            made(squares * n / count),
        )
    for block in _blocks(n):
        tiles = x.split(block, -1)
        within = sum(((t - t.mean(-1, keepdim=True)) ** 2).sum(-1, keepdim=True) for t in tiles)
        idle = sum((block - t.shape[-1]) * t.mean(-1, keepdim=True) ** 2 for t in tiles)
        yield (
            "The squares of the tiles are added as they are. Each is about its own tile's mean; "
            "how far the two means lie from each other belongs to the sum too.",
            made(torch.as_tensor(within)),
        )
        of_tiles = torch.stack([t.mean(-1, keepdim=True) for t in tiles]).mean(0)
        for about in (squares, ((x - of_tiles) ** 2).sum(-1, keepdim=True), within):
            yield (
                "The tiles' means are averaged as if all tiles had as many elements: the last one "
                "may have fewer.",
                made(torch.as_tensor(about), of_tiles),
            )
        yield (
            "Masked lanes enter a sum of squares. They load 0, so x - mean is -mean there: mask "
            "again before you reduce.",
            made(squares + torch.as_tensor(idle)),
        )


def _explain_moments(runs: list[Run]) -> str:
    # Far from 0 a tolerance is wide, and what two sums leave of a variance may equal any model.
    near = [r for r in runs if not r.case.trait]
    return recognised(near, _moments)


def _moments_case(
    rng: random.Random, rows: int, cols: int, name: str, mean: float = 2.0, eps: float = 1e-5
) -> Case:
    dtype = DTYPES[name]
    # Each row falls, on the whole: its tiles have means of their own.
    x = (drawn(rng, (rows, cols), torch.float32, mean) - torch.linspace(0, 3, cols)).to(dtype)
    spread = torch.sqrt(x.double().var(-1, correction=0) + eps)
    far = float((x.double().mean(-1).abs() / spread).max())
    near = torch.finfo(dtype).eps + 2.0**-22 * (4 + math.log2(cols + 1)) * (1 + far)
    trait = f"mean near {mean:.0f}" if mean > 10 else ""
    return Case({"x": x}, (eps,), normalised(x, eps), Tolerance(near, near), trait)


def grade_wide_normalize(attempt: Attempt) -> None:
    """Grade `wide_normalize(x, eps)`: right far from 0 too, one launch, x read twice at most."""
    rng = random.Random(attempt.seed)
    cases = [_moments_case(rng, r, n, name) for r, n, names in _PLAN for name in names.split()]
    cases.append(_moments_case(rng, 1, rng.randrange(1025, 3000), "fp32"))
    cases.append(_moments_case(rng, 2, 128, "fp32", eps=0.5))
    far = ((2, 64), (2, 300), (2, 2500))
    cases += [_moments_case(rng, *shape, "fp32", 3000.0) for shape in far]
    runs = right_or_told(attempt, cases, _explain_moments, OUTSIDE)
    _graded(
        attempt,
        runs,
        "A loop for the mean and one for the variance are one too many: a state that holds both "
        "merges tile by tile, in one loop. The second loop stores y.",
    )


# 06.6


def softmax(x: Tensor) -> Tensor:
    """Return the softmax of each row of x (rows, cols), in float64."""
    x = x.double()
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _summed(tiles: Sequence[Tensor], about: Tensor) -> Tensor:
    """The sum of exp(x - m) of all tiles, each about its own m."""
    pairs = zip(tiles, about, strict=True)
    return torch.stack([torch.exp(t - m).sum(-1, keepdim=True) for t, m in pairs]).sum(0)


def _softmaxes(case: Case) -> Iterator[tuple[str, Tensor]]:
    x = case.x.double()
    n = x.shape[-1]
    most = x.amax(-1, keepdim=True)
    e = torch.exp(x - most)
    total = e.sum(-1, keepdim=True)
    yield "The exponentials are not divided by their sum.", e
    powers = torch.exp2(x - most)
    yield (
        "The base is 2, not e: tl.exp2 takes x · log2(e).",
        powers / powers.sum(-1, keepdim=True),
    )
    for block in _blocks(n):
        lost = -n % block
        yield (
            "Masked lanes enter the sum: they hold 0, and each adds exp(0 - m). Load "
            'other=-float("inf"), whose exponential is 0.',
            e / (total + lost * torch.exp(-most)),
        )
        tiles = x.split(block, -1)
        # What a tile of -inf alone adds is 0 where m starts low, and nan where it starts at -inf.
        for lowest in (-3.0e38, -math.inf):
            tops = torch.stack([t.amax(-1, keepdim=True).clamp(min=lowest) for t in tiles])
            running = tops.cummax(0).values
            yield (
                "The sum is not rescaled where a tile brings a larger maximum: what was added "
                "before belongs to the old one. Multiply it by exp(old - new).",
                e / _summed(tiles, running),
            )
            yield (
                "Each tile's sum belongs to the tile's own maximum, and they are added as they "
                "are. Bring both to the larger maximum before you add.",
                e / _summed(tiles, tops),
            )


def _explain_softmax(runs: list[Run]) -> str:
    if told := recognised(runs, _softmaxes):
        return told
    failed = [r for r in runs if r.fault is not None and r.wrong.numel()]
    lost = [r for r in failed if bool(r.output.isnan().any())]
    if lost and all(bool(r.case.x.isinf().any()) for r in failed):
        return (
            "It is right without -inf. Where all that was seen so far is -inf, -inf - (-inf) is "
            "nan: start from the lowest finite number, or guard the difference."
        )
    if lost and all(r.case.trait == _BELOW and bool(r.output.isnan().all()) for r in failed):
        # With m at 0 or above each exponential of such a row is 0, and so is s: y is 0 / 0.
        return (
            "A row may lie far below 0: m starts at the lowest number, not at 0, and a masked lane "
            "holds -inf."
        )
    if lost and all("values" in r.case.trait for r in failed):
        return (
            "exp is inf beyond 88 in fp32, and 0 below -104. Subtract the largest element of the "
            "row before you take the exponential."
        )
    traits = {r.case.trait for r in failed}
    if traits and "" not in traits:
        return f"Only rows with {' or with '.join(sorted(traits))} are wrong."
    return ""


_BELOW = "values far below 0"
_HALF, _END = "-inf in its first half", "-inf in all but its last 100 columns"


def _softmax_case(
    rng: random.Random, rows: int, cols: int, name: str, trait: str = "", shift: float = 0.0
) -> Case:
    dtype = DTYPES[name]
    x = drawn(rng, (rows, cols), torch.float32)
    # Each row rises and falls, on the whole: some tiles bring a new maximum, and some don't.
    x += 4 * torch.sin(torch.linspace(0.0, math.pi, cols)) + shift
    if trait == _HALF:
        x[:, : cols // 2] = -torch.inf
        x[:, 3 * cols // 4] = -torch.inf
    if trait == _END:
        x[:, : cols - 100] = -torch.inf
    x = x.to(dtype)
    # Rounding to the dtype; the exponent's own rounding, and a sum in any order.
    unit = torch.finfo(dtype).eps / 2
    largest = float(x.masked_fill(x.isinf(), 0.0).abs().max())
    sums = 2.0**-22 * (8 + math.log2(cols + 1)) + 2.0**-23 * min(largest, 16.0)
    return Case({"x": x}, (), softmax(x), Tolerance(unit + sums, 2 * unit + sums), trait)


def grade_wide_softmax(attempt: Attempt) -> None:
    """Grade `wide_softmax(x)`: right for every width, one launch, x read twice at most."""
    rng = random.Random(attempt.seed)
    cases = [_softmax_case(rng, r, n, name) for r, n, names in _PLAN for name in names.split()]
    cases.append(_softmax_case(rng, 1, rng.randrange(1025, 3000), "fp32"))
    for cols in (64, 300, 5000):
        cases.append(_softmax_case(rng, 1, cols, "fp32", "values that are large", shift=500.0))
        cases.append(_softmax_case(rng, 1, cols, "fp32", _BELOW, shift=-500.0))
        cases.append(_softmax_case(rng, 1, cols, "fp32", _HALF))
    # Below any bound that somebody may have guessed.
    cases.append(_softmax_case(rng, 1, 300, "fp32", _BELOW, shift=-1.0e6))
    # Whatever the block, its first tile is -inf alone: one of 65536 lanes holds the whole row.
    cases.append(_softmax_case(rng, 1, 40000, "fp32", _END))
    runs = right_or_told(attempt, cases, _explain_softmax, OUTSIDE)
    _graded(
        attempt,
        runs,
        "A loop for the maximum and one for the sum are one too many: the state (m, s) takes in "
        "both. The second loop stores y.",
    )
