"""The chain of chapter 05 in CUDA C++: four launches, then one, then one with fewer random calls.

unfused_cuda   four launches, an element a thread
cuda_1         one launch; every thread calls Philox for an element of its own
fused_cuda     one launch; a call for eight elements, 16 bytes a load
stateful_cuda  `cuda_1` with cuRAND's generator, whose state each thread makes: GPU only
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from kernels import cuda
from kernels.cuda.nvrtc import has_header
from kernels.hardware import VECTOR_BYTES, WARP_THREADS
from kernels.ops.chains.bias_gelu import INSTEAD, NAME
from kernels.ops.chains.bias_gelu import check as check_arguments
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import needs_cuda
from kernels.ops.shared.cuda_types import CUDA_TYPES
from kernels.ops.shared.operators import device_guard
from kernels.philox import scale, threshold
from kernels.registry import cases

Tensor = torch.Tensor

_FOLDER = Path(__file__).parent
_THREADS = 256
_ELEMENTS = 8  # that a call of Philox serves
_NAMES = "add_bias gelu dropout add_residual one_launch fused fused_packs".split()


@functools.cache
def _module(dtype: torch.dtype) -> cuda.Module:
    source = (_FOLDER / "bias_gelu_dropout_residual.cu").read_text(encoding="utf-8")
    return cuda.cuda(source, instances=[f"{name}<{CUDA_TYPES[dtype]}>" for name in _NAMES])


@functools.cache
def _stateful(dtype: torch.dtype) -> cuda.Kernel:
    module = cuda.cuda((_FOLDER / "stateful_dropout.cu").read_text(encoding="utf-8"))
    return module[f"stateful<{CUDA_TYPES[dtype]}>"]


@functools.cache
def _kernel(name: str, dtype: torch.dtype) -> cuda.Kernel:
    return _module(dtype)[f"{name}<{CUDA_TYPES[dtype]}>"]


def check(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> None:
    """Raise TypeError or ValueError with one sentence unless the chain takes these arguments."""
    check_arguments(x, bias, residual, p, seed_offset)
    refuse_gradients(NAME, x, bias, residual, instead=INSTEAD)


def _by_element(n: int, each: int = 1) -> tuple[int, int]:
    return -(-n // (_THREADS * each)), _THREADS


def unfused(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """Four launches, each element read and written at every step; arguments as `fused`."""
    check(x, bias, residual, p, seed_offset)
    x, bias, residual = x.contiguous(), bias.contiguous(), residual.contiguous()
    biased, n = torch.empty_like(x), x.numel()
    if n:
        with device_guard(x):
            _kernel("add_bias", x.dtype)[_by_element(n)](x, bias, biased, n, x.shape[-1])
    return behind(biased, residual, p, seed_offset)


def behind(h: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """The last three launches, GELU, dropout, residual; h and residual contiguous, unchecked."""
    active, dropped, y = (torch.empty_like(h) for _ in range(3))
    n, dtype = h.numel(), h.dtype
    if n == 0:
        return y
    size = _by_element(n)
    with device_guard(h):
        _kernel("gelu", dtype)[size](h, active, n)
        _kernel("dropout", dtype)[size](active, seed_offset, dropped, n, threshold(p), scale(p))
        _kernel("add_residual", dtype)[size](dropped, residual, y, n)
    return y


def one_launch(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """One launch, a call of Philox for every element; arguments as `fused`."""
    check(x, bias, residual, p, seed_offset)
    x, bias, residual = x.contiguous(), bias.contiguous(), residual.contiguous()
    y, n = torch.empty_like(x), x.numel()
    if n:
        with device_guard(x):
            _kernel("one_launch", x.dtype)[_by_element(n)](
                x, bias, residual, seed_offset, y, n, x.shape[-1], threshold(p), scale(p)
            )
    return y


def fused(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """residual + dropout(gelu(x + bias), p), in one launch of a kernel in CUDA C++.

    x, residual: (..., N) in fp16, bf16 or fp32, N at least 1. bias: (N,) in the same dtype.
    p: the probability to drop, 0 to 1. seed_offset: int64 (2,), the seed and the number of the
    call, in the memory of x's device. GELU in its tanh form; arithmetic in fp32. Returns a new
    contiguous tensor of x's shape and dtype. Loads are of 16 bytes where N is a multiple of 8 and
    all tensors begin at multiples of 16 bytes. Tensors that aren't contiguous are copied first.
    """
    check(x, bias, residual, p, seed_offset)
    x, bias, residual = x.contiguous(), bias.contiguous(), residual.contiguous()
    y, n, n_cols = torch.empty_like(x), x.numel(), x.shape[-1]
    if n == 0:
        return y
    odd = any(t.data_ptr() % VECTOR_BYTES for t in (x, bias, residual, y))
    with device_guard(x):
        if n_cols % _ELEMENTS or odd or n_cols > 65535 * _THREADS * _ELEMENTS:
            _kernel("fused", x.dtype)[_by_element(n, _ELEMENTS)](
                x, bias, residual, seed_offset, y, n, n_cols, threshold(p), scale(p)
            )
        else:
            warps = -(-n_cols // (_ELEMENTS * WARP_THREADS))
            threads = min(warps * WARP_THREADS, _THREADS)
            grid = (n // n_cols, -(-n_cols // (_ELEMENTS * threads)))
            _kernel("fused_packs", x.dtype)[grid, threads](
                x, bias, residual, seed_offset, y, n_cols, threshold(p), scale(p)
            )
    return y


def stateful(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """One launch with a generator's state a thread, of cuRAND; arguments as `fused`.

    It draws numbers of its own: its mask is another.
    """
    check(x, bias, residual, p, seed_offset)
    x, bias, residual = x.contiguous(), bias.contiguous(), residual.contiguous()
    y, n = torch.empty_like(x), x.numel()
    if n:
        with device_guard(x):
            _stateful(x.dtype)[_by_element(n)](
                x, bias, residual, seed_offset, y, n, x.shape[-1], float(p)
            )
    return y


# Skipping to a thread's own sequence takes long, and longer the larger the thread's number: on an
# H100 the samples of one cell of 16384x8192 took more than two minutes.
STATEFUL_CASES = cases([(2048, 4096)], "bf16")


def needs_curand(device: torch.device) -> str | None:
    """Why cuRAND's generator can't run here, in one sentence; None if it can."""
    if device.type != "cuda":
        return "cuRAND's device functions run on a GPU only"
    if not has_header("curand_kernel.h"):
        return "curand_kernel.h, cuRAND's header, is not installed"
    return needs_cuda(device)
