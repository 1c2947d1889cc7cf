"""A kernel's hash and the globals that it rests on, the same whatever was compiled before it.

Triton writes down which globals a kernel uses, and refuses the kernel once one of them has another
value. What a function that it calls uses is taken over from that function, as it stands at that
moment: nothing, unless it was hashed before by chance. Then a changed constant of a callee goes
unseen, and a kernel's hash depends on the order in which a process came to its functions. Here
callees are hashed first.

Source: `JITCallable.cache_key` and `DependenciesFinder` of `triton/runtime/jit.py`, 3.6 and 3.7.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from triton.runtime.jit import JITCallable

# The hash that each function was given here; one whose source changed has none.
_given: dict[int, tuple[JITCallable, str]] = {}


def settle(kernel: Any) -> None:
    """Hash a kernel behind all that it calls; what is no function of Triton's is left alone."""
    if isinstance(kernel, JITCallable):
        _settle(kernel, set())


def _settle(function: JITCallable, under_way: set[int]) -> bool:
    """Whether the function's hash is another now."""
    if id(function) in under_way:  # it calls itself
        return False
    under_way.add(id(function))
    changed = [_settle(callee, under_way) for callee in _callees(function)]
    _, given = _given.get(id(function), (function, None))
    if function.hash is not None and function.hash == given and not any(changed):
        return False
    function.hash = None
    function.used_global_vals = {}
    _given[id(function)] = function, str(function.cache_key)
    return True


def _callees(function: JITCallable) -> Iterator[JITCallable]:
    code = function.fn.__code__
    scope = {**function.fn.__globals__, **inspect.getclosurevars(function.fn).nonlocals}
    modules = []
    for name in _names(code):
        value = scope.get(name)
        if isinstance(value, JITCallable):
            yield value
        elif isinstance(value, ModuleType):
            modules.append(value)
    for module in modules:
        for name in _names(code):
            value = vars(module).get(name)
            if isinstance(value, JITCallable):
                yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
