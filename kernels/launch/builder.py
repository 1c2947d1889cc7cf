"""Upstream's interpreter builder, its memory accesses on the arena, its arithmetic mended.

bf16 is kept as 16-bit integers there, and arithmetic, comparisons, `tl.dot` and reductions work on
those integers; a cast from fp32 truncates. Here each is computed in fp32 and rounded to nearest
even, as on a GPU. `tl.reduce` with a combine function of one's own goes lane by lane there; here it
is a tree, which also shows what a sum in 16 bits loses.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream

from kernels.launch.arena import Arena

_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)


def _decode(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """bf16, kept as uint16, to fp32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _encode(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """fp32 to bf16, kept as uint16, rounded to nearest even; a NaN stays a NaN."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.where(np.isnan(values), bits | np.uint32(0x400000), rounded)
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _is_bf16(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16


def _floats(handle: Any) -> np.ndarray[Any, Any]:
    return _decode(handle.data) if _is_bf16(handle) else handle.data


def _handle(data: Any, dtype: Any) -> Any:
    """A tensor handle of `dtype` for computed `data`, which is encoded if that is bf16."""
    if data.dtype == np.bool_:
        return upstream.TensorHandle(data, tl.int1)
    if dtype.scalar == tl.bfloat16:
        return upstream.TensorHandle(_encode(data), tl.bfloat16)
    return upstream.TensorHandle(data, dtype.scalar)


class MendedBuilder(upstream.InterpreterBuilder):
    """Upstream's builder with its memory accesses on the arena and its bf16 mended."""

    arena: Arena
    kernel_code: dict[types.CodeType, str]

    def _line(self) -> int | None:
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code in self.kernel_code:
                return frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def _access(self, kind: str, ptrs: Any, mask: np.ndarray[Any, Any]) -> Any:
        itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        self.arena.program = self.grid_idx
        return self.arena.access(kind, ptrs.data, mask, itemsize, self._line())

    def create_masked_load(
        self,
        ptrs: Any,
        mask: Any,
        other: Any,
        cache_modifier: Any,
        eviction_policy: Any,
        is_volatile: Any,
    ) -> Any:
        # Block pointers and descriptors hand over a bare array as the mask.
        lanes = mask.data if isinstance(mask, upstream.TensorHandle) else mask
        element = ptrs.get_element_ty()
        dtype = upstream._get_np_dtype(element)
        fill = np.zeros(ptrs.data.shape, dtype) if other is None else other.data
        real = self._access("load", ptrs, lanes)
        lanes = np.ascontiguousarray(np.broadcast_to(lanes, real.shape))
        fill = np.ascontiguousarray(np.broadcast_to(fill, real.shape), dtype=dtype)
        return upstream.TensorHandle(upstream._interpreter.load(real, lanes, fill, dtype), element)

    def create_masked_store(
        self, ptrs: Any, value: Any, mask: Any, cache_modifier: Any, eviction_policy: Any
    ) -> Any:
        lanes = mask.data if isinstance(mask, upstream.TensorHandle) else mask
        real = self._access("store", ptrs, lanes)
        dtype = upstream._get_np_dtype(ptrs.get_element_ty())
        lanes = np.ascontiguousarray(np.broadcast_to(lanes, real.shape))
        data = np.ascontiguousarray(np.broadcast_to(value.data, real.shape), dtype=dtype)
        return upstream._interpreter.store(real, data, lanes)

    def create_atomic_rmw(
        self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        if _is_bf16(val):
            raise NotImplementedError("atomics on bf16 don't run in the interpreter; use fp32")
        real = self._access("atomic", ptr, mask.data)
        ptr = upstream.TensorHandle(real, ptr.dtype)
        return super().create_atomic_rmw(rmwOp, ptr, val, mask, sem, scope)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        real = self._access("atomic", ptr, np.ones(ptr.data.shape, dtype=bool))
        ptr = upstream.TensorHandle(real, ptr.dtype)
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        if _is_bf16(src) or dst_type.scalar == tl.bfloat16:
            values = _floats(src)
            if dst_type.scalar != tl.bfloat16:
                values = values.astype(upstream._get_np_dtype(dst_type))
            return _handle(values, dst_type)
        return super().cast_impl(src, dst_type)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        toward_zero = rounding_mode == upstream._ir.ROUNDING_MODE.RTZ
        if tl.bfloat16 in (src.dtype.scalar, dst_type.scalar) and not toward_zero:
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if (_is_bf16(lhs) or _is_bf16(rhs)) and op not in _BITWISE:
            return _handle(op(_floats(lhs), _floats(rhs)), tl.bfloat16)
        return super().binary_op(lhs, rhs, op)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if _is_bf16(other) and op is not np.where:
            return _handle(op(_floats(lhs), _floats(rhs), _floats(other)), tl.bfloat16)
        return super().ternary_op(lhs, rhs, other, op)

    def unary_op(self, arg: Any, op: Any) -> Any:
        if _is_bf16(arg):
            return _handle(op(_decode(arg.data)), tl.bfloat16)
        return super().unary_op(arg, op)

    def create_rsqrt(self, arg: Any) -> Any:
        return self.unary_op(arg, lambda values: 1 / np.sqrt(values))

    def create_erf(self, arg: Any) -> Any:
        if _is_bf16(arg):
            return _handle(upstream.np_erf_fp32(_decode(arg.data)), tl.bfloat16)
        return super().create_erf(arg)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if _is_bf16(z):
            return _handle(_floats(x) * _floats(y) + _floats(z), tl.bfloat16)
        return super().create_fma(x, y, z)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_imprecise: Any) -> Any:
        # A product of two 16-bit numbers is exact in fp32, where a GPU adds them up.
        half = (tl.bfloat16, tl.float16)
        if a.dtype.scalar in half and b.dtype.scalar in half:
            a = upstream.TensorHandle(_floats(a).astype(np.float32), tl.float32)
            b = upstream.TensorHandle(_floats(b).astype(np.float32), tl.float32)
        return super().create_dot(a, b, d, input_precision, max_imprecise)


def _reduce_tree(
    inputs: tuple[Any, ...], axis: int | None, combine: Callable[..., Any], keep_dims: bool
) -> tuple[Any, ...]:
    """Reduce block tensors by halves, each step by `combine` on whole halves."""
    rank = inputs[0].handle.data.ndim
    everything = axis is None
    if axis is None:
        inputs = tuple(_tensor(t.handle.data.reshape(-1), t.dtype) for t in inputs)
        axis = 0
    size = inputs[0].handle.data.shape[axis]
    while size > 1:
        size //= 2
        low, high = (
            tuple(_tensor(np.take(t.handle.data, places, axis), t.dtype) for t in inputs)
            for places in (np.arange(size), np.arange(size, 2 * size))
        )
        result = combine(*low, *high)
        inputs = result if isinstance(result, tuple) else (result,)
    results = []
    for t in inputs:
        data = t.handle.data if keep_dims else np.squeeze(t.handle.data, axis)
        if everything and keep_dims:
            data = data.reshape((1,) * rank)
        results.append(_tensor(data if data.ndim else data.reshape(1), t.dtype, not data.ndim))
    return tuple(results)


def _tensor(data: np.ndarray[Any, Any], dtype: Any, scalar: bool = False) -> Any:
    kind = dtype.scalar if scalar else tl.block_type(dtype.scalar, list(data.shape))
    return tl.core.tensor(upstream.TensorHandle(data, dtype.scalar), kind)


_FAST_REDUCTIONS = (
    tl.standard._argmin_combine_tie_break_left,
    tl.standard._argmax_combine_tie_break_left,
    tl.standard._elementwise_max,
    tl.standard._elementwise_min,
    tl.standard._sum_combine,
)


def patched_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's `tl.reduce`, with a tree where it would go lane by lane or add up integers."""

    def reduce(
        input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **options: Any
    ) -> Any:
        axis = axis.value if isinstance(axis, tl.constexpr) else axis
        keep_dims = keep_dims.value if isinstance(keep_dims, tl.constexpr) else keep_dims
        inputs = input if isinstance(input, tuple) else (input,)
        exact = inputs[0].dtype.scalar not in (tl.bfloat16, tl.float16)
        if exact and any(combine_fn is known for known in _FAST_REDUCTIONS):
            return original(input, axis, combine_fn, keep_dims=keep_dims, **options)
        result = _reduce_tree(inputs, axis, combine_fn, keep_dims)
        return result if isinstance(input, tuple) else result[0]

    return reduce
