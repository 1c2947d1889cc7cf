"""The launch of a norm and a product by the kernel written for Hopper, `hopper_kernels.py`.

No interpreter runs it. `moves.hopper_moves` says by a formula what it moves;
`configurations.suits_hopper` where it stands.
"""

from __future__ import annotations

import torch
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch import multiprocessors
from kernels.ops.epilogues.configurations import Finish
from kernels.ops.epilogues.hopper import named_for
from kernels.ops.products.configurations import hopper_tiles
from kernels.ops.products.hopper import REGISTERS
from kernels.ops.products.hopper_kernels import CHUNK, GROUP_ROWS, TILE_COLS, TILE_K
from kernels.ops.prologues.configurations import hopper_finish, hopper_group, hopper_programs
from kernels.ops.prologues.folding import Folded
from kernels.ops.prologues.hopper_kernels import hopper_norm_product
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor

_TYPES = {torch.bfloat16: ttgl.bfloat16, torch.float16: ttgl.float16}


def _described(x: Tensor, rows: ttgl.constexpr, cols: ttgl.constexpr) -> TensorDescriptor:
    block = [rows.value, cols.value]
    layout = ttgl.NVMMASharedLayout.get_default_for(block, _TYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)


def launch(
    x: Tensor,
    folded: Folded,
    y: Tensor,
    eps: float,
    group: int | None = None,
    *,
    activation: str | None = None,
    finish: Finish | None = None,
) -> None:
    """Write the norm of x, multiplied, into y; x (M, K), folded weights (N, K), y (M, N).

    All are as `suits_hopper` asks, in fp16 or bf16. `group` rows of tiles go together; the shape's
    own if None. `activation` is GELU's form behind it, or None; a tile is finished as `finish`
    says, which may not be late, or as the table has it for the activation if None.
    """
    finish = finish or hopper_finish(activation)
    assert not finish.late
    weight, sums, bias = folded
    (m, k), n = x.shape, len(weight)
    down, across = hopper_tiles(m, n)
    group = group or hopper_group(down)
    with device_guard(x):
        hopper_norm_product[(hopper_programs(down * across, group, multiprocessors(x.device)),)](
            _described(x, GROUP_ROWS, TILE_K),
            _described(weight, TILE_COLS, TILE_K),
            _described(y, GROUP_ROWS, CHUNK),
            bias if sums is None else sums,
            bias,
            m,
            k // TILE_K.value,
            down,
            across,
            1.0 / k,
            eps,
            GROUP=group,
            CENTRED=sums is not None,
            ACTIVATION=named_for(activation, finish),
            APART=finish.apart,
            num_warps=4,
            maxnreg=REGISTERS,
        )
