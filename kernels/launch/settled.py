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

# Where a function keeps the hash that it was given here, and those of what it calls.
_GIVEN = "_fusing_kernels_settled"


def settle(kernel: Any) -> None:
    """Hash a kernel behind all that it calls; what is no function of Triton's is left alone."""
    if isinstance(kernel, JITCallable):
        _settle(kernel, set())


def _settle(function: JITCallable, seen: set[int]) -> None:
    seen.add(id(function))
    callees = list(_callees(function))
    for callee in callees:
        if id(callee) not in seen:  # several may call it, and it may call itself
            _settle(callee, seen)
    below = [callee.hash for callee in callees if callee is not function]
    if function.hash is not None and getattr(function, _GIVEN, None) == (function.hash, below):
        return
    function.hash = None
    function.used_global_vals = {}
    setattr(function, _GIVEN, (function.cache_key, below))


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
