"""One call of a function written down: what it allocated, what it launched, what it returned.

Of a function that allocates outputs and launches Triton kernels, and does nothing else with
tensors, the same call can be made again from this record alone (`kernels.launch.again`). A
dispatch mode sees every operator of PyTorch that the function calls: an allocation and a view are
written down, anything else makes the record incomplete, and `Tape.plan` says so by None.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.jit import JITFunction

Tensor = torch.Tensor

_lasting: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


def lasting(tensor: Tensor) -> Tensor:
    """Return `tensor`, which launches that are made again may read too: a table made on the host.

    A function hands the same tensor to its kernels in every call, as one behind `functools.cache`;
    it changes by what is written into it alone.
    """
    _lasting[id(tensor)] = tensor
    return tensor


ALLOCATIONS = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)


def is_descriptor(value: object) -> bool:
    """Whether a launch argument is a descriptor made on the host, Triton's or Gluon's."""
    return hasattr(value, "block_shape") and hasattr(value, "base")


class Made(NamedTuple):
    """A tensor that the function allocates and does not fill."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Source(NamedTuple):
    """Where a tensor comes from: place `number` among arguments and allocations, bytes further on.

    `view` is None where it is that tensor itself, else the size and the strides of a view of it.
    """

    number: int
    offset: int = 0
    view: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Taped:
    """One launch: values of the kernel's parameters in order, and which of them come from where.

    `compiled` is what Triton's launch returned, or None if the launch was interpreted.
    """

    kernel: JITFunction[Any]
    values: tuple[Any, ...]
    sources: tuple[tuple[int, Source], ...]
    options: dict[str, Any]
    grid: tuple[int, int, int]
    compiled: Any


_here = threading.local()


def active() -> Tape | None:
    """The tape that this thread's launches are written to, if there is one."""
    return getattr(_here, "tape", None)


def unseen() -> contextlib.AbstractContextManager[Any]:
    """Keep what PyTorch does inside the block off the tape: what an interpreter does, say."""
    return contextlib.nullcontext() if active() is None else _disable_current_modes()


def spoil() -> None:
    """Say that something happened that a tape can't hold."""
    if (tape := active()) is not None:
        tape.complete = False


def _read_alike(one: Any, other: Tensor) -> bool:
    """Whether two tensors tell the same number of the same bytes."""
    if not isinstance(one, Tensor) or one.dtype != other.dtype:
        return False
    return one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()


class Tape(TorchDispatchMode):
    """Runs a function once and writes down what it does with tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []
        self.launches: list[Taped] = []
        self.results: tuple[Source | None, ...] | Source | None = None
        self.complete = True
        self._from: dict[int, Source] = {}  # by id of a tensor, all of which `_alive` keeps
        self._alive: list[Tensor] = []
        self._n_arguments = 0
        self._device: torch.device | None = None

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return `function(*args)`; afterwards `complete` says whether the record is whole."""
        self._n_arguments = len(args)
        if not any(isinstance(value, Tensor) for value in args):
            self.complete = False
            return function(*args)
        given = list(args)
        for number, value in enumerate(args):
            if isinstance(value, Tensor):
                # Another tensor of the same memory: so one that is given twice has two places.
                given[number] = value.detach()
                self._device = value.device
                self._know(given[number], Source(number))
        outer, _here.tape = active(), self
        try:
            with self:
                probe = torch.empty(0, device=self._device)
                # Inside an operator's implementation a mode is told of other objects than these.
                self.complete = id(probe) in self._from
                self.made.clear()
                returned = function(*given)
        finally:
            _here.tape = outer
        self.results = self._results(returned)
        back = {id(alias): value for alias, value in zip(given, args, strict=True)}

        def own(value: Any) -> Any:
            return back.get(id(value), value) if isinstance(value, Tensor) else value

        return tuple(map(own, returned)) if isinstance(returned, tuple) else own(returned)

    def _know(self, tensor: Tensor, source: Source) -> None:
        self._from[id(tensor)] = source
        self._alive.append(tensor)

    def _results(self, returned: Any) -> tuple[Source | None, ...] | Source | None:
        def source(value: Any) -> Source | None:
            if value is None:
                return None
            found = self._from.get(id(value)) if isinstance(value, Tensor) else None
            if found is None:
                self.complete = False
            return found

        if isinstance(returned, tuple):
            return tuple(source(value) for value in returned)
        return source(returned)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator of PyTorch, and write it down if a call can be made again with it."""
        out = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in ALLOCATIONS and isinstance(out, Tensor) and out.device == self._device:
            self._know(out, Source(self._n_arguments + len(self.made)))
            self.made.append(Made(tuple(out.shape), out.stride(), out.dtype))
            return out
        base = self._from.get(id(args[0])) if args else None
        # A view is told by its size, strides and place; one that reads other numbers is not.
        alike = isinstance(out, Tensor) and bool(args) and _read_alike(args[0], out)
        if base is not None and func.is_view and alike:
            view = tuple(out.shape), out.stride()
            further = out.data_ptr() - args[0].data_ptr()
            if further == 0 and view == (tuple(args[0].shape), args[0].stride()):
                self._know(out, base)  # as by detach()
            else:
                self._know(out, Source(base.number, base.offset + further, view))
            return out
        self.complete = False
        return out

    def launched(
        self,
        kernel: JITFunction[Any],
        arguments: dict[str, Any],
        options: dict[str, Any],
        grid: tuple[int, int, int],
        compiled: Any,
    ) -> None:
        """Write down a launch; `arguments` are those of all parameters, defaults too, in order."""
        values, sources = list(arguments.values()), []
        for place, value in enumerate(values):
            tensor = value.base if is_descriptor(value) else value
            if isinstance(tensor, Tensor) and (source := self._from.get(id(tensor))) is not None:
                sources.append((place, source))
            elif isinstance(value, tuple | list):
                self.complete = False  # what stands in it is not looked for
            elif isinstance(tensor, Tensor) and _lasting.get(id(tensor)) is not tensor:
                self.complete = False  # from where nobody knows
        if kernel.pre_run_hooks:
            self.complete = False
        self.launches.append(Taped(kernel, tuple(values), tuple(sources), options, grid, compiled))
