"""Activations in Gluon, of sums that stand in registers: in few instructions, and fewer slow ones.

A processor of an SM computes 32 multiply-adds a cycle and 4 of 2^x or 1 / x: GELU by two of these
costs it 16 cycles for 32 numbers, by one and a polynomial 10 or so.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl

from kernels.ops.chains.activations import CUBIC, LINEAR, LOG2E
from kernels.ops.chains.gelu_by_power import FARTHEST, OF_NAN, P0, P1, P2, P3, P4, P5, P6

# log2 σ(−2u(a)) of the tanh form as a polynomial, the constant first, fitted on [0, 6]: a · 2^p(a)
# is right to 1.2e-5 there, up to a = 4 to 4.6e-4 of itself; further out it is less than 1e-8.
T0, T1 = ttgl.constexpr(-1.0006568431854248), ttgl.constexpr(-1.1468303203582764)
T2, T3 = ttgl.constexpr(-0.46589207649230957), ttgl.constexpr(-0.05124857276678085)
T4, T5 = ttgl.constexpr(0.013669549487531185), ttgl.constexpr(-0.004084566608071327)
T6, FARTHEST_TANH = ttgl.constexpr(0.00029479197110049427), ttgl.constexpr(6.0)


@gluon.jit
def one_over(x):
    # 1 / x by one instruction, to 2⁻²³; of infinity it is 0.
    asm: ttgl.constexpr = "rcp.approx.ftz.f32 $0, $1;"
    return ttgl.inline_asm_elementwise(asm, "=f,f", [x], dtype=ttgl.float32, is_pure=True, pack=1)


@gluon.jit
def gelu_tanh(h):
    # As `activations.gelu`: h · σ(2u).
    return h * one_over(1.0 + ttgl.exp2(h * (h * h * CUBIC + LINEAR)))


@gluon.jit
def gelu_erf(h):
    # As `gelu_by_power.gelu_erf_by_power`: max(h, 0) − a · 2^p(a) with a = |h|.
    a = ttgl.minimum(ttgl.abs(h), FARTHEST, propagate_nan=OF_NAN)
    p = ((a * P6 + P5) * a + P4) * a + P3
    p = ((p * a + P2) * a + P1) * a + P0
    return ttgl.maximum(h, 0.0) - a * ttgl.exp2(p)


@gluon.jit
def gelu_tanh_by_power(h):
    # The same of the tanh form.
    a = ttgl.minimum(ttgl.abs(h), FARTHEST_TANH, propagate_nan=OF_NAN)
    p = ((a * T6 + T5) * a + T4) * a + T3
    p = ((p * a + T2) * a + T1) * a + T0
    return ttgl.maximum(h, 0.0) - a * ttgl.exp2(p)


@gluon.jit
def activated(h, ACTIVATION: ttgl.constexpr):
    if ACTIVATION == "silu":
        return h * one_over(1.0 + ttgl.exp2(h * -LOG2E))
    elif ACTIVATION == "gelu_tanh":
        return gelu_tanh(h)
    elif ACTIVATION == "gelu_tanh_by_power":
        return gelu_tanh_by_power(h)
    elif ACTIVATION == "gelu_erf":
        return gelu_erf(h)
    else:
        return h
