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
from kernels.ops.norms.backward_kernels import norm_backward_rows, norm_backward_wide, sum_partials
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import one_row_stride

Tensor = torch.Tensor


@dataclass(frozen=True)
class Configuration:
    """How `norm_backward_rows` runs: rows of a tile, warps, programs an SM, pipeline stages.

    `hold_weight` keeps weight in registers; without, a row loads it anew from a cache.
    """

    block_rows: int
    num_warps: int
    per_sm: int
    stages: int
    hold_weight: bool = True


@dataclass(frozen=True)
class Wide:
    """How `norm_backward_wide` runs: columns of a tile, warps, tile of the sums, rows of a team."""

    block_cols: int
    num_warps: int
    sum_rows: int
    sum_cols: int
    rows_each: int


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
WIDEST = 8192  # columns of a row that the registers of an SM hold together with two sums of it
# They hold a wider one with one sum at most, weight left out, on 8.0 to 9.0.
# H100, bf16 8192×16384, µs of RMSNorm: 295, a copy 270, two stages 296; by `norm_backward_wide` 322
ONE_SUM = 16384
WITH_ONE_SUM = Configuration(block_rows=1, num_warps=32, per_sm=1, stages=1, hold_weight=False)
# All others go by `norm_backward_wide`: 16-bit rows up to ONE_SUM columns, wider ones and those of
# fp32, and rows whose elements are loaded one by one.
# H100, µs of LayerNorm by tile, warps, tile of the sums, rows of a team; in brackets a copy:
#   bf16 8192×16384 (268): 4096, 8, 4×1024, 64: 376; 8×512, 128: 392; 16 warps: 409
#   fp32 4096×16384 (270): 4096, 16, 8×512, 64: 330; 4×1024: 378; 8 warps: 394
#   bf16 4096×32768 (269): 4096, 16, 4×1024, 96: 409, 64: 425; 8 warps: 432; 8×512: 455
#   bf16 1024×131072 (269): 4096, 16, 4×1024, 64: 546; 8 warps: 557; 8×512: 596
#   bf16 8192×12289 (205): 2048, 4, 4×512, 64: 461; 8 warps: 466; 4096, 8, 4×1024: 547
# The L2 must keep a team's rows until they are summed, and each team writes sums of its own.
WIDE_HALF = Wide(block_cols=4096, num_warps=8, sum_rows=4, sum_cols=1024, rows_each=64)
WIDER_HALF = Wide(block_cols=4096, num_warps=16, sum_rows=4, sum_cols=1024, rows_each=64)
WIDE_SINGLE = Wide(block_cols=4096, num_warps=16, sum_rows=8, sum_cols=512, rows_each=64)
WIDE_RAGGED = Wide(block_cols=2048, num_warps=4, sum_rows=4, sum_cols=512, rows_each=64)
# Shared memory of a block, bytes: what the stages of the pipeline share.
_SHARED = {(7, 5): 65536, (8, 0): 166912, (8, 6): 101376, (9, 0): 232448, (12, 0): 101376}
FINISH = (32, 32, 4)  # BLOCK_ROWS, BLOCK_COLS and num_warps of `sum_partials`


@functools.cache
def configuration(
    shape: tuple[int, int],
    itemsize: int,
    n_read: int,
    n_sums: int,
    centred: bool,
    wide_loads: bool,
    capability: tuple[int, int],
    sms: int,
) -> Configuration | Wide:
    """Return how rows of x run on such a card.

    `n_read` tensors of x's `shape` are read; they share what shared memory a block can have.
    `n_sums` gradients of parameters are wanted. With `wide_loads` rows go 16 bytes at a time.
    """
    rows, n_cols = shape
    block = triton.next_power_of_2(n_cols)
    if block > WIDEST:
        fits = block == ONE_SUM and n_sums <= 1 and n_read == 2 and not centred and wide_loads
        if fits and (8, 0) <= capability < (10, 0):
            return WITH_ONE_SUM
        if not wide_loads:
            return WIDE_RAGGED
        if itemsize == 4:
            return WIDE_SINGLE
        return WIDE_HALF if block == ONE_SUM else WIDER_HALF
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
    configured: Configuration | Wide | None = None,
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
    numbers = (dy_stride // group, x_stride // group, rows)
    wanted = [dweight is not None, dbias is not None]
    card, sms = capability(x.device), multiprocessors(x.device)
    chosen = configured or configuration(
        *((rows, n_cols), x.element_size(), 2 if dh is None else 3, sum(wanted)),
        *(mean is not None, group * x.element_size() >= 16, card, sms),
    )
    given = (dy, dh, x, weight, mean, inv_std, dx)
    with device_guard(x):
        if isinstance(chosen, Configuration):
            programs, rows_each = shared_out(rows, chosen.per_sm * sms, chosen.block_rows)
            parts = _partials(programs, n_cols, wanted, x.device)
            norm_backward_rows[(programs,)](
                *(*given, *parts, *numbers, rows_each, n_cols // group),
                GROUP=group,
                BLOCK_ROWS=chosen.block_rows,
                BLOCK_COLS=triton.next_power_of_2(n_cols),
                STAGES=chosen.stages,
                HOLD_WEIGHT=chosen.hold_weight,
                num_warps=chosen.num_warps,
            )
        else:
            teams = -(-rows // chosen.rows_each)
            across = -(-n_cols // chosen.sum_cols) if any(wanted) else 0
            parts = _partials(teams, n_cols, wanted, x.device)
            norm_backward_wide[(teams * (chosen.rows_each + across),)](
                *(*given, *parts, *numbers, chosen.rows_each, across, n_cols // group),
                GROUP=group,
                BLOCK_COLS=chosen.block_cols,
                SUM_ROWS=chosen.sum_rows,
                SUM_COLS=chosen.sum_cols,
                num_warps=chosen.num_warps,
            )
        _finish(parts, dweight, dbias)
    return dx, dweight, dbias


def shared_out(rows: int, most: int, block_rows: int) -> tuple[int, int]:
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
