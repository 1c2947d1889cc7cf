"""A product in CUDA C++: one output a thread, and the same from tiles in shared memory.

The kernels stand in `linear.cu` beside this file. On a GPU they are compiled by NVRTC, on a CPU
they run on the emulator. Neither uses tensor cores.

    cuda_1   a thread reads a row of x and a row of w for its output: 2·M·N·K elements asked for
    cuda_2   a block reads a tile of each for all its outputs: M·N·K/16 of either
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from kernels import cuda
from kernels.ops.products.forward import matrix
from kernels.ops.products.operators import check
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import needs_cuda
from kernels.ops.shared.cuda_types import CUDA_TYPES
from kernels.ops.shared.operators import device_guard
from kernels.registry import Case, Moved, MovedStep, Moves, Variant, cases

Tensor = torch.Tensor

_FILE = Path(__file__).with_name("linear.cu")
TILE = 16
_THREADS = TILE * TILE
# The smallest product of the suite: a larger one takes these kernels up to a second.
_CASES = cases([(4096, 1024, 3072)], "bf16")


@functools.cache
def module(dtype: torch.dtype) -> cuda.Module:
    """The kernels for one dtype, compiled in one go."""
    kind = CUDA_TYPES[dtype]
    instances = [f"linear_by_threads<{kind}>", f"linear_by_tiles<{kind}, {TILE}>"]
    return cuda.cuda(_FILE.read_text(encoding="utf-8"), instances=instances)


def _launch(by_tiles: bool, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    check(x, weight, bias)
    refuse_gradients("linear", x, weight, bias)
    n = len(weight)
    y = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    x, weight = matrix(x), matrix(weight)
    bias = None if bias is None else bias.contiguous()
    (m, k), kind = x.shape, CUDA_TYPES[x.dtype]
    name = f"linear_by_tiles<{kind}, {TILE}>" if by_tiles else f"linear_by_threads<{kind}>"
    with device_guard(x):
        module(x.dtype)[name][_blocks(m, n, by_tiles), _THREADS](
            x, weight, bias, y, m, n, k, x.stride(0), weight.stride(0)
        )
    return y


def _blocks(m: int, n: int, by_tiles: bool) -> int:
    return -(-m // TILE) * -(-n // TILE) if by_tiles else -(-m * n // _THREADS)


def cuda_1(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One output a thread, straight from memory; arguments as of `linear`."""
    return _launch(False, x, weight, bias)


def cuda_2(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One output a thread, from tiles in shared memory; arguments as of `linear`."""
    return _launch(True, x, weight, bias)


def _moves(by_tiles: bool, case: Case, _pass: str) -> Moves:
    """One launch. Each output asks for a bias; for a row of x and of w each too, or tiles do."""
    m, k, n = case.shape
    size = case.dtype.itemsize
    x_times, w_times = (-(-n // TILE), -(-m // TILE)) if by_tiles else (n, m)
    tensors = (
        Moved("x", m * k * size, m * k * size * x_times),
        Moved("w", n * k * size, n * k * size * w_times),
        Moved("b", n * size, m * n * size),
        Moved("y", write_unique=m * n * size, write_requested=m * n * size),
    )
    kind = CUDA_TYPES[case.dtype]
    name = f"linear_by_tiles<{kind}, {TILE}>" if by_tiles else f"linear_by_threads<{kind}>"
    return Moves.of(MovedStep(name, (_blocks(m, n, by_tiles), 1, 1), tensors))


VARIANTS = tuple(
    Variant(
        name,
        fn,
        counted="cuda",
        unavailable=needs_cuda,
        cases=_CASES,
        moves=functools.partial(_moves, by_tiles),
    )
    for name, fn, by_tiles in (("cuda_1", cuda_1, False), ("cuda_2", cuda_2, True))
)
