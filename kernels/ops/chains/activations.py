"""SiLU and GELU in Triton, to call from a kernel: values, and slopes for a backward.

    SiLU        g · σ(g)
    GELU, tanh  h · σ(2u) with u = √(2/π) (h + 0.044715 h³): 0.5 h (1 + tanh u) in one exponential
    GELU, erf   h · Φ(h) with Φ(h) = (1 + erf(h / √2)) / 2

σ(x) = 1 / (1 + exp(−x)). A GPU's instruction computes 2^x, so that log2 e stands in the constants.
Another gives 1 / x: `fast_dividef` is that and a product, two instructions, where `/` takes five
and is right for divisors above 2^126 too. Here a quotient by these is 0 anyway. Values go to 0 and
to h at the ends of fp32, slopes to 0 and 1; none becomes NaN on the way.

Sources: Hendrycks, Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415); Elfwing, Uchibe, Doya,
"Sigmoid-weighted linear units" (arXiv:1702.03118).
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton.language.extra import libdevice

_ROOT = math.sqrt(2 / math.pi)
CUBE = 0.044715
LOG2E = tl.constexpr(math.log2(math.e))
# −2u · log2 e = h · (LINEAR + CUBIC · h²), and d(2u)/dh = SLOPE + SLOPE_SQUARE · h².
LINEAR = tl.constexpr(-2 * _ROOT * math.log2(math.e))
CUBIC = tl.constexpr(-2 * _ROOT * CUBE * math.log2(math.e))
SLOPE = tl.constexpr(2 * _ROOT)
SLOPE_SQUARE = tl.constexpr(6 * _ROOT * CUBE)
# Beyond |h| = 1000 each exponential has gone to 0 or to infinity: h² need not grow to infinity.
SQUARE_AT_MOST = tl.constexpr(1e6)
ROOT_HALF = tl.constexpr(math.sqrt(0.5))
DENSITY = tl.constexpr(1 / math.sqrt(2 * math.pi))


@triton.jit
def widened(values):
    """16 bits in fp32: exact. A bf16 is the upper half of an fp32, so one instruction widens it.

    Told as a conversion, every second one takes two: the compiler moves the half down first.
    """
    if values.dtype == tl.bfloat16:
        return (values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return values.to(tl.float32)


@triton.jit
def sigmoid_of_exponent(exponent):
    """1 / (1 + 2^exponent)."""
    return libdevice.fast_dividef(1.0, 1.0 + tl.exp2(exponent))


@triton.jit
def silu(g):
    """SiLU of fp32."""
    return g / (1.0 + tl.exp2(g * -LOG2E))


@triton.jit
def silu_and_slope(g):
    """SiLU of fp32, and its derivative σ + g σ (1 − σ)."""
    share = sigmoid_of_exponent(g * -LOG2E)
    value = g * share
    return value, share + value * (1.0 - share)


@triton.jit
def gelu(h):
    """GELU of fp32 in the tanh form."""
    return libdevice.fast_dividef(h, 1.0 + tl.exp2(h * (h * h * CUBIC + LINEAR)))


@triton.jit
def gelu_divided(h):
    """The same by `/`: the products of a gate are bound by bytes, and spill on 12.0 without it."""
    return h / (1.0 + tl.exp2(h * (h * h * CUBIC + LINEAR)))


@triton.jit
def gelu_and_slope(h):
    """GELU of fp32 in the tanh form, and its derivative σ + h σ (1 − σ) d(2u)/dh."""
    square = tl.minimum(h * h, SQUARE_AT_MOST)
    share = sigmoid_of_exponent(h * (square * CUBIC + LINEAR))
    value = h * share
    return value, share + value * (1.0 - share) * (square * SLOPE_SQUARE + SLOPE)


@triton.jit
def gelu_erf(h):
    """GELU of fp32 by the error function."""
    return h * (0.5 + 0.5 * tl.erf(h * ROOT_HALF))


@triton.jit
def gelu_erf_and_slope(h):
    """GELU of fp32 by the error function, and its derivative Φ + h φ."""
    share = 0.5 + 0.5 * tl.erf(h * ROOT_HALF)
    square = tl.minimum(h * h, SQUARE_AT_MOST)
    return h * share, share + h * DENSITY * tl.exp2(square * (-0.5 * LOG2E))


@triton.jit
def gelu_slope(h):
    """The derivative alone, σ (1 + h (1 − σ) d(2u)/dh): one product less."""
    square = tl.minimum(h * h, SQUARE_AT_MOST)
    share = sigmoid_of_exponent(h * (square * CUBIC + LINEAR))
    return share * (1.0 + (h - h * share) * (square * SLOPE_SQUARE + SLOPE))
