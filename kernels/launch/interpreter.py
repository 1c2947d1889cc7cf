"""Triton's interpreter, run over the arena.

`builder` mends its arithmetic and `rewrite` its reading of the source. Here its patches of
`triton.language` are put back, which upstream leaves behind after a helper function ran, and its
loops with a run-time bound are mended, which fail with newer NumPy in Triton 3.6 and older.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as upstream
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launch.arena import Access, Arena
from kernels.launch.block_types import made_once
from kernels.launch.builder import MendedBuilder, patched_reduce
from kernels.launch.errors import KernelError, LaunchError
from kernels.launch.rewrite import function_of

_lock = threading.RLock()


@contextlib.contextmanager
def _patched_language(builder: MendedBuilder) -> Iterator[None]:
    """Make `triton.language` act on arrays, and put every attribute back afterwards."""
    owners = [tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base]
    owners += [tl.core.condition] if hasattr(tl.core, "condition") else []
    before = [(owner, dict(vars(owner))) for owner in owners]
    functions: dict[int, Callable[..., Any]] = {}

    def call(self: JITFunction[Any], *args: Any, **kwargs: Any) -> Any:
        if id(self) not in functions:
            functions[id(self)] = function_of(self, builder)
        return functions[id(self)](*args, **kwargs)

    call_before = JITFunction.__call__
    class_before = upstream.interpreter_builder.__class__
    options_before = upstream.interpreter_builder.options
    JITFunction.__call__ = call
    upstream.interpreter_builder.__class__ = MendedBuilder
    upstream.interpreter_builder.arena = builder.arena
    upstream.interpreter_builder.kernel_code = builder.kernel_code
    # Otherwise each sum of integers is computed once more in 64 bits, for a `device_assert` that
    # does nothing without `debug`: half of a launch's time.
    upstream.interpreter_builder.options = replace(options_before, sanitize_overflow=False)
    try:
        upstream._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        tl.tensor.__index__ = lambda self: int(self.handle.data.squeeze())
        tl.reduce = tl.core.reduce = patched_reduce(tl.core.reduce)
        yield
    finally:
        upstream.interpreter_builder.__class__ = class_before
        upstream.interpreter_builder.options = options_before
        JITFunction.__call__ = call_before
        for owner, attributes in before:
            for name in [name for name in vars(owner) if name not in attributes]:
                delattr(owner, name)
            for name, value in attributes.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)


def _convert(name: str, value: Any, arena: Arena) -> Any:
    """An argument as the interpreter takes it, its tensors placed in the arena."""
    if hasattr(value, "data_ptr"):
        base = value.base if hasattr(value, "base") else value  # a TensorWrapper reinterprets
        address = arena.place(name, base, int(value.element_size()))
        kind = tl.str_to_ty(triton.runtime.jit.mangle_type(value), None)
        return tl.tensor(upstream.TensorHandle(np.array([address], dtype=np.uint64), kind), kind)
    if isinstance(value, TensorDescriptor):
        semantic = upstream.interpreter_semantic
        strides = [upstream._implicit_cvt(stride) for stride in value.strides]
        strides[-1] = tl.constexpr(1)
        return semantic.make_tensor_descriptor(
            base=_convert(name, value.base, arena),
            shape=[upstream._implicit_cvt(size) for size in value.shape],
            strides=strides,
            block_shape=[tl.constexpr(size) for size in value.block_shape],
            padding_option=value.padding,
        )
    if isinstance(value, tuple):
        items = [_convert(f"{name}[{i}]", item, arena) for i, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return upstream._implicit_cvt(value)


def normalized_grid(grid: Any, arguments: dict[str, Any]) -> tuple[int, int, int]:
    """A launch's grid as three sizes; LaunchError with one sentence if it isn't one."""
    sizes = grid(arguments) if callable(grid) else grid
    sizes = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(s, int) and s >= 0 for s in sizes):
        raise LaunchError(f"grid {sizes!r} is not understood; it takes one to three whole numbers")
    sizes += (1,) * (3 - len(sizes))
    return (sizes[0], sizes[1], sizes[2])


def interpret(
    kernel: JITFunction[Any],
    arguments: dict[str, Any],
    grid: tuple[int, int, int],
    trace: list[Access] | None = None,
) -> Arena:
    """Run every program of one launch in the interpreter and return the arena it ran in.

    `arguments` holds a value for every parameter of the kernel. Tensors on a GPU are copied to the
    host and back. KernelError says what the kernel did wrong; memory outside the arguments stays
    as it was.
    """
    name = kernel.__name__
    arena = Arena(name, grid, trace)
    builder = MendedBuilder()
    builder.arena, builder.kernel_code = arena, {}
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    # NumPy would warn of what is usual on a GPU: inf, NaN and division by zero.
    with _lock, made_once(), _patched_language(builder), np.errstate(all="ignore"):
        function = function_of(kernel, builder)
        converted = {
            key: value if key in constexprs else _convert(key, value, arena)
            for key, value in arguments.items()
        }
        upstream.interpreter_builder.set_grid_dim(*grid)
        for z in range(grid[2]):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    upstream.interpreter_builder.set_grid_idx(x, y, z)
                    _run_program(function, converted, name, (x, y, z), builder)
    arena.copy_back()
    return arena


def _run_program(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    name: str,
    program: tuple[int, int, int],
    builder: MendedBuilder,
) -> None:
    try:
        function(**arguments)
    except KernelError:
        raise
    except Exception as error:
        line = None
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code in builder.kernel_code:
                line = traceback.tb_lineno
            traceback = traceback.tb_next
        at = "" if line is None else f", line {line}"
        raise KernelError(
            f"kernel {name!r}, program {program}{at}: {type(error).__name__}: {error}",
            kind="python",
            kernel=name,
            program=program,
            line=line,
        ) from error


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The PyTorch tensors inside one launch argument."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, TensorDescriptor):
        yield from tensors_of(value.base)
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_of(item)
    elif hasattr(value, "data_ptr") and hasattr(value, "base"):
        yield from tensors_of(value.base)
