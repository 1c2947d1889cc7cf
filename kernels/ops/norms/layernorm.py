"""LayerNorm over the last dimension (chapters 02, 05, 06).

    mean = Σ x / N,   var = Σ (x − mean)² / N,   y = (x − mean) / √(var + eps) · weight + bias

x and y have the shape (..., N); weight and bias have N elements each, and either may be missing.
With R rows and elements of s bytes, one pass over memory reads R·N·s of x and N·s of weight and
bias each, and writes R·N·s: 4 bytes an element in 16 bits, against 60 for the same maths done
operation by operation in fp32.

Sources: Ba, Kiros, Hinton, "Layer Normalization" (arXiv:1607.06450); Chan, Golub, LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances" (1979), for the merge.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import capability
from kernels.ops.norms import common
from kernels.ops.norms import layernorm_cuda as in_cuda
from kernels.ops.norms.configurations import forward_block
from kernels.ops.norms.forward import forward
from kernels.ops.norms.moves import moves, one_block_moves
from kernels.ops.norms.operators import norm_train
from kernels.ops.norms.peers import (
    compiled_layer_norm,
    helion_layer_norm,
    liger_layer_norm,
    max_autotuned_layer_norm,
    torch_layer_norm,
)
from kernels.ops.norms.tuning import backward_candidates, candidates
from kernels.ops.shared.arguments import check_norm, refuse_gradients
from kernels.ops.shared.available import (
    MAX_AUTOTUNE_CASES,
    needs_gpu,
    needs_helion,
    needs_liger,
)
from kernels.ops.shared.blocks import Block
from kernels.ops.shared.operators import define, device_guard, like
from kernels.ops.shared.rows import one_row_stride
from kernels.registry import Backward, Case, Op, Pass, Variant, cases, named, register

Tensor = torch.Tensor


def reference(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """LayerNorm in float64, straight from the equation; x (..., N), returns float64 (..., N)."""
    x = x.double()
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt(variance + eps)
    y = y if weight is None else y * weight.double()
    return y if bias is None else y + bias.double()


def eager(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; returns x's dtype."""
    x32 = x.float()
    mean = x32.mean(-1, keepdim=True)
    centred = x32 - mean
    variance = (centred * centred).mean(-1, keepdim=True)
    y = centred * torch.rsqrt(variance + eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype)


@triton.jit
def layer_norm_loops(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, n_cols, eps, BLOCK_COLS: tl.constexpr
):
    # A loop for the mean, one for the variance, one for the output: each asks for the row again.
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride
    total = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        total += tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n_cols
    squares = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        centred = tl.where(cols < n_cols, x - mean, 0.0)
        squares += centred * centred
    inv_std = tl.rsqrt(tl.sum(squares, axis=0) / n_cols + eps)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        y = (tl.load(x_row_ptr + cols, mask=mask, other=0.0).to(tl.float32) - mean) * inv_std
        if weight_ptr is not None:
            y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm_row(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, n_cols, eps, BLOCK_COLS: tl.constexpr
):
    # The block holds the row: it is loaded once, and stays in registers until it is normalised.
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    # Masked lanes hold 0, not the mean: without the select each would add mean² to the sum.
    centred = tl.where(mask, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / n_cols
    y = centred * tl.rsqrt(variance + eps)
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def _taught(
    kernel: Any, block: Block, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Launch one of the two kernels above, a program a row."""
    check_norm(x, weight, bias)
    refuse_gradients("layer_norm", x, weight, bias)
    x, row_stride = one_row_stride(x)
    n_cols = x.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel() > 0:
        weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
        with device_guard(x):
            kernel[(x.numel() // n_cols,)](
                x,
                weight,
                bias,
                y,
                x_row_stride=row_stride,
                n_cols=n_cols,
                eps=eps,
                BLOCK_COLS=block.cols,
                num_warps=block.num_warps,
            )
    return y


def tutorial(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """LayerNorm by three loops over the row, in blocks of at most 64 KiB, at most 8 warps.

    So does Triton's own tutorial, whose block and warps these are; arguments as `layer_norm`.
    """
    cols = min(65536 // x.element_size(), triton.next_power_of_2(x.shape[-1]))
    block = Block(cols, num_warps=min(max(cols // 256, 1), 8))
    return _taught(layer_norm_loops, block, x, weight, bias, eps)


def simple(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """LayerNorm with a row in one block, in one launch; arguments as `layer_norm`.

    ValueError for a row that no block holds, of more than 32768 columns.
    """
    block = forward_block(x.shape[-1], capability(x.device))
    if x.shape[-1] > block.cols:
        raise ValueError(f"x has {x.shape[-1]} columns; one block holds {block.cols} at most here")
    return _taught(layer_norm_row, block, x, weight, bias, eps)


def one_block_holds(case: Case) -> bool:
    """Whether a row fits into one block on the card at hand."""
    n_cols = case.shape[-1]
    return n_cols <= forward_block(n_cols, capability(torch.device("cpu"))).cols


def _launch(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return forward(x, None, weight, bias, eps, centred=True)[0]


# Through the dispatcher, so that fake tensors, ledgers and torch.compile see one operator.
CALL = define(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    _launch,
    lambda x, weight, bias, eps: like(x),
    eager,
    of=["layernorm"],
    tensors=common.operator_dims("x", "weight", "bias"),
    independent="*",
    checks=lambda x, weight, bias, _eps: check_norm(x, weight, bias),
    trained=lambda x, weight, bias, eps: norm_train(x, None, weight, bias, eps, True)[0],
)


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """LayerNorm over the last dimension of `x`, in one launch.

    x: (..., N) in fp16, bf16 or fp32, any strides, N at least 1. weight, bias: (N,) in one of
    these dtypes, or None. Sums are in fp32. Returns a new contiguous tensor of x's shape and
    dtype. On a GPU the kernel is compiled; on a CPU it is interpreted. ValueError or TypeError
    names the argument, what it got and what it takes.

    A row of up to 16384 columns is read once, a wider one twice; on Hopper and B200 one of up to
    32768 in 16 bits is read once too, if all rows start at multiples of 16 bytes. Leading
    dimensions that don't collapse to two strides are copied first, which is one more launch.

    Inside a transform of `torch.func` (vmap, grad, jvp and those made of them) and in forward-mode
    differentiation PyTorch's operators compute it, one after the other, as in `eager`.
    NotImplementedError if a gradient that backward() made is differentiated again.
    """
    result: Tensor = CALL(x, weight, bias, eps)
    return result


BOTH = ("fwd", "bwd")
TENSORS = ("x", "weight", "bias")

OP = register(
    Op(
        name="layernorm",
        suite="norms",
        dims="RN",
        tensors=common.dims(TENSORS),
        outputs=common.outputs(TENSORS),
        independent="R",
        inputs=functools.partial(common.inputs, TENSORS),
        reference=reference,
        variants=named(
            Variant("eager", eager, BOTH, counted="aten"),
            Variant("torch", torch_layer_norm, BOTH, counted="aten"),
            Variant("compile", compiled_layer_norm, BOTH, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune",
                max_autotuned_layer_norm,
                unavailable=needs_gpu,
                cases=MAX_AUTOTUNE_CASES,
            ),
            *in_cuda.VARIANTS,
            Variant("tutorial", tutorial, counted="triton"),
            Variant(
                "fused_simple",
                simple,
                counted="triton",
                moves=one_block_moves(TENSORS),
                fits=one_block_holds,
            ),
            Variant("fused", layer_norm, BOTH, counted="triton", moves=moves(TENSORS)),
            Variant("liger", liger_layer_norm, BOTH, unavailable=needs_liger),
            Variant("helion", helion_layer_norm, unavailable=needs_helion),
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        forward=Pass(
            cost=common.forward_cost(TENSORS),
            tolerance=common.forward_tolerance(TENSORS),
            candidates=candidates(centred=True),
            beyond=cases([(1, 1001), (1, 4095), (1, 20_000), (1, 20_001)]),
        ),
        backward=Backward(
            cost=common.backward_cost(TENSORS),
            tolerance=common.backward_tolerance(TENSORS),
            cases=common.STEPS + cases(common.LARGE, "bf16") + cases([(4096, 4096)], "fp32"),
            candidates=backward_candidates(centred=True),
            differentiates=TENSORS,
            train_cases=common.STEPS,
            beyond=common.BEYOND_BACK,
        ),
    )
)
