"""Kernels in Gluon that follow one another: when the programs of the second may start."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl


@gluon.constexpr_function
def _grid_instruction(name):
    return f"griddepcontrol.{name}; mov.b32 $0, $1;"


@gluon.jit
def let_the_next_start():
    # A kernel launched behind this one with `launch_pdl` may start where programs have ended, once
    # all of this one's have come here. What it reads must have been there before this one started.
    one: ttgl.constexpr = ttgl.BlockedLayout([1], [32], [4], [0])
    nothing = ttgl.full([128], 0, ttgl.int32, layout=one)
    instruction: ttgl.constexpr = _grid_instruction("launch_dependents")
    ttgl.inline_asm_elementwise(
        instruction, "=r,r", [nothing], dtype=ttgl.int32, is_pure=False, pack=1
    )


@gluon.jit
def wait_for_the_last():
    # Until the kernel before has ended: so what comes behind this one comes behind both.
    one: ttgl.constexpr = ttgl.BlockedLayout([1], [32], [4], [0])
    nothing = ttgl.full([128], 0, ttgl.int32, layout=one)
    instruction: ttgl.constexpr = _grid_instruction("wait")
    ttgl.inline_asm_elementwise(
        instruction, "=r,r", [nothing], dtype=ttgl.int32, is_pure=False, pack=1
    )
