"""What the products' kernels launch and move, by hand: the ledgers must count the same.

A program of a tile asks for its rows of A and its columns of B once, whole, so that A is asked for
by every column of tiles and B by every row of tiles:

    requested = (M · K · ⌈N / BLOCK_N⌉ + K · N · ⌈M / BLOCK_M⌉ + M · N) · size

Lanes outside of a matrix ask for nothing. A grid that stays, an order and stages change none of it.
"""

from __future__ import annotations

import torch

from kernels.hardware import VECTOR_BYTES
from kernels.launch import capability, for_card, multiprocessors
from kernels.ops.products.configurations import (
    SIMPLE,
    SINGLE,
    Tiling,
    forward_tiling,
    gradient_tiling,
    hopper_tiles,
    shared_out,
    suits_hopper,
)
from kernels.registry import Case, Moves

_FP32 = 4  # bytes of a part of a sum
_CPU = torch.device("cpu")  # where launches are counted


def requested_bytes(m: int, k: int, n: int, tiling: Tiling, itemsize: int) -> int:
    """Bytes that the programs of an m × n product over k ask for, inputs alone."""
    tiles_m, tiles_n = -(-m // tiling.block_m), -(-n // tiling.block_n)
    return (m * k * tiles_n + k * n * tiles_m) * itemsize


def _aligned(itemsize: int, *widths: int) -> bool:
    """Whether contiguous rows of these widths lie at multiples of 16 bytes."""
    return all(width * itemsize % VECTOR_BYTES == 0 for width in widths)


def tiling_of(case: Case) -> Tiling:
    """The tiling of `fused` in a case, rows side by side."""
    m, k, n = case.shape
    size = case.dtype.itemsize
    return forward_tiling(m, size, _aligned(size, k, n), capability(_CPU))


def forward_moves(case: Case, tiling: Tiling) -> Moves:
    """One launch: x, weight and bias in, y out. Every row of tiles asks for the bias."""
    m, k, n = case.shape
    size, tiles_m = case.dtype.itemsize, -(-m // tiling.block_m)
    return Moves(
        launches=1,
        unique=(m * k + n * k + n + m * n) * size,
        requested=requested_bytes(m, k, n, tiling, size) + (n * tiles_m + m * n) * size,
    )


def backward_moves(case: Case) -> Moves:
    """A launch for each product, and one for each sum of which programs computed parts."""
    m, k, n = case.shape
    size, card, sms = case.dtype.itemsize, capability(_CPU), multiprocessors(_CPU)
    aligned = _aligned(size, k, n)
    for_x = gradient_tiling((m, k, n), size, aligned, False, card, sms)
    for_weight = gradient_tiling((n, k, m), size, aligned, True, card, sms)
    splits, _ = shared_out(m, for_weight)
    inputs = requested_bytes(m, n, k, for_x, size) + requested_bytes(n, m, k, for_weight, size)
    written = (m * k + n * k + n) * size
    parts = 2 * splits * (n * k + n) * _FP32 if splits > 1 else 0
    return Moves(
        launches=2 + 2 * (splits > 1),
        unique=(2 * m * n + n * k + m * k) * size + written + parts,
        requested=inputs + written + parts,
    )


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves, forward or back."""
    if pass_ == "bwd":
        return backward_moves(case)
    return forward_moves(case, tiling_of(case))


def suits(case: Case) -> bool:
    """Whether the kernel written for Hopper takes a case, rows side by side."""
    (m, k, n), size = case.shape, case.dtype.itemsize
    aligned = _aligned(size, k, n)
    return suits_hopper(m, n, size, aligned, capability(_CPU), multiprocessors(_CPU))


def hopper_moves(case: Case, _pass: str) -> Moves:
    """One launch of the kernel written for Hopper: two groups of a program read a tile's bias.

    The copy engine leaves out what lies outside a matrix.
    """
    (m, k, n), size = case.shape, case.dtype.itemsize
    down, across = hopper_tiles(m, n)
    return Moves(
        launches=1,
        unique=(m * k + n * k + n + m * n) * size,
        requested=(m * k * across + n * k * down + 2 * n * down + m * n) * size,
    )


def simple_moves(case: Case, _pass: str) -> Moves:
    """What the kernel of the page moves."""
    single = case.dtype.itemsize == _FP32
    return forward_moves(case, SINGLE if single else for_card(SIMPLE, capability(_CPU)))
