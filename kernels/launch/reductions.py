"""Reductions, scans and functions of single elements, on whole blocks.

A reduction is a tree of halves, each step its combine function on whole halves; so it shows what a
sum in 16 bits loses. A scan goes along its axis, a slice at a time. Sums, maxima and minima of
other numbers take NumPy's own, in their dtype: an integer sum wraps as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream

from kernels.launch.formats import Array, is_coded
from kernels.launch.semantic import Tensor, block

Combine = Callable[..., Any]

_TOGETHER = {
    id(tl.standard._sum_combine): np.add,
    id(tl.standard._elementwise_max): np.fmax,
    id(tl.standard._elementwise_min): np.fmin,
}
_WHERE = {
    id(tl.standard._argmax_combine_tie_break_left): np.argmax,
    id(tl.standard._argmin_combine_tie_break_left): np.argmin,
}
_ALONG = {id(tl.standard._sum_combine): np.add, id(tl.standard._prod_combine): np.multiply}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def tensor_of(data: Array, dtype: Any, scalar: bool = False) -> Any:
    """A block tensor of `data`, or the scalar that its one element is."""
    kind = dtype.scalar if scalar else block(dtype.scalar, data.shape)
    return Tensor(upstream.TensorHandle(data, dtype.scalar), kind)


def _narrow(tensor: Any) -> bool:
    return is_coded(tensor.dtype) or tensor.dtype.scalar == tl.float16


def _several(input: Any) -> tuple[tuple[Any, ...], bool]:
    alone = isinstance(input, tl.tensor)
    return ((input,) if alone else tuple(input)), alone


def _axis(axis: Any, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} doesn't fit a block of {rank} dimensions")
    return int(axis % rank)


def reduce(
    apply: Combine, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any
) -> Any:
    """`tl.reduce`; `apply(combine_fn, *values)` calls a combine function of the kernel's."""
    inputs, alone = _several(input)
    axis, keep_dims = _plain(axis), _plain(keep_dims)
    rank = inputs[0].handle.data.ndim
    everything = axis is None
    if axis is None:
        inputs = tuple(tensor_of(t.handle.data.reshape(-1), t.dtype) for t in inputs)
        axis = 0
    axis = _axis(axis, inputs[0].handle.data.ndim)
    results = []
    for data, dtype in _reduced(apply, inputs, axis, combine_fn):
        if not keep_dims:
            data = np.squeeze(data, axis)
        elif everything:
            data = data.reshape((1,) * rank)
        results.append(tensor_of(data if data.ndim else data.reshape(1), dtype, not data.ndim))
    return results[0] if alone else tuple(results)


def _reduced(
    apply: Combine, inputs: tuple[Any, ...], axis: int, combine_fn: Any
) -> list[tuple[Array, Any]]:
    """The reduced data, its axis kept with one element, and their dtypes."""
    data, key = inputs[0].handle.data, id(combine_fn)
    if not _narrow(inputs[0]):
        if key in _TOGETHER and data.dtype != np.bool_:
            whole = _TOGETHER[key].reduce(data, axis=axis, dtype=data.dtype, keepdims=True)
            return [(whole, inputs[0].dtype)]
        if key in _WHERE:
            places = _WHERE[key](data, axis=axis, keepdims=True)
            best = np.take_along_axis(data, places, axis)
            index = np.take_along_axis(
                np.broadcast_to(inputs[1].handle.data, data.shape), places, axis
            )
            return [(best, inputs[0].dtype), (index, inputs[1].dtype)]
    size = data.shape[axis]
    while size > 1:
        size //= 2
        low, high = (
            tuple(tensor_of(np.take(t.handle.data, places, axis), t.dtype) for t in inputs)
            for places in (np.arange(size), np.arange(size, 2 * size))
        )
        inputs = _several(apply(combine_fn, *low, *high))[0]
    return [(t.handle.data, t.dtype) for t in inputs]


def scan(
    apply: Combine, input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any
) -> Any:
    """`tl.associative_scan`, along one axis, from its end if `reverse`."""
    inputs, alone = _several(input)
    axis = _axis(_plain(axis), inputs[0].handle.data.ndim)
    turn = (lambda data: np.flip(data, axis)) if _plain(reverse) else (lambda data: data)
    key, first = id(combine_fn), turn(inputs[0].handle.data)
    if key in _ALONG and not _narrow(inputs[0]) and first.dtype != np.bool_:
        results = [_ALONG[key].accumulate(first, axis=axis, dtype=first.dtype)]
    else:
        results = _scanned(apply, [turn(t.handle.data) for t in inputs], inputs, axis, combine_fn)
    told = [
        tensor_of(np.ascontiguousarray(turn(data)), t.dtype)
        for data, t in zip(results, inputs, strict=True)
    ]
    return told[0] if alone else tuple(told)


def _scanned(
    apply: Combine, data: list[Array], inputs: tuple[Any, ...], axis: int, combine_fn: Any
) -> list[Array]:
    def at(place: int) -> tuple[Any, ...]:
        return tuple(
            tensor_of(np.take(values, [place], axis), t.dtype)
            for values, t in zip(data, inputs, strict=True)
        )

    so_far = at(0)
    slices = [so_far]
    for place in range(1, data[0].shape[axis]):
        so_far = _several(apply(combine_fn, *so_far, *at(place)))[0]
        slices.append(so_far)
    columns = zip(*slices, strict=True)
    return [np.concatenate([t.handle.data for t in column], axis) for column in columns]


def map_elementwise(apply: Combine, scalar_fn: Any, *args: Any, pack: Any = 1, **_: Any) -> Any:
    """`tl.map_elementwise`: a function of scalars, called with `pack` elements at a time."""
    pack = _plain(pack)
    blocks = np.broadcast_arrays(*(arg.handle.data for arg in args))
    shape, flat = blocks[0].shape, [block.reshape(-1) for block in blocks]
    rows: list[tuple[Any, ...]] = []
    alone = True
    for start in range(0, flat[0].size, pack):
        scalars = [
            tensor_of(values[place : place + 1], arg.dtype, scalar=True)
            for values, arg in zip(flat, args, strict=True)
            for place in range(start, start + pack)
        ]
        results, alone = _several(apply(scalar_fn, *scalars))
        rows.append(results)
    columns = []
    for first in range(0, len(rows[0]), pack):
        cells = [row[first + lane] for row in rows for lane in range(pack)]
        data = np.concatenate([cell.handle.data.reshape(-1) for cell in cells])
        columns.append(tensor_of(data.reshape(shape), cells[0].dtype))
    return columns[0] if alone and len(columns) == 1 else tuple(columns)
