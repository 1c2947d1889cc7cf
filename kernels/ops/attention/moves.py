"""What attention's kernels launch and move, by hand: the ledgers must count the same.

A program asks for its tile of queries once, and for every tile of keys and values that one of its
rows sees, whole up to the end of the keys. So with tiles of BM queries, without a mask

    requested = (2 · ⌈S / BM⌉ + 2) · B · H · S · D · size

which grows with S²: each of the ⌈S / BM⌉ tiles walks over all S keys. Causal, tile t stops at the
tile of keys that holds its diagonal, and with a window it begins where its first row does. Going
back, a program of dq does the same, with o and do beside its queries; one of dk and dv has a tile
of keys and values, and asks for queries, do and two numbers a row, tile by tile.
"""

from __future__ import annotations

import torch

from kernels.hardware import VECTOR_BYTES
from kernels.launch import capability
from kernels.ops.attention.backward_configurations import (
    HOPPER_BACKWARD,
    HOPPER_ROWS,
    Tilings,
    tilings_for,
)
from kernels.ops.attention.configurations import HOPPER, Tiling, tiling_for
from kernels.registry import Case, Moved, MovedStep, Moves

_CPU = torch.device("cpu")  # where launches are counted


def keys_asked_for(
    n_queries: int, n_keys: int, tiling: Tiling, causal: bool, window: int | None
) -> int:
    """Keys that all programs of one head ask for, each time a key is asked for counted."""
    shift, step, asked = n_keys - n_queries, tiling.block_n, 0
    for first in range(0, n_queries, tiling.block_m):
        lowest = first + shift
        highest = min(first + tiling.block_m, n_queries) - 1 + shift
        begin, end = 0, n_keys
        if causal:
            end = min(end, highest + 1)
        if window is not None:
            begin = max(0, lowest - window + 1) // step * step
            end = end if causal else min(end, highest + window)
        if end > begin:
            asked += min(-(-end // step) * step, n_keys) - begin
    return asked


def queries_asked_for(
    n_queries: int, n_keys: int, tiling: Tiling, causal: bool, window: int | None
) -> int:
    """Queries that all programs of dk and dv of one head ask for, each time counted."""
    shift, step, asked = n_keys - n_queries, tiling.block_m, 0
    for first in range(0, n_keys, tiling.block_n):
        lowest = first - shift
        highest = min(first + tiling.block_n, n_keys) - 1 - shift
        begin, end = 0, n_queries
        if causal:
            begin = max(0, lowest) // step * step
        if window is not None:
            end = min(end, highest + window)
            begin = begin if causal else max(0, lowest - window + 1) // step * step
        if end > begin:
            asked += min(-(-end // step) * step, n_queries) - begin
    return asked


def forward_moves(case: Case, tiling: Tiling, simple: bool = False) -> Moves:
    """One launch: q, k, v in, o out."""
    n_batch, n_heads, length, head_dim = case.shape
    options = dict(case.options)
    causal, window = bool(options.get("causal")), options.get("window")
    row = n_batch * n_heads * head_dim * case.dtype.itemsize  # one row of every head, bytes
    size, keys = length * row, keys_asked_for(length, length, tiling, causal, window) * row
    tiles, heads = -(-length // tiling.block_m), n_batch * n_heads
    name, grid = "attention_forward", (tiles * heads, 1, 1)
    names = ["q_source", "k_source", "v_source"]  # pointers or descriptors
    if simple:
        name, grid, names = "attention_simple", (tiles, heads, 1), ["q", "k", "v"]
    moved = [Moved(one, size, ask) for one, ask in zip(names, (size, keys, keys), strict=True)]
    moved.append(Moved("o", write_unique=size, write_requested=size))
    return Moves.of(MovedStep(name, grid, tuple(moved)))


def backward_moves(case: Case, tilings: Tilings) -> Moves:
    """Two launches: q, k, v, o, do, L in and dq out, with two numbers a row; all but o and L again.

    The second's outputs are dk and dv.
    """
    n_batch, n_heads, length, head_dim = case.shape
    options = dict(case.options)
    told = bool(options.get("causal")), options.get("window")
    number = 4 * n_batch * n_heads  # a number in fp32 for one row of every head, bytes
    row = n_batch * n_heads * head_dim * case.dtype.itemsize
    keys = keys_asked_for(length, length, tilings.dq, *told)
    queries = queries_asked_for(length, length, tilings.dkdv, *told)
    unique = length * (12 * row + 5 * number)
    once = length * (8 * row + 3 * number)
    return Moves(2, unique, requested=once + 2 * keys * row + queries * (2 * row + 2 * number))


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves."""
    _, _, length, head_dim = case.shape
    size, tight = case.dtype.itemsize, "window" in dict(case.options)
    if pass_ == "bwd":
        tilings = tilings_for(head_dim, size, capability(_CPU), tight=tight)
        return backward_moves(case, tilings)
    copied = head_dim * size % VECTOR_BYTES == 0
    tiling = tiling_for(length, head_dim, size, capability(_CPU), tight=tight, copied=copied)
    return forward_moves(case, tiling)


def simple_backward_moves(case: Case, tilings: Tilings) -> Moves:
    """Three launches of the page's backward: delta, then dk and dv, then dq.

    The first reads o and do, the others q, k, v, do and two numbers a row each.
    """
    n_batch, n_heads, length, head_dim = case.shape
    causal = bool(dict(case.options).get("causal"))
    number = 4 * n_batch * n_heads
    row = n_batch * n_heads * head_dim * case.dtype.itemsize
    keys = keys_asked_for(length, length, tilings.dq, causal, None)
    queries = queries_asked_for(length, length, tilings.dkdv, causal, None)
    unique = length * (13 * row + 5 * number)
    once = length * (9 * row + 3 * number)  # all but what passes by in tiles
    return Moves(3, unique, requested=once + 2 * keys * row + queries * (2 * row + 2 * number))


def simple_moves(case: Case, pass_: str) -> Moves:
    """What the kernels of the pages move."""
    _, _, length, head_dim = case.shape
    size = case.dtype.itemsize
    if pass_ == "bwd":
        tilings = tilings_for(head_dim, size, capability(_CPU), simple=True)
        return simple_backward_moves(case, tilings)
    tiling = tiling_for(length, head_dim, size, capability(_CPU), simple=True)
    return forward_moves(case, tiling, simple=True)


def blocks_met(
    first_row: int, n_queries: int, n_keys: int, rows: int, block_keys: int, causal: bool
) -> int:
    """How many tiles of keys a tile of queries meets, in the kernel written for Hopper.

    It counts to the tile's last row, there or not, and meets one at least, where it sees none.
    """
    seen = min(n_keys, first_row + rows + n_keys - n_queries) if causal else n_keys
    return max(1, -(-seen // block_keys))


def hopper_moves(case: Case, pass_: str) -> Moves:
    """The kernels written for Hopper: one launch forward as `fused`, in its own tiles, three back.

    Their tables of work are a few bytes a tile, which are left out.
    """
    n_batch, n_heads, length, head_dim = case.shape
    causal = bool(dict(case.options).get("causal"))
    row = n_batch * n_heads * head_dim * case.dtype.itemsize
    if pass_ == "bwd":
        return _hopper_backward_moves(length, row, 4 * n_batch * n_heads, head_dim, causal)
    tiling = HOPPER[head_dim]
    keys = _keys_met(length, tiling.rows, tiling.block_keys, causal)
    return Moves(1, unique=4 * length * row, requested=(2 * length + 2 * keys) * row)


def _keys_met(length: int, rows: int, block_keys: int, causal: bool) -> int:
    """Keys that all programs of one head ask for, the last tile up to the end of the keys."""
    met = (
        blocks_met(first, length, length, rows, block_keys, causal) * block_keys
        for first in range(0, length, rows)
    )
    return sum(min(one, length) for one in met)


def _hopper_backward_moves(
    length: int, row: int, number: int, head_dim: int, causal: bool
) -> Moves:
    """Of each row o, do and L in and two numbers out; then dk and dv; then dq.

    `row` are the bytes of one row of every head, `number` those of one number of it. The rows of
    numbers end with a tile of 128.
    """
    config = HOPPER_BACKWARD[head_dim]
    padded = -(-length // HOPPER_ROWS) * HOPPER_ROWS
    step = config.block_queries
    begins = [first // step * step if causal else 0 for first in range(0, length, HOPPER_ROWS)]
    queries = sum(length - begin for begin in begins)
    numbers = sum(-(-length // step) * step - begin for begin in begins)
    keys = _keys_met(length, HOPPER_ROWS, config.block_keys, causal)
    once = 9 * length * row + (length + 4 * padded) * number
    return Moves(
        3,
        unique=13 * length * row + (length + 6 * padded) * number,
        requested=once + 2 * (queries + keys) * row + 2 * numbers * number,
    )


def suits(case: Case) -> bool:
    """Whether the kernel written for Hopper takes a case, heads side by side."""
    is_hopper = capability(_CPU) == (9, 0)
    options = dict(case.options)
    return (
        is_hopper
        and case.dtype.itemsize == 2
        and case.shape[3] in HOPPER
        and options.get("window") is None
        and 0 not in case.shape
    )
