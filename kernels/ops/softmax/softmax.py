"""Softmax over the last dimension, forward and backward (chapters 06, 07, 11).

    y = exp(x − max x) / Σ exp(x − max x),      dx = y · (dy − Σ dy · y)

x, y, dy and dx have the shape (..., N). With R rows and elements of s bytes, the forward pass reads
R·N·s bytes and writes as many; the backward pass reads y and dy and writes dx: 3·R·N·s. Both read a
row once while it fits the registers, and a wider one twice.

A row seen in part has the state (m, s): its largest element so far, and Σ exp(x − m). Two states
merge into M = max(m₁, m₂) and s₁ exp(m₁ − M) + s₂ exp(m₂ − M), in any order.

Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import capability, for_card
from kernels.ops.norms.common import SHAPES, cells
from kernels.ops.norms.forward import CONFIGURATIONS
from kernels.ops.shared.arguments import check_norm
from kernels.ops.shared.available import MAX_AUTOTUNE_CELLS, needs_gpu, needs_helion
from kernels.ops.shared.operators import (
    LIBRARY,
    define,
    device_guard,
    in_forward_mode,
    like,
    needs_gradient,
    refuse_second_derivative,
)
from kernels.ops.softmax.backward import (
    TILES,
    first_fit,
    in_groups,
    launch_backward,
    softmax_backward,
    to_try,
)
from kernels.ops.softmax.peers import (
    compiled,
    helion,
    liger,
    max_autotuned,
    needs_liger_softmax,
    torch_softmax,
)
from kernels.registry import DTYPES, Cost, Op, Shape, Tolerance, Variant, register

Tensor = torch.Tensor


def reference(x: Tensor) -> Tensor:
    """Softmax in float64, straight from the equation; x (..., N), returns float64 (..., N)."""
    x = x.double()
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def eager(x: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; returns x's dtype."""
    x32 = x.float()
    e = torch.exp(x32 - x32.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def eager_backward(dy: Tensor, y: Tensor) -> Tensor:
    """The gradient of x by the equation above, in fp32; returns y's dtype."""
    dy32, y32 = dy.float(), y.float()
    return (y32 * (dy32 - (dy32 * y32).sum(-1, keepdim=True))).to(y.dtype)


# A GPU's instruction computes 2^x: exp(x) = 2^(x · log2 e). The largest element is subtracted
# before the factor, not after: the difference of two near fp32 numbers is exact, their products'
# is not.
LOG2E = tl.constexpr(math.log2(math.e))
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


@triton.jit(do_not_specialize=["n_inner"])  # specialized to 1, some wide rows spill
def softmax_row(
    x_ptr,
    y_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner,
    n_groups,
    GROUP: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # One program a row, which is loaded once and stays in registers. Strides come in groups of
    # GROUP elements: so the compiler knows what divides every address, and loads 16 bytes at a
    # time where the rows allow it.
    n_cols = n_groups * GROUP
    row = tl.program_id(0).to(tl.int64)
    x_row = row // n_inner * x_outer_stride + row % n_inner * x_inner_stride
    x_row_ptr = x_ptr + x_row * GROUP
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
    # Masked lanes hold −inf, which is neither the largest nor adds to the sum.
    x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=-float("inf")).to(tl.float32)

    e = tl.exp2((x - tl.max(x, axis=0)) * LOG2E)
    y = e * (1.0 / tl.sum(e, axis=0))  # one division a row, not one an element
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["n_inner"])
def softmax_tiles(
    x_ptr,
    y_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner,
    n_groups,
    GROUP: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # A row too wide for the registers. Each lane keeps the state (m, s) of the elements it has
    # seen, so no tile waits for a reduction over the block; the lanes' states merge at the end, and
    # a second loop reads x again.
    n_cols = n_groups * GROUP
    row = tl.program_id(0).to(tl.int64)
    x_row = row // n_inner * x_outer_stride + row % n_inner * x_inner_stride
    x_row_ptr = x_ptr + x_row * GROUP
    # From the lowest finite number, not from −inf: −inf − (−inf) would be NaN, and an element of
    # −inf adds 0 to the sum as it should.
    m = tl.full([BLOCK_COLS], LOWEST, tl.float32)
    s = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
        x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=-float("inf"))
        x = x.to(tl.float32)
        # The state of one element is (x, 1). Of the two factors of the merge one is 1, so a
        # single exponential is enough.
        e = tl.exp2(-tl.abs(x - m) * LOG2E)
        s = tl.where(x > m, s * e + 1.0, s + e)
        m = tl.maximum(m, x)

    largest = tl.max(m, axis=0)
    inverse = 1.0 / tl.sum(s * tl.exp2((m - largest) * LOG2E), axis=0)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
        x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=-float("inf"))
        y = tl.exp2((x.to(tl.float32) - largest) * LOG2E) * inverse
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def configuration(n_cols: int, capability: tuple[int, int]) -> tuple[int, int]:
    """Return (BLOCK_COLS, num_warps) of the forward kernel for a row of `n_cols` on a card.

    They are the norms': one row in registers, read once and written once, is the same work for the
    memory. On an H100 0.95 of a copy or more in every cell of the suite but 512×1024.
    """
    return first_fit(for_card(CONFIGURATIONS, capability), n_cols)


def _launch(x: Tensor) -> Tensor:
    n_cols = x.shape[-1]
    block, num_warps = configuration(n_cols, capability(x.device))
    # Where a wide row can't be loaded 16 bytes at a time, an address an element takes registers
    # too, and a block that holds the row spills.
    group = math.gcd(16, n_cols, *x.stride()[:-1])
    if block > 16384 and (x.stride(-1) != 1 or group * x.element_size() < 16):
        block, num_warps = TILES
    return launch(x, block, num_warps)


def launch(x: Tensor, block_cols: int, num_warps: int) -> Tensor:
    """Launch the kernel in a configuration of your own; x as `softmax` takes it, unchecked."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.numel() // x.shape[-1]
    if rows == 0:
        return y
    x, numbers, group, wide_offsets = in_groups(x)
    kernel = softmax_row if x.shape[-1] <= block_cols else softmax_tiles
    with device_guard(x):
        kernel[(rows,)](
            x,
            y,
            *numbers,
            GROUP=group,
            BLOCK_COLS=block_cols,
            WIDE_OFFSETS=wide_offsets,
            num_warps=num_warps,
        )
    return y


def candidates(shape: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """The forward configurations that `tune` times at a shape, as functions of `inputs`."""
    return {
        name: functools.partial(launch, block_cols=block, num_warps=warps)
        for name, (block, warps) in to_try(shape[-1]).items()
    }


class _Configured(torch.autograd.Function):
    """Softmax that goes back in a configuration of one's own: only to find out which is best."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block_cols: int, num_warps: int) -> Tensor:
        y = _launch(x)
        ctx.save_for_backward(y)
        ctx.configuration = block_cols, num_warps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return launch_backward(dy, *ctx.saved_tensors, *ctx.configuration), None, None


def backward_candidates(shape: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """The backward configurations that `tune` times, as functions of `inputs` to go back through"""

    def configured(block_cols: int, num_warps: int) -> Any:
        return lambda x: _Configured.apply(x, block_cols, num_warps)

    return {name: configured(*chosen) for name, chosen in to_try(shape[-1]).items()}


# One operator for each case, since an autograd formula in Python costs every call some 10 µs: the
# first has none, and is called where nobody asks for a gradient.
_operator = define("softmax(Tensor x) -> Tensor", _launch, like, eager)
_operator_with_grad = define("softmax_with_grad(Tensor x) -> Tensor", _launch, like, eager)
_backward_operator = define(
    "softmax_backward(Tensor dy, Tensor y) -> Tensor",
    softmax_backward,
    lambda dy, y: like(y),
    eager_backward,
)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _gradient(ctx: Any, dy: Tensor) -> Any:
    return _backward_operator(dy, *ctx.saved_tensors)


torch.library.register_autograd(
    "fusing_kernels::softmax_with_grad", _gradient, setup_context=_save, lib=LIBRARY
)
refuse_second_derivative("softmax_backward", "softmax has", "torch.softmax")


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension of `x`, in one launch; its backward pass is one more.

    x: (..., N) in fp16, bf16 or fp32, any strides, N at least 1. The sum is in fp32. Returns a new
    contiguous tensor of x's shape and dtype, which the backward pass reads instead of x. An element
    of −inf gives 0; a row of nothing else gives NaN, as does a row that holds NaN or +inf: PyTorch
    does the same. On a GPU the kernels are compiled; on a CPU they are interpreted. ValueError or
    TypeError names the argument, what it got and what it takes; NotImplementedError if a gradient
    that backward() made is differentiated again. Inside a transform of `torch.func` and in
    forward-mode differentiation PyTorch's operators compute it, as in `eager`.

    A row of up to 16384 columns is read once, a wider one twice; going forward on Hopper and B200
    one of up to 32768 is read once too, if all rows start at multiples of 16 bytes. Leading
    dimensions that don't collapse to two strides are copied first, which is one more launch.
    """
    check_norm(x, None, None)
    if in_forward_mode():
        return eager(x)
    result: Tensor = (_operator_with_grad if needs_gradient(x) else _operator)(x)
    return result


def inputs(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    mean: float = 0.5,
    spread: float = 1.5,
) -> dict[str, Any]:
    """Fresh random x (rows, N), not centred on 0."""
    generator = torch.Generator(device=device).manual_seed(seed)
    x = torch.randn(*shape, generator=generator, device=device)
    return {"x": (mean + spread * x).to(dtype)}


def cost(shape: Shape, dtype: torch.dtype, pass_: str) -> Cost:
    """What softmax must do at least.

    Forward an element costs 5 FLOPs: 1 into the largest, 1 to subtract it, 1 for exp, 1 into the
    sum, 1 to divide. Backward it costs 4: 2 into Σ dy · y, 1 to subtract it, 1 to multiply by y.
    """
    if pass_ not in ("fwd", "bwd"):
        raise ValueError(f"pass {pass_!r} of softmax has no cost; it takes 'fwd' or 'bwd'")
    rows, n_cols = shape
    size = rows * n_cols * dtype.itemsize
    if pass_ == "bwd":
        return Cost(flops=4 * rows * n_cols, read_bytes=2 * size, write_bytes=size)
    return Cost(flops=5 * rows * n_cols, read_bytes=size, write_bytes=size)


def tolerance(dtype: torch.dtype, shape: Shape) -> Tolerance:
    """The output's rounding, and fp32 sums of N terms in a tree: log2(N) roundings, some twice.

    An element below the normal numbers is off by up to half their smallest step, whatever its own
    size; as the elements add up to 1, ‖y‖ ≥ 1/√N and max y ≥ 1/N. That decides in wide fp16 rows.
    """
    info = torch.finfo(dtype)
    unit = info.eps / 2
    sums = 4 * 2.0**-24 * (2 + math.log2(max(shape[-1], 2)))
    small = shape[-1] * unit * info.smallest_normal
    return Tolerance(relative_norm=unit + sums + small, largest=2 * unit + sums + small)


def gradient_tolerance(name: str, dtype: torch.dtype, shape: Shape) -> Tolerance:
    """The roundings of y, of Σ dy · y that comes from it, and of dx: three outputs' worth.

    For gradients dy of any sign and no element of y near 1, where dy − Σ dy · y would cancel.
    """
    one = tolerance(dtype, shape)
    return Tolerance(relative_norm=3 * one.relative_norm, largest=3 * one.largest)


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name="softmax",
        suite="norms",
        inputs=inputs,
        reference=reference,
        variants={
            "eager": Variant("eager", eager, _BOTH, counted="aten"),
            "torch": Variant("torch", torch_softmax, _BOTH, counted="aten"),
            "compile": Variant("compile", compiled, _BOTH, unavailable=needs_gpu),
            "compile_max_autotune": Variant(
                "compile_max_autotune",
                max_autotuned,
                unavailable=needs_gpu,
                cells=MAX_AUTOTUNE_CELLS,
            ),
            "fused": Variant("fused", softmax, _BOTH, counted="triton"),
            "liger": Variant("liger", liger, _BOTH, unavailable=needs_liger_softmax),
            "helion": Variant("helion", helion, unavailable=needs_helion),
        },
        cost=cost,
        tolerance=tolerance,
        shapes=SHAPES,
        dtypes=tuple(DTYPES.values()),
        rows_independent=True,
        operators=("softmax", "softmax_with_grad", "softmax_backward"),
        candidates=candidates,
        backward_candidates=backward_candidates,
        cells={
            "fwd": cells(SHAPES, "bf16") + cells([(4096, 4096), (8192, 16384)], "fp32"),
            "bwd": cells([(4096, 4096), (16384, 8192), (8192, 16384)], "bf16"),
        },
        differentiates=("x",),
        gradient_tolerance=gradient_tolerance,
    )
)
