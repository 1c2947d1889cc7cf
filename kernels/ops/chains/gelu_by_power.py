"""GELU with the error function for 16 bits, and its slope, in Triton: by powers of 2, without erf.

An activation and a dropout, element by element, are bound by instructions and not by bytes. With
`tl.erf`, both of whose branches run, the forward has 47 an element on Hopper, back 54, as still in
fp32; in 16 bits 26 and 33 (`kernels.lab.counting.instructions` counts): a polynomial is enough.
Products take it too, whose tensor cores wait while a tile is finished.

    Φ(−a) = 2^p(a),   GELU(h) = max(h, 0) − a Φ(−a),   slope = Φ(−a) − a φ(a), at h > 0 1 less that

with a = |h| and φ the density of the normal distribution.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernels.ops.chains.activations import DENSITY, LOG2E
from kernels.ops.chains.gated import activated, activated_and_slope

# log2 Φ(−a) as a polynomial, the constant first, fitted on [0, 6]: a · Φ(−a) is right to 1.4e-7
# there, up to a = 4 to 6e-5 of itself. Further out, to FARTHEST, it is less than 1e-8 as it should.
P0, P1 = tl.constexpr(-0.9999995827674866), tl.constexpr(-1.1511567831039429)
P2, P3 = tl.constexpr(-0.458871454000473), tl.constexpr(-0.05331532284617424)
P4, P5 = tl.constexpr(0.008038800209760666), tl.constexpr(-0.0007621495169587433)
P6, FARTHEST = tl.constexpr(3.290430686320178e-05), tl.constexpr(14.0)
LOG2_DENSITY = tl.constexpr(math.log2(DENSITY.value))  # of φ(0)
# A GPU's minimum of a number and NaN is the number, unless it is asked for the other kind.
OF_NAN = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def _log2_beyond(a):
    # log2 Φ(−a).
    p = ((a * P6 + P5) * a + P4) * a + P3
    return ((p * a + P2) * a + P1) * a + P0


@triton.jit
def gelu_erf_by_power(h):
    """GELU with the error function of fp32, right to 1.4e-7."""
    a = tl.minimum(tl.abs(h), FARTHEST, propagate_nan=OF_NAN)
    return tl.maximum(h, 0.0) - a * tl.exp2(_log2_beyond(a))


@triton.jit
def gelu_erf_slope_by_power(h):
    """Its derivative, to 2⁻²⁰."""
    a = tl.minimum(tl.abs(h), FARTHEST, propagate_nan=OF_NAN)
    below = tl.exp2(_log2_beyond(a)) - a * tl.exp2(a * a * (-0.5 * LOG2E) + LOG2_DENSITY)
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
