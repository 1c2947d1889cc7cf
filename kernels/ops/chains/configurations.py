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
# Not timed yet. Four to eight warps a row of 8192 leave room for two rows or more an SM beside the
# registers that random numbers take.
NORM_GELU = (
    Block(256, 1),
    Block(512, 2),
    Block(2048, 4),
    Block(8192, 8),
    Block(16384, 16),
)
NORM_GELU_TILES = Block(4096, 8)
# Weight and bias are loaded together with the row up to such a block; in a wider one their
# registers cost more than the wait for them, as in the norms. Not timed yet.
WEIGHTS_EARLY_UP_TO = 4096


@functools.lru_cache(maxsize=1024)
def bias_gelu_block(n_cols: int) -> Block:
    """Return the block of `bias_gelu_tile` for a row of `n_cols`."""
    cols = max(NARROWEST, triton.next_power_of_2(n_cols))
    if cols >= BIAS_GELU.cols:
        return BIAS_GELU
    return Block(cols, max(1, BIAS_GELU.num_warps * cols // BIAS_GELU.cols))


@functools.lru_cache(maxsize=1024)
def norm_gelu_row_of(n_cols: int, itemsize: int, by_vectors: bool, drops: bool) -> Row:
    """Return how a row of a chain with a norm is held, or its tiles."""
    block = norm_gelu_block(n_cols, itemsize, by_vectors)
    return Row(block, block.cols <= WEIGHTS_EARLY_UP_TO)


@functools.lru_cache(maxsize=1024)
def norm_gelu_block(n_cols: int, itemsize: int, by_vectors: bool) -> Block:
    """Return the block of a row of a chain with a norm, or the tiles of a row that is wider.

    A row of more than 8192 columns in fp32, or one whose elements are loaded one by one, takes more
    registers than there are.
    """
    block = first_fit(NORM_GELU, max(NARROWEST, n_cols))
    if block is None or (block.cols > 8192 and (itemsize == 4 or not by_vectors)):
        return NORM_GELU_TILES
    return block


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

    `ahead`: with one stage, the next tile is on its way to registers. `hold_weight` keeps weight
    and bias in registers; without, a row loads them anew from a cache.
    """

    block_rows: int
    num_warps: int
    programs_per_sm: int
    stages: int
    ahead: bool = False
    hold_weight: bool = True

    @property
    def registers(self) -> int:
        """Registers a thread may have if as many programs as planned are to fit an SM."""
        threads = self.programs_per_sm * self.num_warps * WARP_THREADS
        return min(255, 65536 // threads // 8 * 8)


# Tiles of strips: elements in 16 bits (half as many in fp32), warps, programs an SM, stages at
# most. Not timed yet. As many elements in fp32 spill on 8.0, half as many in 16 bits on 8.0 and
# 8.9.
STRIP_COLS = 2048
STRIPS: dict[tuple[int, int], Tile] = {
    (7, 5): Tile(elements=4096, num_warps=8, programs_per_sm=2, stages=1),
    (8, 0): Tile(elements=4096, num_warps=8, programs_per_sm=2, stages=3),
}
# Whole rows: a row is a tile of 8 elements a thread, a narrow one one of several in NARROW_TILE
# elements. With 16 a thread all of 4096 columns or less spill, or leave an SM 8 warps, too few to
# do while a call of Philox waits for its own rounds. WARPS_PER_SM are those of all programs of an
# SM. Not timed yet.
ROW_THREAD = 8
NARROW_TILE = 2048  # with 1024, by 4 warps, some spill on 7.5 and 8.9
WARPS_PER_SM = 16
ROW_STAGES: dict[tuple[int, int], int] = {(7, 5): 1, (8, 0): 4}
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
    block_rows = max(1, NARROW_TILE // block)
    num_warps = min(WARPS_PER_SM, block_rows * block // (ROW_THREAD * WARP_THREADS))
    programs = WARPS_PER_SM // num_warps
    tile_bytes = 2 * block_rows * block * itemsize
    most = for_card(ROW_STAGES, capability)
    if block > WIDEST and not drops:
        most = 2  # with more it spills, if only where no random numbers are made
    stages = _stages(most, programs, tile_bytes, capability)
    return WholeRows(block_rows, num_warps, programs, stages)
