"""How softmax's kernels run: blocks by the width of a row, and what chose them.

What `python -m kernels.lab tune softmax` compares stands in `tuning`.
"""

from __future__ import annotations

import functools

from kernels.launch import for_card
from kernels.ops.norms import configurations as norms
from kernels.ops.shared.blocks import Block, first_fit
from kernels.ops.shared.rows import Rows

# Forward they are the norms': one row in registers, read once and written once, is the same work
# for the memory. On an H100 0.95 of a copy or more in every cell of the suite but 512×1024.
FORWARD = norms.FORWARD
# The backward kernel keeps two rows, on every card alike; on an H100 it reaches 0.98 of a copy or
# more in every cell of the suite.
BACKWARD = norms.UP_TO_16384
# A wider row goes tile by tile, forward too: some 100 registers a thread, and no width spills on
# any card where columns lie side by side. With 4096 and 8 or 16 warps, or 8192 and 16, a few widths
# do on 8.0, 9.0, 10.0 or 12.0. The tiles have not been timed.
TILES = Block(8192, 8)


@functools.lru_cache(maxsize=1024)
def forward_block(n_cols: int, capability: tuple[int, int]) -> Block:
    """Return the block of the forward kernel for a row of `n_cols` on a card."""
    return first_fit(for_card(FORWARD, capability), n_cols) or TILES


def forward_block_of(rows: Rows, capability: tuple[int, int]) -> Block:
    """Return the block of the forward kernel for rows of a tensor where they lie."""
    if norms.wide_and_ragged(rows):
        return TILES
    block = forward_block(rows.n_cols, capability)
    # 65536×1024 on an H200: 2 warps 66.4, 4: 72.7 (a copy 65.7)
    return norms.NARROW if norms.narrow_and_many(rows, block, capability) else block


@functools.lru_cache(maxsize=1024)
def backward_block(n_cols: int) -> Block:
    """Return the block of the backward kernel for a row of `n_cols`."""
    return first_fit(BACKWARD, n_cols) or TILES
