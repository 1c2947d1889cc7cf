"""What the norms' kernels in Triton launch and move, by hand: the ledgers must count the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernels.launch import capability, multiprocessors
from kernels.ops.norms.backward import shared_out
from kernels.ops.norms.common import backward_cost, forward_cost
from kernels.ops.norms.configurations import SharedRows, backward_configuration, forward_block_of
from kernels.ops.shared.rows import collapse_rows, fill_vectors, stride_unit
from kernels.registry import Case, Moves

_FP32 = 4  # bytes of a partial sum
_CPU = torch.device("cpu")  # where launches are counted


def one_block_moves(names: Sequence[str]) -> Callable[[Case, str], Moves]:
    """Return what a forward moves that holds any row it takes in one block."""
    return lambda case, _pass: _forward(names, case, in_tiles=False)


def moves(names: Sequence[str]) -> Callable[[Case, str], Moves]:
    """Return what a norm that takes these tensors moves, forward or back, rows side by side."""

    def of(case: Case, pass_: str) -> Moves:
        if pass_ == "bwd":
            return _back(names, case)
        x = torch.empty(case.shape, dtype=case.dtype)
        block = forward_block_of(collapse_rows(x), capability(_CPU))
        return _forward(names, case, in_tiles=case.shape[-1] > block.held)

    return of


def _forward(names: Sequence[str], case: Case, in_tiles: bool) -> Moves:
    """One launch. A row that a block holds is asked for once.

    A row in tiles is asked for again; of a sum it is the stored one that is read back.
    """
    rows, n_cols = case.shape
    added = "residual" in names
    size = rows * n_cols * case.dtype.itemsize
    parameters = 2 if "bias" in names else 1  # asked for anew by each row
    return Moves(
        launches=1,
        unique=forward_cost(names)(case).bytes_ideal + in_tiles * added * size,
        requested=size * (2 * (1 + added) + in_tiles + parameters),
    )


def _back(names: Sequence[str], case: Case) -> Moves:
    """Two launches: programs leave sums over their rows, and a second kernel adds them up."""
    rows, n_cols = case.shape
    size, added, centred = case.dtype.itemsize, "residual" in names, "bias" in names
    n_sums = 2 if centred else 1
    plan = backward_configuration(
        (rows, n_cols),
        size,
        n_read=2 + added,
        n_sums=n_sums,
        centred=centred,
        by_vectors=fill_vectors(stride_unit(n_cols), size),
        capability=capability(_CPU),
        sms=multiprocessors(_CPU),
    )
    ideal = backward_cost(names)(case).bytes_ideal
    if not isinstance(plan, SharedRows):
        teams = -(-rows // plan.rows_per_team)
        if teams == 1:
            return Moves(1, unique=ideal)
        return Moves(2, unique=ideal + 2 * teams * n_sums * n_cols * _FP32)
    programs, _ = shared_out(rows, plan.programs_per_sm * multiprocessors(_CPU), plan.block_rows)
    unique = ideal + 2 * programs * n_sums * n_cols * _FP32
    weights = programs if plan.hold_weight else rows  # times that weight is asked for
    return Moves(2, unique=unique, requested=unique + (weights - 1) * n_cols * size)
