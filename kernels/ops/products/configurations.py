"""How the products' kernels run on each card: tiles, stages, order, and which way a product goes.

The tables are keyed by compute capability; a card that is not in one takes the row of the nearest
older card. What `python -m kernels.lab tune` compares stands in `tuning`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

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


@functools.lru_cache(maxsize=1024)
def forward_tiling(m: int, itemsize: int, aligned: bool, capability: tuple[int, int]) -> Tiling:
    """Return how a product of `m` rows runs on a card; `aligned` as `by_descriptors` tells."""
    if itemsize == 4:
        return SINGLE
    if m <= FEW_ROWS and capability >= (8, 0):
        return replace(FEW, block_m=max(16, triton.next_power_of_2(m)))
    return for_card(FORWARD if aligned else POINTERS, capability)


# ------------------------------------------------------------------------------------- backward

# None but 9.0 is timed yet.
GRAD_X: dict[tuple[int, int], Tiling] = {
    (7, 5): FORWARD[7, 5],
    (8, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3),
    (9, 0): Tiling(128, 256, 64, num_warps=8, num_stages=3, persistent=True),
    (12, 0): Tiling(128, 128, 64, num_warps=8, num_stages=2, persistent=True),
}
GRAD_WEIGHT: dict[tuple[int, int], Tiling] = {
    (7, 5): FORWARD[7, 5],
    (8, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3),
    (9, 0): Tiling(128, 128, 64, num_warps=8, num_stages=3, persistent=True),
    (12, 0): Tiling(128, 128, 32, num_warps=8, num_stages=3, persistent=True),
}
MOST_SPLITS = 8
STEPS_A_SPLIT = 8  # steps along the sum that a program has at least


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

    `across` is dW's. Where its tiles would leave half the SMs idle, several programs share a sum.
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
    steps = -(-k // tiling.block_k)
    splits = min(MOST_SPLITS, sms // tiling.tiles(m, n), steps // STEPS_A_SPLIT)
    return replace(tiling, splits=max(1, splits)) if across else tiling


def shared_out(depth: int, tiling: Tiling) -> tuple[int, int]:
    """Return how many programs share a sum of `depth`, and how much each has, in whole steps."""
    steps = -(-depth // tiling.block_k)
    each = -(-steps // tiling.splits)
    return -(-steps // each), each * tiling.block_k


# ------------------------------------------------------------------------------------ which way

TRITON, TORCH = "triton", "torch"


@dataclass(frozen=True)
class Ways:
    """Which kernels a product takes on a card: the package's or PyTorch's, forward and back."""

    forward: str
    grad_x: str
    grad_weight: str


EVERYWHERE = Ways(TRITON, TRITON, TRITON)  # `fused`; interpreted and counted on a CPU
BY_TORCH = Ways(TORCH, TORCH, TORCH)
# PyTorch's products are cuBLAS's, the faster where nothing else was timed; on 7.5 `tl.dot` uses no
# tensor cores, so that they are in any case.
WAYS: dict[tuple[int, int], Ways] = {
    (7, 5): BY_TORCH,
}
