"""`torch.compile` for a variant: compiled anew for every shape and dtype."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from kernels.registry import Shape


def compiled_each(fn: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """Return `fn` through torch.compile, with a graph for each shape of its first tensor."""

    @functools.cache
    def of(_shape: Shape, _dtype: torch.dtype) -> Any:
        # A code object of its own for each shape: one shared by all would pass Dynamo's limit of
        # recompilations, and from there on run eagerly without a word.
        name = f"{fn.__name__}_compiled"
        own = types.FunctionType(fn.__code__.replace(), fn.__globals__, name, fn.__defaults__)
        return torch.compile(own, dynamic=False, mode=mode)

    def call(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else next(iter(kwargs.values()))
        return of(tuple(first.shape), first.dtype)(*args, **kwargs)

    call.__doc__ = f"`{fn.__name__}` through torch.compile, anew for every shape and dtype."
    return call


def max_autotuned_each(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` through torch.compile, which times candidates for each shape of its first tensor.

    Without CUDA graphs of its own: the bench captures every variant into a graph itself, and a
    capture inside a capture fails. The kernels are those of mode="max-autotune".
    """
    return compiled_each(fn, mode="max-autotune-no-cudagraphs")
