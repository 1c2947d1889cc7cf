"""This package's operators in a ledger of PyTorch's: each counts through its own launches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.lab.counting import traffic
from kernels.lab.counting.by_formula import MOST_REQUESTED, ledger_of
from kernels.lab.counting.by_rows import by_rows
from kernels.lab.counting.fake_cuda import without_modes
from kernels.lab.counting.ledger import Ledger
from kernels.registry import operator

OURS = "fusing_kernels"


def count_ours(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ledger:
    """Count one of this package's operators by its launches, on random CPU tensors.

    Along the dimensions that it names as independent a few parts are counted, and extended. One
    that asks for many bytes by a formula of its own is not run.
    """
    known = operator(func._schema.name.split("::")[1])
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if known and known.moves:
        told = known.moves(**given)
        if told is not None and (told.requested or 0) > MOST_REQUESTED:
            return ledger_of(told.steps)
    dims = known.tensors if known else {}
    letter = known.independent[:1] if known else ""
    whole = [n for n, d in dims.items() if letter in d and isinstance(given.get(n), torch.Tensor)]

    def call(parts: int | None, make: Callable[..., torch.Tensor]) -> Any:
        def real(name: str, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if parts is not None and letter in dims[name]:
                return make(_shrunk(value, dims[name], letter, parts), value.dtype)
            steps = zip(value.shape, value.stride(), strict=True)
            span = 1 + sum((size - 1) * stride for size, stride in steps if size)
            return make((int(span),), value.dtype).as_strided(value.shape, value.stride())

        return functools.partial(func, **{name: real(name, value) for name, value in given.items()})

    with without_modes():
        if not letter or not all(given[name].is_contiguous() for name in whole):
            return traffic.count(call(None, _random))
        return by_rows(
            lambda parts: traffic.count(call(parts, _random)),
            lambda parts: call(parts, _untouched),
            _size(given[whole[0]], dims[whole[0]], letter),
        )


def _random(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point and dtype != torch.bool:
        return torch.zeros(size, dtype=dtype)  # an index that is there, a counter that begins
    return torch.randn(size).to(dtype)


def _untouched(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    # In its dtype at once: a conversion would touch every page of it.
    return torch.empty(size, dtype=dtype)


def _place(tensor: torch.Tensor, dims: str, letter: str) -> slice:
    """The dimensions of a tensor that a letter stands for: one, or for `*` all that lead."""
    after = len(dims) - dims.index(letter) - 1
    end = tensor.dim() - after
    return slice(dims.index(letter), end) if letter == "*" else slice(end - 1, end)


def _size(tensor: torch.Tensor, dims: str, letter: str) -> int:
    return math.prod(tensor.shape[_place(tensor, dims, letter)])


def _shrunk(tensor: torch.Tensor, dims: str, letter: str, parts: int) -> list[int]:
    """The tensor's shape with so many parts along a letter's dimension; `*` becomes one."""
    place = _place(tensor, dims, letter)
    return [*tensor.shape[: place.start], parts, *tensor.shape[place.stop :]]
