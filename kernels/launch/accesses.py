"""The memory of the interpreter: loads, stores and atomics, each by way of the arena.

It stands below `MendedBuilder`, which adds the arithmetic.
"""

from __future__ import annotations

import sys
import time
import types
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream

from kernels.launch.arena import Arena
from kernels.launch.errors import KernelError, Place
from kernels.launch.formats import encode, handle_of, is_coded, np_dtype, numbers

_Array = np.ndarray[Any, Any]


def _lanes(mask: Any) -> _Array:
    # Block pointers and descriptors hand over a bare array as the mask.
    return mask.data if isinstance(mask, upstream.TensorHandle) else mask


def _stretched(data: _Array, shape: tuple[int, ...]) -> _Array:
    """An array in a shape; NumPy's own way takes its time where there is nothing to do."""
    return data if data.shape == shape else np.broadcast_to(data, shape)


class Accesses(upstream.InterpreterBuilder):
    """Upstream's builder with its memory accesses on the arena.

    `codes` are the code objects of the kernel and its helpers, each with its file. A program may
    take `time_limit_s` seconds of this thread's time.
    """

    arena: Arena
    codes: dict[types.CodeType, str]
    own_file: str
    time_limit_s: float
    deadline: float

    def place(self) -> Place:
        """The line that runs, the innermost that belongs to a kernel or to a helper of it."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code in self.codes:
                file = self.codes[frame.f_code]
                return Place(frame.f_lineno, None if file == self.own_file else file)
            frame = frame.f_back
        return Place()

    def start(self, program: tuple[int, int, int]) -> None:
        """Begin a program of the grid."""
        self.set_grid_idx(*program)
        self.arena.program = program
        self.deadline = time.thread_time() + self.time_limit_s

    def tick(self) -> None:
        """Called at each turn of a loop: KernelError if the program takes too long."""
        if time.thread_time() < self.deadline:
            return
        place = self.place()
        raise KernelError(
            f"kernel {self.arena.kernel!r}, program {self.grid_idx}{place}: the program did not "
            f"end within {self.time_limit_s:g} s; look for a loop that never ends, or that waits "
            f"for a program after this one: they are interpreted one after another; "
            f"interpreting(time_limit_s=...) allows for more",
            kind="timeout",
            kernel=self.arena.kernel,
            program=self.grid_idx,
            line=place.line,
            file=place.file,
        )

    def _access(self, kind: str, ptrs: Any, mask: _Array, data: _Array | None = None) -> _Array:
        itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        return self.arena.access(kind, ptrs.data, mask, itemsize, self.place(), data)

    def create_masked_load(
        self,
        ptrs: Any,
        mask: Any,
        other: Any,
        cache_modifier: Any,
        eviction_policy: Any,
        is_volatile: Any,
    ) -> Any:
        lanes = _lanes(mask)
        element = ptrs.get_element_ty()
        dtype = np_dtype(element)
        fill = np.zeros(ptrs.data.shape, dtype) if other is None else other.data
        real = self._access("load", ptrs, lanes)
        lanes = np.ascontiguousarray(_stretched(lanes, real.shape))
        fill = np.ascontiguousarray(_stretched(fill, real.shape), dtype=dtype)
        return upstream.TensorHandle(upstream._interpreter.load(real, lanes, fill, dtype), element)

    def create_masked_store(
        self, ptrs: Any, value: Any, mask: Any, cache_modifier: Any, eviction_policy: Any
    ) -> Any:
        lanes = _lanes(mask)
        dtype = np_dtype(ptrs.get_element_ty())
        shape = ptrs.data.shape
        data = np.ascontiguousarray(_stretched(value.data, shape), dtype=dtype)
        real = self._access("store", ptrs, lanes, data)
        lanes = np.ascontiguousarray(_stretched(lanes, shape))
        return upstream._interpreter.store(real, data, lanes)

    # Block pointers and descriptors

    def _padding(self, option: Any, ptrs: Any) -> Any:
        """What a lane outside the tensor gets; None for zero."""
        if option == upstream._ir.PADDING_OPTION.PAD_NAN:
            return handle_of(np.full((1,), np.nan, np.float32), ptrs.get_element_ty())
        return None

    def create_tensor_pointer_load(
        self,
        ptr: Any,
        boundary_check: Any,
        padding_option: Any,
        cache_modifier: Any,
        eviction_policy: Any,
        is_volatile: Any,
    ) -> Any:
        ptrs, mask = ptr.materialize_pointers(boundary_check)
        other = self._padding(padding_option, ptrs)
        return self.create_masked_load(ptrs, mask, other, None, None, is_volatile)

    def create_descriptor_load(
        self, desc: Any, indices: Any, cache_modifier: Any, eviction_policy: Any
    ) -> Any:
        ptrs, mask = desc.materialize_pointers(indices)
        return self.create_masked_load(
            ptrs, mask, self._padding(desc.padding, ptrs), None, None, False
        )

    def create_descriptor_reduce(self, kind: Any, desc: Any, value: Any, indices: Any) -> None:
        ptrs, mask = desc.materialize_pointers(indices)
        name = kind.name
        element = ptrs.get_element_ty()
        if name == "ADD" and element.is_floating():
            name = "FADD"
        elif name in ("MIN", "MAX"):
            if element.is_floating():
                raise NotImplementedError("a descriptor's atomic min and max of floats don't run")
            name = name if element.is_int_signed() else f"U{name}"
        operation = getattr(upstream._ir.ATOMIC_OP, name)
        order = upstream._ir.MEM_SEMANTIC.RELAXED
        lanes = upstream.TensorHandle(np.ascontiguousarray(mask), tl.int1)
        self.create_atomic_rmw(operation, ptrs, value, lanes, order, None)

    # Atomics

    def create_atomic_rmw(
        self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        lanes = _stretched(mask.data, ptr.data.shape)
        real = self._access("atomic", ptr, lanes)
        if is_coded(val.dtype):
            return self._add_one_by_one(real, val, lanes)
        lanes, data = (np.ascontiguousarray(_stretched(of, real.shape)) for of in (lanes, val.data))
        return super().create_atomic_rmw(
            rmwOp,
            upstream.TensorHandle(np.ascontiguousarray(real), ptr.dtype),
            upstream.TensorHandle(data, val.dtype),
            upstream.TensorHandle(lanes, tl.int1),
            sem,
            scope,
        )

    def _add_one_by_one(self, real: _Array, val: Any, lanes: _Array) -> Any:
        """An atomic addition of bf16, which upstream's memory doesn't know; the language has no
        other on bf16."""
        before = np.zeros(real.shape, val.data.dtype)
        values = _stretched(numbers(val), real.shape)
        here, none = np.ones(1, dtype=bool), np.zeros(1, val.data.dtype)
        for lane in zip(*np.nonzero(lanes), strict=True):
            at = real[lane].reshape(1)
            found = upstream._interpreter.load(at, here, none, none.dtype)
            total = numbers(upstream.TensorHandle(found, val.dtype)) + values[lane]
            upstream._interpreter.store(at, encode(total, val.dtype), here)
            before[lane] = found[0]
        return upstream.TensorHandle(before, val.dtype.scalar)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        real = self._access("atomic", ptr, np.ones(ptr.data.shape, dtype=bool))
        ptr = upstream.TensorHandle(real, ptr.dtype)
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)
