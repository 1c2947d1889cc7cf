"""The launch of y = x · wᵀ + bias by the kernel written for Hopper, `hopper_kernels.py`.

No interpreter runs it. `moves.hopper_moves` says by a formula what it moves, which Nsight Compute
confirms on a card (tests/gpu/test_hopper_gpu.py); `configurations.suits_hopper` where it stands.
"""

from __future__ import annotations

import torch
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch import multiprocessors
from kernels.ops.products.configurations import HOPPER_GROUP, hopper_tiles
from kernels.ops.products.hopper_kernels import (
    CHUNK,
    FIRST_STEPS,
    GROUP_ROWS,
    TILE_COLS,
    TILE_K,
    hopper_product,
)
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor

REGISTERS = 168  # a thread's at the launch: 65536 over 12 warps
_TYPES = {torch.bfloat16: ttgl.bfloat16, torch.float16: ttgl.float16}


def _described(x: Tensor, rows: int, cols: int) -> TensorDescriptor:
    layout = ttgl.NVMMASharedLayout.get_default_for([rows, cols], _TYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, cols], layout)


def launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, group: int = HOPPER_GROUP
) -> None:
    """Write x · weightᵀ + bias into y; x (M, K), weight (N, K), bias (N,) or None, y (M, N).

    All are as `suits_hopper` asks, in fp16 or bf16. `group` rows of tiles go together.
    """
    (m, k), n = x.shape, len(weight)
    down, across = hopper_tiles(m, n)
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
