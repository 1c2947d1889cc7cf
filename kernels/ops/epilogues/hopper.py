"""The launch of a product with an epilogue by the kernel written for Hopper, `hopper_kernels.py`.

No interpreter runs it. `moves.hopper_moves` says by a formula what it moves, and
`configurations.suits_hopper` where it stands.
"""

from __future__ import annotations

import torch
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch import multiprocessors
from kernels.ops.chains.gated import GELU_TANH
from kernels.ops.epilogues.configurations import Finish, hopper_finish, hopper_tiles
from kernels.ops.epilogues.given import Given
from kernels.ops.epilogues.hopper_kernels import HALF_COLS, hopper_epilogue
from kernels.ops.products.configurations import HOPPER_GROUP
from kernels.ops.products.hopper import REGISTERS
from kernels.ops.products.hopper_kernels import (
    CHUNK,
    FIRST_STEPS,
    GROUP_ROWS,
    TILE_COLS,
    TILE_K,
)
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor

_TYPES = {torch.bfloat16: ttgl.bfloat16, torch.float16: ttgl.float16}


def _described(x: Tensor, rows: int, cols: int) -> TensorDescriptor:
    # Of as many rows as the tallest tile: the layout is that of its rows, however many there are.
    layout = ttgl.NVMMASharedLayout.get_default_for([TILE_COLS.value, cols], _TYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, cols], layout)


def named_for(activation: str | None, finish: Finish) -> str | None:
    """The activation as the kernels know it, computed as `finish` says."""
    by_power = finish.by_power and activation == GELU_TANH
    return f"{activation}_by_power" if by_power else activation


def launch(given: Given, group: int = HOPPER_GROUP, finish: Finish | None = None) -> None:
    """Write y; `given` is as `suits_hopper` asks. `group` rows of tiles go together.

    A tile is finished as `finish` says, or as the table has it for the activation if None.
    """
    (m, k, n), x, gated, activation = given.sizes, given.x, given.gated, given.activation
    finish = finish or hopper_finish(activation)
    down, across = hopper_tiles(m, n, gated)
    # A sum shorter than the first steps takes them all: past the end of a row all reads as 0.
    k_steps = max(FIRST_STEPS.value, -(-k // TILE_K.value))
    positions, n_heads, n_batches, head_size = given.heads or (1, 1, 1, None)
    y = given.y if head_size is None else given.y.view(-1, head_size)
    residual = given.residual
    width = HALF_COLS.value if gated else TILE_COLS.value
    first = second = given.weight
    if gated:  # not by unbind(), after which a call could not be made again from its record
        first, second = first[0], first[1]
    with device_guard(x):
        hopper_epilogue[(min(multiprocessors(x.device), down * across),)](
            _described(x, GROUP_ROWS.value, TILE_K.value),
            _described(first, width, TILE_K.value),
            _described(second, width, TILE_K.value),
            _described(y, GROUP_ROWS.value, CHUNK.value),
            _described(y if residual is None else residual, GROUP_ROWS.value, CHUNK.value),
            y if given.bias is None else given.bias,
            m,
            n // 8,
            k_steps,
            down,
            across,
            positions,
            n_heads,
            n_batches,
            1 if head_size is None else len(given.y),
            GROUP=group,
            HAS_BIAS=given.bias is not None,
            ACTIVATION=named_for(activation, finish),
            GATED=gated,
            HEAD_SIZE=head_size,
            HAS_RESIDUAL=residual is not None,
            LATE=finish.late and activation is not None,
            APART=finish.apart,
            num_warps=4,
            maxnreg=REGISTERS,
        )
