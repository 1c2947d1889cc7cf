"""y = x · wᵀ + bias by the kernel written for Hopper, and where it steps aside.

The kernel stands in `hopper_kernels.py`. No interpreter runs it; `moves` says by a formula what it
moves, which Nsight Compute confirms on a card (tests/gpu/test_hopper_gpu.py).
"""

from __future__ import annotations

import torch
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch import multiprocessors
from kernels.ops.products.configurations import by_descriptors
from kernels.ops.products.hopper_kernels import (
    CHUNK,
    FIRST_STEPS,
    GROUP_ROWS,
    TILE_COLS,
    TILE_K,
    TILE_ROWS,
    hopper_product,
)
from kernels.ops.shared.operators import device_guard
from kernels.registry import Case, Moves

Tensor = torch.Tensor

CAPABILITY = (9, 0)
# Rows of tiles that go together, and registers a thread at the launch: 65536 over 12 warps.
GROUP = 4
REGISTERS = 168
_TYPES = {torch.bfloat16: ttgl.bfloat16, torch.float16: ttgl.float16}


def tiles(m: int, n: int) -> tuple[int, int]:
    """How many tiles an output of m × n has, down and across."""
    return -(-m // TILE_ROWS.value), -(-n // TILE_COLS.value)


def suits(x: Tensor, weight: Tensor, y: Tensor, capability: tuple[int, int]) -> bool:
    """Whether the kernel takes a product, matrices all: the one rule by which it steps aside.

    It runs on capability 9.0, in 16 bits, where the copy engine takes all three matrices (rows at
    multiples of 16 bytes), and where tiles fill at least half the SMs.
    """
    down, across = tiles(len(x), len(weight))
    return (
        capability == CAPABILITY
        and x.dtype in _TYPES
        and by_descriptors(x, weight, y)
        and 2 * down * across >= multiprocessors(x.device)
    )


def _described(x: Tensor, rows: int, cols: int) -> TensorDescriptor:
    layout = ttgl.NVMMASharedLayout.get_default_for([rows, cols], _TYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, cols], layout)


def launch(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, group: int = GROUP) -> None:
    """Write x · weightᵀ + bias into y; x (M, K), weight (N, K), bias (N,) or None, y (M, N).

    All are as `suits` asks. `group` rows of tiles go together.
    """
    (m, k), n = x.shape, len(weight)
    down, across = tiles(m, n)
    # A sum shorter than the first steps takes them all: past the end of a row all reads as 0.
    k_steps = max(FIRST_STEPS.value, -(-k // TILE_K.value))
    with device_guard(x):
        hopper_product[(min(multiprocessors(x.device), down * across),)](
            _described(x, GROUP_ROWS.value, TILE_K.value),
            _described(weight, TILE_COLS.value, TILE_K.value),
            _described(y, GROUP_ROWS.value, CHUNK.value),
            y if bias is None else bias,
            m,
            n // 8,
            k_steps,
            down,
            across,
            GROUP=group,
            HAS_BIAS=bias is not None,
            num_warps=4,
            maxnreg=REGISTERS,
        )


def moves(case: Case, _pass: str) -> Moves:
    """One launch: x once for each column of tiles, the weight once for each row of tiles, y once.

    The two groups of a program read the bias of a tile each. The copy engine leaves out what lies
    outside a matrix.
    """
    (m, k, n), size = case.shape, case.dtype.itemsize
    down, across = tiles(m, n)
    unique = size * (m * k + n * k + n + m * n)
    requested = size * (m * k * across + n * k * down + 2 * n * down + m * n)
    return Moves(1, unique=unique, requested=requested)
