"""The launches of bias, GELU, dropout, residual in Triton, forward and back, and its operators.

The kernels stand in `chain_kernels` and `chain_backward_kernels`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from kernels.launch import capability, multiprocessors
from kernels.ops.chains.chain_backward_kernels import gelu_backward_strips
from kernels.ops.chains.chain_kernels import bias_gelu_simple, bias_gelu_tile
from kernels.ops.chains.configurations import Strips, bias_gelu_block, strips_configuration
from kernels.ops.chains.dropout import dropping
from kernels.ops.norms.backward import finish, partials, shared_out
from kernels.ops.shared.arguments import (
    check_same,
    check_seed_offset,
    check_tensor,
    refuse_gradients,
)
from kernels.ops.shared.blocks import Block
from kernels.ops.shared.operators import (
    Gradient,
    define,
    device_guard,
    like,
    refuse_second_derivative,
)
from kernels.ops.shared.rows import one_row_stride, stride_unit
from kernels.philox import kept_elements, scale, threshold

Tensor = torch.Tensor

NAME = "bias_gelu_dropout_residual"
ROOT = math.sqrt(2 / math.pi)


def check(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> None:
    """Raise TypeError or ValueError with one sentence unless the chain takes these arguments."""
    check_tensor("x", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; its last dimension must be 1 or more")
    check_tensor("bias", bias, like=x)
    if bias.shape != x.shape[-1:]:
        raise ValueError(
            f"bias has the shape {tuple(bias.shape)}; with x of shape {tuple(x.shape)} it takes "
            f"({x.shape[-1]},)"
        )
    if bias.dtype != x.dtype:
        raise TypeError(f"bias has dtype {bias.dtype} and x {x.dtype}; they must have the same")
    check_same("residual", residual, "x", x)
    threshold(p)
    check_seed_offset(seed_offset, x)


def forward(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    block: Block | None = None,
) -> Tensor:
    """Launch the forward; return y (..., N), contiguous; unchecked."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    n_cols = x.shape[-1]
    x, x_stride = one_row_stride(x)
    residual, residual_stride = one_row_stride(residual)
    unit = stride_unit(n_cols, x_stride, residual_stride)
    block = block or bias_gelu_block(n_cols)
    n_tiles = -(-n_cols // block.cols)
    with device_guard(x):
        bias_gelu_tile[(x.numel() // n_cols * n_tiles,)](
            x,
            bias.contiguous(),
            residual,
            seed_offset.contiguous(),
            y,
            x_row_stride=x_stride // unit,
            residual_row_stride=residual_stride // unit,
            n_tiles=n_tiles,
            n_col_units=n_cols // unit,
            STRIDE_UNIT=unit,
            BLOCK_COLS=block.cols,
            num_warps=block.num_warps,
            **dropping(p, n_cols),
        )
    return y


def simple(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """The chain in one launch, a call of Philox for each element; arguments as the fused one's.

    A number of 24 bits decides over an element, and its counter is the element: so its mask is
    another than the package's. ValueError for p = 1, of which nothing is left to divide by.
    """
    check(x, bias, residual, p, seed_offset)
    refuse_gradients(NAME, x, bias, residual, instead=INSTEAD)
    if p == 1:
        raise ValueError("p is 1.0; this variant divides by 1 − p, so p must be below 1")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    n_cols = x.shape[-1]
    x, x_stride = one_row_stride(x)
    residual, residual_stride = one_row_stride(residual)
    block = bias_gelu_block(n_cols)
    n_tiles = -(-n_cols // block.cols)
    with device_guard(x):
        bias_gelu_simple[(x.numel() // n_cols * n_tiles,)](
            x,
            bias.contiguous(),
            residual,
            seed_offset.contiguous(),
            y,
            x_row_stride=x_stride,
            residual_row_stride=residual_stride,
            n_tiles=n_tiles,
            n_cols=n_cols,
            p=float(p),
            BLOCK_COLS=block.cols,
            num_warps=block.num_warps,
        )
    return y


def strips_over(x: Tensor, configured: Strips | None) -> tuple[Strips, int, int, int]:
    """How strips share x (..., N): the configuration, strips, chunks of rows, rows of a chunk."""
    n_cols = x.shape[-1]
    chosen = configured or strips_configuration(n_cols, x.element_size(), capability(x.device))
    n_strips = -(-n_cols // chosen.block_cols)
    most = max(1, chosen.programs_per_sm * multiprocessors(x.device) // n_strips)
    chunks, rows_each = shared_out(x.numel() // n_cols, most, chosen.block_rows)
    return chosen, n_strips, chunks, rows_each


def backward(
    dy: Tensor,
    x: Tensor,
    bias: Tensor,
    p: float,
    seed_offset: Tensor,
    wants_bias: bool,
    configured: Strips | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Launch the backward; return (dx, dbias), dbias None where not wanted; unchecked."""
    n_cols = x.shape[-1]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dbias = torch.empty(bias.shape, dtype=bias.dtype, device=bias.device) if wants_bias else None
    if dx.numel() == 0:
        if dbias is not None:
            dbias.zero_()
        return dx, dbias
    dy, dy_stride = one_row_stride(dy)
    x, x_stride = one_row_stride(x)
    unit = stride_unit(n_cols, x_stride, dy_stride)
    chosen, n_strips, chunks, rows_each = strips_over(x, configured)
    parts = partials(chunks, n_cols, [False, wants_bias], x.device)
    with device_guard(x):
        gelu_backward_strips[(n_strips * chunks,)](
            dy,
            x,
            None,
            bias.contiguous(),
            None,
            None,
            None,
            None,
            seed_offset.contiguous(),
            dx,
            *parts,
            dy_row_stride=dy_stride // unit,
            x_row_stride=x_stride // unit,
            n_rows=x.numel() // n_cols,
            rows_each=rows_each,
            n_strips=n_strips,
            n_col_units=n_cols // unit,
            STRIDE_UNIT=unit,
            BLOCK_ROWS=chosen.block_rows,
            BLOCK_COLS=chosen.block_cols,
            STAGES=chosen.stages,
            num_warps=chosen.num_warps,
            **dropping(p, n_cols),
        )
        finish(parts, None, dbias)
    return dx, dbias


# --------------------------------------------------------------------------- PyTorch's operators


def gelu_by_operators(h: Tensor) -> Tensor:
    """GELU in the tanh form."""
    return 0.5 * h * (1 + torch.tanh(ROOT * (h + 0.044715 * h * h * h)))


def gelu_slope_by_operators(h: Tensor) -> Tensor:
    """The derivative of GELU in the tanh form."""
    tanh = torch.tanh(ROOT * (h + 0.044715 * h * h * h))
    return 0.5 * (1 + tanh) + 0.5 * h * (1 - tanh * tanh) * ROOT * (1 + 3 * 0.044715 * h * h)


def dropped_out(values: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """`values` where the package's mask keeps them, scaled, else 0."""
    if p == 0:
        return values
    kept = kept_elements(tuple(values.shape), p, seed_offset)
    return torch.where(kept, values * scale(p), 0.0)


def _composed(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    active = gelu_by_operators(x.float() + bias.float())
    return (residual.float() + dropped_out(active, p, seed_offset)).to(x.dtype)


def _backward_composed(
    dy: Tensor, x: Tensor, bias: Tensor, p: float, seed_offset: Tensor, wants_bias: bool
) -> tuple[Tensor, Tensor | None]:
    slope = gelu_slope_by_operators(x.float() + bias.float())
    dh = dropped_out(dy.float(), p, seed_offset) * slope
    dbias = dh.reshape(-1, x.shape[-1]).sum(0).to(bias.dtype) if wants_bias else None
    return dh.to(x.dtype), dbias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, _residual, ctx.p, seed_offset = inputs
    # A copy of the seed would be an operator of its own: it is read again as it stands then.
    ctx.save_for_backward(x, bias, seed_offset)


def _formula(ctx: Any, dy: Tensor) -> Any:
    x, bias, seed_offset = ctx.saved_tensors
    for_x, for_bias, for_residual, _, _ = ctx.needs_input_grad
    dx, dbias = None, None
    if for_x or for_bias:
        dx, dbias = _backward_operator(dy, x, bias, ctx.p, seed_offset, for_bias)
    return (
        dx if for_x else None,
        dbias if for_bias else None,
        dy if for_residual else None,
        None,
        None,
    )


INSTEAD = "the variant fused, or PyTorch's own operators"
_TENSORS = {"x": "*N", "bias": "N", "residual": "*N", "seed_offset": "S"}
_define = functools.partial(
    define,
    launch=forward,
    fake=lambda x, *_: like(x),
    composed=_composed,
    of=[NAME],
    tensors=_TENSORS,
    independent="*",
    checks=check,
)
_ARGUMENTS = "(Tensor x, Tensor bias, Tensor residual, float p, Tensor seed_offset) -> Tensor"
_with_grad = _define(f"{NAME}_with_grad{_ARGUMENTS}", gradient=Gradient(_keep, _formula))
operator = _define(f"{NAME}{_ARGUMENTS}", trained=_with_grad)
_backward_operator = define(
    f"{NAME}_backward(Tensor dy, Tensor x, Tensor bias, float p, Tensor seed_offset, "
    "bool wants_bias) -> (Tensor, Tensor)",
    backward,
    lambda dy, x, bias, p, seed_offset, wants_bias: (like(x), like(bias) if wants_bias else None),
    _backward_composed,
    of=[NAME],
    tensors={"dy": "*N", "x": "*N", "bias": "N", "seed_offset": "S"},
    independent="*",
)
refuse_second_derivative(
    f"{NAME}_backward", "chains have", "torch.nn.functional.gelu, dropout and a sum"
)
