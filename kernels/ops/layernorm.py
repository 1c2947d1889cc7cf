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
import math
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import capability
from kernels.ops import _layernorm_cuda as in_cuda
from kernels.ops._layernorm_peers import (
    MAX_AUTOTUNE_CELLS,
    compiled,
    helion,
    liger,
    max_autotuned,
    needs_gpu,
    needs_helion,
    needs_liger,
    torch_layer_norm,
)
from kernels.ops._layout import check_norm, collapse_rows, device_guard, refuse_gradients
from kernels.registry import DTYPES, Cost, Op, Shape, Tolerance, Variant, register

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


@triton.jit(do_not_specialize=["n_inner"])  # specialized to 1, a wide fp32 row spills
def layer_norm_row(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner,
    n_groups,
    eps,
    GROUP: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # One program a row. The row is loaded once and stays in registers: that is the fusion.
    # Strides come in groups of GROUP elements: so the compiler knows what divides every address,
    # and a row of 5000 is loaded 16 bytes at a time like one of 8192.
    n_cols = n_groups * GROUP
    row = tl.program_id(0).to(tl.int64)
    x_row = row // n_inner * x_outer_stride + row % n_inner * x_inner_stride
    x_row_ptr = x_ptr + x_row * GROUP
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
    x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=0.0).to(tl.float32)

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


@triton.jit
def layer_norm_tiles(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    x_outer_stride,
    x_inner_stride,
    x_col_stride,
    n_inner,
    n_groups,
    eps,
    GROUP: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDE_OFFSETS: tl.constexpr,
):
    # A row too wide for the registers: the state (count, mean, sum of squares) merges tile by
    # tile, and a second loop reads x again to normalize it.
    n_cols = n_groups * GROUP
    row = tl.program_id(0).to(tl.int64)
    x_row = row // n_inner * x_outer_stride + row % n_inner * x_inner_stride
    x_row_ptr = x_ptr + x_row * GROUP
    mean = 0.0
    squares = 0.0
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
        x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=0.0).to(tl.float32)
        size = tl.minimum(n_cols - start, BLOCK_COLS).to(tl.float32)
        tile_mean = tl.sum(x, axis=0) / size
        centred = tl.where(mask, x - tile_mean, 0.0)
        # Chan's merge of the tile's state into the row's.
        delta = tile_mean - mean
        share = size / (start + size)
        mean += delta * share
        squares += tl.sum(centred * centred, axis=0) + delta * delta * start * share

    inv_std = tl.rsqrt(squares / n_cols + eps)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x_cols = cols.to(tl.int64) if WIDE_OFFSETS else cols
        x = tl.load(x_row_ptr + x_cols * x_col_stride, mask=mask, other=0.0).to(tl.float32)
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


@functools.cache
def configuration(n_cols: int, capability: tuple[int, int]) -> tuple[int, int]:
    """Return (BLOCK_COLS, num_warps) for a row of `n_cols` on a card of `capability`."""
    known = [card for card in CONFIGURATIONS if card <= capability]
    table = CONFIGURATIONS[max(known, default=min(CONFIGURATIONS))]
    block = min(triton.next_power_of_2(n_cols), table[-1][0])
    return block, next(warps for largest, warps in table if block <= largest)


def _launch(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    n_cols = x.shape[-1]
    block, num_warps = configuration(n_cols, capability(x.device))
    if n_cols > 16384:
        group = math.gcd(16, n_cols, *x.stride()[:-1])
        if x.stride(-1) != 1 or group * x.element_size() < 16:
            block, num_warps = RAGGED
    return launch(x, weight, bias, eps, block, num_warps)


def launch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    block_cols: int,
    num_warps: int,
) -> Tensor:
    """Launch the kernel in a configuration of your own; arguments as `layer_norm`, unchecked."""
    n_cols = x.shape[-1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.numel() // n_cols
    if rows == 0:
        return y
    x, outer_stride, inner_stride, n_inner = collapse_rows(x)
    group = math.gcd(16, n_cols, outer_stride, inner_stride)
    kernel = layer_norm_row if n_cols <= block_cols else layer_norm_tiles
    with device_guard(x):
        kernel[(rows,)](
            x,
            None if weight is None else weight.contiguous(),
            None if bias is None else bias.contiguous(),
            y,
            outer_stride // group,
            inner_stride // group,
            x.stride(-1),
            n_inner,
            n_cols // group,
            eps,
            GROUP=group,
            BLOCK_COLS=block_cols,
            WIDE_OFFSETS=(n_cols - 1) * x.stride(-1) >= 2**31,
            num_warps=num_warps,
        )
    return y


def candidates(shape: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """The configurations that `tune` times at a shape, as functions of `inputs`, by name."""
    block = triton.next_power_of_2(shape[-1])
    found: dict[str, Any] = {}
    for warps in (1, 2, 4, 8, 16, 32):
        for size, name in ((block, "row"), (16384, "tiles of 16384"), (8192, "tiles of 8192")):
            per_thread = size // (32 * warps)
            if 2 <= per_thread <= 128 and (name == "row") == (size == block) and size <= 32768:
                found[f"{name}, {warps} warps"] = functools.partial(
                    launch, eps=1e-5, block_cols=size, num_warps=warps
                )
    return found


_library = torch.library.Library("fusing_kernels", "FRAGMENT")
_library.define("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor")
_library.impl("layer_norm", _launch, "CPU")
_library.impl("layer_norm", _launch, "CUDA")


@torch.library.register_fake("fusing_kernels::layer_norm", lib=_library)
def _fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


# Through the dispatcher, so that fake tensors, ledgers and torch.compile see one operator. No
# autograd formula is registered: in Python it would cost every call some 10 µs.
_operator = torch.ops.fusing_kernels.layer_norm.default


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """LayerNorm over the last dimension of `x`, in one launch.

    x: (..., N) in fp16, bf16 or fp32, any strides, N at least 1. weight, bias: (N,) in one of
    these dtypes, or None. Sums are in fp32. Returns a new contiguous tensor of x's shape and
    dtype. On a GPU the kernel is compiled; on a CPU it is interpreted. ValueError or TypeError
    names the argument, what it got and what it takes.

    A row of up to 16384 columns is read once, a wider one twice; on Hopper and B200 one of up to
    32768 is read once too, if all rows start at multiples of 16 bytes. Leading dimensions that
    don't collapse to two strides are copied first, which is one more launch.
    """
    check_norm(x, weight, bias)
    refuse_gradients("layer_norm", x, weight, bias)
    result: Tensor = _operator(x, weight, bias, eps)
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
    """Fresh random x (rows, N), weight (N,) and bias (N,), none of them centred on 0."""
    rows, n_cols = shape
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    return {
        "x": (mean + spread * normal(rows, n_cols)).to(dtype),
        "weight": (1.0 + 0.5 * normal(n_cols)).to(dtype),
        "bias": normal(n_cols).to(dtype),
    }


def cost(shape: Shape, dtype: torch.dtype, pass_: str) -> Cost:
    """What LayerNorm with weight and bias must do at least.

    An element costs 7 FLOPs: 1 into the sum, 1 to centre, 2 into the sum of squares, 1 to scale by
    1/√(var + eps), 2 for weight and bias. A row costs 4 more: two divisions, one sum, one rsqrt.
    """
    if pass_ != "fwd":
        raise ValueError(f"pass {pass_!r} of layernorm has no cost; it takes 'fwd'")
    rows, n_cols = shape
    return Cost(
        flops=rows * (7 * n_cols + 4),
        read_bytes=(rows + 2) * n_cols * dtype.itemsize,
        write_bytes=rows * n_cols * dtype.itemsize,
    )


def tolerance(dtype: torch.dtype, shape: Shape) -> Tolerance:
    """The output's rounding, and fp32 sums of N terms in a tree: log2(N) roundings, some twice."""
    unit = torch.finfo(dtype).eps / 2
    sums = 4 * 2.0**-24 * (2 + math.log2(max(shape[-1], 2)))
    return Tolerance(relative_norm=unit + sums, largest=2 * unit + sums)


OP = register(
    Op(
        name="layernorm",
        suite="norms",
        inputs=inputs,
        reference=reference,
        variants={
            "eager": Variant("eager", eager, counted="aten"),
            "torch": Variant("torch", torch_layer_norm, counted="aten"),
            "compile": Variant("compile", compiled, unavailable=needs_gpu),
            "compile_max_autotune": Variant(
                "compile_max_autotune",
                max_autotuned,
                unavailable=needs_gpu,
                cells=MAX_AUTOTUNE_CELLS,
            ),
            **{
                name: Variant(name, fn, counted="cuda", unavailable=in_cuda.needs_cuda)
                for name, fn in in_cuda.VARIANTS.items()
            },
            "fused": Variant("fused", layer_norm, counted="triton"),
            "liger": Variant("liger", liger, unavailable=needs_liger),
            "helion": Variant("helion", helion, unavailable=needs_helion),
        },
        cost=cost,
        tolerance=tolerance,
        shapes=(
            (512, 1024),
            (2048, 4096),
            (4096, 4096),
            (4096, 8192),
            (8192, 16384),
            (16384, 8192),
            (65536, 1024),
        ),
        dtypes=tuple(DTYPES.values()),
        rows_independent=True,
        operators=("layer_norm",),
        candidates=candidates,
    )
)
