"""Dropout with what stands beside it in a transformer's layer: kernels and launches in Triton.

    y = residual + dropout(act(x))                 behind a product, residual or activation left out
    dx = dropout(dy) · act'(x)                     back; without an activation x is not read
    h = residual + dropout(x),  y = LayerNorm(h)   where the next block begins with a norm

act is ReLU, GELU in the tanh form or with the error function, or nothing. What goes element by
element is taken without regard to rows: an element's random number depends on its place alone
(`kernels/philox.py`), and a tile begins at a multiple of eight elements whatever the width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import capability, for_card
from kernels.ops.chains.configurations import NARROWEST, held_row
from kernels.ops.chains.dropout import dropping, kept_along, kept_in_rows
from kernels.ops.chains.gated import GELU_ERF, GELU_TANH
from kernels.ops.chains.gelu_by_power import activated_for, slope_for
from kernels.ops.norms.forward import forward as norm_forward
from kernels.ops.shared.blocks import Block
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import fill_vectors, stride_unit

Tensor = torch.Tensor

NOTHING, RELU = "", "relu"
ACTIVATIONS = (NOTHING, RELU, GELU_TANH, GELU_ERF)
# Elements of a program, and its warps: a thread has twice eight neighbours, and a call of Philox
# for each eight. Half as many take longer, but 7.5 has no registers for more.
TILES: dict[tuple[int, int], Block] = {(7, 5): Block(1024, 4), (8, 0): Block(2048, 4)}


def tile_for(device: torch.device) -> Block:
    """The tile of the kernels that go element by element, on a card."""
    return for_card(TILES, capability(device))


@triton.jit
def _kept(seed_offset_ptr, first, drop_below, BLOCK: tl.constexpr):
    # By wide products, as instructions bind these kernels, forward too.
    return tl.reshape(kept_in_rows(seed_offset_ptr, first, drop_below, True, 1, BLOCK), (BLOCK,))


@triton.jit(do_not_specialize=["drop_below"])
def dropped_tile(
    x_ptr,
    residual_ptr,
    seed_offset_ptr,
    y_ptr,
    n_elements,
    drop_below,
    scale,
    ACTIVATION: tl.constexpr,
    DROPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    mask = at < n_elements
    # All loads stand before the random numbers, which are made while these are under way.
    y = tl.load(x_ptr + at, mask=mask, other=0.0)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + at, mask=mask, other=0.0)
    if DROPS:
        kept = _kept(seed_offset_ptr, first, drop_below, BLOCK)
    y = y.to(tl.float32)
    if ACTIVATION == "relu":
        y = tl.where(y < 0.0, 0.0, y)  # so that NaN stays NaN
    elif ACTIVATION != "":
        y = activated_for(y, ACTIVATION, y_ptr.dtype.element_ty)
    if DROPS:
        y = tl.where(kept, y * scale, 0.0)
    if residual_ptr is not None:
        y += residual.to(tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["drop_below"])
def dropped_backward_tile(
    dy_ptr,
    x_ptr,
    seed_offset_ptr,
    dx_ptr,
    n_elements,
    drop_below,
    scale,
    ACTIVATION: tl.constexpr,
    DROPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # The mask is made again, and so is the slope: nothing was kept but x.
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    mask = at < n_elements
    dx = tl.load(dy_ptr + at, mask=mask, other=0.0)
    if ACTIVATION != "":
        x = tl.load(x_ptr + at, mask=mask, other=0.0)
    if DROPS:
        kept = _kept(seed_offset_ptr, first, drop_below, BLOCK)
    dx = dx.to(tl.float32)
    if ACTIVATION == "relu":
        dx = tl.where(x <= 0.0, 0.0, dx)  # NaN keeps its gradient, as PyTorch's does
    elif ACTIVATION != "":
        dx *= slope_for(x.to(tl.float32), ACTIVATION, dx_ptr.dtype.element_ty)
    if DROPS:
        dx = tl.where(kept, dx * scale, 0.0)
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["drop_below"])
def dropped_norm_row(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    seed_offset_ptr,
    y_ptr,
    h_ptr,
    mean_ptr,
    inv_std_ptr,
    n_col_units,
    eps,
    drop_below,
    scale,
    STRIDE_UNIT: tl.constexpr,
    DROPS: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A row in one block, as in LayerNorm; its sum with the residual never comes back from memory.
    n_cols = n_col_units * STRIDE_UNIT
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    at = row * n_cols + cols
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    residual = tl.load(residual_ptr + at, mask=mask, other=0.0)
    x = x.to(tl.float32)
    if DROPS:
        kept = kept_along(seed_offset_ptr, row * n_cols, drop_below, ALIGNED, BLOCK_COLS)
        x = tl.where(kept, x * scale, 0.0)
    h = (x + residual.to(tl.float32)).to(h_ptr.dtype.element_ty)
    tl.store(h_ptr + at, h, mask=mask)
    x = h.to(tl.float32)  # what is normalised is what is stored: backward starts from it
    mean = tl.sum(x, axis=0) / n_cols
    x = tl.where(mask, x - mean, 0.0)
    inv_std = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
        tl.store(inv_std_ptr + row, inv_std)
    y = x * inv_std
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


def _drops(p: float) -> dict[str, object]:
    told = dropping(p, NARROWEST)
    del told["ALIGNED"]  # tiles begin at multiples of eight
    return told


def forward(
    x: Tensor,
    residual: Tensor | None,
    seed_offset: Tensor | None,
    p: float,
    activation: str,
) -> Tensor:
    """Return residual + dropout(act(x)) in one launch, contiguous; x, residual (..., N).

    seed_offset is int64 (2,), or None where p is 0. Nothing is checked here.
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    tile = tile_for(x.device)
    with device_guard(x):
        dropped_tile[(-(-y.numel() // tile.cols),)](
            x.contiguous(),
            None if residual is None else residual.contiguous(),
            None if seed_offset is None else seed_offset.contiguous(),
            y,
            y.numel(),
            ACTIVATION=activation,
            BLOCK=tile.cols,
            num_warps=tile.num_warps,
            **_drops(p),
        )
    return y


def backward(
    dy: Tensor,
    x: Tensor | None,
    seed_offset: Tensor | None,
    p: float,
    activation: str,
    into: Tensor | None = None,
) -> Tensor:
    """Return dropout(dy) · act'(x) in one launch, contiguous; x is None without an activation.

    `into`: where it is written, contiguous; dy itself if nobody wants that any more.
    """
    dx = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device) if into is None else into
    if dx.numel() == 0:
        return dx
    tile = tile_for(dy.device)
    with device_guard(dy):
        dropped_backward_tile[(-(-dx.numel() // tile.cols),)](
            dy.contiguous(),
            None if x is None else x.contiguous(),
            None if seed_offset is None else seed_offset.contiguous(),
            dx,
            dx.numel(),
            ACTIVATION=activation,
            BLOCK=tile.cols,
            num_warps=tile.num_warps,
            **_drops(p),
        )
    return dx


def norm_block(n_cols: int, itemsize: int) -> Block | None:
    """The block that holds a row of `n_cols`; None where none does, and two launches share it."""
    by_vectors = fill_vectors(stride_unit(n_cols), itemsize)
    block = held_row(n_cols, itemsize, by_vectors, True).block
    return block if n_cols <= block.cols else None


def normed_forward(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    seed_offset: Tensor | None,
    p: float,
    eps: float,
    *,
    statistics: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return (LayerNorm(h), h, mean, inv_std) of h = residual + dropout(x), (..., N) each.

    One launch where a block holds a row, else two. mean and inv_std are fp32, one a row, and None
    without `statistics`. Nothing is checked here.
    """
    n_cols = x.shape[-1]
    block = norm_block(n_cols, x.element_size())
    if block is None or x.numel() == 0:
        h = forward(x, residual, seed_offset, p, NOTHING)
        y, _, mean, inv_std = norm_forward(
            h, None, weight, bias, eps, centred=True, statistics=statistics
        )
        return y, h, mean, inv_std
    n_rows, unit = x.numel() // n_cols, stride_unit(n_cols)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean = torch.empty(n_rows, device=x.device) if statistics else None
    inv_std = torch.empty(n_rows, device=x.device) if statistics else None
    with device_guard(x):
        dropped_norm_row[(n_rows,)](
            x.contiguous(),
            residual.contiguous(),
            None if weight is None else weight.contiguous(),
            None if bias is None else bias.contiguous(),
            None if seed_offset is None else seed_offset.contiguous(),
            y,
            h,
            mean,
            inv_std,
            n_cols // unit,
            eps,
            STRIDE_UNIT=unit,
            BLOCK_COLS=block.cols,
            num_warps=block.num_warps,
            **dropping(p, n_cols),
        )
    return y, h, mean, inv_std
