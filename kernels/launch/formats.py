"""bf16 and fp8, which NumPy lacks, kept as their bits: to fp32 and back.

To fewer bits a number is rounded to nearest even, or toward zero where that is asked for. What is
too large for an fp8 becomes its largest number, and so does an infinity, as the conversion of a GPU
saturates. A NaN stays one.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream

Array = np.ndarray[Any, Any]

_FP8 = (tl.float8e5, tl.float8e4nv, tl.float8e4b15, tl.float8e4b8, tl.float8e5b16)
_NAN_CODE = {"fp8e5": 0x7F, "fp8e4nv": 0x7F, "fp8e4b8": 0x80, "fp8e5b16": 0x80}
# Codes of magnitudes that are numbers: the others stand for infinity or NaN.
_FINITE = {"fp8e5": 0x7C, "fp8e4nv": 0x7F, "fp8e4b8": 0x80, "fp8e5b16": 0x80, "fp8e4b15": 0x80}


_BF16 = tl.bfloat16.name
_CODED = frozenset(dtype.name for dtype in (tl.bfloat16, *_FP8))
_np_dtypes: dict[str, np.dtype[Any]] = {}


# Types are looked up by their names: upstream compares and hashes them many times slower.
def is_coded(dtype: Any) -> bool:
    """Whether numbers of a Triton type are kept as their bits: bf16 and fp8."""
    return dtype.scalar.name in _CODED


def np_dtype(dtype: Any) -> np.dtype[Any]:
    """NumPy's type for data of a Triton type; that of addresses for a pointer."""
    scalar = dtype.scalar
    found = _np_dtypes.get(scalar.name)
    if found is None:
        found = _np_dtypes[scalar.name] = upstream._get_np_dtype(scalar)
    return found


@functools.cache
def _magnitudes(name: str) -> Array:
    """The number of each code from 0 on, of which all are finite, in float64."""
    kind = next(dtype for dtype in _FP8 if dtype.name == name)
    width, codes = kind.fp_mantissa_width, np.arange(_FINITE[name])
    exponent, fraction = codes >> width, codes & ((1 << width) - 1)
    whole = fraction + np.where(exponent > 0, 1 << width, 0)
    return np.ldexp(whole, np.maximum(exponent, 1) - kind.exponent_bias - width)


def _decode_fp8(bits: Array, name: str) -> Array:
    table = np.full(128, np.nan)
    magnitudes = _magnitudes(name)
    table[: magnitudes.size] = magnitudes
    if name == "fp8e5":
        table[0x7C] = np.inf
    signed = np.concatenate([table, -table]).astype(np.float32)
    if name in ("fp8e4b8", "fp8e5b16"):
        signed[0x80] = np.nan
    return signed[bits]


def _encode_fp8(values: Array, name: str, toward_zero: bool) -> Array:
    if name == "fp8e4b15":
        return _encode_fp8e4b15(values)
    table = _magnitudes(name)
    size = np.abs(values.astype(np.float64))
    if toward_zero:
        codes = np.searchsorted(table, size, side="right") - 1
    else:
        middles = (table[1:] + table[:-1]) / 2
        codes = np.searchsorted(middles, size)
        ties = size == np.append(middles, np.inf)[codes]
        codes = codes + (ties & (codes % 2 == 1) & (codes < table.size - 1))
    codes = np.where(np.signbit(values), codes | 0x80, codes)
    if name in ("fp8e4b8", "fp8e5b16"):  # they have no negative zero
        codes = np.where(codes == 0x80, 0, codes)
    return np.where(np.isnan(values), _NAN_CODE[name], codes).astype(np.uint8)


def _encode_fp8e4b15(values: Array) -> Array:
    """As Triton's own assembly does it: by way of fp16, halves away from zero, 1.75 at most."""
    halves = toward_zero_to(values, np.dtype(np.float16)).view(np.uint16)
    sizes = np.minimum(halves & 0x7FFF, 0x3F00).astype(np.uint32)
    codes = (2 * sizes + 0x80) >> 8
    return (codes | ((halves >> 8) & 0x80)).astype(np.uint8)


def _encode_bf16(values: Array, toward_zero: bool) -> Array:
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    up = np.uint32(0) if toward_zero else np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))
    rounded = np.where(np.isnan(values), bits | np.uint32(0x400000), bits + up)
    return (rounded >> np.uint32(16)).astype(np.uint16)


def toward_zero_to(values: Array, dtype: np.dtype[Any]) -> Array:
    """`values` in a narrower NumPy float, rounded toward zero."""
    rounded = np.asarray(values).astype(dtype)
    beyond = np.abs(rounded.astype(values.dtype)) > np.abs(values)
    return np.where(beyond, np.nextafter(rounded, dtype.type(0)), rounded)


def decode(bits: Array, dtype: Any) -> Array:
    """The numbers, in fp32, of bits of a type that is kept so."""
    if dtype.scalar.name == _BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return _decode_fp8(bits, dtype.scalar.name)


def encode(values: Array, dtype: Any, toward_zero: bool = False) -> Array:
    """`values` as data of a Triton type: its bits where it is kept so, else NumPy's own."""
    if dtype.scalar.name == _BF16:
        return _encode_bf16(values, toward_zero)
    if is_coded(dtype):
        return _encode_fp8(np.asarray(values), dtype.scalar.name, toward_zero)
    kind = np_dtype(dtype)
    if toward_zero and kind.kind == "f" and kind.itemsize < values.dtype.itemsize:
        return toward_zero_to(values, kind)
    return values.astype(kind, copy=False)


def numbers(handle: Any) -> Array:
    """What a tensor handle holds, as numbers that NumPy can compute with."""
    coded = is_coded(handle.dtype) and handle.data.dtype.kind == "u"
    return decode(handle.data, handle.dtype) if coded else handle.data


def handle_of(values: Array, dtype: Any, toward_zero: bool = False) -> Any:
    """A tensor handle of a Triton type for computed `values`; for truth values one of int1."""
    if values.dtype == np.bool_:
        return upstream.TensorHandle(values, tl.int1)
    return upstream.TensorHandle(encode(values, dtype, toward_zero), dtype.scalar)
