"""Which tiles a wave of programs touches, by the order in which programs take the tiles of y.

The programs that run at once, a wave, share the L2. Of a product y = x · wᵀ each needs one block of
rows of x and one block of rows of w, whole. What the wave fetches is the distinct blocks:

    row-major, P programs, tiles_n tiles in a row of them:  ⌈P / tiles_n⌉ of x, min(P, tiles_n) of w
    in groups of G blocks of rows, P ≤ G · tiles_n:         min(P, G) of x, ⌈P / G⌉ of w

P tiles need at least 2·√P blocks together, in a square; a row of tiles needs P + 1 (chapter 10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from kernels.launch import Access


@dataclass(frozen=True)
class Wave:
    """The distinct blocks that a wave touches: of rows of x, and of rows of the weight."""

    x_blocks: int
    weight_blocks: int

    @property
    def blocks(self) -> int:
        """Both together: what the wave fetches, in blocks."""
        return self.x_blocks + self.weight_blocks


def tile_at(number: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Return the tile that comes as `number`: (block of rows, block of columns) of y.

    The kernels' own order: `group` blocks of rows go together, down a column of them, then down the
    next; with 1 it is row-major. ValueError for a number outside of the grid.
    """
    if not 0 <= number < tiles_m * tiles_n:
        raise ValueError(f"tile {number} is none of {tiles_m} × {tiles_n}")
    first = number // (group * tiles_n) * group
    height = min(tiles_m - first, group)
    inside = number - first * tiles_n
    return first + inside % height, inside // height


def wave(tiles_m: int, tiles_n: int, programs: int, group: int = 1, first: int = 0) -> Wave:
    """Return what the tiles from number `first` on touch, `programs` of them or what is left.

    By enumeration: exact for any wave, also one that begins or ends inside a group.
    """
    last = min(first + programs, tiles_m * tiles_n)
    tiles = [tile_at(number, tiles_m, tiles_n, group) for number in range(first, last)]
    return Wave(len({m for m, _ in tiles}), len({n for _, n in tiles}))


def first_wave(tiles_m: int, tiles_n: int, programs: int, group: int = 1) -> Wave:
    """Return what the first wave touches, in closed form; `wave` says the same."""
    programs = min(programs, tiles_m * tiles_n)
    groups, rest = divmod(programs, group * tiles_n)
    height = min(group, tiles_m - groups * group)  # of the group that the wave ends in
    x_blocks = min(groups * group, tiles_m) + min(rest, height)
    weight_blocks = tiles_n if groups else -(-rest // max(1, height))
    return Wave(x_blocks, weight_blocks)


def waves(tiles_m: int, tiles_n: int, programs: int, group: int = 1) -> Iterator[Wave]:
    """Yield every wave of a grid in turn, `programs` tiles each; the last may be smaller."""
    for first in range(0, tiles_m * tiles_n, programs):
        yield wave(tiles_m, tiles_n, programs, group, first)


def touched(
    accesses: Iterable[Access], programs: int, first: int = 0, kind: str = "load"
) -> dict[str, int]:
    """Return the distinct bytes of each tensor that a wave of a traced launch touches, by name.

    `accesses` as `traffic.trace` returns them, of one launch; the wave is the programs from `first`
    on, `programs` of them. `kind` is "load" or "store".
    """
    places: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, int] = {}
    for access in accesses:
        if access.kind == kind and first <= access.program < first + programs:
            places.setdefault(access.argument, []).append(np.unique(np.asarray(access.offsets)))
            sizes[access.argument] = access.itemsize
    return {
        name: int(np.unique(np.concatenate(seen)).size) * sizes[name]
        for name, seen in places.items()
    }
