"""Whether what grades is still what the project wrote: a patched check grades nothing.

Python lets any code replace any function. What a verdict rests on (the package's functions and
methods, the clock, the tensor methods and builtins that comparisons use) is written down when the
grader is imported, and compared before and after a reader's code runs. It catches a patch, by
accident or not; it is no jail, and a mark that counts is given by running the notebook afresh.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import random
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    staticmethod,
    classmethod,
    property,
)
# What debuggers, notebooks and loggers replace for good reasons, and no verdict rests on.
_FREE = frozenset("print input open help exit quit breakpoint __import__ __build_class__".split())


def _code(value: Any) -> Any:
    return getattr(value, "__code__", None)


def _now(owner: Any, name: str) -> Any:
    """An attribute as it is stored, inherited ones too; nothing of the owner's runs."""
    for holder in owner.__mro__ if isinstance(owner, type) else (owner,):
        if name in vars(holder):
            return vars(holder)[name]
    return None


def _members(owner: Any) -> Iterator[tuple[str, Any]]:
    names = dir(owner) if isinstance(owner, type) else list(vars(owner))
    kinds = (*_FUNCTIONS, type) if owner is builtins else _FUNCTIONS
    for name in names:
        value = _now(owner, name)
        if isinstance(value, types.FunctionType) and owner is torch:
            continue
        if isinstance(value, kinds):
            yield name, value


def _owners() -> Iterator[tuple[str, Any]]:
    for name, module in list(sys.modules.items()):
        if name == "kernels" or name.startswith("kernels."):
            yield name, module
            for member in list(vars(module).values()):
                if isinstance(member, type) and member.__module__ == name:
                    yield f"{name}.{member.__name__}", member
    for module in (builtins, time, math, json, os):
        yield module.__name__, module
    # PyTorch wraps some of its own Python functions at work; those in C stay as they are.
    yield "torch", torch
    for owner in (torch.Tensor, random.Random, JITFunction, Autotuner):
        yield owner.__name__, owner


class Snapshot:
    """The functions that verdicts rest on, as they were when the snapshot was taken."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, Any, str, Any, Any]] = [
            (where, owner, name, value, _code(value))
            for where, owner in _owners()
            for name, value in _members(owner)
            if name not in _FREE
        ]

    def changed(self) -> str | None:
        """The full name of the first function that is another now, or None."""
        for where, owner, name, value, code in self._seen:
            now = _now(owner, name)
            if now is not value or _code(now) is not code:
                return f"{where}.{name}"
        return None
