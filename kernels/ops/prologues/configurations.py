"""How the kernels of a norm and a product run on each card, and which way is taken.

The tables are keyed by compute capability; a card that is not in one takes the row of the nearest
older card.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import triton

from kernels.launch import for_card
from kernels.ops.epilogues.configurations import AT_ONCE, FINISHES, Finish
from kernels.ops.products.configurations import (
    FEW,
    FEW_ROWS,
    HOPPER_COLS,
    HOPPER_ROWS,
    SINGLE,
    Tiling,
)

# The normalised tile as prologue: registers hold a tile of x, its statistics, and the sums.
ONE_KERNEL: dict[tuple[int, int], Tiling] = {
    (7, 5): Tiling(64, 64, 32, num_warps=8, num_stages=2),
    (8, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3),
    # In steps of 32 products wait for one another: x is normalised in registers, and they read it
    # there.
    (9, 0): Tiling(128, 128, 64, num_warps=8, num_stages=3),
    (10, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3),
}
FOLDED: dict[tuple[int, int], Tiling] = {
    (7, 5): Tiling(64, 64, 32, num_warps=8, num_stages=2),
    (8, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3),
    (9, 0): Tiling(128, 256, 64, num_warps=8, num_stages=3, persistent=True, halves=True),
    (10, 0): Tiling(128, 128, 64, num_warps=8, num_stages=3, persistent=True),
    (12, 0): Tiling(128, 64, 64, num_warps=8, num_stages=3, persistent=True),
}
# Where rows don't begin at multiples of 16 bytes, as of a product alone.
POINTERS: dict[tuple[int, int], Tiling] = {
    (7, 5): FOLDED[7, 5],
    (8, 0): Tiling(64, 64, 32, num_warps=8, num_stages=2),
}


def _tiling(
    table: dict[tuple[int, int], Tiling],
    m: int,
    itemsize: int,
    aligned: bool,
    capability: tuple[int, int],
) -> Tiling:
    if itemsize == 4:
        return SINGLE
    if m <= FEW_ROWS and capability >= (8, 0):
        return replace(FEW, block_m=max(16, triton.next_power_of_2(m)))
    return for_card(table if aligned else POINTERS, capability)


@functools.lru_cache(maxsize=1024)
def one_kernel_tiling(m: int, itemsize: int, aligned: bool, capability: tuple[int, int]) -> Tiling:
    """Return how the prologue's kernel runs for `m` rows; `aligned` as `by_descriptors` tells."""
    return _tiling(ONE_KERNEL, m, itemsize, aligned, capability)


@functools.lru_cache(maxsize=1024)
def folded_tiling(m: int, itemsize: int, aligned: bool, capability: tuple[int, int]) -> Tiling:
    """Return how the folded product runs in Triton; arguments as of `one_kernel_tiling`."""
    return _tiling(FOLDED, m, itemsize, aligned, capability)


def statistics_apart(capability: tuple[int, int]) -> bool:
    """Whether a folded product's statistics load x for themselves (`kernels.folded_tile` says why).

    On Hopper they must; on other cards they take the tile that is multiplied.
    """
    return capability[0] == 9


# How the operator that trains may go forward too, beside what `products.configurations` names:
# folded at each call, in Triton or by the kernel written for Hopper.
FOLDING, FOLDING_HOPPER = "folding", "folding_hopper"
# From how many rows of x for a column of y a training step folds, where the kernel written for
# Hopper stands. Folding costs N·K elements, read twice and written; it saves M·K, written and read.
# H100, bf16, µs, what folding costs and what one kernel saves of two: 7.6 and 4.5
# (4096×1024×3072), 9 and 7 (16384×1024×3072), 83 and 6 (8192×4096×12288), 30 and 13 (4096³): at no
# shape that was timed does it pay. The rows `train` of the suite `matmul` time both ways.
FOLDS_FROM: dict[tuple[int, int], float] = {(9, 0): math.inf}


def folds_in_training(shape: tuple[int, int, int], capability: tuple[int, int]) -> bool:
    """Whether a training step of (M, K, N) folds, where the kernel written for Hopper takes it."""
    m, _, n = shape
    return m >= FOLDS_FROM.get(capability, math.inf) * n


HOPPER_STEP = 64  # elements of K in a step of the kernel written for Hopper
HOPPER_FIRST_STEPS = 4  # beside which the tile before leaves
MOST_GROUP = 64  # rows of tiles that go together


def hopper_group(tiles_down: int) -> int:
    """How many rows of tiles go together in that kernel.

    A program that keeps to its rows needs their statistics once: so all of them, or nearly.
    """
    return min(MOST_GROUP, 1 << tiles_down.bit_length() - 1)


def hopper_programs(tiles: int, group: int, sms: int) -> int:
    """How many programs it has: a multiple of the group, so that each keeps its row of tiles."""
    return min(sms // group * group if group <= sms else sms, tiles)


# How that kernel finishes a tile, by the activation behind it. AT_ONCE alone is timed yet:
# `python -m kernels.lab tune layernorm_linear_gelu`, and `layernorm_linear`, compare the others.
HOPPER_FINISH: dict[str | None, Finish] = {}


def finishes_to_try(activation: str | None) -> list[Finish]:
    """The ways to finish worth timing where the activation follows."""
    return [one for one in FINISHES if not one.late and (activation or not one.by_power)]


def hopper_finish(activation: str | None) -> Finish:
    """Return how that kernel finishes its tiles where the activation follows; None is none."""
    return HOPPER_FINISH.get(activation, AT_ONCE)


def suits_hopper(
    shape: tuple[int, int, int],
    itemsize: int,
    aligned: bool,
    capability: tuple[int, int],
    sms: int,
) -> bool:
    """Whether that kernel takes (M, K, N): the one rule by which the best way is found.

    It runs on capability 9.0, in 16 bits, where the copy engine takes all three matrices
    (`by_descriptors`), where tiles fill the SMs twice, and where K is whole steps, at least as many
    as it begins with: an element that is not there would enter the statistics. With one tile a
    program nothing is beside its end: 1024×1024×3072 takes 20.2 µs on an H200, with GELU behind
    1024×4096 34.7, where cuBLAS's product behind a norm takes 17.4 and 20.9 (suite `encoder`).
    """
    m, k, n = shape
    tiles = -(-m // HOPPER_ROWS) * -(-n // HOPPER_COLS)
    whole = k % HOPPER_STEP == 0 and k >= HOPPER_STEP * HOPPER_FIRST_STEPS
    return capability == (9, 0) and itemsize == 2 and aligned and whole and tiles >= 2 * sms
