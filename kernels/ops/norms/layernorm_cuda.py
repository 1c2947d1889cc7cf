"""LayerNorm in CUDA C++: a chain of four launches, and the way from it to one good kernel.

The kernels stand in `layernorm.cu` beside this file. On a GPU they are compiled by NVRTC, on a CPU
they run on the emulator. Each variant adds one idea to the one before it:

    cuda_1        four launches: mean, variance, normalise, scale and shift; a thread sums a row
    cuda_2        a block sums a row: neighbouring threads read neighbouring addresses
    unfused_cuda  the block's sums by warp shuffles in place of a tree in shared memory
    cuda_3        one launch: nothing between the steps goes to memory, but x is read three times
    cuda_4        16 bytes a load
    fused_cuda    the row is held in registers: x is read once
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from kernels import cuda
from kernels.hardware import VECTOR_BYTES, WARP_THREADS
from kernels.ops.shared.arguments import check_norm, refuse_gradients
from kernels.ops.shared.available import needs_cuda
from kernels.ops.shared.cuda_types import CUDA_TYPES
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import one_row_stride
from kernels.registry import Case, Moves, Variant

Tensor = torch.Tensor

FILE = Path(__file__).with_name("layernorm.cu")
_THREADS = 256  # of a block, where the width doesn't choose; the tree of cuda_2 is made for it
_SUMS = ("_by_threads", "_by_tree", "")  # how the chain sums a row: the ends of kernels' names
# How many elements a thread of `layer_norm` may hold; 16 times as many threads are in a block then,
# at most. It holds two packs or more, so that it has two loads under way. Beyond the last size
# registers spill, on one card of those it is compiled for or another.
# The kernels here were not timed in other sizes. For the one in Triton the same threads were the
# fastest on an H100 at 1024, 4096 and 16384 columns, and within 0.5 % of them at 8192 (see
# `configurations.FORWARD`).
_HELD = {"vector": (8, 16, 32), "scalar": (8, 16)}
_THREADS_PER_HELD = 16


def _vector(dtype: torch.dtype) -> int:
    """How many elements a load of 16 bytes takes."""
    return VECTOR_BYTES // dtype.itemsize


@functools.cache
def module(dtype: torch.dtype) -> cuda.Module:
    """The kernels for one dtype; those of even rows are compiled in one go with no GPU."""
    kind, vector = CUDA_TYPES[dtype], _vector(dtype)
    names = ["normalise", "scale_shift"]
    names += [f"row_{what}{how}" for what in ("mean", "variance") for how in _SUMS]
    instances = [f"{name}<{kind}>" for name in names]
    instances += [f"layer_norm_loops<{kind}, {width}>" for width in (1, vector)]
    held_packs = [held // vector for held in _HELD["vector"] if held >= 2 * vector]
    instances += [f"layer_norm<{kind}, {vector}, {packs}>" for packs in held_packs]
    return cuda.cuda(FILE.read_text(encoding="utf-8"), instances=instances)


@functools.cache
def _kernel(name: str, dtype: torch.dtype, *numbers: int) -> cuda.Kernel:
    arguments = ", ".join([CUDA_TYPES[dtype], *map(str, numbers)])
    return module(dtype)[f"{name}<{arguments}>"]


def whole_warps(wanted: int, most: int) -> int:
    """A whole number of warps, `wanted` threads or a few more, and no more than `most`."""
    return min(-(-wanted // WARP_THREADS) * WARP_THREADS, most)


def check_dtypes(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    """TypeError with one sentence unless the parameters have x's dtype."""
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and parameter.dtype != x.dtype:
            raise TypeError(
                f"{name} has dtype {parameter.dtype}; with x of {x.dtype} the kernels in CUDA C++ "
                f"take {x.dtype}"
            )


def _checked(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, int, int]:
    """x with columns side by side, its rows, and the elements from one row to the next."""
    check_norm(x, weight, bias)
    check_dtypes(x, weight, bias)
    refuse_gradients("layer_norm", x, weight, bias)
    x, stride = one_row_stride(x)
    return x, x.numel() // x.shape[-1], stride


def _contiguous(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.contiguous()


def _chain(sums: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    x, rows, stride = _checked(x, weight, bias)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    n_cols, dtype = x.shape[-1], x.dtype
    mean, variance = (torch.empty(rows, device=x.device) for _ in range(2))
    normalised = torch.empty(x.shape, device=x.device)  # fp32: rounding waits for the end
    by_row = (rows, _THREADS)
    by_thread = (-(-rows // WARP_THREADS), WARP_THREADS)  # small blocks: few rows reach many SMs
    sizes, launch = ((rows, n_cols), by_thread) if sums == "_by_threads" else ((n_cols,), by_row)
    with device_guard(x):
        _kernel(f"row_mean{sums}", dtype)[launch](x, mean, *sizes, stride)
        _kernel(f"row_variance{sums}", dtype)[launch](x, mean, variance, *sizes, stride)
        _kernel("normalise", dtype)[by_row](x, mean, variance, normalised, n_cols, stride, eps)
        _kernel("scale_shift", dtype)[by_row](
            normalised, _contiguous(weight), _contiguous(bias), y, n_cols
        )
    return y


def cuda_1(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Four launches, a thread a row where a row is summed; arguments as `fused`."""
    return _chain("_by_threads", x, weight, bias, eps)


def cuda_2(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Four launches, a block a row, sums in shared memory; arguments as `fused`."""
    return _chain("_by_tree", x, weight, bias, eps)


def unfused(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Four launches, a block a row, sums by shuffles; arguments as `fused`."""
    return _chain("", x, weight, bias, eps)


def _one_launch(
    how: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    x, rows, stride = _checked(x, weight, bias)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    n_cols, dtype = x.shape[-1], x.dtype
    weight, bias = _contiguous(weight), _contiguous(bias)
    width = 1 if how == "scalar" else _vector(dtype)
    if n_cols % width or stride % width or not aligned(x, weight, bias, y):
        width = 1
    fits = [
        held
        for held in _HELD["scalar" if width == 1 else "vector"]
        if 2 * width <= held and n_cols <= _THREADS_PER_HELD * held * held
    ]
    if how == "held" and fits:
        kernel = _kernel("layer_norm", dtype, width, fits[0] // width)
        threads = whole_warps(-(-n_cols // fits[0]), _THREADS_PER_HELD * fits[0])
    else:
        kernel = _kernel("layer_norm_wide" if how == "held" else "layer_norm_loops", dtype, width)
        threads = whole_warps(n_cols // width, _THREADS)
    with device_guard(x):
        kernel[rows, threads](x, weight, bias, y, n_cols, stride, eps)
    return y


def aligned(*tensors: Tensor | None) -> bool:
    """Whether every tensor begins at a multiple of 16 bytes, in memory and in its storage."""
    return not any(
        (tensor.data_ptr() | int(tensor.storage_offset()) * tensor.element_size()) % VECTOR_BYTES
        for tensor in tensors
        if tensor is not None
    )


def cuda_3(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """One launch that reads x three times, an element a load; arguments as `fused`."""
    return _one_launch("scalar", x, weight, bias, eps)


def cuda_4(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """One launch that reads x three times, 16 bytes a load; arguments as `fused`."""
    return _one_launch("vector", x, weight, bias, eps)


def fused(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """LayerNorm over the last dimension of `x`, in one launch of a kernel in CUDA C++.

    x: (..., N) in fp16, bf16 or fp32, N at least 1. weight, bias: (N,) in x's dtype, or None.
    Returns a new contiguous tensor of x's shape and dtype. Loads are of 16 bytes where N, the rows'
    distance and all tensors permit. A row of up to 16384 columns is read once, of up to 4096 where
    loads are an element wide, and a wider one twice. Rows that lie at no one distance, or whose
    columns don't lie side by side, are copied first, which is one more launch.
    """
    return _one_launch("held", x, weight, bias, eps)


def _four_launches(_case: Case, _pass: str) -> Moves:
    return Moves(4)


def _one_pass(case: Case, _pass: str) -> Moves:
    """x, weight and bias in, y out, each of their bytes once."""
    rows, n_cols = case.shape
    return Moves(1, unique=(2 * rows + 2) * n_cols * case.dtype.itemsize)


VARIANTS = tuple(
    Variant(name, fn, counted="cuda", unavailable=needs_cuda, moves=moves)
    for name, fn, moves in (
        ("cuda_1", cuda_1, _four_launches),
        ("cuda_2", cuda_2, _four_launches),
        ("unfused_cuda", unfused, _four_launches),
        ("cuda_3", cuda_3, _one_pass),
        ("cuda_4", cuda_4, _one_pass),
        ("fused_cuda", fused, _one_pass),
    )
)
