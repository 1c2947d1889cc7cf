"""How the norms' kernels run on each card: tables, what chose each row, the choice by width.

The tables are keyed by compute capability; a card that is not in one takes the row of the nearest
older card. What `python -m kernels.lab tune` compares stands in `tuning`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import triton

from kernels.hardware import LIMITS
from kernels.launch import for_card
from kernels.ops.shared.blocks import Block, first_fit, in_two
from kernels.ops.shared.rows import Rows

# -------------------------------------------------------------------------------------- forward

# The block of a row, first fit: its columns at most, its warps. A row too wide for all of them
# goes tile by tile, in the last one.
# H100, `python -m kernels.lab tune layernorm --shape …`, bf16, µs by warps, the copy in brackets:
UP_TO_16384 = (
    Block(256, 1),  # the suite has no row so narrow as this and the next
    Block(512, 2),
    # 65536×1024: 4: 93.2, 2: 93.7, 8: 127.9 (93.5); 512×1024: 4: 3.1, 8: 3.2, 2: 3.3 (2.5)
    # 65536×2048: 4: 184.0, 2: 185.1, 8: 191.3 (188.7)
    Block(2048, 4),
    # 4096×4096: 8: 26.5, 4: 27.4, 16: 28.7 (24.8)
    Block(4096, 8),
    # 16384×8192: 16: 183.8, 8: 184.6, 4: 184.6, 32: 235.2 (182.3)
    # 8192×16384: 16: 185.0, 8: 185.7, tiles of 8192: 193.9 (181.8)
    Block(16384, 16),
)
FORWARD: dict[tuple[int, int], tuple[Block, ...]] = {
    # All but 9.0 have what compiles there without a spill: a row of 32768 in fp32 does not, nor on
    # 7.5 the sum of 16384 in fp16 in training by 16 warps. No such card was timed.
    (7, 5): (*UP_TO_16384[:-1], Block(8192, 16), Block(16384, 32)),
    (8, 0): UP_TO_16384,
    # 16384×8192 on an H200, where 8 warps leave room for the rows under way that it needs, 8:
    #   133.5, 4: 133.7, 16: 145.6 (130.0); RMSNorm 16: 133.6, 8: 134.6. An H100 is above.
    # 4096×32768: 32: 192.6, 16: 193.4, tiles of 16384: 202.2 (182.9)
    (9, 0): (*UP_TO_16384[:-1], Block(8192, 8), Block(16384, 16), Block(32768, 32)),
    (12, 0): UP_TO_16384,
}
# For a row above 16384 that can't be loaded 16 bytes at a time: an address an element takes
# registers too, and a block that holds the row spills on 7.5, 9.0, 10.0 and 12.0.
# H100, 4096×20001 bf16, µs: tiles of 8192, 8 warps: 283, 4: 280, tiles of 16384: 378, row: 485;
#   fp32: 8: 316, 4: 343, tiles of 16384: 438, row: 643; 2048×50001 bf16: 8: 340, 4: 350
RAGGED = Block(8192, 8)
# Up to a block of so many columns weight and bias are loaded together with the row, not after its
# sums.
# H100, bf16, µs, early / late: 2048×4096: 14.8 / 15.3, 4096×4096: 25.9 / 26.6, but 16384×8192:
#   203.1 / 184.3: a thread needs 50 registers there, not 40, so 2 blocks of 16 warps fit an SM and
#   not 3, and too few bytes are under way. In fp32 two are enough: 359.0 / 359.4.
WEIGHTS_EARLY_UP_TO = 4096


# Narrow rows by the thousand: two warps a row wait less in its sums. On few rows four are quicker.
# 65536×1024 on an H200 by warps, 2: 67.6, 1: 67.9, 4: 73.0 (69.5); an H100 is above
# 512×1024 on an H200, 2: 2.7, 4: 2.8; an H100 is above
MANY_ROWS = 16384
NARROW = Block(1024, 2)


@functools.lru_cache(maxsize=1024)
def forward_block(n_cols: int, capability: tuple[int, int]) -> Block:
    """Return the block for a row of `n_cols` on a card of `capability`."""
    table = for_card(FORWARD, capability)
    return first_fit(table, n_cols) or table[-1]


def forward_block_of(rows: Rows, capability: tuple[int, int]) -> Block:
    """Return the block for rows of a tensor where they lie, in its dtype, or two blocks."""
    if wide_and_ragged(rows):
        return RAGGED
    block = forward_block(rows.n_cols, capability)
    if narrow_and_many(rows, block, capability):
        block = NARROW
    # H200, LayerNorm, bf16, µs: 4096×5000 as 4096 + 1024: 4 warps 25.5, 8: 26.5; as one block of
    #   8192: 8: 30.3, 16: 33.0 (26.0). 8192×12288 as 8192 + 4096: 8: 102.5, 16: 119.6; as one of
    #   16384: 8: 123.1, 16: 125.5 (99.6). 8192×6144 in two: 4: 53.6, in one: 58.7 (50.3)
    block = in_two(block, rows.n_cols)
    # 32 numbers of 4 bytes a thread are too many for the 64 registers that 1024 threads have.
    return block if block.held * rows.x.element_size() <= 65536 else UP_TO_16384[-1]


def narrow_and_many(rows: Rows, block: Block, capability: tuple[int, int]) -> bool:
    """Whether `NARROW` takes the place of a row's block."""
    return block.cols == NARROW.cols and rows.n_rows >= MANY_ROWS and capability >= (9, 0)


def wide_and_ragged(rows: Rows) -> bool:
    """Whether a block that holds a row spills: above 16384 columns, loaded one by one."""
    return rows.n_cols > 16384 and not rows.loaded_by_vectors


# ------------------------------------------------------------------------------------- backward


@dataclass(frozen=True)
class SharedRows:
    """How `norm_backward_rows` runs: rows of a tile, warps, programs an SM, pipeline stages.

    `hold_weight` keeps weight in registers; without, a row loads it anew from a cache.
    """

    block_rows: int
    num_warps: int
    programs_per_sm: int
    stages: int
    hold_weight: bool = True


@dataclass(frozen=True)
class Teams:
    """How `norm_backward_wide` runs: columns of a tile of dx, warps, tile of the sums, team.

    A team has `rows_per_team` programs that write dx, a row each, and others for the sums of these
    rows, `sum_cols` columns each.
    """

    block_cols: int
    num_warps: int
    sum_rows: int
    sum_cols: int
    rows_per_team: int


@dataclass(frozen=True)
class Tile:
    """What a card takes of narrower rows at a time: as many whole rows as `elements` have room for.

    A wider row is a tile by itself. `num_warps` and `programs_per_sm` are those of a full tile;
    `stages` of the pipeline are fewer where shared memory doesn't hold them.
    """

    elements: int
    num_warps: int
    programs_per_sm: int
    stages: int


# H100, bf16, µs of LayerNorm / RMSNorm by tile, warps and programs; in brackets a copy of as much:
#   65536×1024 (136): 8192, 8, 1: 152 / 151; 4096, 4, 2: 159 / 154; 2048, 4, 2: 156 / 151;
#     with two stages in place of three 4096, 4, 4: 176 / 158
#   4096×4096 (36): 8192, 8, 1: 42.6 / 40.5; 8192, 16, 1: 42.5 / 41.4; 4096, 4, 2: 45.4 / 42.3
#   16384×8192 (271): 8 warps: 299 / 297; 16: 299 / 299; 32: 303 / 298; four stages: 306 / 297
# The other rows are what compiles there without a spill; no such card was timed.
BACKWARD: dict[tuple[int, int], Tile] = {
    (7, 5): Tile(elements=4096, num_warps=4, programs_per_sm=2, stages=1),
    (8, 0): Tile(elements=4096, num_warps=4, programs_per_sm=2, stages=3),
    (9, 0): Tile(elements=8192, num_warps=8, programs_per_sm=1, stages=3),
    (10, 0): Tile(elements=4096, num_warps=4, programs_per_sm=2, stages=3),
    (12, 0): Tile(elements=4096, num_warps=4, programs_per_sm=2, stages=3),
}
WIDEST = 8192  # columns of a row that the registers of an SM hold together with two sums of it
# They hold a wider one with one sum at most, weight left out, on 8.0 to 9.0.
# H100, bf16 8192×16384, µs of RMSNorm: 295, a copy 270, two stages 296; by `norm_backward_wide` 322
ONE_SUM = 16384
WITH_ONE_SUM = SharedRows(
    block_rows=1, num_warps=32, programs_per_sm=1, stages=1, hold_weight=False
)
# All others go by `norm_backward_wide`: 16-bit rows up to ONE_SUM columns, wider ones and those of
# fp32, and rows whose elements are loaded one by one.
# H100, µs of LayerNorm by tile, warps, tile of the sums, rows of a team; in brackets a copy. The L2
# must keep a team's rows until they are summed, and each team writes sums of its own.
# bf16 8192×16384 (268): 4096, 8, 4×1024, 64: 376; 8×512, 128: 392; 16 warps: 409
WIDE_HALF = Teams(block_cols=4096, num_warps=8, sum_rows=4, sum_cols=1024, rows_per_team=64)
# bf16 4096×32768 (269): 4096, 16, 4×1024, 96: 409, 64: 425; 8 warps: 432; 8×512: 455
# bf16 1024×131072 (269): 4096, 16, 4×1024, 64: 546; 8 warps: 557; 8×512: 596
WIDER_HALF = Teams(block_cols=4096, num_warps=16, sum_rows=4, sum_cols=1024, rows_per_team=64)
# fp32 4096×16384 (270): 4096, 16, 8×512, 64: 330; 4×1024: 378; 8 warps: 394
WIDE_SINGLE = Teams(block_cols=4096, num_warps=16, sum_rows=8, sum_cols=512, rows_per_team=64)
# bf16 8192×12289 (205): 2048, 4, 4×512, 64: 461; 8 warps: 466; 4096, 8, 4×1024: 547
WIDE_RAGGED = Teams(block_cols=2048, num_warps=4, sum_rows=4, sum_cols=512, rows_per_team=64)

# Some hundred rows are one team: a launch of its own for the sums would cost more than it takes.
FEW_ROWS = range(128, 1025)
FEW_UP_TO = 4096  # columns; not timed yet
FEW = Teams(block_cols=4096, num_warps=4, sum_rows=64, sum_cols=32, rows_per_team=FEW_ROWS[-1])

# What the stages of a pipeline share, bytes of a block.
SHARED_BYTES = {divmod(card, 10): limits.shared_bytes_per_block for card, limits in LIMITS.items()}
_SHARED_KEPT = 4096  # bytes of it that stay free for what reductions exchange


@dataclass(frozen=True)
class Finish:
    """How `sum_partials` runs: the tile of partial sums that it takes at a time, and its warps."""

    block_rows: int
    block_cols: int
    num_warps: int


FINISH = Finish(block_rows=32, block_cols=32, num_warps=4)  # no time of another was kept


@functools.lru_cache(maxsize=1024)
def backward_configuration(
    shape: tuple[int, int],
    itemsize: int,
    *,
    n_read: int,
    n_sums: int,
    centred: bool,
    by_vectors: bool,
    capability: tuple[int, int],
    sms: int,
) -> SharedRows | Teams:
    """Return how rows of x run on such a card.

    `n_read` tensors of x's `shape` are read; they share what shared memory a block can have.
    `n_sums` gradients of parameters are wanted. With `by_vectors` rows are loaded 16 bytes at a
    time.
    """
    rows, n_cols = shape
    block = triton.next_power_of_2(n_cols)
    if block > WIDEST:
        fits = block == ONE_SUM and n_sums <= 1 and n_read == 2 and not centred and by_vectors
        if fits and (8, 0) <= capability < (10, 0):
            return WITH_ONE_SUM
        if not by_vectors:
            return WIDE_RAGGED
        if itemsize == 4:
            return WIDE_SINGLE
        return WIDE_HALF if block == ONE_SUM else WIDER_HALF
    if n_cols <= FEW_UP_TO and rows in FEW_ROWS:
        return replace(FEW, block_cols=block, num_warps=max(1, min(4, block // 256)))
    tile = for_card(BACKWARD, capability)
    # Few rows are spread over the SMs rather than put into whole tiles.
    block_rows = max(1, min(tile.elements // block, triton.next_power_of_2(-(-rows // sms))))
    num_warps = max(1, tile.num_warps * block_rows * block // tile.elements)
    tile_bytes = n_read * block_rows * block * itemsize
    shared_bytes = for_card(SHARED_BYTES, capability) // tile.programs_per_sm - _SHARED_KEPT
    stages = max(1, min(tile.stages, 1 + shared_bytes // tile_bytes))
    return SharedRows(block_rows, num_warps, tile.programs_per_sm, stages)
