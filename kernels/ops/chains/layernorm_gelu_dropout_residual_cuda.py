"""The chain behind a norm in CUDA C++: four launches, then one.

unfused_cuda   LayerNorm in one launch, then GELU, dropout, residual in one each
fused_cuda     one launch; the row in registers, a call of Philox for eight elements

The first is made of the kernels of LayerNorm and of the chain without a norm. The kernel of the
second stands beside this file.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from kernels import cuda
from kernels.ops.chains import bias_gelu_dropout_residual_cuda as without_norm
from kernels.ops.chains.bias_gelu import INSTEAD
from kernels.ops.chains.norm_gelu_operators import CHAIN, check_chain
from kernels.ops.norms import layernorm_cuda
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import needs_cuda
from kernels.ops.shared.cuda_types import CUDA_TYPES
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import one_row_stride
from kernels.philox import scale, threshold
from kernels.registry import Case, Moves, Variant

Tensor = torch.Tensor

_FILE = Path(__file__).with_name("layernorm_gelu_dropout_residual.cu")
_EIGHT = 8  # elements that a call of Philox serves
# Such blocks of eight a thread may hold; a block has 128 times as many threads at most. They are
# LayerNorm's; not timed yet.
_HELD = (1, 2, 4)
_THREADS_PER_HELD = 128
_LOOP_THREADS = 256


@functools.cache
def module(dtype: torch.dtype) -> cuda.Module:
    """The kernels for one dtype, behind those of LayerNorm."""
    kind = CUDA_TYPES[dtype]
    instances = [f"norm_chain<{kind}, {held}>" for held in _HELD]
    source = "\n".join(file.read_text(encoding="utf-8") for file in (layernorm_cuda.FILE, _FILE))
    return cuda.cuda(source, instances=[*instances, f"norm_chain_loops<{kind}>"])


@functools.cache
def _kernel(name: str, dtype: torch.dtype, *numbers: int) -> cuda.Kernel:
    arguments = ", ".join([CUDA_TYPES[dtype], *map(str, numbers)])
    return module(dtype)[f"{name}<{arguments}>"]


def check(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float,
) -> None:
    """Raise TypeError or ValueError with one sentence unless the kernels take these arguments."""
    check_chain(x, weight, bias, residual, p, seed_offset, eps)
    layernorm_cuda.check_dtypes(x, weight, bias)
    refuse_gradients(CHAIN, x, weight, bias, residual, instead=INSTEAD)


def unfused(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """Four launches, a tensor written and read again between them; arguments as `fused`."""
    check(x, weight, bias, residual, p, seed_offset, eps)
    return without_norm.behind(
        layernorm_cuda.fused(x, weight, bias, eps), residual.contiguous(), p, seed_offset
    )


def fused(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """residual + dropout(gelu(LayerNorm(x)), p), in one launch of a kernel in CUDA C++.

    x, residual: (..., N) in fp16, bf16 or fp32, N at least 1. weight, bias: (N,) in x's dtype, or
    None. p: the probability to drop, 0 to 1. seed_offset: int64 (2,), the seed and the number of
    the call, in the memory of x's device. Returns a new contiguous tensor of x's shape and dtype.
    A row of up to 16384 columns is read once where N is a multiple of 8 and all rows begin at
    multiples of 16 bytes; any other is read three times, an element a load. Rows that lie at no one
    distance, or whose columns don't lie side by side, are copied first.
    """
    check(x, weight, bias, residual, p, seed_offset, eps)
    y, n_cols = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.shape[-1]
    if y.numel() == 0:
        return y
    x, x_stride = one_row_stride(x)
    residual, residual_stride = one_row_stride(residual)
    weight = None if weight is None else weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    by_eight = n_cols % _EIGHT == x_stride % _EIGHT == residual_stride % _EIGHT == 0
    by_eight = by_eight and layernorm_cuda.aligned(x, weight, bias, residual, y)
    fits = [
        held for held in _HELD if by_eight and n_cols <= _EIGHT * held * _THREADS_PER_HELD * held
    ]
    if fits:
        kernel = _kernel("norm_chain", x.dtype, fits[0])
        wanted = -(-n_cols // (_EIGHT * fits[0]))
        threads = layernorm_cuda.whole_warps(wanted, _THREADS_PER_HELD * fits[0])
    else:
        kernel = _kernel("norm_chain_loops", x.dtype)
        threads = layernorm_cuda.whole_warps(n_cols, _LOOP_THREADS)
    with device_guard(x):
        kernel[y.numel() // n_cols, threads](
            x,
            weight,
            bias,
            residual,
            seed_offset,
            y,
            n_cols,
            x_stride,
            residual_stride,
            eps,
            threshold(p),
            scale(p),
        )
    return y


def _one_pass(case: Case, _pass: str) -> Moves:
    """x, residual, weight, bias and the seed in, y out, each of their bytes once."""
    rows, n_cols = case.shape
    return Moves(1, unique=(3 * rows + 2) * n_cols * case.dtype.itemsize + 16)


def _four_launches(case: Case, _pass: str) -> Moves:
    """A tensor in and a tensor out at each step; parameters, the seed and the residual beside."""
    rows, n_cols = case.shape
    return Moves(4, unique=(9 * rows + 2) * n_cols * case.dtype.itemsize + 16)


VARIANTS = tuple(
    Variant(name, fn, counted="cuda", unavailable=needs_cuda, moves=moves)
    for name, fn, moves in (
        ("unfused_cuda", unfused, _four_launches),
        ("fused_cuda", fused, _one_pass),
    )
)
