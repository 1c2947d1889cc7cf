"""What rows come to whose threads, lanes or warps don't all take part in a sum as they should.

A thread takes every so many-th column of a row, or pack of columns; a warp's lanes add by shuffles
with the offsets 16, 8, 4, 2, 1, and the warps' sums are added.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

Tensor = torch.Tensor
LANES = 32
REPLACED = "What a shuffle brings replaces the lane's own value: it is added to it."
TAKEN_AWAY = "What a shuffle brings is taken away from the lane's own value: it is added."
BY_FOURS = "The offsets of the shuffles go down by four: they halve, 16, 8, 4, 2, 1."
LAST_WARP = "Only the last warp's sum is taken: the loop replaces what it should add to."


def step_missing(offset: int) -> str:
    """What is told where the shuffles with one offset are missing."""
    return (
        f"The step with offset {offset} is missing: half of the numbers that it should bring in "
        "are never added."
    )


def signs(lane: Tensor) -> Tensor:
    """With which sign lane 0 has each lane's value where shuffles take away: float64, as `lane`."""
    ones = sum((lane // offset) % 2 for offset in (16, 8, 4, 2, 1))
    return 1.0 - 2.0 * (torch.as_tensor(ones) % 2).double()


def weights(n: int, threads: int, packs: tuple[int, ...] = (1,)) -> Iterator[tuple[str, Tensor]]:
    """How often each of n columns is in the sum, for faults of shuffles: (n,) in float64.

    `packs`: how many neighbouring columns a thread may take at once.
    """
    for pack in packs:
        thread = torch.arange(n) // pack % threads
        lane = thread % LANES
        for offset in (16, 8, 4, 2, 1):
            yield step_missing(offset), (lane & offset == 0).double()
        yield BY_FOURS, (lane & 10 == 0).double()
        yield REPLACED, (lane == LANES - 1).double()
        yield TAKEN_AWAY, signs(lane)
        yield LAST_WARP, (thread // LANES == threads // LANES - 1).double()


def whole_numbers(x: Tensor, threads: int) -> Tensor:
    """The rows' sums where each thread adds up its columns in an int; x (rows, cols) in float64."""
    n = x.shape[1]
    own = torch.nn.functional.pad(x, (0, -n % threads)).view(len(x), -1, threads)
    total = torch.zeros(len(x), threads, dtype=x.dtype)
    for step in range(own.shape[1]):
        total = (total + own[:, step]).trunc()
    return total.sum(-1)
