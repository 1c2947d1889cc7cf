"""Bits that say which weights of attention a dropout drops: their place, and how many at a time.

The kernels written for Hopper go by them (`dropped_bits_kernels` says how they lie). A forward
whose bits fit MOST_KEPT may leave them for its backward; else the backward makes them, for as many
heads at a time as fit MOST_MADE.
"""

from __future__ import annotations

import torch

from kernels.launch import capability
from kernels.launch.gluon import may_take_gluon
from kernels.ops.attention.backward_configurations import HOPPER_ROWS, suits_hopper_backward
from kernels.ops.attention.configurations import HOPPER_DROPPED
from kernels.ops.attention.formula import Given
from kernels.philox import threshold

# Bytes of them: that a layer keeps from its forward on, and that a backward holds while it runs.
MOST_KEPT = MOST_MADE = 64 << 20


def shape(n_heads: int, n_queries: int, n_keys: int) -> tuple[int, int, int]:
    """(heads, words, padded rows) of the bits, int32: rows and keys in whole tiles of 128."""
    rows, keys = (-(-n // HOPPER_ROWS) * HOPPER_ROWS for n in (n_queries, n_keys))
    return n_heads, keys // 32, rows


def sections(batches: int, key_heads: int, bytes_a_key_head: int) -> tuple[int, int]:
    """How many batches, and key heads of a batch, share a launch: their bits fit `MOST_MADE`.

    One batch and one key head at least; several batches only with all of their heads. Launches get
    about as many each.
    """

    def evenly(count: int, bytes_of_one: int) -> int:
        parts = -(-count // max(1, min(count, MOST_MADE // bytes_of_one)))
        return -(-count // parts)

    heads = evenly(key_heads, bytes_a_key_head)
    if heads < key_heads:
        return 1, heads
    return evenly(batches, bytes_a_key_head * key_heads), key_heads


def left_by_forward(given: Given) -> torch.Tensor | None:
    """Room for what a forward of `given` can leave for its backward, or None.

    Both go by the kernels written for Hopper then, the backward if its d_out lies as q does, and
    the bits fit MOST_KEPT. A stack keeps as much for each of its layers.
    """
    q, k = given.q, given.k
    if not (given.by_hand and threshold(given.dropout_p) and may_take_gluon(q)):
        return None
    whole = shape(q.shape[0] * q.shape[1], q.shape[2], k.shape[2])
    takes = (
        q.shape[-1] in HOPPER_DROPPED
        and 4 * whole[0] * whole[1] * whole[2] <= MOST_KEPT
        and suits_hopper_backward(given, q, capability(q.device))
    )
    return torch.empty(whole, dtype=torch.int32, device=q.device) if takes else None
