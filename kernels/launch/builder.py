"""Upstream's interpreter builder, its memory accesses on the arena, its arithmetic mended.

What upstream's interpreter (Triton 3.6 and 3.7) gets wrong or leaves out, and what is done here:

| upstream | here |
|---|---|
| bf16 and fp8 are integers in arithmetic, comparisons, reductions and `tl.dot` | computed in fp32 |
| fp32 to bf16 truncates; to fp8 a carry is lost, nothing saturates | rounded to even, saturated |
| bf16 with a constant, `tl.full` and NaN padding of bf16 and fp8 fail or give other bits | right |
| `tl.maximum`, `tl.minimum`, `tl.clamp` give a NaN where one operand is a number | the number |
| int1 adds up as `or`; `~` of unsigned numbers fails | modulo 2; right |
| `tl.umulhi` of signed numbers extends their sign | taken as unsigned, as on a GPU |
| integer sums, scalar ones above all, don't wrap | added up in their dtype |
| `tl.histogram` of int8 wraps at 127 | counted in int32 |
| `tl.fma` rounds twice | rounded once for fp32 and less |
| a reduction by a function of one's own goes lane by lane | a tree of halves |
| `and`, `or`, `not`, `min`, `max` on blocks, `if` on one: Python's | Triton's; refused |
| `while tl.condition(...)` never ends | its condition is looked at |
| libdevice, methods (`x.sum(0)`), aliases of functions, float and bool arguments fail | right |
| `tl.dot_scaled`, `map_elementwise`, atomics of descriptors and on bf16 fail | right |
| `tl.device_assert` is never looked at | with `debug`, as on a GPU |
| `tl.dot` of fp32 is exact where a GPU takes tf32; its last bits are the BLAS's | summed in fp64 |
| inline assembly fails | what `means` says it does; else refused with a sentence |
| patches `triton.language` and the kernel's module while a kernel runs | patches nothing |
"""

from __future__ import annotations

import operator
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as upstream

from kernels.launch import assembly, libdevice
from kernels.launch.accesses import Accesses
from kernels.launch.errors import KernelError
from kernels.launch.formats import encode, handle_of, is_coded, np_dtype, numbers

_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)
_OF_TRUTH = {np.add: np.bitwise_xor, np.subtract: np.bitwise_xor, np.multiply: np.bitwise_and}


class Options(types.SimpleNamespace):
    """A launch's options as the language asks for them; what is not given is as in upstream's."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        usual = {
            "num_warps": 4,
            "num_ctas": 1,
            "num_stages": 3,
            **vars(upstream.InterpreterOptions()),
        }
        usual["allowed_dot_input_precisions"] += ("bf16x3", "bf16x6")
        super().__init__(**{**usual, "sanitize_overflow": False, **given})
        # Overflow is looked at only where assertions are: elsewhere it would cost time for nothing.
        self.sanitize_overflow = bool(self.debug) and given.get("sanitize_overflow", True)


class MendedBuilder(Accesses):
    """Upstream's builder with its memory accesses on the arena and its arithmetic mended."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("create_"):
            what = name.removeprefix("create_").replace("_", " ")
            raise NotImplementedError(f"the operation {what!r} isn't interpreted")
        raise AttributeError(name)

    # Constants

    def get_bf16(self, value: Any) -> Any:
        return handle_of(np.array([value], dtype=np.float32), tl.bfloat16)

    def get_all_ones_value(self, type: Any) -> Any:
        data = np.array([-1]).astype(np_dtype(type))
        return upstream.TensorHandle(data, type.scalar)

    # Upstream looks up the type of the data many times slower.
    def get_null_value(self, type: Any) -> Any:
        return upstream.TensorHandle(np.zeros(1, np_dtype(type)), type)

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        data = np.full(tuple(ret_ty.shape), arg.data, np_dtype(arg.dtype))
        return upstream.TensorHandle(data, arg.dtype.scalar)

    # Conversions

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        return upstream.TensorHandle(encode(numbers(src), dst_type), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        toward_zero = rounding_mode == upstream._ir.ROUNDING_MODE.RTZ
        return handle_of(numbers(src), dst_type, toward_zero)

    # Arithmetic

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if op in _BITWISE:
            return super().binary_op(lhs, rhs, op)
        left, right = numbers(lhs), numbers(rhs)
        if left.dtype == np.bool_ == right.dtype:
            op = _OF_TRUTH.get(op, op)
        return handle_of(op(left, right), lhs.dtype)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where:
            return super().ternary_op(lhs, rhs, other, op)
        return handle_of(op(numbers(lhs), numbers(rhs), numbers(other)), other.dtype)

    def unary_op(self, arg: Any, op: Any) -> Any:
        return handle_of(op(numbers(arg)), arg.dtype)

    # A number wins over a NaN, unless the kernel asks for the other (`maximumf`, `minimumf`).
    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        all_nans = propagate_nans == tl.PropagateNan.ALL
        larger, smaller = (np.maximum, np.minimum) if all_nans else (np.fmax, np.fmin)
        return self.ternary_op(arg, lo, hi, lambda x, low, high: smaller(larger(x, low), high))

    def create_rsqrt(self, arg: Any) -> Any:
        return self.unary_op(arg, lambda values: 1 / np.sqrt(values))

    def create_erf(self, arg: Any) -> Any:
        return self.unary_op(arg, libdevice.by_torch(torch.erf))

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.ternary_op(x, y, z, libdevice.fma)

    def create_umulhi(self, lhs: Any, rhs: Any) -> Any:
        bits = lhs.data.itemsize * 8
        a, b = (h.data.astype(h.data.dtype.str.replace("i", "u")) for h in (lhs, rhs))
        if bits < 64:
            high = (a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(bits)
        else:
            half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
            middle = (a >> half) * (b & low) + (((a & low) * (b & low)) >> half)
            other = (a & low) * (b >> half) + (middle & low)
            high = (a >> half) * (b >> half) + (middle >> half) + (other >> half)
        return upstream.TensorHandle(high.astype(lhs.data.dtype), lhs.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, max_imprecise: Any) -> Any:
        # A product of two 16-bit numbers is exact in fp32, where a GPU adds them up.
        kind = np.result_type(numbers(d).dtype, np.float32 if d.dtype.is_floating() else np.int32)
        return handle_of(_product(numbers(a), numbers(b), kind) + numbers(d), d.dtype)

    def create_dot_scaled(
        self,
        lhs: Any,
        lhs_scale: Any,
        lhs_format: Any,
        rhs: Any,
        rhs_scale: Any,
        rhs_format: Any,
        fast_math: Any,
        lhs_k_pack: bool,
        rhs_k_pack: bool,
        acc: Any,
    ) -> Any:
        left = _scaled(lhs, lhs_scale, -1 if lhs_k_pack else -2, -1)
        # The scales of the right operand lie along K too: (N, K / 32).
        right = _scaled(rhs, rhs_scale, -2 if rhs_k_pack else -1, -2)
        return handle_of(_product(left, right, left.dtype) + numbers(acc), acc.dtype)

    def create_histogram(self, data: Any, bins: Any, mask: Any) -> Any:
        values = data.data if mask is None else data.data[mask.data.astype(bool)]
        values = values.astype(np.int64).reshape(-1)
        counts = np.bincount(values[(values >= 0) & (values < bins)], minlength=bins)
        return upstream.TensorHandle(counts.astype(np.int32), tl.int32)

    # What is outside the language

    def create_extern_elementwise(
        self, lib_name: Any, path: Any, symbol: str, arguments: Any, return_type: Any, pure: Any
    ) -> Any:
        kind = np_dtype(return_type)
        values = libdevice.function_of(symbol, kind)(*(numbers(a) for a in arguments))
        return upstream.TensorHandle(np.asarray(values).astype(kind), return_type.scalar)

    def create_inline_asm(
        self, text: str, constraints: str, arguments: Any, types_: Any, pure: bool, pack: int
    ) -> Any:
        found = assembly.meaning(text)(*(numbers(a) for a in arguments))
        several = found if isinstance(found, tuple) else (found,)
        handles = [handle_of(*one) for one in zip(several, types_, strict=True)]
        return types.SimpleNamespace(get_result=handles.__getitem__)

    # Told and asserted

    def create_print(self, prefix: str, hex: bool, values: Any, is_signed: Any) -> None:
        for value in values:
            shown = np.vectorize(operator.index, otypes=[object])(value.data) if hex else None
            text = np.vectorize("0x{:x}".format)(shown) if hex else numbers(value)
            print(f"{self.grid_idx}{prefix or ' '}{text}")

    def create_assert(self, condition: Any, message: str) -> None:
        self._hold(condition, f"device_assert failed: {message}" if message else "assertion failed")

    def create_assume(self, condition: Any) -> None:
        self._hold(condition, "tl.assume was given what is false")

    def _hold(self, condition: Any, sentence: str) -> None:
        if bool(np.all(condition.data)):
            return
        place = self.place()
        raise KernelError(
            f"kernel {self.arena.kernel!r}, program {self.grid_idx}{place}: {sentence}",
            kind="assert",
            kernel=self.arena.kernel,
            program=self.grid_idx,
            line=place.line,
            file=place.file,
        )


def _product(a: Any, b: Any, kind: Any) -> Any:
    """a · b in the dtype `kind`, each sum of floats in fp64 and rounded once.

    In fp32 the order of a sum, and so its last bits, would be that of the machine's BLAS, which
    takes other steps for a wider tile.
    """
    wide = np.float64 if np.issubdtype(kind, np.floating) else kind
    with np.errstate(over="ignore"):  # infinite, as on a GPU
        return np.matmul(a.astype(wide), b.astype(wide)).astype(kind)


def _scaled(handle: Any, scale: Any, packed: int, along: int) -> Any:
    """The numbers of an operand of `tl.dot_scaled` in fp32, (…, M, K) or (…, K, N).

    Two 4-bit numbers lie in a byte along the axis `packed`, the low one first; a scale of 8 bits is
    a power of two, or an fp8, for 32 or 16 numbers along K, the axis `along`.
    """
    values = numbers(handle) if handle.dtype != tl.uint8 else _four_bits(handle.data, packed)
    values = values.astype(np.float32)
    if scale is None:
        return values
    by = numbers(scale) if is_coded(scale.dtype) else _powers_of_two(scale.data)
    by = np.repeat(by, values.shape[along] // by.shape[-1], axis=-1)
    return values * (by if along == -1 else np.swapaxes(by, -1, -2))


def _powers_of_two(bits: Any) -> Any:
    return np.where(bits == 0xFF, np.nan, np.exp2(bits.astype(np.float64) - 127))


def _four_bits(bits: Any, packed: int) -> Any:
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = np.concatenate([table, -table])
    both = np.stack([table[bits & 0xF], table[bits >> 4]], axis=bits.ndim if packed == -1 else -2)
    shape = list(bits.shape)
    shape[packed] *= 2
    return both.reshape(shape)
