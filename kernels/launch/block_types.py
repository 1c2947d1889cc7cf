"""Triton's types of blocks, made once: upstream makes and checks them anew at every operation.

A program in the interpreter is some hundred operations on small arrays, and most of its time went
into types: a shape's sizes wrapped and unwrapped, a table of dtypes built, a name put together.
Here what depends on a shape or a dtype alone is kept for the launch. All else is upstream's, and so
are the words for a shape that is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as upstream

Sizes = tuple[int, ...]


def _sizes(shape: Any) -> Sizes | None:
    """The sizes of a shape, or None where upstream has to say what is wrong with it."""
    values = shape.values if isinstance(shape, core.tuple) else shape
    if not isinstance(values, list | tuple):
        return None
    sizes = [one.value if isinstance(one, core.constexpr) else one for one in values]
    return tuple(sizes) if all(type(one) is int for one in sizes) else None


def _block(original: Callable[..., None]) -> Callable[..., None]:
    known: dict[Sizes, tuple[Any, int, str]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = _sizes(shape)
        if sizes not in known:
            original(self, element_ty, shape)
            if sizes is not None:
                known[sizes] = (self.shape, self.numel, str(self.shape))
            return
        self.element_ty = element_ty
        self.shape, self.numel, told = known[sizes]
        self.name = f"<{told}, {element_ty}>"

    return init


def _tensor(original: Callable[..., None]) -> Callable[..., None]:
    known: dict[Sizes, tuple[Any, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape.values) if isinstance(type, core.block_type) else ()
        if sizes not in known:
            original(self, handle, type)
            known[sizes] = (self.shape, self.numel)
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known[sizes]

    return init


def _same(original: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def same(self: Any, other: Any) -> bool:
        if type(self) is type(other) is core.dtype:
            return bool(self.name == other.name)
        return original(self, other)

    return same


def _of_arrays(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, np.dtype[Any]] = {}

    def dtype(tt_dtype: Any) -> Any:
        if tt_dtype.name not in known:
            known[tt_dtype.name] = original(tt_dtype)
        return known[tt_dtype.name]

    return dtype


def _broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        blocks = isinstance(lhs.type, core.block_type) and isinstance(rhs.type, core.block_type)
        if blocks and lhs.type.shape.values == rhs.type.shape.values:
            return lhs, rhs
        return original(self, lhs, rhs)

    return broadcast


@contextlib.contextmanager
def made_once() -> Iterator[None]:
    """Within it upstream's types are made once for each shape and dtype."""
    mended: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (core.block_type, "__init__", _block),
        (core.tensor, "__init__", _tensor),
        (core.dtype, "__eq__", _same),
        (upstream, "_get_np_dtype", _of_arrays),
        (TritonSemantic, "broadcast_impl_value", _broadcast),
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in mended]
    try:
        for owner, name, mend in mended:
            setattr(owner, name, mend(vars(owner)[name]))
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)
