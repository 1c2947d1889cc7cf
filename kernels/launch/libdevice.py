"""CUDA's mathematical library, `libdevice`, in NumPy and PyTorch.

A name is looked up without `__nv_` and without the letter for the type. What has no equal here,
such as arithmetic rounded up or down, is refused with a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

Array = np.ndarray[Any, Any]
Function = Callable[..., Array]


def by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    """A function of PyTorch for arrays of NumPy."""

    def of(values: Array) -> Array:
        # On a GPU this is an instruction: who looks for PyTorch's operators must not see it.
        with _disable_current_modes():
            return function(torch.from_numpy(np.array(values))).numpy()

    return of


def _round(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole).astype(x.dtype)


def fma(x: Array, y: Array, z: Array) -> Array:
    """x·y + z, rounded once for up to fp32: a product of two is exact in fp64."""
    return (x.astype(np.float64) * y + z).astype(x.dtype)


def _exp10(x: Array) -> Array:
    return np.power(10.0, x.astype(np.float64))


def _sinpi(x: Array) -> Array:
    return np.sin(np.pi * np.fmod(x, 2).astype(np.float64))


def _cospi(x: Array) -> Array:
    return np.cos(np.pi * np.fmod(x, 2).astype(np.float64))


def _leading_zeros(x: Array) -> Array:
    bits = x.itemsize * 8
    return np.vectorize(lambda v: bits - (int(v) % (1 << bits)).bit_length(), otypes=[np.int32])(x)


def _first_set(x: Array) -> Array:
    return np.vectorize(lambda v: (int(v) & -int(v)).bit_length(), otypes=[np.int32])(x)


def _norm(*parts: Array) -> Array:
    return np.sqrt(sum(part.astype(np.float64) ** 2 for part in parts))


def _remainder(x: Array, y: Array) -> Array:
    return x - y * np.rint(x.astype(np.float64) / y)


_special = torch.special
FUNCTIONS: dict[str, Function] = {
    **{
        name: getattr(np, name)
        for name in "floor ceil trunc sqrt exp2 rint isnan isinf signbit copysign nextafter sin "
        "cos tan log2 exp cosh sinh tanh log log10 log1p expm1 hypot cbrt fmod ldexp".split()
    },
    "abs": np.abs,
    "llabs": np.abs,
    "fabs": np.abs,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "saturate": lambda x: np.fmax(np.fmin(x, 1), 0),
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "nearbyint": np.rint,
    "llrint": np.rint,
    "round": _round,
    "llround": _round,
    "exp10": _exp10,
    "sinpi": _sinpi,
    "cospi": _cospi,
    "atan2": np.arctan2,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atanh": np.arctanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "norm3d": _norm,
    "norm4d": _norm,
    "rnorm3d": lambda *parts: 1 / _norm(*parts),
    "rnorm4d": lambda *parts: 1 / _norm(*parts),
    "pow": np.power,
    "powi": np.power,
    "scalbn": np.ldexp,
    "fdim": lambda x, y: np.where(np.isnan(x) | np.isnan(y), x + y, np.maximum(x - y, 0)),
    "remainder": _remainder,
    "logb": lambda x: np.floor(np.log2(np.abs(x.astype(np.float64)))),
    "ilogb": lambda x: np.frexp(x)[1] - 1,
    "fma": fma,
    "fma_rn": fma,
    "div_rn": np.divide,
    "fast_fdivide": np.divide,
    "rcp_rn": np.reciprocal,
    "sqrt_rn": np.sqrt,
    "rsqrt_rn": lambda x: 1 / np.sqrt(x),
    "add_rn": np.add,
    "sub_rn": np.subtract,
    "mul_rn": np.multiply,
    "erf": by_torch(torch.erf),
    "erfc": by_torch(torch.erfc),
    "erfinv": by_torch(torch.erfinv),
    "erfcinv": lambda x: by_torch(torch.erfinv)(1 - x.astype(np.float64)),
    "erfcx": by_torch(_special.erfcx),
    "normcdf": by_torch(_special.ndtr),
    "normcdfinv": by_torch(_special.ndtri),
    "lgamma": by_torch(torch.lgamma),
    "tgamma": np.vectorize(math.gamma, otypes=[np.float64]),
    "j0": by_torch(_special.bessel_j0),
    "j1": by_torch(_special.bessel_j1),
    "y0": by_torch(_special.bessel_y0),
    "y1": by_torch(_special.bessel_y1),
    "cyl_bessel_i0": by_torch(_special.i0),
    "cyl_bessel_i1": by_torch(_special.i1),
    "popc": np.bitwise_count,
    "clz": _leading_zeros,
    "ffs": _first_set,
    "fast_sin": np.sin,
    "fast_cos": np.cos,
    "fast_tan": np.tan,
    "fast_log2": np.log2,
    "fast_log": np.log,
    "fast_log10": np.log10,
    "fast_exp": np.exp,
    "fast_exp10": _exp10,
    "fast_pow": np.power,
}
_ROUNDED = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_BITS = (
    "int_as_float float_as_int uint_as_float float_as_uint longlong_as_double double_as_longlong"
)


def _conversion(name: str, dtype: np.dtype[Any]) -> Function | None:
    """`float2int_rz` and the like: between floats and whole numbers, rounded as the name says."""
    if name in _BITS.split():
        return lambda x: np.ascontiguousarray(x).view(dtype)
    source, _, rounding = name.partition("_")
    if "2" not in source:
        return None
    if dtype.kind in "iu" and rounding in _ROUNDED:
        return _ROUNDED[rounding]
    return np.asarray if rounding == "rn" else None


def function_of(symbol: str, dtype: np.dtype[Any]) -> Function:
    """The function behind a symbol such as "__nv_tanhf"; its result is to be cast to `dtype`.

    NotImplementedError with one sentence if there is none.
    """
    name = symbol.removeprefix("__nv_")
    plain = name[1:] if name.split("_")[-1] in _ROUNDED and name[0] in "fd" else name
    candidates = [name, name.removesuffix("ll"), plain]
    candidates += [name.removesuffix(letter) for letter in "fd"]
    candidates += [name.replace("f_rn", "_rn")]
    for candidate in candidates:
        if candidate in FUNCTIONS:
            return FUNCTIONS[candidate]
    found = _conversion(name, dtype)
    if found is None:
        raise NotImplementedError(
            f"libdevice's {symbol} has no equal in NumPy or PyTorch and isn't interpreted"
        )
    return found
