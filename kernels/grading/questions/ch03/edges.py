"""03.9: of all shapes with as many elements, those whose tiles mask the fewest and the most lanes.

The bytes of a launch in tiles depend on the number of elements alone. Its lanes don't: each edge
of the matrix is rounded up to whole tiles.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, asked, pair, whole
from kernels.lab.counting import traffic

Shape = tuple[int, int]
_BLOCKS = (16, 32, 64)
_MOST = 5000


@triton.jit
def negate_kernel(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr
):
    """Store -x, a tile of BLOCK by BLOCK a program."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    x = tl.load(x_ptr + rows * n_cols + cols, mask=mask)
    tl.store(y_ptr + rows * n_cols + cols, -x, mask=mask)


def counted_tiles(shape: Shape, block: int) -> Shape:
    """Return programs and masked lanes of one real launch over a matrix of `shape`."""
    x, y = torch.zeros(2, *shape)
    grid = (triton.cdiv(shape[0], block), triton.cdiv(shape[1], block))
    (step,) = traffic.count(lambda: negate_kernel[grid](x, y, *shape, BLOCK=block))
    return step.programs, step.masked_lanes


def tiles(shape: Shape, block: int) -> int:
    """Return how many tiles of `block` by `block` cover a matrix of `shape`."""
    return -(-shape[0] // block) * -(-shape[1] // block)


def shapes_of(n: int) -> list[Shape]:
    """Return every (rows, columns) with n elements, fewest rows first."""
    return [(rows, n // rows) for rows in range(1, n + 1) if n % rows == 0]


def _extremes(n: int, block: int) -> tuple[Shape, Shape]:
    shapes = sorted(shapes_of(n), key=lambda shape: tiles(shape, block))
    return shapes[0], shapes[-1]


def _squarest(n: int) -> Shape:
    return min(shapes_of(n), key=lambda shape: (abs(shape[0] - shape[1]), shape))


def _misleading(rng: random.Random, block: int) -> int:
    """Draw a number of elements whose shape nearest to a square takes more tiles than another."""
    while True:
        n = rng.randrange(block * block // 2, _MOST)
        if tiles(_squarest(n), block) > tiles(_extremes(n, block)[0], block):
            return n


def _shape(value: Any, sentence: str, which: str, n: int) -> Shape:
    """`value` as a shape of n elements; `Wrong` names the call and `which` of the two it is."""
    rows, cols = pair(value, f"{sentence}, for {which},", "(n_rows, n_cols)")
    shape = (
        whole(rows, sentence, f"n_rows of {which}"),
        whole(cols, sentence, f"n_cols of {which}"),
    )
    if min(shape) < 1 or shape[0] * shape[1] != n:
        raise Wrong(
            f"{sentence} returned {shape} as {which}: that has {shape[0] * shape[1]:,} elements, "
            f"not {n:,}.",
            "Only shapes whose rows and columns multiply to n are asked for: n_rows divides n.",
        )
    return shape


def _means_best(told: Shape, n: int) -> str:
    if 1 in told:
        return "Each tile has one row or one column of lanes switched on, and all others masked."
    if told in (_squarest(n), _squarest(n)[::-1]):
        return (
            "The shape nearest to a square is not always the best: an edge just beyond a multiple "
            "of BLOCK takes a tile more. Each edge is rounded up to whole tiles; count them."
        )
    return (
        "Each edge is rounded up to whole tiles, so count triton.cdiv(n_rows, BLOCK) times "
        "triton.cdiv(n_cols, BLOCK) for every shape."
    )


def _means_worst(told: Shape, n: int, block: int) -> str:
    if tiles(told, block) == tiles(_extremes(n, block)[0], block):
        return "That shape masks the fewest lanes: the second of the two is to mask the most."
    return "A tile can be emptier still: think of a matrix that is as thin as can be."


def grade_extremes(attempt: Attempt) -> None:
    """Grade `extremes(n, BLOCK)`: two shapes of n elements, (fewest, most) masked lanes."""
    rng = random.Random(attempt.seed)
    cases = [(4096, 32), (1122, 32), (1, 16), (1009, 32)]
    cases += [(_misleading(rng, block), block) for block in _BLOCKS]
    cases += [(rng.randrange(100, _MOST), rng.choice(_BLOCKS)) for _ in range(3)]
    for n, block in cases:
        sentence = asked(attempt, (n, block))
        both = pair(answered(attempt, n, block), sentence, "(best, worst)")
        for which, value, right in zip(("best", "worst"), both, _extremes(n, block), strict=True):
            told = _shape(value, sentence, which, n)
            if tiles(told, block) == tiles(right, block):
                continue
            does, masks = ("fewest", "fewer") if which == "best" else ("most", "more")
            means = _means_best(told, n) if which == "best" else _means_worst(told, n, block)
            lanes = 2 * block * block
            raise Wrong(
                f"{sentence}: {told} is not the shape that masks the {does} lanes. It takes "
                f"{tiles(told, block):,} tiles and masks "
                f"{lanes * tiles(told, block) - 2 * n:,} lanes; another shape masks {masks}, "
                f"{lanes * tiles(right, block) - 2 * n:,}.",
                means,
            )
    attempt.held.append(f"the best and the worst shape of {len(cases)} numbers of elements")
