"""How the chains' kernels run: blocks, warps, programs, and what chose them.

The tables are keyed by compute capability; a card that is not in one takes the row of the nearest
older card. What `python -m kernels.lab tune OP` compares stands in `gated_common` and `tuning`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import triton

from kernels.hardware import WARP_THREADS
from kernels.launch import for_card
from kernels.ops.norms.configurations import SHARED_BYTES, Tile
from kernels.ops.shared.blocks import Block, first_fit

# -------------------------------------------------------------------------------- gated products

# Columns that a program of a gated product takes, and its warps: 16 elements of each tensor a
# thread forward, 8 back, where three tensors are read. Not timed yet.
GATED_FORWARD = Block(2048, 4)
GATED_BACKWARD = Block(1024, 4)

# What binds the chains with a norm, predicted before they were timed. An H200 copies 4.3 TB/s and
# issues 132 SMs x 4 x 32 x 1.98 GHz = 33.4 instructions of a thread a ps: while the 4 bytes of an
# element move (LayerNorm and GELU forward) 31, while 6 bytes do (the other three) 47. What binaries
# have an element, of bf16, with 16 a thread; plain LayerNorm with its 19 runs at 0.97 of the copy.
#                                 `/`, cvt, two sums, masks   now   of what is issued meanwhile
#   LayerNorm, GELU                             29             21      0.69
#   the whole chain                             46             35      0.76
#   LayerNorm, GELU, backward                   53             34      0.74
#   the whole chain, backward                   74             47      1.00
# So forward bytes bind, if warps enough are there; the whole chain's backward is bound by what it
# issues, whose random numbers are a fifth of it.

# -------------------------------------------------------------------------------------- forward

# Columns that a program of `bias_gelu_tile` takes, and its warps; a narrower row has a block of its
# own. Not timed yet.
BIAS_GELU = Block(2048, 4)
NARROWEST = 64  # columns of a block: eight blocks of random numbers


@dataclass(frozen=True)
class Row:
    """How `norm_gelu_row` holds a row: its block, and what it does before the sums are there.

    Weight and bias may be loaded together with the row, and random numbers drawn while it is under
    way; or both behind the sums, which takes fewer registers.
    """

    block: Block
    weights_early: bool = True
    draw_early: bool = True


# The block of a row of a chain with a norm, first fit, as in the norms; a wider row goes in tiles.
# H200, `python -m kernels.lab tune layernorm_gelu --shape …`, bf16, µs by warps, the copy in
# brackets. LayerNorm and GELU, weights late where the block is 4096 or wider:
#   65536×1024 (70.0): 1: 68.1, 2: 71.1, 4: 75.4
#   4096×4096 (18.5): 4: 21.2, 8: 21.3, 2: 22.4, 16: 25.1; weights early 8: 22.3
#   16384×8192 (131.0): 8: 136.8, 4: 142.4, 16: 153.5; weights early 8: 150.4
NORM_GELU = (
    Block(256, 1),  # the suite has no row so narrow as this and the next, nor the fourth
    Block(512, 1),
    Block(1024, 1),
    Block(2048, 4),
    Block(8192, 8),
    Block(16384, 16),
)
WEIGHTS_EARLY_UP_TO = 2048
# The whole chain, which has more to do while it waits, and takes more registers; all early:
#   65536×1024 (118.5): 2: 113.2, 1: 113.2, 4: 116.0; numbers late 2: 109.4
#   4096×4096 (31.8): 8: 31.3, 16: 33.9, 4: 35.4; numbers late 8: 33.3; weights late 4: 31.9
#   16384×8192 (230.1): 16: 234.8, 8: 241.2, 32: 263.7; numbers late 16: 243.7;
#     weights late 16: 238.5
CHAIN = (
    Block(256, 1),
    Block(1024, 2),
    Block(2048, 4),
    Block(4096, 8),
    Block(16384, 16),
)
NUMBERS_LATE_UP_TO = 1024
NORM_GELU_TILES = Block(4096, 8)  # not timed yet


@functools.lru_cache(maxsize=1024)
def bias_gelu_block(n_cols: int) -> Block:
    """Return the block of `bias_gelu_tile` for a row of `n_cols`."""
    cols = max(NARROWEST, triton.next_power_of_2(n_cols))
    if cols >= BIAS_GELU.cols:
        return BIAS_GELU
    return Block(cols, max(1, BIAS_GELU.num_warps * cols // BIAS_GELU.cols))


@functools.lru_cache(maxsize=1024)
def held_row(n_cols: int, itemsize: int, by_vectors: bool, drops: bool) -> Row:
    """Return how a row of a chain with a norm is held, or the tiles of a row that is wider.

    `by_vectors` says that rows are loaded 16 bytes at a time, `drops` that there is a dropout. A
    row of more than 8192 columns in fp32, or one whose elements are loaded one by one, takes more
    registers than there are.
    """
    block = first_fit(CHAIN if drops else NORM_GELU, max(NARROWEST, n_cols))
    if block is None or (block.cols > 8192 and (itemsize == 4 or not by_vectors)):
        return Row(NORM_GELU_TILES)
    # Of 16384 early too: behind the sums, in training, they spill on 9.0.
    weights_early = drops or not WEIGHTS_EARLY_UP_TO < block.cols <= 8192
    return Row(block, weights_early, drops and block.cols > NUMBERS_LATE_UP_TO)


# ------------------------------------------------------------------------------------- backward


@dataclass(frozen=True)
class Strips:
    """How `gelu_backward_strips` runs: the tile, warps, programs an SM, pipeline stages."""

    block_rows: int
    block_cols: int
    num_warps: int
    programs_per_sm: int
    stages: int


@dataclass(frozen=True)
class WholeRows:
    """How `norm_gelu_backward_rows` runs: rows of a tile, warps, programs an SM, pipeline stages.

    `hold_weight` keeps weight and bias in registers; without, a row loads them anew from a cache.
    """

    block_rows: int
    num_warps: int
    programs_per_sm: int
    stages: int
    hold_weight: bool = True

    @property
    def registers(self) -> int:
        """Registers a thread may have if as many programs as planned are to fit an SM."""
        threads = self.programs_per_sm * self.num_warps * WARP_THREADS
        return min(255, 65536 // threads // 8 * 8)


# Tiles of strips: elements in 16 bits (half as many in fp32), warps, programs an SM, stages at
# most. H200, bf16, µs of bias, GELU, dropout, residual by tile, warps, programs, stages, the copy
# in brackets:
#   16384×8192 (230.8): 2×2048, 8, 2, 3: 228.5; 1×2048, 4, 4, 3: 229.3; 2×1024, 4, 4, 3: 236.3;
#     1×2048, 8, 4, 3: 240.8; 1×2048, 4, 4, 2: 260.6; 4×1024, 8, 2, 3: 335.1
# As many elements in fp32 spill on 8.0, half as many in 16 bits on 8.0 and
# 8.9.
STRIP_COLS = 2048
STRIPS: dict[tuple[int, int], Tile] = {
    (7, 5): Tile(elements=4096, num_warps=8, programs_per_sm=2, stages=1),
    (8, 0): Tile(elements=4096, num_warps=8, programs_per_sm=2, stages=3),
}


@dataclass(frozen=True)
class Held:
    """What a card's SM holds of whole rows: elements a thread, warps of all programs, stages."""

    thread: int
    warps_per_sm: int
    stages: int


# A row is a tile, narrow ones are one of several in NARROW_TILE elements.
# H200, bf16, µs of LayerNorm and GELU / the whole chain, by tile, warps, programs an SM, all with
# three stages; in brackets the copies:
#   65536×1024 (98.8 / 118.5): 2×1024, 2, 4: 119.2 / 146.8; 1×1024, 1, 8: 128.9 / 146.9;
#     2×1024, 4, 4: 131.0 / 166.8; two stages 2×1024, 2, 4: 160.0 / 188.0
#   4096×4096 (27.1 / 31.9): 1×4096, 4, 2: 39.4 / 46.1; 2×4096, 8, 1: 38.3 / 48.4;
#     1×4096, 8, 2: 40.5 / 48.4; 1×4096, 16, 1: 46.7 / 55.0; two stages 1×4096, 4, 2: 51.6 / 57.1
#   16384×8192 (192.6 / 231.1): 8, 1: 244.4 / 305.7; 16, 1: 251.1 / 320.7; two stages 8, 1:
#     357.2 / 420.0
# So few warps with much to do each, one tile of theirs at work and two on their way. Other cards,
# fp32, narrower rows and those loaded one by one have what compiles there without a spill; none was
# timed.
NARROW_TILE = 2048  # with 1024, by 4 warps, some spill on 7.5 and 8.9
HELD: dict[tuple[int, int], Held] = {
    (7, 5): Held(thread=8, warps_per_sm=16, stages=1),
    (8, 0): Held(thread=8, warps_per_sm=16, stages=4),
    (9, 0): Held(thread=32, warps_per_sm=8, stages=3),
    (10, 0): Held(thread=8, warps_per_sm=16, stages=4),
}
# A row that does not fill its block on 9.0: with 32 elements a thread masks spill.
MASKED = Held(thread=16, warps_per_sm=16, stages=3)
WIDEST = 4096  # columns of a row that registers hold everywhere together with two sums of it
# A row of 8192 in 16 bits, 16 elements a thread, is held too from 8.0 to 9.0, 16 bytes at a time;
# on 12.0 it spills.
WIDEST_HALF = 8192
# Tiles of `norm_gelu_backward_means`. Not timed yet.
MEANS = Block(4096, 8)
_SHARED_KEPT = 4096  # bytes of shared memory that stay free for what reductions exchange


def _stages(most: int, programs: int, tile_bytes: int, capability: tuple[int, int]) -> int:
    """How many stages' tiles, `most` at most, fit into what a program has of shared memory."""
    room = for_card(SHARED_BYTES, capability) // programs - _SHARED_KEPT
    return max(1, min(most, 1 + room // tile_bytes))


@functools.lru_cache(maxsize=1024)
def strips_configuration(n_cols: int, itemsize: int, capability: tuple[int, int]) -> Strips:
    """Return how strips of rows of `n_cols` run on such a card."""
    tile = for_card(STRIPS, capability)
    cols = min(STRIP_COLS, max(NARROWEST, triton.next_power_of_2(n_cols)))
    elements = tile.elements * 2 // itemsize
    tile_bytes = 2 * elements * itemsize
    stages = _stages(tile.stages, tile.programs_per_sm, tile_bytes, capability)
    return Strips(elements // cols, cols, tile.num_warps, tile.programs_per_sm, stages)


@functools.lru_cache(maxsize=1024)
def rows_configuration(
    n_cols: int, itemsize: int, by_vectors: bool, drops: bool, capability: tuple[int, int]
) -> WholeRows | None:
    """Return how whole rows of `n_cols` go back through a norm; None if they are too wide.

    `by_vectors` says that they are loaded 16 bytes at a time, `drops` that there is a dropout.
    """
    block = max(NARROWEST, triton.next_power_of_2(n_cols))
    wide = itemsize == 2 and by_vectors and (8, 0) <= capability < (10, 0)
    if block > (WIDEST_HALF if wide else WIDEST):
        return None
    held = for_card(HELD, capability)
    if held.thread > 8 and (itemsize == 4 or not by_vectors or block < 1024):
        held = HELD[8, 0]
    elif held.thread > 16 and n_cols < block:
        held = MASKED
    block_rows = max(1, NARROW_TILE // block)
    num_warps = min(held.warps_per_sm, block_rows * block // (held.thread * WARP_THREADS))
    programs = held.warps_per_sm // num_warps
    tile_bytes = 2 * block_rows * block * itemsize
    most = held.stages
    if block > WIDEST and held.thread == 8 and not drops:
        most = 2  # with more it spills, if only where no random numbers are made
    stages = _stages(most, programs, tile_bytes, capability)
    return WholeRows(block_rows, num_warps, programs, stages)
