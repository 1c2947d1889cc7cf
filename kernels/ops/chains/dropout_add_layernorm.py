"""Dropout, residual and LayerNorm, as they stand between the blocks of a transformer in training.

    h = residual + dropout(x),   y = LayerNorm(h) · weight + bias

x, residual, h and y have the shape (..., N). Both outputs are wanted: y goes into the next block, h
past it as the next residual. In one launch x and residual are read, h and y written: 4·R·N·s bytes
for R rows and elements of s bytes, where dropout, sum and norm one after the other move 7 and the
mask twice. Kept for the way back are h, which is an output, and 8 bytes a row; the mask is made
again. Back, the norm's gradient is the residual's, and dropped as x was it is x's.

Sources: those of `add_layernorm`; Srivastava et al., "Dropout" (JMLR 15, 2014).
"""

from __future__ import annotations

import torch

from kernels.ops.chains.dropped_operators import normed_operator
from kernels.ops.norms import layernorm
from kernels.philox import kept_elements, scale

Tensor = torch.Tensor


def reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """(y, h) in float64, straight from the equation; all (..., N)."""
    kept = kept_elements(tuple(x.shape), p, seed_offset)
    h = residual.double() + x.double() * scale(p) * kept
    return layernorm.reference(h, weight, bias, eps), h


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    p: float,
    seed_offset: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Return (LayerNorm(h), h) of h = residual + dropout(x, p), in one launch.

    x, residual: (..., N) in fp16, bf16 or fp32, of one shape and dtype; weight, bias: (N,) in one
    of these, or None. p: the probability to drop, 0 to 1. seed_offset: int64 (2,), the seed and the
    number of the call, in the memory of x's device; None is for p = 0 alone. The sum is rounded to
    x's dtype, and what is normalised is the rounded sum. Rows of more than 16384 columns (8192 in
    fp32, or where 16 bytes are not loaded at a time) take two launches. Its backward takes three:
    the norm's two, and the dropout's.

    The backward makes the mask again from seed_offset as it stands then: change it between steps,
    not between a forward and its backward. ValueError or TypeError names the argument, what it got
    and what it takes; NotImplementedError if a gradient that backward() made is differentiated
    again. Inside a transform of `torch.func` PyTorch's operators compute it, with the same mask.
    """
    result: tuple[Tensor, Tensor] = normed_operator(x, residual, weight, bias, seed_offset, p, eps)
    return result
