"""How attention's kernels run on each card: tiles of queries and keys, warps, stages.

The tables are keyed by compute capability, then by the head dimension as the kernel holds it, a
power of two; a card that is not in one takes the row of the nearest older card. What
`python -m kernels.lab tune attention` compares stands in `tuning`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import triton

from kernels.hardware import VECTOR_BYTES
from kernels.launch import for_card


@dataclass(frozen=True)
class Tiling:
    """A tile of queries, the step along the keys, and how a program runs them.

    With `descriptors` the copy engine loads the tiles where they lie aligned, on capability 9.0 and
    later. Warps of their own that ask it, `warp_specialize`, are no choice: Triton 3.7 makes the
    same kernel of these loops with 8 warps, and its compiler fails with 4.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    descriptors: bool = False

    @property
    def name(self) -> str:
        """The tiling as `tune` tells it."""
        told = f"{self.block_m}x{self.block_n}, {self.num_warps} warps, {self.num_stages} stages"
        return f"{told}, descriptors" if self.descriptors else told


Table = Mapping[tuple[int, int], Mapping[int, Tiling]]

# Of two bytes an element. On 7.5 `tl.dot` uses no tensor cores: the tiles there are small so that
# nothing spills, and attention is slow whatever they are. 9.0: bf16, 16 heads, 16k tokens in all,
# on an H200. Against PyTorch's flash attention 64x64 is 1.33 to 1.48 times as fast for 64 numbers a
# head and 1.39 to 1.50 for 128, causal or not, at lengths of 2k and 8k; 128x64 with 8 warps 1.33 to
# 1.48 and 1.29 to 1.50. The other cards' are not timed.
FORWARD: Table = {
    (7, 5): {
        64: Tiling(64, 32, num_warps=8, num_stages=1),
        128: Tiling(32, 32, num_warps=8, num_stages=1),
        256: Tiling(16, 32, num_warps=8, num_stages=1),
    },
    (8, 0): {
        64: Tiling(128, 64, num_warps=4, num_stages=3),
        128: Tiling(128, 64, num_warps=8, num_stages=3),
        256: Tiling(64, 32, num_warps=8, num_stages=2),
    },
    (8, 6): {
        64: Tiling(128, 64, num_warps=4, num_stages=3),
        128: Tiling(128, 32, num_warps=8, num_stages=2),
        256: Tiling(64, 32, num_warps=8, num_stages=1),
    },
    (9, 0): {
        64: Tiling(64, 64, num_warps=4, num_stages=3),
        128: Tiling(64, 64, num_warps=4, num_stages=3),
        256: Tiling(64, 32, num_warps=8, num_stages=2),
    },
    (10, 0): {
        64: Tiling(128, 64, num_warps=4, num_stages=3),
        128: Tiling(128, 64, num_warps=8, num_stages=3),
        256: Tiling(64, 32, num_warps=8, num_stages=2),
    },
    (12, 0): {
        64: Tiling(128, 64, num_warps=4, num_stages=3),
        128: Tiling(128, 32, num_warps=8, num_stages=2),
        256: Tiling(64, 32, num_warps=8, num_stages=1),
    },
}
# Where the copy engine takes q, k and v: the same measurement, 1.42 to 1.59 times for 64 numbers a
# head and 1.46 to 1.56 for 128. For 128, 128x128 with 8 warps and plain loads is as fast at 8k and
# causal, and slower elsewhere.
COPIED: Table = {
    (9, 0): {
        64: Tiling(64, 128, num_warps=4, num_stages=2, descriptors=True),
        128: Tiling(64, 64, num_warps=4, num_stages=3, descriptors=True),
    },
}
# fp32, to learn by, goes by plain multiply-adds: tf32 keeps 10 bits of an operand.
SINGLE: Table = {
    (7, 5): {
        64: Tiling(32, 16, num_warps=4, num_stages=1),
        128: Tiling(32, 32, num_warps=8, num_stages=1),
        256: Tiling(16, 16, num_warps=8, num_stages=1),
    }
}
# What draws random numbers or loads a bias keeps a tile of them in registers beside the scores.
WITH_MORE: Table = {
    (7, 5): {
        128: Tiling(32, 32, num_warps=8, num_stages=1),
        256: Tiling(32, 16, num_warps=8, num_stages=1),
    },
    (8, 0): {
        64: Tiling(64, 64, num_warps=4, num_stages=2),
        128: Tiling(64, 32, num_warps=4, num_stages=2),
        256: Tiling(64, 32, num_warps=8, num_stages=1),
    },
    (9, 0): {
        64: Tiling(64, 64, num_warps=4, num_stages=2),
        128: Tiling(64, 32, num_warps=4, num_stages=2),
        256: Tiling(64, 16, num_warps=8, num_stages=1),
    },
    (12, 0): {
        64: Tiling(64, 32, num_warps=4, num_stages=2),
        128: Tiling(64, 32, num_warps=4, num_stages=2),
        256: Tiling(64, 16, num_warps=8, num_stages=1),
    },
}
# The kernel of the page, on every card. On 9.0, measured with the others, it is 1.03 to 1.30 times
# as fast as flash for 64 numbers a head and 1.23 to 1.36 for 128.
SIMPLE: Table = {
    (7, 5): FORWARD[7, 5],
    (8, 0): {
        64: Tiling(128, 64, num_warps=8, num_stages=3),
        128: Tiling(128, 64, num_warps=8, num_stages=3),
    },
    (8, 6): {
        64: Tiling(128, 64, num_warps=8, num_stages=3),
        128: Tiling(128, 32, num_warps=8, num_stages=2),
    },
    (9, 0): {
        64: Tiling(64, 64, num_warps=4, num_stages=3),
        128: Tiling(64, 64, num_warps=4, num_stages=3),
    },
    (10, 0): {
        64: Tiling(128, 64, num_warps=4, num_stages=3),
        128: Tiling(128, 64, num_warps=8, num_stages=3),
    },
    (12, 0): {
        64: Tiling(128, 64, num_warps=8, num_stages=3),
        128: Tiling(128, 32, num_warps=8, num_stages=2),
    },
}


def held_dim(head_dim: int) -> int:
    """The head dimension as a kernel holds it: a power of two, at least the 16 of a dot."""
    return max(16, triton.next_power_of_2(head_dim))


@functools.lru_cache(maxsize=1024)
def tiling_for(
    n_queries: int,
    head_dim: int,
    itemsize: int,
    capability: tuple[int, int],
    *,
    simple: bool = False,
    more: bool = False,
    tight: bool = False,
    copied: bool = False,
) -> Tiling:
    """Return how a call of so many queries a head runs on a card.

    `simple` is the kernel of the page, `more` a call with dropout, a bias or a padding mask,
    `tight` one with a window or lengths, which takes more registers than neither, `copied` one
    whose tensors the copy engine takes.
    """
    dim = held_dim(head_dim)
    if copied and itemsize == 2 and capability[0] == 9 and dim <= 128:
        found = for_card(COPIED, capability)[max(64, dim)]
        if n_queries >= found.block_m:
            return found
    table = SINGLE if itemsize == 4 else SIMPLE if simple else WITH_MORE if more else FORWARD
    rows = for_card(table, capability)
    found = rows[min(held for held in rows if held >= dim)]
    if simple and itemsize == 4:  # with 16 rows one kernel spills on 10.0
        found = replace(found, block_m=32)
    if itemsize == 4 and head_dim < dim == 128:  # masks along the head dimension take registers
        found = replace(found, block_n=16)
    if more and itemsize == 4:
        found = replace(found, block_m=16, block_n=16)
    if head_dim < dim and itemsize == 2 and capability[0] not in (9, 10):
        # Masks along the head dimension take registers too; wgmma and tcgen05 need fewer.
        found = replace(found, block_n=min(32, found.block_n))
        if more and capability < (8, 0):
            found = replace(found, block_m=16)
    if more and head_dim < dim and itemsize == 2 and capability[0] == 10:
        found = replace(found, num_warps=8)
    if tight and itemsize == 2 and capability[0] not in (9, 10):
        found = replace(found, num_warps=8)
        if head_dim < dim and capability[0] == 12:
            found = replace(found, block_m=min(64, found.block_m))
    if simple or n_queries >= found.block_m:
        return found
    # Few queries: no more rows in a tile than there are, for the loads of keys to bind.
    if itemsize == 4 and dim == 128:  # with 8 warps one kernel spills on 7.5
        found = replace(found, block_n=16, num_warps=4)
    return replace(found, block_m=max(16, triton.next_power_of_2(n_queries)), descriptors=False)


def by_descriptors(*tensors: torch.Tensor) -> bool:
    """Whether the copy engine takes tensors (B, H, S, D): every row at a multiple of 16 bytes."""
    return all(
        one.numel() > 0
        and one.stride(-1) == 1
        and all(stride * one.element_size() % VECTOR_BYTES == 0 for stride in one.stride()[:-1])
        and all(stride > 0 for stride in one.stride()[:-1])
        and one.data_ptr() % VECTOR_BYTES == 0
        for one in tensors
    )


# ---------------------------------------------------------------------------- written for Hopper

HOPPER_GROUP_ROWS = 64  # queries of a group of four warps


class HopperTiling(NamedTuple):
    """How the kernel written for Hopper runs: groups of four warps, keys a tile, stages.

    `registers` are a thread's of a group, `of_producer` those of warps that load, clean or draw.
    """

    groups: int
    block_keys: int
    stages: int
    registers: int
    of_producer: int

    @property
    def rows(self) -> int:
        """Queries of a program's tile."""
        return self.groups * HOPPER_GROUP_ROWS


# By head dimension. H100, 16 heads, 16k tokens in all, bf16: for 128 three stages lost, and 232
# registers; for 64 two groups did.
HOPPER = {128: HopperTiling(2, 128, 2, 240, 24), 64: HopperTiling(3, 128, 2, 160, 32)}
# With a padding mask two more warps clean v, and take registers.
HOPPER_MASKED = {128: HopperTiling(2, 128, 2, 232, 48), 64: HopperTiling(2, 128, 2, 208, 96)}
# With dropout eight warps draw, and take registers. H200, 8 sequences of 2048, 16 heads: three
# groups with four warps that draw lost, and so did tiles of 128 keys.
HOPPER_DROPPED = {64: HopperTiling(2, 64, 4, 160, 96)}
_MOST_HEADS, _MOST_TILES = 1 << 15, 1 << 16  # of an entry of its table of work, in 32 bits


def suits_hopper(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, capability: tuple[int, int]
) -> bool:
    """Whether the kernel written for Hopper takes such tensors: where not, `fused` stands in.

    It runs on capability 9.0, in 16 bits, for head dimensions 64 and 128, where the copy engine
    takes all three tensors. Causal masks, lengths and key padding are its own, and dropout alone,
    for the head dimensions in HOPPER_DROPPED; a window and a bias are not (`forward.forward`).
    """
    return (
        capability == (9, 0)
        and q.element_size() == 2
        and q.shape[-1] in HOPPER
        and q.shape[0] * q.shape[1] < _MOST_HEADS
        and q.shape[2] < _MOST_TILES * HOPPER_GROUP_ROWS
        and by_descriptors(q, k, v)
    )
