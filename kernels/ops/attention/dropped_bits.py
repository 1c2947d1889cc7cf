"""Bits that say which weights of attention a dropout drops: their place, and how many at a time.

The kernels written for Hopper go by them (`dropped_bits_kernels` says how they lie). A forward
whose bits fit MOST_BITS may leave them for its backward; else the backward makes them, for as many
heads at a time as fit.
"""

from __future__ import annotations

from kernels.ops.attention.backward_configurations import HOPPER_ROWS, suits_hopper_backward
from kernels.ops.attention.configurations import HOPPER_DROPPED
from kernels.ops.attention.formula import Given
from kernels.philox import threshold

MOST_BITS = 64 << 20  # bytes


def shape(n_heads: int, n_queries: int, n_keys: int) -> tuple[int, int, int]:
    """(heads, words, padded rows) of the bits, int32: rows and keys in whole tiles of 128."""
    rows, keys = (-(-n // HOPPER_ROWS) * HOPPER_ROWS for n in (n_queries, n_keys))
    return n_heads, keys // 32, rows


def sections(batches: int, key_heads: int, bytes_a_key_head: int) -> tuple[int, int]:
    """How many batches, and key heads of a batch, share a launch: their bits fit `MOST_BITS`.

    One batch and one key head at least; several batches only with all of their heads. Launches get
    about as many each.
    """

    def evenly(count: int, bytes_of_one: int) -> int:
        parts = -(-count // max(1, min(count, MOST_BITS // bytes_of_one)))
        return -(-count // parts)

    heads = evenly(key_heads, bytes_a_key_head)
    if heads < key_heads:
        return 1, heads
    return evenly(batches, bytes_a_key_head * key_heads), key_heads


def left_by_forward(given: Given, card: tuple[int, int]) -> tuple[int, int, int] | None:
    """The shape of what a forward of `given`, by hand, can leave for its backward, or None.

    Both go by the kernels written for Hopper then, the backward if its d_out lies as q does, and
    what they would hold fits MOST_BITS. A stack keeps as much for each of its layers.
    """
    q, k = given.q, given.k
    whole = shape(q.shape[0] * q.shape[1], q.shape[2], k.shape[2])
    takes = (
        threshold(given.dropout_p) > 0
        and q.shape[-1] in HOPPER_DROPPED
        and 4 * whole[0] * whole[1] * whole[2] <= MOST_BITS
        and suits_hopper_backward(given, q, card)
    )
    return whole if takes else None
