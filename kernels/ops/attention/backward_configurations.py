"""How attention's backward runs on each card: a tiling for dq, one for dk and dv, one for a bias.

The tables are keyed as those of `configurations`. A tiling's `block_m` are queries and `block_n`
keys in each of them: for dq a program keeps the queries, for dk and dv the keys.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import torch

from kernels.launch import for_card
from kernels.ops.attention.configurations import (
    Table,
    Tiling,
    by_descriptors,
    held_dim,
    suits_hopper,
)
from kernels.ops.attention.formula import Given
from kernels.philox import NUMBERS, threshold


class Tilings(NamedTuple):
    """The tilings of both passes of a backward."""

    dq: Tiling
    dkdv: Tiling

    @property
    def name(self) -> str:
        """The tilings as `tune` tells them."""
        return f"dQ {self.dq.name}; dK, dV {self.dkdv.name}"


# Of two bytes an element. None of these is timed yet.
DQ: Table = {
    (7, 5): {
        64: Tiling(32, 32, num_warps=8, num_stages=1),
        128: Tiling(16, 16, num_warps=8, num_stages=1),
        256: Tiling(16, 16, num_warps=16, num_stages=1),
    },
    (8, 0): {
        64: Tiling(128, 32, num_warps=8, num_stages=2),
        128: Tiling(64, 32, num_warps=4, num_stages=2),
        256: Tiling(64, 32, num_warps=8, num_stages=1),
    },
    (9, 0): {
        64: Tiling(128, 64, num_warps=8, num_stages=3),
        128: Tiling(128, 64, num_warps=8, num_stages=2),
        256: Tiling(64, 32, num_warps=8, num_stages=1),
    },
    (10, 0): {
        64: Tiling(128, 64, num_warps=8, num_stages=3),
        128: Tiling(64, 64, num_warps=8, num_stages=2),
        256: Tiling(64, 32, num_warps=8, num_stages=1),
    },
    (12, 0): {
        64: Tiling(128, 32, num_warps=8, num_stages=2),
        128: Tiling(64, 32, num_warps=8, num_stages=1),
        256: Tiling(32, 32, num_warps=8, num_stages=1),
    },
}
DKDV: Table = {
    (7, 5): {
        64: Tiling(32, 32, num_warps=8, num_stages=1),
        128: Tiling(16, 16, num_warps=8, num_stages=1),
        256: Tiling(16, 16, num_warps=16, num_stages=1),
    },
    (8, 0): {
        64: Tiling(32, 128, num_warps=8, num_stages=2),
        128: Tiling(32, 64, num_warps=8, num_stages=2),
        256: Tiling(32, 32, num_warps=8, num_stages=1),
    },
    (9, 0): {
        64: Tiling(64, 128, num_warps=8, num_stages=3),
        128: Tiling(32, 128, num_warps=8, num_stages=3),
        256: Tiling(32, 64, num_warps=8, num_stages=1),
    },
    (10, 0): {
        64: Tiling(64, 128, num_warps=8, num_stages=3),
        128: Tiling(32, 64, num_warps=8, num_stages=2),
        256: Tiling(32, 64, num_warps=8, num_stages=1),
    },
    (12, 0): {
        64: Tiling(32, 64, num_warps=8, num_stages=2),
        128: Tiling(32, 64, num_warps=8, num_stages=1),
        256: Tiling(16, 32, num_warps=8, num_stages=1),
    },
}
# Without a mask other than the causal one, of whole head dimensions: what else a tile has to hold
# spills there. H200, bf16, 16 heads, 8k, µs of flash's backward and of both passes (`python -m
# kernels.lab tune attention --pass bwd`): 64 dimensions 4944 and 3495, causal 2764 and 1870; 128
# dimensions 9377 and 6462, causal 4948 and 3518.
PLAIN: dict[tuple[int, int], dict[int, Tilings]] = {
    (9, 0): {
        64: Tilings(Tiling(64, 64, 4, 3), Tiling(64, 64, 4, 3)),
        128: Tilings(Tiling(128, 128, 8, 2), Tiling(32, 64, 4, 3)),
    }
}
# fp32, to learn by: both passes, but that four warps hold dk and dv of 128 dimensions.
SINGLE: Table = {
    (7, 5): {
        64: Tiling(16, 16, num_warps=4, num_stages=1),
        128: Tiling(16, 16, num_warps=8, num_stages=1),
        256: Tiling(16, 16, num_warps=16, num_stages=1),
    }
}


@functools.lru_cache(maxsize=1024)
def tilings_for(
    head_dim: int,
    itemsize: int,
    capability: tuple[int, int],
    *,
    simple: bool = False,
    more: bool = False,
    tight: bool = False,
) -> Tilings:
    """Return how a backward runs on a card; flags as of `configurations.tiling_for`.

    A bias's gradient is computed in the tiling of dq.
    """
    dim = held_dim(head_dim)
    plain = PLAIN.get(capability, {}).get(head_dim)
    if plain is not None and itemsize == 2 and not (more or tight):
        return plain

    def found(table: Table) -> Tiling:
        rows = for_card(SINGLE if itemsize == 4 else table, capability)
        one = rows[min(held for held in rows if held >= dim)]
        if itemsize == 4 and table is DKDV and head_dim == 128:
            one = replace(one, num_warps=4)
        if itemsize == 4 and table is DKDV and dim == 64 and capability[0] == 12:
            one = replace(one, block_n=32)  # with 16 keys one kernel spills
        if (
            itemsize == 2
            and (simple or more or tight or head_dim < dim)
            and capability[0] not in (9, 10)
        ):
            one = replace(one, block_m=min(32, one.block_m), block_n=min(32, one.block_n))
        elif itemsize == 2 and head_dim < dim and not more:  # masks of the head dimension
            one = replace(one, block_n=min(64, one.block_n))
        elif itemsize == 2 and more:
            one = replace(one, block_m=min(64, one.block_m), block_n=min(64, one.block_n))
        return one

    return Tilings(found(DQ), found(DKDV))


# ---------------------------------------------------------------------------- written for Hopper

HOPPER_ROWS = 128  # of a program, keys or queries: two groups of 64


class HopperTilings(NamedTuple):
    """How the kernels written for Hopper go back: what passes by, its stages, registers.

    `block_queries` pass the keys that dK and dV belong to, `block_keys` the queries; `held` says
    whether the operands of S and dP that stay are kept in registers.
    """

    block_queries: int
    stages_of_queries: int
    block_keys: int
    stages_of_keys: int
    held: bool
    registers: int = 240
    of_producer: int = 24


# By head dimension. H200, 16 heads of 64, bf16, µs of dK with dV / dQ, at 8k, causal, at 2k:
#   held in registers, the next S early  1764 / 1432, 914 / 692, 470 / 374
#   from shared memory, S and dP early   2021 / 1416, 1104 / 766, 549 / 381
#   held, no S early                     1853 / 1422, 952 / 719, 481 / 380
# With 128 what is held spills.
HOPPER_BACKWARD = {
    64: HopperTilings(64, 4, 64, 4, held=True),
    128: HopperTilings(64, 3, 64, 3, held=False),
}
HOPPER_BACKWARD_DROPPED: tuple[int, ...] = (64,)  # those that take a dropout

# The head dimensions whose backward goes by them.
HOPPER_TAKEN: tuple[int, ...] = (64, 128)


def suits_hopper_backward(given: Given, d_out: torch.Tensor, card: tuple[int, int]) -> bool:
    """Whether the kernels written for Hopper take a backward: where not, `fused` stands in.

    They take what `suits_hopper` takes, with a d_out that the copy engine takes too, causal
    masks alone, aligned at the last query and key, and a dropout that leaves something.
    """
    q, k, v = given[:3]
    masks = (given.bias, given.key_padding_mask, given.q_lengths, given.k_lengths, given.window)
    aligned = not (given.causal and given.top_left) or q.shape[2] == k.shape[2]
    dropped = threshold(given.dropout_p)
    few = q.shape[0] * q.shape[1] * (q.shape[2] + HOPPER_ROWS) < 1 << 31
    return (
        q.shape[-1] in HOPPER_TAKEN
        and all(one is None for one in masks)
        and (not dropped or (q.shape[-1] in HOPPER_BACKWARD_DROPPED and dropped < NUMBERS))
        and aligned
        and few
        and k.shape[2] < HOPPER_ROWS << 16
        and suits_hopper(q, k, v, card)
        and by_descriptors(d_out)
    )
