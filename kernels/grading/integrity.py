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
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from kernels.grading.question import questions

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
# A debugger follows what starts a process; the check's own comes from `posix`.
_STARTS_PROCESSES = ("exec", "spawn", "posix_spawn", "fork")


_ABSENT = object()


def _code(value: Any) -> Any:
    return getattr(value, "__code__", None)


def _spaces(owner: Any) -> tuple[Mapping[str, Any], ...]:
    """Where an attribute of the owner may be stored, the first to look at first."""
    return tuple(vars(one) for one in (owner.__mro__ if isinstance(owner, type) else (owner,)))


def _stored(spaces: tuple[Mapping[str, Any], ...], name: str) -> Any:
    """An attribute as it is stored, inherited ones too; nothing of the owner's runs."""
    for space in spaces:
        if (value := space.get(name, _ABSENT)) is not _ABSENT:
            return value
    return None


def _members(owner: Any) -> Iterator[tuple[str, Any]]:
    names = dir(owner) if isinstance(owner, type) else list(vars(owner))
    spaces = _spaces(owner)
    kinds = (*_FUNCTIONS, type) if owner is builtins else _FUNCTIONS
    for name in names:
        value = _stored(spaces, name)
        if isinstance(value, types.FunctionType) and _torchs_own(owner, value):
            continue
        if isinstance(value, kinds):
            yield name, value


def _torchs_own(owner: Any, function: types.FunctionType) -> bool:
    """Whether PyTorch may replace a function at work: its own in Python, also where inherited.

    The compiler replaces `torch.nn.Module.__setstate__`, of our modules too. Methods of tensors
    stay, and are watched.
    """
    return owner is torch or (
        owner is not torch.Tensor and (function.__module__ or "").startswith("torch.")
    )


def _owners() -> Iterator[tuple[str, Any]]:
    for name, module in list(sys.modules.items()):
        if name == "kernels" or name.startswith("kernels."):
            yield name, module
            for member in list(vars(module).values()):
                if isinstance(member, type) and member.__module__ == name:
                    yield f"{name}.{member.__name__}", member
    for module in (builtins, time, math, json, os):
        yield module.__name__, module
    yield "torch", torch
    for owner in (torch.Tensor, random.Random, JITFunction, Autotuner):
        yield owner.__name__, owner
    for name, question in questions().items():
        yield f"question {name}", question


class Snapshot:
    """The functions that verdicts rest on, as they were when the snapshot was taken."""

    def __init__(self) -> None:
        owners = list(_owners())
        self._bases = [(where, one, one.__mro__) for where, one in owners if isinstance(one, type)]
        self._seen: list[tuple[str, tuple[Mapping[str, Any], ...], str, Any, Any]] = []
        for where, owner in owners:
            spaces = _spaces(owner)
            free = _STARTS_PROCESSES if owner is os else ()
            members = [
                (name, value)
                for name, value in _members(owner)
                if name not in _FREE and not name.startswith(free)
            ]
            self._seen += [(where, spaces, name, value, _code(value)) for name, value in members]
        self._questions = questions()

    def changed(self) -> str | None:
        """The full name of the first function that is another now, or None."""
        for where, owner, bases in self._bases:
            if owner.__mro__ is not bases:
                return f"{where}.__bases__"
        for where, spaces, name, value, code in self._seen:
            if _stored(spaces, name) is not value:
                return f"{where}.{name}"
            if code is not None and value.__code__ is not code:
                return f"{where}.{name}"
        now_known = questions()
        for name, question in self._questions.items():
            if now_known.get(name) is not question:
                return f"question {name}"
        return None
