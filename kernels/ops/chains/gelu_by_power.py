"""GELU with the error function and its slope for 16 bits, in Triton: by powers of 2, without erf.

An activation and a dropout, element by element, are bound by instructions and not by bytes. With
`tl.erf`, both of whose branches run, the forward has 47 an element on Hopper, back 54; with these
26 and 33 (`kernels.lab.counting.instructions` counts). In 16 bits a polynomial is right enough.

    Φ(−a) = 2^p(a),   GELU(h) = max(h, 0) − a Φ(−a),   slope = Φ(−a) − a φ(a), at h > 0 1 less that

with a = |h|, φ the density of the normal distribution, and p as `epilogues/epilogue_kernels.py` has
it, where its error is told.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernels.ops.chains.activations import DENSITY, LOG2E
from kernels.ops.chains.gated import activated, activated_and_slope
from kernels.ops.epilogues.epilogue_kernels import (
    FARTHEST,
    P0,
    P1,
    P2,
    P3,
    P4,
    P5,
    P6,
    gelu_erf_by_power,
)

LOG2_DENSITY = tl.constexpr(math.log2(DENSITY.value))  # of φ(0)


@triton.jit
def gelu_erf_slope_by_power(h):
    """The derivative of GELU with the error function, of fp32, to 2⁻²⁰."""
    a = tl.minimum(tl.abs(h), FARTHEST)
    p = ((a * P6 + P5) * a + P4) * a + P3
    p = ((p * a + P2) * a + P1) * a + P0
    below = tl.exp2(p) - a * tl.exp2(a * a * (-0.5 * LOG2E) + LOG2_DENSITY)
    return tl.where(h > 0.0, 1.0 - below, below)


@triton.jit
def activated_for(h, ACTIVATION: tl.constexpr, dtype: tl.constexpr):
    """SiLU or GELU of fp32, right enough for a result in `dtype`."""
    if ACTIVATION == "gelu_erf" and dtype != tl.float32:
        return gelu_erf_by_power(h)
    else:
        return activated(h, ACTIVATION)


@triton.jit
def slope_for(h, ACTIVATION: tl.constexpr, dtype: tl.constexpr):
    """The derivative of one, likewise."""
    if ACTIVATION == "gelu_erf" and dtype != tl.float32:
        return gelu_erf_slope_by_power(h)
    else:
        _, slope = activated_and_slope(h, ACTIVATION)
        return slope
