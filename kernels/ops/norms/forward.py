"""The forward pass of every norm in Triton: LayerNorm and RMSNorm, with or without a residual.

    h = x + residual                      (rounded to x's dtype and stored, if there is a residual)
    LayerNorm:  y = (h − mean) · inv_std · weight + bias,   inv_std = 1 / √(mean((h − mean)²) + eps)
    RMSNorm:    y = h · inv_std · weight + bias,            inv_std = 1 / √(mean(h²) + eps)

One program normalises one row. A row that fits into the registers is read once; a wider one goes
tile by tile, and is read twice. For the backward pass mean and inv_std of each row are stored too,
8 bytes a row.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import capability, for_card
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import collapse_rows
from kernels.registry import Candidates, Case

Tensor = torch.Tensor


@triton.jit(do_not_specialize=["n_inner"])  # specialized to 1, a wide fp32 row spills
def norm_row(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    h_ptr,
    mean_ptr,
    inv_std_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner,
    n_groups,
    eps,
    CENTRED: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    NESTED: tl.constexpr,
    EARLY: tl.constexpr,
):
    # One program a row. The row is loaded once and stays in registers: that is the fusion.
    # Strides come in groups of GROUP elements: so the compiler knows what divides every address,
    # and a row of 5000 is loaded 16 bytes at a time like one of 8192.
    n_cols = n_groups * GROUP
    row = tl.program_id(0).to(tl.int64)
    x_row = row * x_inner_stride * GROUP
    if NESTED:  # a division of 64 bits, on the way to the first load: only where it is needed
        x_row = (row // n_inner * x_outer_stride + row % n_inner * x_inner_stride) * GROUP
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x_cols = (cols.to(tl.int64) if WIDE_OFFSETS else cols) * x_col_stride
    x = tl.load(x_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
    if EARLY:  # under way together with the row; later they would be waited for once more
        if weight_ptr is not None:
            weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
        if bias_ptr is not None:
            bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
        h = x.to(h_ptr.dtype.element_ty)
        tl.store(h_ptr + row * n_cols + cols, h, mask=mask)
        x = h.to(tl.float32)  # what is normalised is what is stored: backward starts from it

    if CENTRED:
        mean = tl.sum(x, axis=0) / n_cols
        # Masked lanes hold 0, not the mean: without the select each would add mean² to the sum.
        x = tl.where(mask, x - mean, 0.0)
        if mean_ptr is not None:
            tl.store(mean_ptr + row, mean)
    inv_std = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    if inv_std_ptr is not None:
        tl.store(inv_std_ptr + row, inv_std)
    y = x * inv_std
    if weight_ptr is not None:
        if not EARLY:
            weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
        y *= weight.to(tl.float32)
    if bias_ptr is not None:
        if not EARLY:
            bias = tl.load(bias_ptr + cols, mask=mask, other=0.0)
        y += bias.to(tl.float32)
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def norm_tiles(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    h_ptr,
    mean_ptr,
    inv_std_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner,
    n_groups,
    eps,
    CENTRED: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
    NESTED: tl.constexpr,
):
    # A row too wide for the registers: the state (count, mean, sum of squares) merges tile by
    # tile, and a second loop reads the row again to normalise it.
    n_cols = n_groups * GROUP
    row = tl.program_id(0).to(tl.int64)
    x_row = row * x_inner_stride * GROUP
    if NESTED:
        x_row = (row // n_inner * x_outer_stride + row % n_inner * x_inner_stride) * GROUP
    mean = 0.0
    squares = 0.0
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_cols = (cols.to(tl.int64) if WIDE_OFFSETS else cols) * x_col_stride
        x = tl.load(x_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
        if residual_ptr is not None:
            x += tl.load(residual_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
            h = x.to(h_ptr.dtype.element_ty)
            tl.store(h_ptr + row * n_cols + cols, h, mask=mask)
            x = h.to(tl.float32)
        if CENTRED:
            size = tl.minimum(n_cols - start, BLOCK_COLS).to(tl.float32)
            tile_mean = tl.sum(x, axis=0) / size
            x = tl.where(mask, x - tile_mean, 0.0)
            # Chan's merge of the tile's state into the row's.
            delta = tile_mean - mean
            share = size / (start + size)
            mean += delta * share
            squares += delta * delta * start * share
        squares += tl.sum(x * x, axis=0)

    inv_std = tl.rsqrt(squares / n_cols + eps)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
    if inv_std_ptr is not None:
        tl.store(inv_std_ptr + row, inv_std)
    if residual_ptr is not None:
        tl.debug_barrier()  # the sum is read back by other threads than those that stored it
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        if residual_ptr is not None:
            x = tl.load(h_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        else:
            x_cols = (cols.to(tl.int64) if WIDE_OFFSETS else cols) * x_col_stride
            x = tl.load(x_ptr + x_row + x_cols, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean) * inv_std
        if weight_ptr is not None:
            y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


# (largest BLOCK_COLS, num_warps), first fit; a wider row goes tile by tile, in the last one's
# blocks. By compute capability; other cards take the nearest older one's.
# H100, `python -m kernels.lab tune layernorm --shape …`, bf16, µs by warps, the copy in brackets:
#   65536×1024: 4: 93.2, 2: 93.7, 8: 127.9 (93.5); 512×1024: 4: 3.1, 8: 3.2, 2: 3.3 (2.5)
#   65536×2048: 4: 184.0, 2: 185.1, 8: 191.3 (188.7)
#   4096×4096: 8: 26.5, 4: 27.4, 16: 28.7 (24.8)
#   16384×8192: 16: 183.8, 8: 184.6, 4: 184.6, 32: 235.2 (182.3)
#   8192×16384: 16: 185.0, 8: 185.7, tiles of 8192: 193.9 (181.8)
#   4096×32768: 32: 192.6, 16: 193.4, tiles of 16384: 202.2 (182.9)
# The tables of 7.5 and 12.0 are what compiles there without a spill, which a row of 32768 in fp32
# does not; no such card was timed.
CONFIGURATIONS: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (7, 5): ((256, 1), (512, 2), (2048, 4), (4096, 8), (16384, 16)),
    (9, 0): ((256, 1), (512, 2), (2048, 4), (4096, 8), (16384, 16), (32768, 32)),
    (12, 0): ((256, 1), (512, 2), (2048, 4), (4096, 8), (16384, 16)),
}
# For a row above 16384 that can't be loaded 16 bytes at a time: an address an element takes
# registers too, and a block that holds the row spills on 7.5, 9.0, 10.0 and 12.0.
# H100, 4096×20001 bf16, µs: tiles of 8192, 8 warps: 283, 4: 280, tiles of 16384: 378, row: 485;
#   fp32: 8: 316, 4: 343, tiles of 16384: 438, row: 643; 2048×50001 bf16: 8: 340, 4: 350
RAGGED = (8192, 8)
# Up to this BLOCK_COLS weight and bias are loaded together with the row, not after its sums.
# H100, bf16, µs, early / late: 2048×4096: 14.8 / 15.3, 4096×4096: 25.9 / 26.6, but 16384×8192:
#   203.1 / 184.3: a thread needs 50 registers there, not 40, so 2 blocks of 16 warps fit an SM and
#   not 3, and too few bytes are under way. In fp32 two are enough: 359.0 / 359.4.
EARLY = 4096


@functools.cache
def configuration(n_cols: int, capability: tuple[int, int]) -> tuple[int, int]:
    """Return (BLOCK_COLS, num_warps) for a row of `n_cols` on a card of `capability`."""
    table = for_card(CONFIGURATIONS, capability)
    block = min(triton.next_power_of_2(n_cols), table[-1][0])
    return block, next(warps for largest, warps in table if block <= largest)


def chosen(x: Tensor) -> tuple[int, int]:
    """Return (BLOCK_COLS, num_warps) for the rows of x (..., N) on its device."""
    n_cols = x.shape[-1]
    if n_cols > 16384:
        group = math.gcd(16, n_cols, *x.stride()[:-1])
        if x.stride(-1) != 1 or group * x.element_size() < 16:
            return RAGGED
    block, num_warps = configuration(n_cols, capability(x.device))
    # 32 numbers of 4 bytes a thread are too many for the 64 registers that 1024 threads have.
    return (block, num_warps) if block * x.element_size() <= 65536 else (16384, 16)


def forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    centred: bool,
    statistics: bool = False,
    configured: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Launch the kernel; return (y, h, mean, inv_std), h being x where there is no residual.

    x, residual: (..., N); weight, bias: (N,). y and h are contiguous; mean and inv_std are fp32,
    one a row, and None unless `statistics`, as is the mean unless `centred`. `configured` is
    (BLOCK_COLS, num_warps), chosen by width and card if None. Nothing is checked here.
    """
    n_cols = x.shape[-1]
    rows = x.numel() // n_cols
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = x if residual is None else torch.empty_like(y)
    inv_std = torch.empty(rows, device=x.device) if statistics else None
    mean = torch.empty(rows, device=x.device) if statistics and centred else None
    if rows == 0:
        return y, h, mean, inv_std
    if residual is not None and residual.stride() != x.stride():
        x, residual = x.contiguous(), residual.contiguous()
    x, outer_stride, inner_stride, n_inner = collapse_rows(x)
    if residual is not None:
        residual = collapse_rows(residual)[0]
    block_cols, num_warps = configured or chosen(x)
    group = math.gcd(16, n_cols, outer_stride, inner_stride)
    held = n_cols <= block_cols
    kernel, more = (norm_row, {"EARLY": block_cols <= EARLY}) if held else (norm_tiles, {})
    with device_guard(x):
        kernel[(rows,)](
            x,
            residual,
            None if weight is None else weight.contiguous(),
            None if bias is None else bias.contiguous(),
            y,
            None if residual is None else h,
            mean,
            inv_std,
            outer_stride // group,
            inner_stride // group,
            x.stride(-1),
            n_inner,
            n_cols // group,
            eps,
            CENTRED=centred,
            GROUP=group,
            BLOCK_COLS=block_cols,
            WIDE_OFFSETS=(n_cols - 1) * x.stride(-1) >= 2**31,
            NESTED=n_inner < rows,
            **more,
            num_warps=num_warps,
        )
    return y, h, mean, inv_std


def forward_candidates(centred: bool) -> Candidates:
    """Return the function of a case that an operation registers for `tune`."""

    def launch(
        configured: tuple[int, int],
        x: Tensor,
        residual: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Any:
        tensors = (x, residual, weight, bias)
        y, h, _, _ = forward(*tensors, 1e-5, centred=centred, configured=configured)
        return y if residual is None else (y, h)

    def of(case: Case) -> dict[str, Any]:
        block = triton.next_power_of_2(case.shape[-1])
        found: dict[str, Any] = {}
        for warps in (1, 2, 4, 8, 16, 32):
            for size, name in ((block, "row"), (16384, "tiles of 16384"), (8192, "tiles of 8192")):
                per_thread = size // (32 * warps)
                if 2 <= per_thread <= 128 and (name == "row") == (size == block) and size <= 32768:
                    found[f"{name}, {warps} warps"] = functools.partial(launch, (size, warps))
        return found

    return of
