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
from kernels.ops.products.backward import ADDED
from kernels.ops.products.bias import TALL, WIDE, Tile, parts_of, programs_across
from kernels.ops.products.configurations import (
    SIMPLE,
    SINGLE,
    TORCH,
    Tiling,
    forward_tiling,
    gradient_tiling,
    hopper_tiles,
    shared_out,
    suits_hopper,
)
from kernels.registry import Case, Moved, MovedStep, Moves

_FP32 = 4  # bytes of a part of a sum
_CPU = torch.device("cpu")  # where launches are counted


def requested_bytes(m: int, k: int, n: int, tiling: Tiling, itemsize: int) -> tuple[int, int]:
    """Bytes of A (m, k) and of B (k, n) that the programs of their product ask for."""
    tiles_m, tiles_n = -(-m // tiling.block_m), -(-n // tiling.block_n)
    return m * k * tiles_n * itemsize, k * n * tiles_m * itemsize


def _read(tensor: str, elements: int, itemsize: int, requested: int) -> Moved:
    return Moved(tensor, elements * itemsize, requested)


def _written(tensor: str, elements: int, itemsize: int) -> Moved:
    size = elements * itemsize
    return Moved(tensor, write_unique=size, write_requested=size)


def _aligned(itemsize: int, *widths: int) -> bool:
    """Whether contiguous rows of these widths lie at multiples of 16 bytes."""
    return all(width * itemsize % VECTOR_BYTES == 0 for width in widths)


def _grid(tiling: Tiling, m: int, n: int, splits: int) -> tuple[int, int, int]:
    tiles = tiling.tiles(m, n)
    if tiling.persistent:
        return min(multiprocessors(_CPU), tiles * splits), 1, 1
    return tiles, splits, 1


def tiling_of(case: Case) -> Tiling:
    """The tiling of `fused` in a case, rows side by side."""
    m, k, n = case.shape
    size = case.dtype.itemsize
    return forward_tiling(
        (m, k, n), size, _aligned(size, k, n), capability(_CPU), multiprocessors(_CPU)
    )


def forward_moves(case: Case, tiling: Tiling, biased: bool = True) -> Moves:
    """One launch: x, weight and bias in, y out. Every row of tiles asks for the bias."""
    m, k, n = case.shape
    size, tiles_m = case.dtype.itemsize, -(-m // tiling.block_m)
    of_x, of_weight = requested_bytes(m, k, n, tiling, size)
    moved = [_read("x", m * k, size, of_x), _read("weight", n * k, size, of_weight)]
    moved += [_read("bias", n, size, n * tiles_m * size)] if biased else []
    moved += [_written("y", m * n, size)]
    name = "linear_persistent" if tiling.persistent else "linear_tile"
    return Moves.of(MovedStep(name, _grid(tiling, m, n, 1), tuple(moved)))


def gradient_steps(
    m: int, k: int, n: int, tiling: Tiling, itemsize: int, sums: bool
) -> tuple[MovedStep, ...]:
    """A · B of (m, k) and (k, n), and the sums of A's rows; parts of them are added up after it."""
    splits, _ = shared_out(k, tiling)
    of_a, of_b = requested_bytes(m, k, n, tiling, itemsize)
    kept = itemsize if splits == 1 else _FP32
    out = "parts" if splits > 1 and tiling.persistent else "out"
    moved = [
        _read("a", m * k, itemsize, of_a),
        _read("b", k * n, itemsize, of_b),
        _written(out, splits * m * n, kept),
    ]
    moved += [_written("sums", splits * m, kept)] if sums else []
    name = "gradient_persistent" if tiling.persistent else "gradient_tile"
    first = MovedStep(name, _grid(tiling, m, n, splits), tuple(moved))
    wholes = [m * n, *([m] if sums else [])] if splits > 1 else []
    return (first, *(_added(whole, splits, itemsize) for whole in wholes))


def _added(whole: int, splits: int, itemsize: int) -> MovedStep:
    size = splits * whole * _FP32
    moved = Moved("parts", size, size), _written("out", whole, itemsize)
    return MovedStep("add_splits", (-(-whole // ADDED), 1, 1), moved)


def _gradient_of(case: Case, across: bool) -> Tiling:
    """The tiling of a product of the backward, dW's with `across`, rows side by side."""
    m, k, n = case.shape
    size = case.dtype.itemsize
    return gradient_tiling(
        (n, k, m) if across else (m, k, n),
        size,
        _aligned(size, k, n),
        across,
        capability(_CPU),
        multiprocessors(_CPU),
    )


def grad_x_steps(case: Case) -> tuple[MovedStep, ...]:
    """The launch of dX = dY · W."""
    m, k, n = case.shape
    return gradient_steps(m, n, k, _gradient_of(case, False), case.dtype.itemsize, sums=False)


def grad_weight_steps(case: Case, sums: bool = True) -> tuple[MovedStep, ...]:
    """The launch of dW = dYᵀ · X, and one for each sum of which programs computed parts."""
    m, k, n = case.shape
    return gradient_steps(n, m, k, _gradient_of(case, True), case.dtype.itemsize, sums=sums)


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves, forward or back."""
    if pass_ == "bwd":
        return Moves.of(*grad_x_steps(case), *grad_weight_steps(case))
    return forward_moves(case, tiling_of(case))


def suits(case: Case) -> bool:
    """Whether the kernel written for Hopper takes a case, rows side by side."""
    (m, k, n), size = case.shape, case.dtype.itemsize
    aligned = _aligned(size, k, n)
    return suits_hopper((m, k, n), size, aligned, capability(_CPU), multiprocessors(_CPU))


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


# ------------------------------------------------------------------------ operators in a model


def _case(x: torch.Tensor, n: int) -> Case | None:
    """The product of x (..., K), or dy (..., N), with n columns; None for what has no rows."""
    k = x.shape[-1]
    return Case((x.numel() // k, k, n), x.dtype) if x.numel() else None


def operator_moves(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, forward: str, **_: str
) -> Moves | None:
    """What the operator of the forward moves, all tensors contiguous.

    For the kernel written for Hopper what is run in its place where there is no such card.
    """
    case = _case(x, len(weight))
    if case is None or forward == TORCH:
        return None
    return forward_moves(case, tiling_of(case), biased=bias is not None)


def grad_x_moves(dy: torch.Tensor, weight: torch.Tensor) -> Moves | None:
    """What the operator of dX moves, all tensors contiguous."""
    case = _case(dy, weight.shape[1])
    return None if case is None else Moves.of(*grad_x_steps(_turned(case)))


def grad_weight_moves(dy: torch.Tensor, x: torch.Tensor, wants_bias: bool) -> Moves | None:
    """What the operator of dW, and of db if it is wanted, moves, all tensors contiguous."""
    case = _case(x, dy.shape[-1])
    return None if case is None else Moves.of(*grad_weight_steps(case, sums=wants_bias))


def grad_bias_moves(dy: torch.Tensor) -> Moves | None:
    """What the operator of db moves, dy contiguous: parts of a sum in fp32 where there are some."""
    if not dy.numel():
        return None
    n_cols, size = dy.shape[-1], dy.element_size()
    parts, _ = parts_of(dy.numel() // n_cols, n_cols, multiprocessors(_CPU))

    def step(tile: Tile, n_parts: int, read: Moved, written: Moved) -> MovedStep:
        grid = programs_across(n_cols, tile), n_parts, 1
        return MovedStep("column_sums", grid, (read, written))

    given, sums = _read("dy", dy.numel(), size, dy.numel() * size), _written("db", n_cols, size)
    if parts == 1:
        return Moves.of(step(TALL, 1, given, sums))
    of_parts = parts * n_cols
    return Moves.of(
        step(WIDE, parts, given, _written("db_parts", of_parts, _FP32)),
        step(TALL, 1, _read("db_parts", of_parts, _FP32, of_parts * _FP32), sums),
    )


def _turned(case: Case) -> Case:
    m, n, k = case.shape
    return Case((m, k, n), case.dtype)
