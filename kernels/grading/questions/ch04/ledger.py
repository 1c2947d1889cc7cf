"""04.2: the source line that moves most bytes for nothing, read from a ledger by line."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from kernels.cuda import cuda
from kernels.cuda.emulator.results import LineTraffic
from kernels.grading.checks import call
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.wrong_models import whole_number

_MIXED = cuda(r"""
__global__ void mixed(const float* a, const float* b, const float* c,
    const float* d, float* out, int n, int turns, int step, int shift, int pitch) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < turns; k++)
        sum += a[k * n + i + shift];
    sum += b[i * step] * c[i * step];
    sum *= d[i / 32];
    out[i * pitch] = sum;
}
""")
Lines = Sequence[LineTraffic]


def launched(turns: int, step: int, shift: int, pitch: int) -> tuple[LineTraffic, ...]:
    """Return the ledger by line of one launch of `mixed` over 64 threads."""
    n = 64
    a, b, c = torch.ones(turns * n + shift), torch.ones(n * step), torch.ones(n * step)
    d, out = torch.ones(n // 32), torch.zeros(n * pitch)
    counts = _MIXED.mixed[2, 32](a, b, c, d, out, n, turns, step, shift, pitch)
    assert counts is not None
    return counts.lines


def _by_line(lines: Lines, cost: Callable[[LineTraffic], float]) -> dict[int, float]:
    total: dict[int, float] = defaultdict(float)
    for one in lines:
        total[one.line or 0] += cost(one)
    return total


def _most(total: dict[int, float]) -> int:
    return max(total, key=lambda line: total[line])


def wasted(lines: Lines) -> dict[int, float]:
    """Return the bytes of sectors that no lane wanted, by source line."""
    return _by_line(lines, lambda one: 32 * one.sectors - one.bytes_distinct)


_MISTAKES: tuple[tuple[str, Callable[[Lines], int | None]], ...] = (
    (
        "That line uses the smallest part of its sectors, and makes few requests. A share says "
        "nothing of how much is moved: count bytes.",
        lambda lines: min(lines, key=lambda one: one.efficiency).line,
    ),
    (
        "That is the worst single entry. A line that takes two arguments has an entry for each: "
        "add up what belongs to one line.",
        lambda lines: max(lines, key=lambda one: 32 * one.sectors - one.bytes_distinct).line,
    ),
    (
        "A byte that several lanes share is wanted once: take bytes_distinct, not bytes_requested.",
        lambda lines: _most(_by_line(lines, lambda one: 32 * one.sectors - one.bytes_requested)),
    ),
    (
        "That line moves the most sectors. Those that are used whole are no waste.",
        lambda lines: _most(_by_line(lines, lambda one: one.sectors)),
    ),
    (
        "That line makes the most requests. What each of them moves for nothing is the question.",
        lambda lines: _most(_by_line(lines, lambda one: one.requests)),
    ),
)
# Turns, step, shift and pitch, so that each line is the answer once, and each mistake shows.
_LAUNCHES = ((12, 4, 0, 1), (4, 3, 0, 7), (3, 4, 0, 6), (30, 1, 1, 2), (2, 1, 0, 1))


def grade_costliest(attempt: Attempt) -> None:
    """Grade `costliest(lines)` on the ledgers of real launches."""
    rng = random.Random(attempt.seed)
    asked = [*_LAUNCHES]
    while len(asked) < len(_LAUNCHES) + 4:
        drawn = (rng.randrange(1, 40), rng.randrange(1, 9), rng.randrange(8), rng.randrange(1, 9))
        first, second = sorted(wasted(launched(*drawn)).values())[:-3:-1]
        if first > second:
            asked.append(drawn)
    for numbers in asked:
        lines = launched(*numbers)
        sentence = f"{attempt.name} on a launch of mixed with turns, step, shift, pitch = {numbers}"
        told = whole_number(call(attempt, lines), sentence, "the line")
        cost = wasted(lines)
        right = _most(cost)
        if told == right:
            continue
        if told not in cost:
            known = ", ".join(map(str, sorted(cost)))
            raise Wrong(f"{sentence} says line {told}; the lines that use memory are {known}.")
        raise Wrong(
            f"{sentence} says line {told}, which moves {cost[told]:,.0f} bytes that no lane wants; "
            f"line {right} moves {cost[right]:,.0f}.",
            next((what for what, f in _MISTAKES if f(lines) == told), ""),
        )
    attempt.held.append(f"the costliest line of {len(asked)} launches, read from their ledgers")
