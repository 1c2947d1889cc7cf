"""Indexing and copying fake CUDA tensors where PyTorch is built without CUDA.

There, `x[...]`, `x[...] = y` and `copy_` ask for a CUDA device guard before any operator is
dispatched, and fail even on fake tensors. This mode spells them as the operators they dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten


def _index(x: torch.Tensor, key: Any) -> torch.Tensor:
    """`x[key]` by select, slice, unsqueeze and index, as PyTorch's own indexing does it."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    dim = 0
    tensors: dict[int, torch.Tensor] = {}
    for part in parts:
        if part is None:
            x = _aten.unsqueeze.default(x, dim)
        elif part is Ellipsis:
            dim = x.dim() - _consumed_after(parts)
            continue
        elif isinstance(part, slice):
            x = _aten.slice.Tensor(x, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, torch.Tensor):
            tensors[dim] = part
        elif isinstance(part, int):
            x = _aten.select.int(x, dim, part)
            continue
        else:
            raise TypeError(f"an index of type {type(part).__name__} is not understood")
        dim += 1
    if tensors:
        x = _aten.index.Tensor(x, [tensors.get(d) for d in range(max(tensors) + 1)])
    return x


def _consumed_after(parts: list[Any]) -> int:
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return sum(part is not None for part in parts[at + 1 :])


class FakeCudaMode(TorchFunctionMode):
    """Spell out what needs a CUDA build; `on_copy(target, source)` is told of copies in place."""

    def __init__(self, on_copy: Callable[[torch.Tensor, Any], None]) -> None:
        super().__init__()
        self._on_copy = on_copy

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            return _index(*args)
        if func is torch.Tensor.__setitem__:
            x, key, value = args
            self._on_copy(_index(x, key), value)
            return None
        if func is torch.Tensor.copy_:
            self._on_copy(args[0], args[1])
            return args[0]
        return func(*args, **(kwargs or {}))
