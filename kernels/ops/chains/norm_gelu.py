"""The launches of LayerNorm, GELU, dropout, residual in Triton, forward and back.

The kernels stand in `chain_kernels` and `chain_backward_kernels`, configurations in
`configurations`. Without a residual and a seed_offset it is LayerNorm and GELU alone.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from kernels.launch import capability, multiprocessors
from kernels.ops.chains.bias_gelu import strips_over
from kernels.ops.chains.chain_backward_kernels import (
    gelu_backward_strips,
    norm_gelu_backward_means,
    norm_gelu_backward_rows,
)
from kernels.ops.chains.chain_kernels import norm_gelu_row, norm_gelu_simple, norm_gelu_tiles
from kernels.ops.chains.configurations import (
    MEANS,
    NARROWEST,
    NORM_GELU,
    Row,
    Strips,
    WholeRows,
    held_row,
    rows_configuration,
)
from kernels.ops.chains.dropout import dropping
from kernels.ops.norms.backward import finish, partials, shared_out
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import fill_vectors, one_row_stride, stride_unit

Tensor = torch.Tensor


def _given(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    p: float,
    seed_offset: Tensor | None,
    eps: float,
    *,
    statistics: bool = False,
    configured: Row | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Launch the forward; return (y, mean, inv_std), the last two None unless `statistics`.

    x, residual: (..., N); weight, bias: (N,). y is contiguous, mean and inv_std are fp32, one a
    row. With p above 0 there is a seed_offset. Nothing is checked here.
    """
    n_cols = x.shape[-1]
    n_rows = x.numel() // n_cols
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean = torch.empty(n_rows, device=x.device) if statistics else None
    inv_std = torch.empty(n_rows, device=x.device) if statistics else None
    if n_rows == 0:
        return y, mean, inv_std
    x, x_stride = one_row_stride(x)
    residual_stride = 0
    if residual is not None:
        residual, residual_stride = one_row_stride(residual)
    unit = stride_unit(n_cols, x_stride, residual_stride)
    by_vectors = fill_vectors(unit, x.element_size())
    told = dropping(p, n_cols)
    chosen = configured or held_row(n_cols, x.element_size(), by_vectors, told["DROPS"])
    block = chosen.block
    held = n_cols <= block.cols
    more: dict[str, bool] = {}
    if held:
        more = {
            "FULL": n_cols == block.cols,
            "LOAD_WEIGHTS_EARLY": chosen.weights_early,
            "DRAW_EARLY": chosen.draw_early,
        }
    kernel: Any = norm_gelu_row if held else norm_gelu_tiles
    with device_guard(x):
        kernel[(n_rows,)](
            x,
            _given(weight),
            _given(bias),
            residual,
            _given(seed_offset),
            y,
            mean,
            inv_std,
            x_row_stride=x_stride // unit,
            residual_row_stride=residual_stride // unit,
            n_col_units=n_cols // unit,
            eps=eps,
            STRIDE_UNIT=unit,
            BLOCK_COLS=block.cols,
            num_warps=block.num_warps,
            **told,
            **more,
        )
    return y, mean, inv_std


WIDEST_SIMPLE = NORM_GELU[-1].cols


def simple(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    p: float,
    seed_offset: Tensor | None,
    eps: float,
) -> Tensor:
    """The chain with a row in one block and a call of Philox for each element; unchecked.

    ValueError for a row that no block holds, and for p = 1, of which nothing is left to divide by.
    """
    n_cols = x.shape[-1]
    if n_cols > WIDEST_SIMPLE:
        raise ValueError(f"x has {n_cols} columns; one block holds {WIDEST_SIMPLE} at most here")
    if p == 1:
        raise ValueError("p is 1.0; this variant divides by 1 − p, so p must be below 1")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x, x_stride = one_row_stride(x)
    residual_stride = 0
    if residual is not None:
        residual, residual_stride = one_row_stride(residual)
    cols = max(NARROWEST, triton.next_power_of_2(n_cols))
    with device_guard(x):
        norm_gelu_simple[(x.numel() // n_cols,)](
            x,
            _given(weight),
            _given(bias),
            residual,
            _given(seed_offset) if p > 0 else None,
            y,
            x_row_stride=x_stride,
            residual_row_stride=residual_stride,
            n_cols=n_cols,
            eps=eps,
            p=float(p),
            BLOCK_COLS=cols,
            num_warps=min(max(cols // 512, 1), 16),
        )
    return y


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inv_std: Tensor,
    p: float,
    seed_offset: Tensor | None,
    wants_weight: bool,
    wants_bias: bool,
    configured: WholeRows | Strips | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Launch the kernels; return (dx, dweight, dbias), the last two None where not wanted.

    dx is contiguous in x's dtype, dweight and dbias have the parameters' dtypes. Unchecked.
    """
    n_cols = x.shape[-1]
    n_rows = x.numel() // n_cols
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight = torch.empty_like(weight) if weight is not None and wants_weight else None
    dbias = torch.empty_like(bias) if bias is not None and wants_bias else None
    if n_rows == 0:
        for parameter in (dweight, dbias):
            if parameter is not None:
                parameter.zero_()
        return dx, dweight, dbias
    dy, dy_stride = one_row_stride(dy)
    x, x_stride = one_row_stride(x)
    unit = stride_unit(n_cols, x_stride, dy_stride)
    told = {
        "dy_row_stride": dy_stride // unit,
        "x_row_stride": x_stride // unit,
        "n_col_units": n_cols // unit,
        "STRIDE_UNIT": unit,
        **dropping(p, n_cols),
    }
    saved = (_given(weight), _given(bias), mean, inv_std)
    seed_offset = _given(seed_offset)
    wanted = [dweight is not None, dbias is not None]
    by_vectors = fill_vectors(unit, x.element_size())
    chosen = configured or rows_configuration(
        n_cols, x.element_size(), by_vectors, told["DROPS"], capability(x.device)
    )
    with device_guard(x):
        if isinstance(chosen, WholeRows):
            most = chosen.programs_per_sm * multiprocessors(x.device)
            programs, rows_each = shared_out(n_rows, most, chosen.block_rows)
            parts = partials(programs, n_cols, wanted, x.device)
            block_cols = max(NARROWEST, triton.next_power_of_2(n_cols))
            norm_gelu_backward_rows[(programs,)](
                dy,
                x,
                *saved,
                seed_offset,
                dx,
                *parts,
                n_rows=n_rows,
                rows_each=rows_each,
                FULL=n_cols == block_cols and n_rows % chosen.block_rows == 0,
                BLOCK_ROWS=chosen.block_rows,
                BLOCK_COLS=block_cols,
                STAGES=chosen.stages,
                HOLD_WEIGHT=chosen.hold_weight,
                num_warps=chosen.num_warps,
                maxnreg=chosen.registers,
                **told,
            )
        else:
            means = torch.empty(2, n_rows, device=x.device)
            norm_gelu_backward_means[(n_rows,)](
                dy,
                x,
                *saved,
                seed_offset,
                means[0],
                means[1],
                BLOCK_COLS=MEANS.cols,
                num_warps=MEANS.num_warps,
                **told,
            )
            strips, n_strips, chunks, rows_each = strips_over(x, chosen)
            parts = partials(chunks, n_cols, wanted, x.device)
            gelu_backward_strips[(n_strips * chunks,)](
                dy,
                x,
                *saved,
                means[0],
                means[1],
                seed_offset,
                dx,
                *parts,
                n_rows=n_rows,
                rows_each=rows_each,
                n_strips=n_strips,
                BLOCK_ROWS=strips.block_rows,
                BLOCK_COLS=strips.block_cols,
                STAGES=strips.stages,
                num_warps=strips.num_warps,
                **told,
            )
        finish(parts, dweight, dbias)
    return dx, dweight, dbias
