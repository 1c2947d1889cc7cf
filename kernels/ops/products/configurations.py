"""How the products' kernels run on each card: tiles, stages, order, and which way a product goes.

The tables are keyed by compute capability; a card that is not in one takes the row of the nearest
older card. What `python -m kernels.lab tune` compares stands in `tuning`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton

from kernels.hardware import VECTOR_BYTES
from kernels.launch import for_card


@dataclass(frozen=True)
class Tiling:
    """A tile of the output, `block_m` × `block_n`, the step `block_k` along the sum, and the order.

    `group` blocks of rows go together. With `persistent` as many programs as SMs take one tile
    after another, through descriptors; `halves` stores a tile in two parts, and `flatten` makes one
    loop of tiles and steps, so that a tile's first loads are under way while the last one ends.
    `splits` programs share the sum of one tile.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group: int = 8
    persistent: bool = False
    halves: bool = False
    flatten: bool = False
    splits: int = 1

    def tiles(self, m: int, n: int) -> int:
        """How many tiles an output of m × n has."""
        return -(-m // self.block_m) * -(-n // self.block_n)

    @property
    def name(self) -> str:
        """The tiling as `tune` tells it."""
        told = f"{self.block_m}x{self.block_n}x{self.block_k}, {self.num_warps} warps, "
        told += f"{self.num_stages} stages, group {self.group}"
        flags = ("persistent", "halves", "flatten")
        told += "".join(f", {flag}" for flag in flags if getattr(self, flag))
        return told + (f", {self.splits} splits" if self.splits > 1 else "")


# -------------------------------------------------------------------------------------- forward

# The kernel of the page, on every card: it compiles for all of them without a spill.
SIMPLE: dict[tuple[int, int], Tiling] = {
    (7, 5): Tiling(64, 64, 32, num_warps=8, num_stages=2),
    (8, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3),
}
# None but 9.0 is timed yet. On 7.5 `tl.dot` uses no tensor cores in any dtype: the tiles there are
# small so that nothing spills, and a product is slow whatever they are.
FORWARD: dict[tuple[int, int], Tiling] = {
    (7, 5): Tiling(64, 64, 32, num_warps=8, num_stages=2),
    (8, 0): Tiling(128, 128, 32, num_warps=8, num_stages=4),
    (8, 6): Tiling(128, 128, 32, num_warps=8, num_stages=3),
    # H200, `python -m kernels.lab tune linear`, bf16, µs at 4096×1024×3072 / 16384×1024×3072 /
    # 8192×4096×12288 / 4096×4096×4096; PyTorch (cuBLAS) 41.6 / 156 / 1172 / 194:
    #   this 40.8 / 160 / 1197 / 195; 4 stages 40.5 / 160 / 1201 / 195; 3 stages, stored whole
    #   41.1 / 160 / 1193 / 196; 4 stages, loops apart 44.6 / 177 / 1243 / 201
    #   256×128 with 4 stages 41.3 / 164 / 1205 / 196; 128×128×128 45.0 / 172 / 1268 / 215
    #   by plain pointers, a program a tile: 58.7 / 241 / 1802 / 289
    (9, 0): Tiling(128, 256, 64, 8, 3, persistent=True, halves=True, flatten=True),
    (10, 0): Tiling(128, 256, 64, num_warps=8, num_stages=3, persistent=True, halves=True),
    (12, 0): Tiling(128, 128, 64, num_warps=8, num_stages=2, persistent=True, halves=True),
}
# Where rows don't begin at multiples of 16 bytes: each element is loaded by itself, at an address
# that takes registers, so that larger tiles spill.
POINTERS: dict[tuple[int, int], Tiling] = {
    (7, 5): FORWARD[7, 5],
    (8, 0): Tiling(128, 64, 32, num_warps=8, num_stages=3),
}
# fp32 goes by plain multiply-adds: tf32 keeps 10 bits of an operand.
SINGLE = Tiling(64, 64, 16, num_warps=4, num_stages=2)
# Going back they are smaller, or some threads keep 8 bytes in memory on one card or another.
SINGLE_BACK = Tiling(32, 32, 16, num_warps=4, num_stages=2)
# Up to so many rows a tile has no more of them than there are.
FEW_ROWS = 64
FEW = Tiling(16, 64, 64, num_warps=4, num_stages=3, group=1)

# For products of few tiles. H200, `python -m kernels.lab tune linear_bias_residual`, bf16, µs at
# 128×4096×1024 / 1024×1024×1024 / 1024×4096×1024 / 2048×4096×1024; PyTorch, with the sum in a
# kernel of its own, 11.4 / 9.5 / 17.8 / 28.7:
#   FORWARD's tile 43.3 / 16.4 / 43.8 / 44.7; these 25.6 / 10.9 / 27.2 / 29.1,
#   15.9 / 8.2 / 17.4 / 32.0 and 11.9 / 9.8 / 23.7 / 45.7
#   64×128×128 with 3 stages 20.3 / 9.1 / 21.5 / 38.7; 128×64×128 with 4 warps 17.0 / 8.6 / 19.9 /
#   38.4; 64×128×64 with 4 warps and 6 stages 17.7 / 8.9 / 19.2 / 34.4
# `clocks` finds the fastest of them, or one within 1 %, at these shapes and 16 others
# (tests/ops/test_linear.py).
SMALLER: dict[tuple[int, int], tuple[Tiling, ...]] = {
    (9, 0): (
        Tiling(128, 128, 64, num_warps=8, num_stages=4, persistent=True, flatten=True),
        Tiling(64, 128, 128, num_warps=4, num_stages=4, persistent=True, flatten=True),
        Tiling(64, 64, 128, num_warps=4, num_stages=5, persistent=True, flatten=True),
    ),
}
# Of Hopper, in a clock: flop of an SM's tensor cores in 16 bits, three quarters of what they have,
# and bytes that reach an SM; and the clocks that a step takes beside.
SM_FLOP, SM_BYTES, STEP_CLOCKS = 3072, 64, 128


def by_descriptors(*tensors: torch.Tensor) -> bool:
    """Whether the copy engine takes these matrices: rows at multiples of 16 bytes.

    It asks for their first element there too.
    """
    return all(
        one.stride(0) > 0  # not expanded
        and one.stride(0) * one.element_size() % VECTOR_BYTES == 0
        and one.data_ptr() % VECTOR_BYTES == 0
        for one in tensors
    )


def clocks(sizes: tuple[int, int, int], tiling: Tiling, sms: int) -> float:
    """How long a product of `sizes` (m, k, n) in 16 bits takes, by a model of its steps.

    Tiles go in rounds of as many as SMs. A step along k takes its products, or its bytes on their
    way to the SM, whichever is longer, and a little more: so steps that do much are the better
    ones. What begins and ends a tile is left out.
    """
    m, k, n = sizes
    tiles = tiling.tiles(m, n)
    n_bytes = 2 * (tiling.block_m + tiling.block_n) * tiling.block_k
    flop = 2 * tiling.block_m * tiling.block_n * tiling.block_k
    step = max(flop / SM_FLOP, n_bytes / SM_BYTES) + STEP_CLOCKS
    return -(-tiles // sms) * -(-k // tiling.block_k) * step


@functools.lru_cache(maxsize=1024)
def forward_tiling(
    sizes: tuple[int, int, int],
    itemsize: int,
    aligned: bool,
    capability: tuple[int, int],
    sms: int,
) -> Tiling:
    """Return how a product of `sizes` (m, k, n) runs on a card of so many SMs.

    `aligned` is as `by_descriptors` tells. Of the card's tiles it is that of the fewest `clocks`.
    """
    m = sizes[0]
    if itemsize == 4:
        return SINGLE
    if m <= FEW_ROWS and capability >= (8, 0):
        return replace(FEW, block_m=max(16, triton.next_power_of_2(m)))
    if not aligned:
        return for_card(POINTERS, capability)
    found = (for_card(FORWARD, capability), *SMALLER.get(capability, ()))
    return min(found, key=lambda one: clocks(sizes, one, sms))


# ------------------------------------------------------------------------------------- backward

# Of dX 9.0 alone is timed yet.
GRAD_X: dict[tuple[int, int], Tiling] = {
    (7, 5): FORWARD[7, 5],
    (8, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3),
    # H200, bf16, µs at FORWARD's shapes, PyTorch 35.7 / 135 / 1114 / 178: this 36.5 / 141 / 1128 /
    #   182; 256×128 38.7 / 150 / 1148 / 191; 128×128 with 4 stages 41.7 / 159 / 1188 / 201
    (9, 0): Tiling(128, 256, 64, num_warps=8, num_stages=3, persistent=True),
    (12, 0): Tiling(128, 128, 64, num_warps=8, num_stages=2, persistent=True),
}
# None is timed yet, but that PyTorch takes 54 / 177 / 1187 / 203 µs there, the bias's sum with it.
GRAD_WEIGHT: dict[tuple[int, int], Tiling] = {
    (7, 5): FORWARD[7, 5],
    (8, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3),
    (9, 0): Tiling(128, 256, 64, num_warps=8, num_stages=3, persistent=True),
    # Parts of a sum without those of a bias spill there in tiles of 256 columns.
    (10, 0): Tiling(128, 128, 64, num_warps=8, num_stages=3, persistent=True),
    (12, 0): Tiling(128, 64, 64, num_warps=8, num_stages=3, persistent=True),
}
MOST_SPLITS = 8
# Bytes that an H100 moves while an SM takes a step of 128 × 256 × 64: at 3 TB/s some 0.8 µs' worth.
BYTES_A_STEP = 2_500_000
STEPS_OF_LAUNCHES = 8  # what the launches that add parts up take beside their bytes


@functools.lru_cache(maxsize=1024)
def gradient_tiling(
    sizes: tuple[int, int, int],
    itemsize: int,
    aligned: bool,
    across: bool,
    capability: tuple[int, int],
    sms: int,
) -> Tiling:
    """Return how a product of the backward runs, of `sizes` (m, n, k), k being summed over.

    `across` is dW's, whose sums several programs may share.
    """
    m, n, k = sizes
    if itemsize == 4:
        tiling = SINGLE_BACK
    elif not across and m <= FEW_ROWS and capability >= (8, 0):
        return replace(FEW, block_m=max(16, triton.next_power_of_2(m)))
    else:
        tiling = for_card(GRAD_WEIGHT if across else GRAD_X, capability)
        if not aligned and capability >= (8, 0):
            tiling = for_card(POINTERS, capability)
    return replace(tiling, splits=splits_of(m, n, k, tiling, sms)) if across else tiling


def splits_of(m: int, n: int, k: int, tiling: Tiling, sms: int) -> int:
    """Return how many programs best share the sum of each tile of an m × n product over k.

    The tiles are taken in rounds of as many as SMs, and a last round that is not full leaves SMs
    idle. Parts of the sums fill it better, but they are written in fp32 and read again. Both are
    told in steps along k.
    """
    steps, tiles = -(-k // tiling.block_k), tiling.tiles(m, n)

    def cost(splits: int) -> float:
        rounds = -(-tiles * splits // sms) * -(-steps // splits)
        added = STEPS_OF_LAUNCHES + 2 * splits * m * n * 4 / BYTES_A_STEP
        return rounds + (splits > 1) * added

    return min(range(1, min(MOST_SPLITS, steps) + 1), key=cost)


def shared_out(depth: int, tiling: Tiling) -> tuple[int, int]:
    """Return how many programs share a sum of `depth`, and how much each has, in whole steps."""
    steps = -(-depth // tiling.block_k)
    each = -(-steps // tiling.splits)
    return -(-steps // each), each * tiling.block_k


# The tile of the kernel written for Hopper, which is one for all shapes (`hopper_kernels`), and how
# many rows of tiles go together: 2 to 8 are within 2 % on an H200, 16 up to 1.5 % slower.
HOPPER_ROWS, HOPPER_COLS = 128, 256
HOPPER_GROUP = 4


def hopper_tiles(m: int, n: int) -> tuple[int, int]:
    """How many tiles of that kernel an output of m × n has, down and across."""
    return -(-m // HOPPER_ROWS), -(-n // HOPPER_COLS)


def suits_hopper(
    sizes: tuple[int, int, int],
    itemsize: int,
    aligned: bool,
    capability: tuple[int, int],
    sms: int,
) -> bool:
    """Whether that kernel takes a product of `sizes` (m, k, n): the rule by which it steps aside.

    It runs on capability 9.0, in 16 bits, where the copy engine takes all three matrices
    (`by_descriptors`), with more than FEW_ROWS rows, and where no smaller tile takes fewer
    `clocks`: those are `fused`'s alone. (Few rows of very many columns are not timed yet.)
    """
    if capability != (9, 0) or itemsize != 2 or not aligned:
        return False
    return forward_tiling(sizes, itemsize, aligned, capability, sms) == FORWARD[capability]


# ------------------------------------------------------------------------------------ which way

TRITON, TORCH, HOPPER = "triton", "torch", "hopper"


class Ways(NamedTuple):
    """Which kernels a product takes on a card, forward and back.

    The package's in Triton, its own for Hopper (forward), or PyTorch's.
    """

    forward: str
    grad_x: str
    grad_weight: str


EVERYWHERE = Ways(TRITON, TRITON, TRITON)  # `fused`; interpreted and counted on a CPU
BY_TORCH = Ways(TORCH, TORCH, TORCH)
# PyTorch's products are cuBLAS's, the faster where nothing else was timed; on 7.5 `tl.dot` uses no
# tensor cores, so that they are in any case.
WAYS: dict[tuple[int, int], Ways] = {
    (7, 5): BY_TORCH,
    # H200, bf16, µs, F.linear's and ours: 40.6 and 37.9 (4096×1024×3072), 153 and 142
    # (16384×1024×3072), 1168 and 1150 (8192×4096×12288), 193 and 189 (4096³). Going back cuBLAS's
    # two products were faster by 1 to 4 % and more.
    (9, 0): Ways(HOPPER, TORCH, TORCH),
    (10, 0): BY_TORCH,
}
