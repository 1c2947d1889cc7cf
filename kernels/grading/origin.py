"""Whose work an answer is: what the package's own functions and kernels do earns nobody points.

An answer must not be a function of the package, nor call one of the operations by its name, nor
launch a kernel of one. A kernel that a reader copied into a cell is the reader's, and those that a
question hands out, as the patients of 06.2, are there to be launched.
What pages tell readers to build on is free: the random numbers of `kernels.philox_triton`, the
instruments of `kernels.lab`, and `kernels.cuda`.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from triton.runtime.jit import JITFunction

from kernels.cuda import Module
from kernels.cuda.cuda_launch import CudaLaunch
from kernels.grading.question import Attempt, Wrong
from kernels.launch.launches import Launch, watching
from kernels.paths import ROOT

_PACKAGE = os.path.join(os.path.realpath(ROOT / "kernels"), "")
_OPERATIONS = os.path.join(_PACKAGE, "ops", "")
_MOST_LOOKED_AT = 200

_MEANS = (
    "The points are for an answer of your own. What the package does is there to be read: copy a "
    "kernel into a cell, find out why each line stands there, change it, and hand in that."
)
_PREDICTED = (
    "The question asks for a prediction, from sizes alone and before anything runs. Launch and "
    "count beside it, to see whether it holds."
)
_HINT = "Write the function in a cell of yours, and launch a kernel that stands in a cell too."


@functools.cache
def _file(named: str) -> str:
    return os.path.realpath(named)


def _of(code: types.CodeType, folder: str) -> bool:
    return _file(code.co_filename).startswith(folder)


def _is(value: Any, *kinds: type) -> bool:
    """`isinstance`, but by the type alone: an answer's own attributes may be code of its own."""
    return issubclass(type(value), kinds)


def _function(value: Any) -> types.FunctionType | None:
    """The Python function that a callable is, or that it only wraps; None if it is no function."""
    for _ in range(_MOST_LOOKED_AT):
        if _is(value, types.FunctionType):
            inside = vars(value)
            wrapped = inside.get("__wrapped__") or inside.get("_torchdynamo_orig_callable")
            if wrapped is None or _of(value.__code__, _PACKAGE):
                return value
            value = wrapped
        elif _is(value, types.MethodType, staticmethod, classmethod):
            value = value.__func__
        elif _is(value, functools.partial):
            value = value.func
        elif _is(value, JITFunction):
            value = value.fn
        else:
            return None
    return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if _is(value, types.CodeType):
            yield from _codes(value)


_NAMES = frozenset(
    "LOAD_GLOBAL LOAD_NAME LOAD_DEREF IMPORT_NAME IMPORT_FROM LOAD_ATTR LOAD_METHOD".split()
)


@functools.lru_cache(maxsize=1000)
def _steps(code: types.CodeType) -> tuple[tuple[str, str], ...]:
    """The instructions of a code that name something, with the name; asked for at every launch."""
    steps = dis.get_instructions(code)
    return tuple((step.opname, step.argval) for step in steps if step.opname in _NAMES)


def _named(function: types.FunctionType) -> Iterator[Any]:
    """What the names in a function's own code stand for: `simple`, `layernorm.simple`, imports."""
    known = dict(function.__globals__)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # a name that has no value yet
            known[name] = cell.cell_contents
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for code in _codes(function.__code__):
        value: Any = None
        for step, name in _steps(code):
            if step in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                value = known.get(name)
            elif step == "IMPORT_NAME":
                imported = sys.modules.get(name)
            elif step == "IMPORT_FROM":
                value = _member(imported, name)
            else:
                value = _member(value, name)
            yield value


def _member(owner: Any, name: str) -> Any:
    """What a module of the package calls `name`; None of anything else."""
    ours = _is(owner, types.ModuleType) and str(vars(owner).get("__name__")).startswith("kernels")
    return vars(owner).get(name) if ours else None


def _called(function: types.FunctionType, kernel: bool) -> types.FunctionType | None:
    """A function of the operations that `function`, or a helper of it, names; None if none is."""
    waiting, seen = [function], {function}
    while waiting and len(seen) < _MOST_LOOKED_AT:
        looked_at = waiting.pop()
        for value in _named(looked_at):
            one = _function(value)
            # What a function launches is told as a launch; what a kernel calls, here.
            if one is None or one in seen or _is(value, JITFunction) != kernel:
                continue
            if _of(one.__code__, _OPERATIONS):
                return one
            seen.add(one)
            if one.__globals__ is function.__globals__:  # a helper in another cell
                waiting.append(one)
    return None


def _place(function: types.FunctionType) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def refuse_package(attempt: Attempt) -> None:
    """`Wrong` if the answer is a function of the package, or calls an operation by its name."""
    function = _function(attempt.answer)
    if function is None:
        return
    if _of(function.__code__, _PACKAGE):
        raise Wrong(f"The answer is {_place(function)}, a function of the package.", _MEANS, _HINT)
    called = _called(function, kernel=False)
    if called is not None:
        raise Wrong(
            f"{attempt.name} calls {_place(called)}, a function of the package.", _MEANS, _HINT
        )


@functools.cache
def _files_in_cuda() -> frozenset[str]:
    folders = os.walk(_PACKAGE)
    files = [os.path.join(folder, name) for folder, _, names in folders for name in names]
    texts = set()
    for file in files:
        if file.endswith((".cu", ".cuh")):
            with open(file, encoding="utf-8") as source:
                texts.add(source.read())
    return frozenset(texts)


def _foreign(launch: Launch) -> str:
    """What of a launch is the package's, as the end of a sentence; "" if nothing is."""
    if isinstance(launch, CudaLaunch):
        source = launch.kernel.module.source
        held = [
            value.source
            for name, module in list(sys.modules.items())
            if name.startswith("kernels.ops.")
            for value in list(vars(module).values())
            if _is(value, Module)
        ]
        if source in _files_in_cuda() or source in held:
            return f"{launch.name}, a kernel of the package"
        return ""
    function = _function(launch.kernel)
    if function is None:
        return ""
    if _of(function.__code__, _OPERATIONS):
        return f"{_place(function)}, a kernel of the package"
    called = _called(function, kernel=True)
    return f"{launch.name}, which calls {_place(called)} of the package" if called else ""


@contextlib.contextmanager
def own_kernels(attempt: Attempt) -> Iterator[None]:
    """`Wrong`, at the end of the block, if a kernel of the package was launched in it.

    If the answer predicts, any launch is too much: it would be counted, not predicted.
    """
    foreign: list[str] = []

    def watch(launch: Launch) -> None:
        if not foreign and (what := launch.name if attempt.predicts else _foreign(launch)):
            foreign.append(what)

    def refuse() -> None:
        if foreign and attempt.predicts:
            raise Wrong(f"{attempt.name} launches {foreign[0]}.", _PREDICTED)
        if foreign:
            raise Wrong(f"{attempt.name} launches {foreign[0]}.", _MEANS, _HINT)

    with watching(watch):
        try:
            yield
        except Wrong:
            refuse()
            raise
    refuse()
