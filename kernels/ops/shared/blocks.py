"""The block of a kernel that takes a row a program, by the width of the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton

from kernels.hardware import WARP_THREADS


@dataclass(frozen=True)
class Block:
    """Columns of a block, a power of two, and its warps.

    A row that the block holds is loaded once; a wider one is taken in tiles of so many columns.
    With `rest`, a power of two too, a second block of so many columns stands beside it.
    """

    cols: int
    num_warps: int
    rest: int = 0

    @property
    def held(self) -> int:
        """The widest row that is loaded once."""
        return self.cols + self.rest


def first_fit(table: Sequence[Block], n_cols: int) -> Block | None:
    """Return the narrowest block for a row, with the warps of the first of `table` that holds it.

    None if none holds it; `table` goes from narrow to wide.
    """
    cols = triton.next_power_of_2(n_cols)
    return next((Block(cols, row.num_warps) for row in table if cols <= row.cols), None)


def in_two(block: Block, n_cols: int) -> Block:
    """Return two blocks that hold a row of `n_cols` with a quarter fewer lanes, else `block`.

    They have half the warps: a thread then holds at least as many elements as one of `block`.
    """
    half = block.cols // 2
    if not half < n_cols <= block.cols:
        return block
    rest = triton.next_power_of_2(n_cols - half)
    return Block(half, max(1, block.num_warps // 2), rest) if rest <= half // 2 else block


def blocks_to_try(n_cols: int, tiles: Sequence[int]) -> dict[str, Block]:
    """Return the blocks worth timing for a row of `n_cols`, by name.

    They are the row's own, up to 32768 columns, and those of `tiles` that are narrower than the
    row, with every number of warps that gives a thread 2 to 128 elements.
    """
    whole = triton.next_power_of_2(n_cols)
    sizes = [size for size in (whole, *(t for t in tiles if t < whole)) if size <= 32768]
    found = {}
    for warps in (1, 2, 4, 8, 16, 32):
        for size in sizes:
            if 2 <= size // (WARP_THREADS * warps) <= 128:
                name = "row" if size == whole else f"tiles of {size}"
                found[f"{name}, {warps} warps"] = Block(size, warps)
    return found
