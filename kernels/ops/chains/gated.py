"""Gated products in Triton, y = act(gate) · up: the kernels and launches of SwiGLU and GEGLU.

    y = act(gate) · up,   dgate = dy · up · act'(gate),   dup = dy · act(gate)

Forward reads gate and up and writes y, backward reads dy, gate and up and writes both gradients in
one launch. gate and up may be the halves of one tensor: then so are their gradients. Nothing is
saved but the inputs: act is computed again, which costs no bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.ops.chains.activations import (
    gelu_and_slope,
    gelu_divided,
    gelu_erf,
    gelu_erf_and_slope,
    silu,
    silu_and_slope,
)
from kernels.ops.chains.configurations import GATED_BACKWARD, GATED_FORWARD
from kernels.ops.shared.blocks import Block
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import one_row_stride, stride_unit

Tensor = torch.Tensor

SILU, GELU_TANH, GELU_ERF = "silu", "gelu_tanh", "gelu_erf"
ACTIVATIONS = (SILU, GELU_TANH, GELU_ERF)


@triton.jit
def activated(g, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        return silu(g)
    elif ACTIVATION == "gelu_tanh":
        return gelu_divided(g)
    else:
        return gelu_erf(g)


@triton.jit
def activated_and_slope(g, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        return silu_and_slope(g)
    elif ACTIVATION == "gelu_tanh":
        return gelu_and_slope(g)
    else:
        return gelu_erf_and_slope(g)


@triton.jit
def gated_tile(
    gate_ptr,
    up_ptr,
    y_ptr,
    gate_row_stride,
    up_row_stride,
    y_row_stride,
    n_tiles,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A program takes BLOCK_COLS columns of a row; n_tiles programs share a row. Tensors without
    # gaps are one row. Row strides, and the width as n_col_units, are counted in STRIDE_UNIT
    # elements, so that the compiler knows what divides every address.
    n_cols = tl.cast(n_col_units, tl.int64) * STRIDE_UNIT
    row = (tl.program_id(0) // n_tiles).to(tl.int64)
    start = (tl.program_id(0) % n_tiles).to(tl.int64) * BLOCK_COLS
    cols = start + tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    gate_row = row * gate_row_stride * STRIDE_UNIT
    up_row = row * up_row_stride * STRIDE_UNIT
    gate = tl.load(gate_ptr + gate_row + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + up_row + cols, mask=mask, other=0.0).to(tl.float32)
    y = activated(gate, ACTIVATION) * up
    y_row = row * y_row_stride * STRIDE_UNIT
    tl.store(y_ptr + y_row + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated_backward_tile(
    dy_ptr,
    gate_ptr,
    up_ptr,
    dgate_ptr,
    dup_ptr,
    dy_row_stride,
    gate_row_stride,
    up_row_stride,
    out_row_stride,
    n_tiles,
    n_col_units,
    STRIDE_UNIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # Tiles as in `gated_tile`; both gradients have the same distance between their rows.
    n_cols = tl.cast(n_col_units, tl.int64) * STRIDE_UNIT
    row = (tl.program_id(0) // n_tiles).to(tl.int64)
    start = (tl.program_id(0) % n_tiles).to(tl.int64) * BLOCK_COLS
    cols = start + tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    dy_row = row * dy_row_stride * STRIDE_UNIT
    gate_row = row * gate_row_stride * STRIDE_UNIT
    up_row = row * up_row_stride * STRIDE_UNIT
    dy = tl.load(dy_ptr + dy_row + cols, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + gate_row + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + up_row + cols, mask=mask, other=0.0).to(tl.float32)
    value, slope = activated_and_slope(gate, ACTIVATION)
    out = row * out_row_stride * STRIDE_UNIT + cols
    tl.store(dgate_ptr + out, (dy * up * slope).to(dgate_ptr.dtype.element_ty), mask=mask)
    tl.store(dup_ptr + out, (dy * value).to(dup_ptr.dtype.element_ty), mask=mask)


class _Places(NamedTuple):
    """Tensors of one shape (..., N) as rows: where each one's begin, and how they are cut."""

    tensors: list[Tensor]
    strides: list[int]
    n_rows: int
    n_cols: int

    @property
    def unit(self) -> int:
        return stride_unit(self.n_cols, *self.strides)


def _places(*tensors: Tensor) -> _Places:
    """The tensors as one row where none has a gap; else rows, copies of those with odd strides."""
    first = tensors[0]
    if all(tensor.is_contiguous() for tensor in tensors):
        return _Places(list(tensors), [first.numel()] * len(tensors), 1, first.numel())
    placed, strides = zip(*map(one_row_stride, tensors), strict=True)
    n_cols = first.shape[-1]
    return _Places(list(placed), list(strides), first.numel() // n_cols, n_cols)


def gated_forward(gate: Tensor, up: Tensor, activation: str, block: Block | None = None) -> Tensor:
    """Return act(gate) · up, contiguous; gate and up (..., N) of any strides, unchecked."""
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if y.numel() == 0:
        return y
    block = block or GATED_FORWARD
    at = _places(gate, up, y)
    unit, n_tiles = at.unit, -(-at.n_cols // block.cols)
    with device_guard(gate):
        gated_tile[(at.n_rows * n_tiles,)](
            *at.tensors,
            *(stride // unit for stride in at.strides),
            n_tiles=n_tiles,
            n_col_units=at.n_cols // unit,
            STRIDE_UNIT=unit,
            ACTIVATION=activation,
            BLOCK_COLS=block.cols,
            num_warps=block.num_warps,
        )
    return y


def _backward_into(
    dgate: Tensor,
    dup: Tensor,
    dy: Tensor,
    gate: Tensor,
    up: Tensor,
    activation: str,
    block: Block | None,
) -> None:
    """Launch the backward, which writes dgate and dup, both of the same strides."""
    if dy.numel() == 0:
        return
    block = block or GATED_BACKWARD
    at = _places(dy, gate, up, dgate)
    unit, n_tiles = at.unit, -(-at.n_cols // block.cols)
    with device_guard(dy):
        gated_backward_tile[(at.n_rows * n_tiles,)](
            *at.tensors,
            dup,
            *(stride // unit for stride in at.strides),
            n_tiles=n_tiles,
            n_col_units=at.n_cols // unit,
            STRIDE_UNIT=unit,
            ACTIVATION=activation,
            BLOCK_COLS=block.cols,
            num_warps=block.num_warps,
        )


def gated_backward(
    dy: Tensor, gate: Tensor, up: Tensor, activation: str, block: Block | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and of up, contiguous, in one launch; unchecked."""
    dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dup = torch.empty(up.shape, dtype=up.dtype, device=up.device)
    _backward_into(dgate, dup, dy, gate, up, activation, block)
    return dgate, dup


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of x (..., 2N) along its last dimension, as views: gate, and up behind it."""
    half = x.shape[-1] // 2
    return x.narrow(-1, 0, half), x.narrow(-1, half, half)


def halves_forward(x: Tensor, activation: str) -> Tensor:
    """Return act(gate) · up of the halves of x (..., 2N): (..., N), contiguous; unchecked."""
    return gated_forward(*halves(x), activation)


def halves_backward(dy: Tensor, x: Tensor, activation: str) -> Tensor:
    """Return the gradient of x (..., 2N), contiguous: those of both halves, in one launch."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _backward_into(*halves(dx), dy, *halves(x), activation, None)
    return dx
