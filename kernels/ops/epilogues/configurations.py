"""How products with an epilogue run on each card: the product's own tiles, or narrower ones.

The tables are keyed by compute capability; a card that is not in one takes the row of the nearest
older card.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import NamedTuple

from kernels.launch import for_card
from kernels.ops.products.configurations import (
    BY_TORCH,
    HOPPER,
    HOPPER_COLS,
    HOPPER_ROWS,
    SIMPLE,
    SINGLE,
    SINGLE_BACK,
    TORCH,
    Tiling,
    Ways,
    forward_tiling,
)
from kernels.ops.products.configurations import suits_hopper as products_suit
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
    sms: int,
) -> Tiling:
    """Return how a product of `sizes` (m, k, n) with an epilogue runs.

    `gated` are two of them at once; `more` says that a residual is read, or something stored for
    a backward too. `aligned` is as `by_descriptors` tells.
    """
    m, k, n = sizes
    side_by_side = (m, k, 2 * n if gated else n)
    tiling = forward_tiling(side_by_side, itemsize, aligned, capability, sms)
    if more and itemsize == 2 and (8, 0) <= capability < (9, 0) and (k % SEEN or n % SEEN):
        # Element by element, as far as the compiler knows, beside y: larger tiles spill.
        tiling = forward_tiling(side_by_side, itemsize, False, capability, sms)
    if gated and more and itemsize == 4:
        tiling = SINGLE_BACK
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
    # H200, bf16, µs of PyTorch's way, torch.compile's, `fused` and `fused_hopper`; "train" is
    # `fused` with what a backward needs written too, which a training step takes:
    #   bias and GELU     4096×1024×3072 55.5, 60.3, 46.4, 43.8, train 51.4; 16384×1024×3072 220,
    #     213, 183, 173, train 202; 4096×4096×4096 220, –, 205, 203, train 215
    #   SwiGLU, one half  4096×1024×3072 152, 93.1, 76.8, 74.8, train 84.4; 16384×1024×3072 567,
    #     373, 312, 292, train 357
    #   residual          4096×1024×1024 19.7, –, 16.2; 4096×4096×1024 54.0, –, 50.5
    #   qkv               8×512×1024, 16 heads of 64: 87.6, –, 40.7, 36.9
    # Going back the products are cuBLAS's, as for a product alone.
    (9, 0): Ways(HOPPER, TORCH, TORCH),
    (10, 0): BY_TORCH,
}


class Finish(NamedTuple):
    """How the kernel written for Hopper finishes a tile (`hopper_kernels` says what each does).

    late: activated chunk by chunk, beside the next tile's products, of sums rounded to 16 bits.
    apart: its two groups two steps apart, so that one multiplies while the other finishes.
    by_power: GELU's tanh form by one special function and a polynomial.
    """

    late: bool = False
    apart: bool = False
    by_power: bool = False

    @property
    def name(self) -> str:
        """The way as `tune` tells it."""
        told = [one.replace("_", " ") for one in self._fields if getattr(self, one)]
        return "Hopper, " + (", ".join(told) or "at once")


AT_ONCE = Finish()
# By activation. AT_ONCE alone is timed yet (`WAYS`): `python -m kernels.lab tune` compares
# FINISHES for `linear_bias_gelu` and `linear_swiglu`.
HOPPER_FINISH: dict[str | None, Finish] = {}
FINISHES: tuple[Finish, ...] = (
    AT_ONCE,
    Finish(apart=True),
    Finish(late=True),
    Finish(late=True, apart=True),
    Finish(by_power=True),
    Finish(apart=True, by_power=True),
    Finish(late=True, by_power=True),
)


def hopper_finish(activation: str | None) -> Finish:
    """Return how that kernel finishes its tiles where the activation follows; None is none."""
    return HOPPER_FINISH.get(activation, AT_ONCE)


def finishes_to_try(activation: str) -> list[Finish]:
    """The ways to finish that differ for the activation, in the order that `tune` tells them."""
    return [one for one in FINISHES if activation == "gelu_tanh" or not one.by_power]


HOPPER_PIECE = 64  # rows and columns of what leaves at a time


def hopper_tiles(m: int, n: int, gated: bool) -> tuple[int, int]:
    """How many tiles of the kernel written for Hopper y of m × n has; with a gate half as wide."""
    return -(-m // HOPPER_ROWS), -(-n // (HOPPER_COLS // 2 if gated else HOPPER_COLS))


def suits_hopper(
    sizes: tuple[int, int, int],
    itemsize: int,
    aligned: bool,
    gated: bool,
    activated: bool,
    keeps: bool,
    heads: tuple[int, int, int, int] | None,
    capability: tuple[int, int],
    sms: int,
) -> bool:
    """Whether that kernel takes a product with an epilogue, of `sizes` (m, k, n).

    It must suit the product alone (`products.configurations.suits_hopper`), and y alone leaves:
    nothing that a backward needs (`keeps`). Of heads it asks that 64 divides their positions and
    their size. If y is `activated` it asks for more than two tiles a program: in the timelines of
    `bench encoder` on an H200, 1024×1024×4096 with GELU takes 17.0 µs in Triton, and took 22.6 by
    this kernel (the record at commit 8cb3d90).
    """
    m, k, n = sizes
    if keeps or not products_suit(
        (m, k, 2 * n if gated else n), itemsize, aligned, capability, sms
    ):
        return False
    if heads is not None and (heads[0] % HOPPER_PIECE or heads[3] % HOPPER_PIECE):
        return False
    return not activated or math.prod(hopper_tiles(m, n, gated)) > 2 * sms
