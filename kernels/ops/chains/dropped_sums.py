"""A dropout's way back that sums what it writes over rows: the gradient of the bias before it.

    dx = dropout(dy) · act'(x),   dbias = Σ dx over rows

Behind a product with a bias, dx is the gradient of both, and a launch that only sums would read all
of it again. Behind a dropout with a residual and a norm, the norm's way back goes with it too: one
launch for what `norms.backward`, `dropped.backward` and `products.bias` read and write in turn. A
second launch adds up what the first one's programs leave, in the same order each time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from kernels.launch import capability, for_card, multiprocessors
from kernels.ops.chains.dropout import dropping
from kernels.ops.chains.dropped_sums_kernels import (
    add_parts,
    dropped_backward_sums,
    dropped_norm_backward_sums,
)
from kernels.ops.norms.backward import shared_out
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor


class Strips(NamedTuple):
    """A tile's rows and columns, its warps, programs an SM, stages of the pipeline."""

    rows: int
    cols: int
    num_warps: int
    programs_per_sm: int
    stages: int


class Rows(NamedTuple):
    """Elements of a tile of whole rows, its warps, programs an SM, stages of the pipeline."""

    elements: int
    num_warps: int
    programs_per_sm: int
    stages: int


# H200, bf16, µs with the sums; in brackets in launches of their own, and without the sums:
#   16384×4096 with GELU (151, 105): 8, 128, 2, 20, 3: 113; two stages: 119; four: 122;
#     4, 512, 4, 8: 118, with one stage 129
#   16384×1024 alone (33, 19): 25; with 16 programs 24; 4, 512, 4, 8, 3: 30
# What stands for other cards compiles there without a spill, and was not timed.
STRIPS: dict[tuple[int, int], Strips] = {
    (7, 5): Strips(8, 128, 2, 8, 1),
    (8, 0): Strips(8, 128, 2, 20, 3),
}
LEAST_ROWS = 16  # of a part
# H200, bf16, µs of 16384×1024; in brackets in launches of their own (85):
#   2048, 4, 3, 3: 52; four stages 54; 2 programs 56, 4 71; 1024, 4, 4, 3: 56; 4096, 8, 1, 3: 74
ROWS: dict[tuple[int, int], Rows] = {
    (7, 5): Rows(2048, 4, 2, 1),
    (8, 0): Rows(2048, 4, 3, 3),
}
WIDEST = 2048  # columns whose three sums the registers hold
FINISH = (64, 32, 4)  # of the parts at a time: rows, columns, warps


def takes(n_cols: int) -> bool:
    """Whether rows of so many columns begin at whole calls of the random numbers."""
    return n_cols % 8 == 0


def takes_norm(n_cols: int) -> bool:
    """Whether the norm's way back goes with the dropout's."""
    return takes(n_cols) and n_cols <= WIDEST


def backward(
    dy: Tensor, x: Tensor | None, seed_offset: Tensor, p: float, activation: str
) -> tuple[Tensor, Tensor]:
    """Return dropout(dy) · act'(x), contiguous (..., N), and its sums over rows, (N,).

    dy, x (..., N), N as `takes` says; x is None without an activation. The sums are of fp32 and
    rounded once, to dy's dtype. Two launches; nothing is checked here.
    """
    n_cols = dy.shape[-1]
    dx = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
    if dx.numel() == 0:
        return dx, torch.zeros(n_cols, dtype=dy.dtype, device=dy.device)
    tile = for_card(STRIPS, capability(dy.device))
    n_rows, across = dx.numel() // n_cols, -(-n_cols // tile.cols)
    most = tile.programs_per_sm * multiprocessors(dy.device) // across
    most = max(1, min(most, n_rows // LEAST_ROWS))
    down, each = shared_out(n_rows, most, tile.rows)
    parts = torch.empty((down, 1, n_cols), dtype=torch.float32, device=dy.device)
    sums = torch.empty(n_cols, dtype=dy.dtype, device=dy.device)
    drawn = dropping(p, n_cols)
    with device_guard(dy):
        dropped_backward_sums[(across, down)](
            dy.contiguous(),
            None if x is None else x.contiguous(),
            *(seed_offset.contiguous(), dx, parts, n_rows, each, n_cols // 8),
            *(drawn["drop_below"], drawn["scale"]),
            ACTIVATION=activation,
            BLOCK_ROWS=tile.rows,
            BLOCK_COLS=tile.cols,
            STAGES=tile.stages,
            num_warps=tile.num_warps,
        )
        _add(parts, sums)
    return dx, sums


def norm_backward(
    dy: Tensor,
    dh: Tensor | None,
    h: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inv_std: Tensor,
    seed_offset: Tensor,
    p: float,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Back through LayerNorm and the dropout before it: (dh, dx, dweight, dbias, sums of dx).

    dy, dh, h (..., N), weight, bias (N,), N as `takes_norm` says; mean and inv_std fp32, one a row.
    dh and dx are contiguous, sums of fp32 and rounded once. Two launches; one, and by atomics, with
    `known`, int32 zeros (3·N + 1,), which are zeros again behind it. Nothing is checked here.
    """
    n_cols = h.shape[-1]
    through, dx = (torch.empty(h.shape, dtype=h.dtype, device=h.device) for _ in range(2))
    dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
    sums = torch.empty(n_cols, dtype=h.dtype, device=h.device)
    if h.numel() == 0:
        return through, dx, dweight.zero_(), dbias.zero_(), sums.zero_()
    tile, n_rows = for_card(ROWS, capability(h.device)), h.numel() // n_cols
    block = triton.next_power_of_2(n_cols)
    # Few rows are spread over the SMs rather than put into whole tiles.
    sms = multiprocessors(h.device)
    spread = triton.next_power_of_2(-(-n_rows // (tile.programs_per_sm * sms)))
    elements = tile.elements * 2 // h.element_size()  # more of fp32 spill
    block_rows = max(1, min(elements // block, spread))
    programs, each = shared_out(n_rows, tile.programs_per_sm * sms, block_rows)
    parts = None
    if known is None:
        parts = torch.empty((programs, 3, n_cols), dtype=torch.float32, device=h.device)
    found = (None, None, None) if known is None else (dweight, dbias, sums)
    drawn = dropping(p, n_cols)
    with device_guard(h):
        dropped_norm_backward_sums[(programs,)](
            dy.contiguous(),
            None if dh is None else dh.contiguous(),
            *(h.contiguous(), weight.contiguous(), mean, inv_std, seed_offset.contiguous()),
            *(through, dx, parts, known, *found, n_rows, each, n_cols // 8),
            *(drawn["drop_below"], drawn["scale"]),
            BLOCK_ROWS=block_rows,
            BLOCK_COLS=block,
            STAGES=tile.stages,
            num_warps=tile.num_warps,
        )
        if parts is not None:
            _add(parts, dweight, dbias, sums)
    return through, dx, dweight, dbias, sums


def _add(
    parts: Tensor, first: Tensor, second: Tensor | None = None, third: Tensor | None = None
) -> None:
    n_parts, n_sums, n_cols = parts.shape
    rows, cols, num_warps = FINISH
    add_parts[(-(-n_cols // cols), n_sums)](
        *(parts, first, second, third, n_parts, n_cols),
        BLOCK_ROWS=rows,
        BLOCK_COLS=cols,
        num_warps=num_warps,
    )
