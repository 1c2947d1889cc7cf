"""What kernels in Gluon share: barriers of the warps of one function, and barriers between them."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl

# All warps of the function that calls it meet. Triton 3.7 gave it another name.
meet = ttgl.thread_barrier if hasattr(ttgl, "thread_barrier") else ttgl.barrier

# Hardware barriers that Triton doesn't use itself: it takes the low numbers of 16.
FREE_BARRIER = ttgl.constexpr(8)


@gluon.constexpr_function
def _barrier_instruction(op, number, threads):
    return f"bar.{op} {number}, {threads}; mov.b32 $0, $1;"


@gluon.jit
def named_barrier(op: ttgl.constexpr, number: ttgl.constexpr, threads: ttgl.constexpr):
    # `bar.sync` waits until so many threads have come, those that called `bar.arrive` counted;
    # `bar.arrive` goes on at once. One element a thread, so that each thread says it once; the
    # result is there because an assembly statement must have one.
    one: ttgl.constexpr = ttgl.BlockedLayout([1], [32], [4], [0])
    nothing = ttgl.full([128], 0, ttgl.int32, layout=one)
    instruction: ttgl.constexpr = _barrier_instruction(op, number, threads)
    ttgl.inline_asm_elementwise(
        instruction, "=r,r", [nothing], dtype=ttgl.int32, is_pure=False, pack=1
    )
