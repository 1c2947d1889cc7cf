"""Triton's rules of types and shapes, with short ways for what nearly every operation needs.

Upstream makes a new block type, with its name, and a new tuple of constants for every tensor, and
compares types by their names, several times an operation: a block of a few hundred lanes spends
most of its time there, not in its arithmetic. Here a type is made once for its shape and element,
and what is already alike is left as it is. The rules are upstream's: what is not alike goes to it,
and so does everything that it refuses.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic

_WIDE = frozenset("fp32 fp64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())


@functools.lru_cache(maxsize=4096)
def _numbers_of(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A shape as a tensor holds it, constants in Triton's tuple, and its number of elements."""
    return tl.tuple([tl.constexpr(size) for size in shape]), tl.constexpr(math.prod(shape))


class _Block(tl.block_type):
    """A block type; `sizes` is its shape as Python's tuple, as Triton's own is slow to compare."""

    def __init__(self, element_ty: Any, sizes: tuple[int, ...]) -> None:
        super().__init__(element_ty, list(sizes))
        self.sizes = sizes

    def with_element_ty(self, scalar_ty: Any) -> Any:
        return block(scalar_ty, self.sizes)


_blocks: dict[tuple[str, Any, tuple[int, ...]], _Block] = {}


def block(element: Any, sizes: tuple[int, ...]) -> _Block:
    """The block type of an element and of sizes, made once."""
    # A pointer's name leaves out its address space.
    key = (element.name, getattr(element, "address_space", None), sizes)
    found = _blocks.get(key)
    if found is None:
        found = _blocks[key] = _Block(element, sizes)
    return found


class Tensor(tl.tensor):
    """A tensor; what its shape and type are told by is made once for all of their kind."""

    def __init__(self, handle: Any, type: Any) -> None:
        sizes = ()
        if type.is_block():
            if not isinstance(type, _Block):
                type = block(type.scalar, tuple(type.shape))
            sizes = type.sizes
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = _numbers_of(sizes)


Tensor.__name__ = tl.tensor.__name__  # Python's errors name it, and remarks know them by that


def _sizes(value: Any) -> tuple[int, ...]:
    """A block's sizes."""
    return getattr(value.type, "sizes", None) or tuple(value.type.shape)


class Semantic(TritonSemantic):
    """Upstream's semantic, which every builtin of the language goes through."""

    tensor = Tensor

    def to_tensor(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """A value as a tensor; a number gets the type that it has in Triton."""
        return x if isinstance(x, tl.tensor) else super().to_tensor(x, *args, **kwargs)

    def cast(self, input: Any, dst_ty: Any, *args: Any, **kwargs: Any) -> Any:
        """A tensor in another type."""
        if input.type.scalar is dst_ty.scalar:
            return input
        return super().cast(input, dst_ty, *args, **kwargs)

    def splat(self, value: Any, shape: Any) -> Any:
        """A scalar in every lane of a block."""
        sizes = tuple(getattr(size, "value", size) for size in shape)
        if not sizes or value.type.is_block():
            return super().splat(value, shape)
        return self._spread(value, block(value.type, sizes))

    def _spread(self, value: Any, kind: _Block) -> Any:
        return Tensor(self.builder.create_splat(kind, value.handle), kind)

    def expand_dims(self, input: Any, axis: int) -> Any:
        """A block with a dimension of one element more."""
        if not input.type.is_block():
            return super().expand_dims(input, axis)
        sizes = list(_sizes(input))
        sizes.insert(axis, 1)
        handle = self.builder.create_expand_dims(input.handle, axis)
        return Tensor(handle, block(input.type.scalar, tuple(sizes)))

    def binary_op_type_checking_impl(self, lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> Any:
        """Both operands in one type and one shape."""
        if isinstance(lhs, tl.tensor) and isinstance(rhs, tl.tensor):
            kind = lhs.type.scalar
            if kind is rhs.type.scalar and kind.name in _WIDE:  # the others change in a division
                return self.broadcast_impl_value(lhs, rhs)
        return super().binary_op_type_checking_impl(lhs, rhs, *args, **kwargs)

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
        """Both operands in one shape."""
        left, right = lhs.type, rhs.type
        if not left.is_block():
            return (self._spread(lhs, block(left, _sizes(rhs))) if right.is_block() else lhs), rhs
        if not right.is_block():
            return lhs, self._spread(rhs, block(right, _sizes(lhs)))
        a_sizes, b_sizes = _sizes(lhs), _sizes(rhs)
        if a_sizes == b_sizes:
            return lhs, rhs
        if len(a_sizes) == len(b_sizes):
            pairs = list(zip(a_sizes, b_sizes, strict=True))
            if all(a == b or 1 in (a, b) for a, b in pairs):
                shape = tuple(map(max, pairs))
                return self._stretched(lhs, shape), self._stretched(rhs, shape)
        return super().broadcast_impl_value(lhs, rhs)

    def _stretched(self, value: Any, shape: tuple[int, ...]) -> Any:
        if _sizes(value) == shape:
            return value
        handle = self.builder.create_broadcast(value.handle, shape)
        return Tensor(handle, block(value.type.scalar, shape))
