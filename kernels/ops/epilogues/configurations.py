"""How products with an epilogue run on each card: the product's own tiles, or narrower ones.

The tables are keyed by compute capability; a card that is not in one takes the row of the nearest
older card.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from kernels.launch import for_card
from kernels.ops.products.configurations import (
    BY_TORCH,
    HOPPER,
    SIMPLE,
    SINGLE,
    TORCH,
    Tiling,
    Ways,
    forward_tiling,
)
from kernels.ops.shared.blocks import Block


def halved(tiling: Tiling) -> Tiling:
    """The tiling of two products side by side, whose tiles together are as wide as `tiling`'s."""
    return replace(tiling, block_n=tiling.block_n // 2, halves=False)


# What Triton sees of a width is whether 16 divides it.
SEEN = 16


@functools.lru_cache(maxsize=1024)
def epilogue_tiling(
    sizes: tuple[int, int, int],
    itemsize: int,
    aligned: bool,
    gated: bool,
    more: bool,
    capability: tuple[int, int],
) -> Tiling:
    """Return how a product of `sizes` (m, k, n) with an epilogue runs.

    `gated` are two of them at once; `more` says that a residual is read, or something stored for
    a backward too. `aligned` is as `by_descriptors` tells.
    """
    m, k, n = sizes
    tiling = forward_tiling(m, itemsize, aligned, capability)
    if more and itemsize == 2 and (8, 0) <= capability < (9, 0) and (k % SEEN or n % SEEN):
        # Element by element, as far as the compiler knows, beside y: larger tiles spill.
        tiling = forward_tiling(m, itemsize, False, capability)
    return halved(tiling) if gated else tiling


def simple_tiling(itemsize: int, gated: bool, capability: tuple[int, int]) -> Tiling:
    """Return how the kernel of the page runs: the product's tile, of a gate half as wide."""
    tiling = SINGLE if itemsize == 4 else for_card(SIMPLE, capability)
    return halved(tiling) if gated else tiling


# Columns that a program of `activation_backward` takes, and its warps, as of a gate's backward.
BACKWARD = Block(1024, 4)

# Which kernels a product with an epilogue takes. On 7.5 `tl.dot` uses no tensor cores; from 10.0 on
# nothing is timed yet.
WAYS: dict[tuple[int, int], Ways] = {
    (7, 5): BY_TORCH,
    (9, 0): Ways(HOPPER, TORCH, TORCH),
    (10, 0): BY_TORCH,
}
