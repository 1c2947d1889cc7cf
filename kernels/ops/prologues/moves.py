"""What a norm and a product launch and move, by hand: the ledgers must count the same."""

from __future__ import annotations

import torch

from kernels.hardware import VECTOR_BYTES
from kernels.launch import capability, multiprocessors
from kernels.ops.epilogues.moves import Followed, activation_step
from kernels.ops.norms.backward import shared_out
from kernels.ops.norms.configurations import (
    FINISH,
    SharedRows,
    backward_configuration,
    forward_block_of,
)
from kernels.ops.products.configurations import (
    HOPPER_COLS,
    TORCH,
    Tiling,
    hopper_tiles,
)
from kernels.ops.products.moves import (
    forward_moves,
    grad_weight_steps,
    grad_x_steps,
    requested_bytes,
    tiling_of,
)
from kernels.ops.prologues.configurations import (
    FOLDING,
    FOLDING_HOPPER,
    folded_tiling,
    one_kernel_tiling,
    statistics_apart,
    suits_hopper,
)
from kernels.ops.shared.rows import collapse_rows, fill_vectors, stride_unit
from kernels.registry import Case, Moved, MovedStep, Moves

_FP32 = 4  # bytes of a statistic, a partial sum, what is added to folded products
_NORM = ("norm_weight", "norm_bias")
_CPU = torch.device("cpu")  # where launches are counted


def _read(tensor: str, size: int, requested: int) -> Moved:
    return Moved(tensor, read_unique=size, read_requested=requested)


def _written(tensor: str, size: int) -> Moved:
    return Moved(tensor, write_unique=size, write_requested=size)


def _aligned(case: Case) -> bool:
    """Whether contiguous rows of x, of the weights and of y lie at multiples of 16 bytes."""
    _, k, n = case.shape
    return all(width * case.dtype.itemsize % VECTOR_BYTES == 0 for width in (k, n))


# ------------------------------------------------------------------------------------ two kernels


def norm_step(case: Case, centred: bool, statistics: bool = False) -> MovedStep:
    """The launch of the norm, a program a row, each of which asks for weight and bias."""
    m, k, _ = case.shape
    size = case.dtype.itemsize
    block = forward_block_of(collapse_rows(torch.empty(m, k, dtype=case.dtype)), capability(_CPU))
    tiles = k > block.held
    moved = [_read("x", m * k * size, (1 + tiles) * m * k * size)]
    moved += [_read(p, k * size, m * k * size) for p in ("weight", "bias")[: 1 + centred]]
    moved += [_written("y", m * k * size)]
    if statistics:
        moved += [_written(one, m * _FP32) for one in ("mean", "inv_std")[1 - centred :]]
    return MovedStep("norm_tiles" if tiles else "norm_row", (m, 1, 1), tuple(moved))


def _norm_back_steps(case: Case, centred: bool) -> Moves:
    """The launches of the norm's backward; tensor by tensor where programs share the rows."""
    (m, k, _), size = case.shape, case.dtype.itemsize
    n_sums = 2 if centred else 1
    plan = backward_configuration(
        (m, k),
        size,
        n_read=2,
        n_sums=n_sums,
        centred=centred,
        by_vectors=fill_vectors(stride_unit(k), size),
        capability=capability(_CPU),
        sms=multiprocessors(_CPU),
    )
    ideal = (3 * m * k + k + n_sums * k) * size + n_sums * m * _FP32
    if not isinstance(plan, SharedRows):
        teams = -(-m // plan.rows_per_team)
        alone = teams == 1
        return Moves(2 - alone, ideal + (not alone) * 2 * teams * n_sums * k * _FP32)
    programs, _ = shared_out(m, plan.programs_per_sm * multiprocessors(_CPU), plan.block_rows)
    weights = programs if plan.hold_weight else m
    parts = programs * k * _FP32
    names = ("weight", "bias")[:n_sums]
    rows = [
        _read("dy", m * k * size, m * k * size),
        _read("x", m * k * size, m * k * size),
        _read("weight", k * size, weights * k * size),
        *(_read(one, m * _FP32, m * _FP32) for one in ("mean", "inv_std")[1 - centred :]),
        _written("dx", m * k * size),
        *(_written(f"d{one}", parts) for one in names),
    ]
    grid = (-(-k // FINISH.block_cols), 1, 1)
    sums = [_read(f"d{one}_parts", parts, parts) for one in names]
    sums += [_written(f"d{one}", k * size) for one in names]
    return Moves.of(
        MovedStep("norm_backward_rows", (programs, 1, 1), tuple(rows)),
        MovedStep("sum_partials", grid, tuple(sums)),
    )


def two_kernels_moves(case: Case, pass_: str, centred: bool) -> Moves:
    """Forward two launches; back the norm again, both products, and back through the norm."""
    if pass_ == "fwd":
        return Moves.of(norm_step(case, centred), *forward_moves(case, tiling_of(case)).steps)
    first = Moves.of(
        norm_step(case, centred, statistics=True), *grad_x_steps(case), *grad_weight_steps(case)
    )
    last = _norm_back_steps(case, centred)
    if last.steps:
        return Moves.of(*first.steps, *last.steps)
    assert first.unique is not None
    assert last.unique is not None
    return Moves(first.launches + last.launches, first.unique + last.unique)


def activated_moves(case: Case, pass_: str) -> Moves:
    """The same with GELU behind a LayerNorm's product; back that comes first, of what was kept."""
    (m, _, n), size = case.shape, case.dtype.itemsize
    if pass_ == "fwd":
        return Moves.of(norm_step(case, True), Followed(case.shape, size, biased=True).step())
    rest = two_kernels_moves(case, pass_, True)
    first = activation_step(m, n, size)
    if rest.steps:
        return Moves.of(first, *rest.steps)
    assert rest.unique is not None
    return Moves(1 + rest.launches, 3 * m * n * size + rest.unique)


# -------------------------------------------------------------------------------------- one kernel


def one_kernel_moves(case: Case, _pass: str, centred: bool) -> Moves:
    """One launch: each column of tiles asks for x twice, each tile for the norm's parameters."""
    (m, k, n), size = case.shape, case.dtype.itemsize
    tiling = one_kernel_tiling(m, size, _aligned(case), capability(_CPU))
    of_x, of_weight = requested_bytes(m, k, n, tiling, size)
    tiles = tiling.tiles(m, n)
    moved = [
        _read("x", m * k * size, 2 * of_x),
        *(_read(one, k * size, tiles * k * size) for one in _NORM[: 1 + centred]),
        _read("weight", n * k * size, of_weight),
        _read("bias", n * size, -(-m // tiling.block_m) * n * size),
        _written("y", m * n * size),
    ]
    return Moves.of(MovedStep("norm_linear_tile", (tiles, 1, 1), tuple(moved)))


def _folded_step(case: Case, centred: bool, tiling: Tiling) -> MovedStep:
    (m, k, n), size = case.shape, case.dtype.itemsize
    of_x, of_weight = requested_bytes(m, k, n, tiling, size)
    across, down = -(-n // tiling.block_n), -(-m // tiling.block_m)
    shift = m * min(k, tiling.block_k) * across * size if centred else 0
    added = [_read(one, n * _FP32, down * n * _FP32) for one in ("sums", "bias")[1 - centred :]]
    moved = [
        _read("x", m * k * size, (1 + statistics_apart(capability(_CPU))) * of_x + shift),
        _read("weight", n * k * size, of_weight),
        *added,
        _written("y", m * n * size),
    ]
    programs = tiling.tiles(m, n)
    if tiling.persistent:
        programs = min(programs, multiprocessors(_CPU))
    name = "folded_persistent" if tiling.persistent else "folded_tile"
    return MovedStep(name, (programs, 1, 1), tuple(moved))


def in_16_bits(case: Case) -> bool:
    """Whether weights are folded for a case: in fp32 a large mean would cost it digits."""
    return case.dtype.itemsize == 2


def folded_moves(case: Case, _pass: str, centred: bool) -> Moves:
    """One launch of the product with folded weights; what is added to it is in fp32.

    The shift of a LayerNorm's statistics asks for a row's first elements once more, and on Hopper
    the statistics for all of x.
    """
    m, size = case.shape[0], case.dtype.itemsize
    tiling = folded_tiling(m, size, _aligned(case), capability(_CPU))
    return Moves.of(_folded_step(case, centred, tiling))


def fold_step(case: Case, centred: bool) -> MovedStep:
    """The launch that folds: two readings of the weights, the second from a cache."""
    (_, k, n), size = case.shape, case.dtype.itemsize
    moved = [
        _read("weight", n * k * size, 2 * n * k * size),
        _read("norm_weight", k * size, 2 * n * k * size),
        *([_read("norm_bias", k * size, n * k * size)] if centred else []),
        _read("bias", n * size, n * size),
        _written("folded", n * k * size),
        *([_written("sums", n * _FP32)] if centred else []),
        _written("folded_bias", n * _FP32),
    ]
    return MovedStep("fold_rows", (n, 1, 1), tuple(moved))


def folding_moves(case: Case, pass_: str, centred: bool) -> Moves:
    """Forward two launches: what folds, and the product. A training step goes back as in two."""
    forward = Moves.of(fold_step(case, centred), *folded_moves(case, "fwd", centred).steps)
    return forward if pass_ == "fwd" else _trained(forward, case, centred)


def _trained(forward: Moves, case: Case, centred: bool) -> Moves:
    back = two_kernels_moves(case, "bwd", centred)
    if forward.steps and back.steps:
        return Moves.of(*forward.steps, *back.steps)
    assert forward.unique is not None
    assert back.unique is not None
    return Moves(forward.launches + back.launches, forward.unique + back.unique)


# ------------------------------------------------------------------------------------------ Hopper


def suits(case: Case) -> bool:
    """Whether the kernel written for Hopper takes a case, rows side by side."""
    sms = multiprocessors(_CPU)
    shape, size = case.shape, case.dtype.itemsize
    return suits_hopper(shape, size, _aligned(case), capability(_CPU), sms)  # type: ignore[arg-type]


def hopper_moves(case: Case, _pass: str, centred: bool) -> Moves:
    """One launch of the kernel written for Hopper.

    What is added is read in whole tiles, by both groups of a program. The statistics come from
    tiles of x in shared memory: they cost no byte.
    """
    (m, k, n), size = case.shape, case.dtype.itemsize
    down, across = hopper_tiles(m, n)
    added = (1 + centred) * across * HOPPER_COLS * _FP32
    return Moves(
        launches=1,
        unique=(m * k + n * k + m * n) * size + added,
        requested=(m * k * across + n * k * down + m * n) * size + 2 * down * added,
    )


def hopper_folding_moves(case: Case, pass_: str, centred: bool) -> Moves:
    """The same with weights folded at the call, by one launch before."""
    folds, product = Moves.of(fold_step(case, centred)), hopper_moves(case, "fwd", centred)
    assert folds.unique is not None
    assert folds.requested is not None
    assert product.unique is not None
    assert product.requested is not None
    forward = Moves(2, folds.unique + product.unique, folds.requested + product.requested)
    return forward if pass_ == "fwd" else _trained(forward, case, centred)


# ---------------------------------------------------------------------------- operators in a model


def _case(x: torch.Tensor, n: int) -> Case | None:
    k = x.shape[-1]
    return Case((x.numel() // k, k, n), x.dtype) if x.numel() else None


def operator_moves(
    x: torch.Tensor,
    norm_weight: torch.Tensor | None,
    norm_bias: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    centred: bool,
    forward: str,
    **_: str,
) -> Moves | None:
    """What the operator of two kernels, or that folds, moves: all contiguous, of one dtype."""
    case = _case(x, len(weight))
    given = [norm_weight, norm_bias] if centred else [norm_weight]
    plain = all(one is not None and one.dtype == x.dtype for one in given)
    if case is None or forward == TORCH or not plain or (norm_bias is not None and not centred):
        return None
    if forward in (FOLDING, FOLDING_HOPPER):
        return folding_moves(case, "fwd", centred) if bias is not None else None
    product = forward_moves(case, tiling_of(case), biased=bias is not None)
    return Moves.of(norm_step(case, centred), *product.steps)


def folded_operator_moves(
    x: torch.Tensor, weight: torch.Tensor, sums: torch.Tensor | None, **_: object
) -> Moves | None:
    """What the operator of folded weights moves, all tensors contiguous."""
    case = _case(x, len(weight))
    return None if case is None else folded_moves(case, "fwd", centred=sums is not None)
