"""The backward pass of every norm: which kernels run, in which configuration.

The equations and the kernels stand in `_norm_backward_kernels`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import triton

from kernels.launch import capability, for_card, multiprocessors
from kernels.ops._layout import device_guard, one_row_stride
from kernels.ops._norm_backward_kernels import (
    norm_backward_columns,
    norm_backward_rows,
    norm_backward_tiles,
    sum_partials,
)

Tensor = torch.Tensor


@dataclass(frozen=True)
class Configuration:
    """How `norm_backward_rows` runs: rows of a tile, warps, programs an SM, pipeline stages."""

    block_rows: int
    num_warps: int
    per_sm: int
    stages: int


# (elements of a tile, num_warps, programs on each SM, stages) by compute capability; other cards
# take the nearest older one's. A tile is as many whole rows as fit, and a wider row is a tile.
# H100, bf16, µs of LayerNorm / RMSNorm by tile, warps and programs; in brackets a copy of as much:
#   65536×1024 (136): 8192, 8, 1: 152 / 151; 4096, 4, 2: 159 / 154; 2048, 4, 2: 156 / 151;
#     with two stages in place of three 4096, 4, 4: 176 / 158
#   4096×4096 (36): 8192, 8, 1: 42.6 / 40.5; 8192, 16, 1: 42.5 / 41.4; 4096, 4, 2: 45.4 / 42.3
#   16384×8192 (271): 8 warps: 299 / 297; 16: 299 / 299; 32: 303 / 298; four stages: 306 / 297
# The other tables are what compiles there without a spill; no such card was timed.
CONFIGURATIONS: dict[tuple[int, int], tuple[int, int, int, int]] = {
    (7, 5): (4096, 4, 2, 1),
    (8, 0): (4096, 4, 2, 3),
    (9, 0): (8192, 8, 1, 3),
    (12, 0): (4096, 4, 2, 3),
}
WIDEST_BYTES = 32768  # a wider row, twice, doesn't fit into the registers of an SM
# Nor one of more columns than this together with its sums, with a third tensor,
# or on 7.5, 10.0 and 12.0.
WIDEST_IN_ANY_CASE = 8192
# Shared memory of a block, bytes: what the stages of the pipeline share.
_SHARED = {(7, 5): 65536, (8, 0): 166912, (8, 6): 101376, (9, 0): 232448, (12, 0): 101376}
TILE = (4096, 16)  # BLOCK_COLS and num_warps of `norm_backward_tiles`
COLUMNS = (8, 512, 8)  # BLOCK_ROWS, BLOCK_COLS and num_warps of `norm_backward_columns`
FINISH = (32, 32, 4)  # the same of `sum_partials`


@functools.cache
def configuration(
    shape: tuple[int, int], itemsize: int, n_read: int, capability: tuple[int, int], sms: int
) -> Configuration | None:
    """Return how rows of x run on such a card; None if they go by `norm_backward_tiles`.

    `n_read` tensors of x's `shape` are read; they share what shared memory a block can have.
    """
    rows, n_cols = shape
    block = triton.next_power_of_2(n_cols)
    if block * itemsize > WIDEST_BYTES:
        return None
    if block > WIDEST_IN_ANY_CASE and (n_read == 3 or not (8, 0) <= capability < (10, 0)):
        return None
    tile, num_warps, per_sm, stages = for_card(CONFIGURATIONS, capability)
    # Few rows are spread over the SMs rather than put into whole tiles.
    block_rows = max(1, min(tile // block, triton.next_power_of_2(-(-rows // sms))))
    num_warps = max(1, num_warps * block_rows * block // tile)
    tile_bytes = n_read * block_rows * block * itemsize
    fitting = 1 + (for_card(_SHARED, capability) // per_sm - 4096) // tile_bytes
    return Configuration(block_rows, num_warps, per_sm, max(1, min(stages, fitting)))


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
    configured: Configuration | None = None,
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
    group = math.gcd(16, n_cols, x_stride, dy_stride)
    strides = (dy_stride // group, x_stride // group)
    card, sms = capability(x.device), multiprocessors(x.device)
    n_read = 2 if dh is None else 3
    chosen = configured or configuration((rows, n_cols), x.element_size(), n_read, card, sms)
    held = [dweight is not None, dbias is not None]  # the sums that the first kernel keeps
    block = triton.next_power_of_2(n_cols)
    if chosen is None or block > WIDEST_IN_ANY_CASE:
        held = [False, False]
    with device_guard(x):
        if chosen is None:
            block_cols, num_warps = TILE
            norm_backward_tiles[(rows,)](
                *(dy, dh, x, weight, mean, inv_std, dx, *strides, n_cols // group),
                GROUP=group,
                BLOCK_COLS=block_cols,
                num_warps=num_warps,
            )
        else:
            programs, rows_each = _shared_out(rows, chosen.per_sm * sms, chosen.block_rows)
            parts = _partials(programs, n_cols, held, x.device)
            norm_backward_rows[(programs,)](
                *(dy, dh, x, weight, mean, inv_std, dx, *parts),
                *(*strides, rows, rows_each, n_cols // group),
                GROUP=group,
                BLOCK_ROWS=chosen.block_rows,
                BLOCK_COLS=block,
                STAGES=chosen.stages,
                num_warps=chosen.num_warps,
            )
            _finish(parts, dweight, dbias)
        apart = [dweight is not None and not held[0], dbias is not None and not held[1]]
        if any(apart):
            block_rows, block_cols, num_warps = COLUMNS
            across = -(-n_cols // block_cols)
            programs, rows_each = _shared_out(rows, -(-4 * sms // across), block_rows)
            parts = _partials(programs, n_cols, apart, x.device)
            norm_backward_columns[(across, programs)](
                *(dy, x, mean, inv_std, *parts, *strides, rows, rows_each, n_cols // group),
                GROUP=group,
                BLOCK_ROWS=block_rows,
                BLOCK_COLS=block_cols,
                num_warps=num_warps,
            )
            _finish(parts, dweight, dbias)
    return dx, dweight, dbias


def _shared_out(rows: int, most: int, block_rows: int) -> tuple[int, int]:
    """Return (programs, rows of each), whole tiles each and `most` programs at most."""
    tiles = -(-rows // block_rows)
    rows_each = -(-tiles // min(tiles, most)) * block_rows
    return -(-rows // rows_each), rows_each


def _partials(
    programs: int, n_cols: int, wanted: list[bool], device: torch.device
) -> list[Tensor | None]:
    """A buffer for the partial sums of weight and one for those of bias, where they are wanted."""
    return [torch.empty(programs, n_cols, device=device) if want else None for want in wanted]


def _finish(parts: list[Tensor | None], dweight: Tensor | None, dbias: Tensor | None) -> None:
    """Add up the partial sums that there are."""
    given = [part for part in parts if part is not None]
    if not given:
        return
    n_parts, n_cols = given[0].shape
    block_rows, block_cols, num_warps = FINISH
    sum_partials[(-(-n_cols // block_cols),)](
        *parts,
        dweight if parts[0] is not None else None,
        dbias if parts[1] is not None else None,
        *(n_parts, n_cols),
        BLOCK_ROWS=block_rows,
        BLOCK_COLS=block_cols,
        num_warps=num_warps,
    )
