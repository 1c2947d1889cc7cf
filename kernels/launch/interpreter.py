"""Triton's interpreter, run over the arena.

`rewrite` reads the kernel's source, `language` says what its constructs mean, `builder` computes.
Nothing of Triton is patched while a kernel runs, so several threads may interpret, compile and
launch at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import interpreter as upstream
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.hardware import MAX_GRID
from kernels.launch.arena import Access, Arena
from kernels.launch.builder import MendedBuilder, Options
from kernels.launch.errors import KernelError, LaunchError, Place, Program
from kernels.launch.formats import encode
from kernels.launch.gluon import is_gluon
from kernels.launch.language import Language, tell_signs
from kernels.launch.launches import TIME_LIMIT_S
from kernels.launch.rewrite import function_of
from kernels.launch.tape import is_descriptor


def _number(value: Any, annotation: str | None) -> Any:
    """A number among the arguments, as a scalar of the type that a GPU would get."""
    if annotation:
        kind = tl.str_to_ty(annotation, None)
    elif isinstance(value, bool):
        kind = tl.int1
    elif isinstance(value, float):
        kind = tl.float32
    else:
        kind = tl.str_to_ty(triton.runtime.jit.mangle_type(value), None)
    return tl.tensor(upstream.TensorHandle(encode(np.array([value]), kind), kind), kind)


class _Arguments:
    """Converts a launch's arguments to what the interpreter takes; tensors go to the arena."""

    def __init__(self, arena: Arena, language: Language) -> None:
        self.arena, self.semantic = arena, language.semantic

    def convert(self, name: str, value: Any, annotation: str | None = None) -> Any:
        if hasattr(value, "data_ptr"):
            base = value.base if hasattr(value, "base") else value  # a TensorWrapper reinterprets
            address = self.arena.place(name, base, int(value.element_size()))
            kind = tl.str_to_ty(triton.runtime.jit.mangle_type(value), None)
            handle = upstream.TensorHandle(np.array([address], dtype=np.uint64), kind)
            return tl.tensor(handle, kind)
        if isinstance(value, TensorDescriptor):
            *strides, _ = (_number(int(stride), None) for stride in value.strides)
            return self.semantic.make_tensor_descriptor(
                base=self.convert(name, value.base),
                shape=[_number(int(size), None) for size in value.shape],
                strides=[*strides, tl.constexpr(1)],
                block_shape=[tl.constexpr(size) for size in value.block_shape],
                padding_option=value.padding,
            )
        if isinstance(value, tuple):
            items = [self.convert(f"{name}[{i}]", item) for i, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, bool | int | float):
            return _number(value, annotation)
        if isinstance(value, np.generic):
            raise LaunchError(
                f"kernel {self.arena.kernel!r}: argument {name!r} is a {type(value).__name__} of "
                f"NumPy, which a launch doesn't take; write {name}.item()"
            )
        return value


def normalized_grid(grid: Any, arguments: dict[str, Any]) -> Program:
    """A launch's grid as three sizes; LaunchError with one sentence if no GPU takes it."""
    sizes = grid(arguments) if callable(grid) else grid
    sizes = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)
    try:
        whole = tuple(operator.index(size) for size in sizes)
    except TypeError:
        whole = ()
    if not 1 <= len(whole) <= 3 or min(whole) < 0:
        raise LaunchError(f"grid {sizes!r} is not understood; it takes one to three whole numbers")
    whole += (1,) * (3 - len(whole))
    for axis, size, most in zip("xyz", whole, MAX_GRID, strict=True):
        if size > most:
            raise LaunchError(f"grid {whole}: {axis} is {size}, and a GPU takes {most} at most")
    return (whole[0], whole[1], whole[2])


def interpret(
    kernel: JITFunction[Any],
    arguments: dict[str, Any],
    grid: Program,
    trace: list[Access] | None = None,
    options: Mapping[str, Any] | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Arena:
    """Run every program of one launch in the interpreter and return the arena it ran in.

    `arguments` holds a value for every parameter of the kernel, `options` its warps and the like;
    with `debug` its assertions hold. A program may take `time_limit_s` seconds of this thread's
    time. Tensors on a GPU are copied to the host and back. KernelError says what the kernel did
    wrong; memory outside the arguments stays as it was.
    """
    name = kernel.__name__
    if is_gluon(kernel):
        raise LaunchError(
            f"kernel {name!r} is written in Gluon, for the warps of one kind of card, and no "
            f"interpreter runs it; count a variant in Triton, or give it tensors on a GPU"
        )
    arena = Arena(name, grid, trace)
    builder = MendedBuilder()
    given = dict(options or {})
    given["debug"] = bool(given.get("debug", kernel.debug) or knobs.runtime.debug)
    builder.options = Options(given)
    builder.arena, builder.codes, builder.time_limit_s = arena, {}, time_limit_s
    builder.own_file = kernel.fn.__code__.co_filename
    builder.set_grid_dim(*grid)
    language = Language(builder, lambda function: function_of(function, language))
    # NumPy would warn of what is usual on a GPU: inf, NaN and division by zero.
    with np.errstate(all="ignore"):
        convert = _Arguments(arena, language).convert
        converted = {
            p.name: tl.constexpr(arguments[p.name])
            if p.is_constexpr
            else convert(p.name, arguments[p.name], p.annotation_type)
            for p in kernel.params
        }
        function = language.helper(kernel)
        for z in range(grid[2]):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    builder.start((x, y, z))
                    _run_program(function, converted, name, (x, y, z), builder)
    arena.copy_back()
    return arena


def _run_program(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    name: str,
    program: Program,
    builder: MendedBuilder,
) -> None:
    try:
        function(**arguments)
    except KernelError:
        raise
    except Exception as error:
        place = Place()
        traceback = error.__traceback__
        while traceback is not None:
            file = builder.codes.get(traceback.tb_frame.f_code)
            if file is not None:
                place = Place(traceback.tb_lineno, None if file == builder.own_file else file)
            traceback = traceback.tb_next
        refused = isinstance(error, NotImplementedError)
        told = str(error) if refused else f"{type(error).__name__}: {error}".removesuffix(": ")
        raise KernelError(
            f"kernel {name!r}, program {program}{place}: {told}",
            kind="python",
            kernel=name,
            program=program,
            line=place.line,
            file=place.file,
        ) from error


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The PyTorch tensors inside one launch argument."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_descriptor(value):  # Triton's or Gluon's
        yield from tensors_of(value.base)
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_of(item)
    elif hasattr(value, "data_ptr") and hasattr(value, "base"):
        yield from tensors_of(value.base)


tell_signs()
