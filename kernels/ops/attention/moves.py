"""What attention's kernels launch and move, by hand: the ledgers must count the same.

A program asks for its tile of queries once, and for every tile of keys and values that one of its
rows sees, whole up to the end of the keys. So with tiles of BM queries, without a mask

    requested = (2 · ⌈S / BM⌉ + 2) · B · H · S · D · size

which grows with S²: each of the ⌈S / BM⌉ tiles walks over all S keys. Causal, tile t stops at the
tile of keys that holds its diagonal, and with a window it begins where its first row does.
"""

from __future__ import annotations

import torch

from kernels.hardware import VECTOR_BYTES
from kernels.launch import capability
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


def moves(case: Case, _pass: str) -> Moves:
    """What `fused` moves."""
    _, _, length, head_dim = case.shape
    size, tight = case.dtype.itemsize, "window" in dict(case.options)
    copied = head_dim * size % VECTOR_BYTES == 0
    tiling = tiling_for(length, head_dim, size, capability(_CPU), tight=tight, copied=copied)
    return forward_moves(case, tiling)


def simple_moves(case: Case, _pass: str) -> Moves:
    """What the kernel of the page moves."""
    _, _, length, head_dim = case.shape
    size = case.dtype.itemsize
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


def hopper_moves(case: Case, _pass: str) -> Moves:
    """One launch of the kernel written for Hopper: as `fused`, in its own tiles.

    Its table of work is a few bytes a tile, which are left out.
    """
    n_batch, n_heads, length, head_dim = case.shape
    tiling, causal = HOPPER[head_dim], bool(dict(case.options).get("causal"))
    row = n_batch * n_heads * head_dim * case.dtype.itemsize
    keys = 0
    for first in range(0, length, tiling.rows):
        met = blocks_met(first, length, length, tiling.rows, tiling.block_keys, causal)
        keys += min(met * tiling.block_keys, length)
    return Moves(1, unique=4 * length * row, requested=(2 * length + 2 * keys) * row)


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
