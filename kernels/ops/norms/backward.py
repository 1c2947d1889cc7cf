"""The backward pass of every norm: which kernels run, in which configuration.

The equations and the kernels stand in `backward_kernels`, the configurations in `configurations`.
"""

from __future__ import annotations

import torch
import triton

from kernels.launch import capability, multiprocessors
from kernels.ops.norms.backward_kernels import norm_backward_rows, norm_backward_wide, sum_partials
from kernels.ops.norms.configurations import FINISH, SharedRows, Teams, backward_configuration
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import fill_vectors, one_row_stride, stride_unit

Tensor = torch.Tensor


def backward(
    dy: Tensor,
    dh: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    inv_std: Tensor,
    *,
    wants_weight: bool,
    wants_bias: bool,
    configured: SharedRows | Teams | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Launch the kernels; return (dx, dweight, dbias), the last two None where not wanted.

    dy, dh, x: (..., N); weight, bias: (N,); mean (None for RMSNorm) and inv_std: fp32, one a row.
    dx is contiguous in x's dtype, dweight and dbias have the parameters' dtypes. Nothing is
    checked here.
    """
    n_cols = x.shape[-1]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight = torch.empty_like(weight) if weight is not None and wants_weight else None
    dbias = torch.empty_like(bias) if bias is not None and wants_bias else None
    rows = x.numel() // n_cols
    if rows == 0:
        for parameter in (dweight, dbias):
            if parameter is not None:
                parameter.zero_()
        return dx, dweight, dbias
    x, x_stride = one_row_stride(x)
    dy, dy_stride = one_row_stride(dy)
    dh = None if dh is None else dh.contiguous()
    weight = None if weight is None else weight.contiguous()
    unit = stride_unit(n_cols, x_stride, dy_stride)
    strides = {"dy_row_stride": dy_stride // unit, "x_row_stride": x_stride // unit}
    wanted = [dweight is not None, dbias is not None]
    card, sms = capability(x.device), multiprocessors(x.device)
    chosen = configured or backward_configuration(
        (rows, n_cols),
        x.element_size(),
        n_read=2 if dh is None else 3,
        n_sums=sum(wanted),
        centred=mean is not None,
        by_vectors=fill_vectors(unit, x.element_size()),
        capability=card,
        sms=sms,
    )
    given = (dy, dh, x, weight, mean, inv_std, dx)
    with device_guard(x):
        if isinstance(chosen, SharedRows):
            most = chosen.programs_per_sm * sms
            programs, rows_each = shared_out(rows, most, chosen.block_rows)
            parts = partials(programs, n_cols, wanted, x.device)
            norm_backward_rows[(programs,)](
                *given,
                *parts,
                **strides,
                n_rows=rows,
                rows_each=rows_each,
                n_col_units=n_cols // unit,
                STRIDE_UNIT=unit,
                BLOCK_ROWS=chosen.block_rows,
                BLOCK_COLS=triton.next_power_of_2(n_cols),
                STAGES=chosen.stages,
                HOLD_WEIGHT=chosen.hold_weight,
                num_warps=chosen.num_warps,
            )
        else:
            team_rows = min(rows, chosen.rows_per_team)
            teams = -(-rows // team_rows)
            sum_programs = -(-n_cols // chosen.sum_cols) if any(wanted) else 0
            alone = teams == 1
            parts = [dweight, dbias] if alone else partials(teams, n_cols, wanted, x.device)
            norm_backward_wide[(teams * (team_rows + sum_programs),)](
                *given,
                *parts,
                **strides,
                n_rows=rows,
                rows_per_team=team_rows,
                sum_programs=sum_programs,
                n_col_units=n_cols // unit,
                STRIDE_UNIT=unit,
                BLOCK_COLS=chosen.block_cols,
                SUM_ROWS=chosen.sum_rows,
                SUM_COLS=chosen.sum_cols,
                num_warps=chosen.num_warps,
            )
            if alone:
                return dx, dweight, dbias
        finish(parts, dweight, dbias)
    return dx, dweight, dbias


def shared_out(rows: int, most: int, block_rows: int) -> tuple[int, int]:
    """Return (programs, rows of each), whole tiles each and `most` programs at most."""
    tiles = -(-rows // block_rows)
    rows_each = -(-tiles // min(tiles, most)) * block_rows
    return -(-rows // rows_each), rows_each


def partials(
    programs: int, n_cols: int, wanted: list[bool], device: torch.device
) -> list[Tensor | None]:
    """A buffer for the partial sums of weight and one for those of bias, where they are wanted."""
    # Both in one allocation, which costs a call some 2 µs; each begins at a multiple of 16 bytes.
    size = programs * n_cols
    both = torch.empty(sum(wanted), -(-size // 4) * 4, device=device)
    places = iter(range(sum(wanted)))
    return [both[next(places), :size].view(programs, n_cols) if want else None for want in wanted]


def finish(parts: list[Tensor | None], dweight: Tensor | None, dbias: Tensor | None) -> None:
    """Add up the partial sums that there are."""
    given = [part for part in parts if part is not None]
    if not given:
        return
    n_parts, n_cols = given[0].shape
    sum_partials[(-(-n_cols // FINISH.block_cols),)](
        *parts,
        dweight if parts[0] is not None else None,
        dbias if parts[1] is not None else None,
        n_parts=n_parts,
        n_cols=n_cols,
        BLOCK_ROWS=FINISH.block_rows,
        BLOCK_COLS=FINISH.block_cols,
        num_warps=FINISH.num_warps,
    )
