"""Launches from Python at the cost of the launch: the second call of a kind looks up the first.

A launch `kernel[grid](...)` finds out anew, each time, what its arguments are, which binary that
means and how the binary takes them; an operation around it checks its arguments and chooses a
configuration. All of that depends on dtypes, shapes, strides, alignment, device and numbers, not
on what stands in memory. So the first call with these is written down (`kernels.launch.tape`), and
later ones allocate what it allocated and launch what it launched, at other addresses.

A record is thrown away when something it was made from changes: a name in a module of the package
(a configuration, a kernel), the card that is assumed, a kernel's source, a global that a kernel
uses. What no record can be made of is called as if nothing of this existed.

Measured with Triton 3.6 (chapter 06). A compiled kernel's launcher has taken the same arguments
since Triton 3.3; where it takes others, kernels are launched as always (`Plan.ways` tells).
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl
from torch.nn import Parameter
from triton.runtime.jit import KernelInterface

from kernels.launch import launches
from kernels.launch.plan import MISS, Plan, changes
from kernels.launch.tape import Tape, active

Tensor = torch.Tensor

MOST = 1024  # records of one function; the oldest is given up first
MOST_RECENT = 4  # of them, those that a call tries by their guards before it is looked up
_TRIES = 3  # records of one kind of call that come out incomplete before no other is made
# Beside tensors: what says all that it says by being equal.
_VALUES = frozenset((bool, int, float, str, tuple, torch.dtype, tl.dtype))


def forget() -> None:
    """Throw away every record: something that calls depend on has changed."""
    changes[0] += 1


class _Watched(types.ModuleType):
    """A module that tells when one of its names is bound anew."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        forget()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        forget()


def _watch(package: str) -> None:
    """Watch the modules of a package that are loaded by now."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package and module.__class__ is types.ModuleType:
            module.__class__ = _Watched


class Ready:
    """`function`, called again at the cost of its launches.

    It takes tensors and values by position, allocates with `torch.empty` and the like, and launches
    Triton kernels; its configuration may depend on its arguments' dtypes, shapes, strides, device,
    on whether an address is a multiple of 16, and on values that are no tensors. A call with
    anything else works too, and costs what it always cost. So does one while launches are
    interpreted, recorded or watched, and one on a device that is not the current one.

    With `no_gradient` no record answers a call for which autograd would ask for a gradient.
    `recent` are the records used last, as functions that return MISS for a call of another kind.
    """

    def __init__(self, function: Callable[..., Any], *, no_gradient: bool = False) -> None:
        self.function = function
        self.recent: list[Callable[..., Any]] = []
        self._no_gradient = no_gradient
        self._plans: dict[tuple[Any, ...], tuple[Plan, Callable[..., Any]]] = {}
        self._incomplete: dict[tuple[Any, ...], int] = {}
        self._seen = changes[0]

    def __len__(self) -> int:
        """How many records it has."""
        return len(self._plans)

    @property
    def plans(self) -> list[Plan]:
        """Its records, the oldest first; `source` of one shows what is left of a call."""
        return [plan for plan, _ in self._plans.values()]

    def __call__(self, *args: Any) -> Any:
        """Return `function(*args)`."""
        for call in self.recent:
            result = call(*args)
            if result is not MISS:
                return result
        return self.look_up(args)

    def look_up(self, args: tuple[Any, ...]) -> Any:
        """Return `function(*args)` where none of `recent` took the call."""
        if self._seen != changes[0]:
            self._seen = changes[0]
            self.recent.clear()
            self._plans.clear()
            self._incomplete.clear()
        watched = active() is not None or bool(launches.open_blocks)
        key = None if watched else kind_of_call(args)
        if key is None:
            return self.function(*args)
        if key not in self._plans:
            return self._first(key, args)
        plan, call = self._plans[key]
        result = call(*args)
        if result is MISS:  # the guard holds a state too, such as autocast, which may be another
            call = plan.function(args, self._no_gradient)
            result = call(*args)
            if result is MISS:  # somebody watches launches, or a kernel has changed
                del self._plans[key]
                return self.function(*args)
            self._plans[key] = plan, call
        self.recent.insert(0, call)
        del self.recent[MOST_RECENT:]
        return result

    def _first(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        devices = {value.device for value in args if isinstance(value, Tensor)}
        if len(devices) != 1 or self._incomplete.get(key, 0) >= _TRIES:
            return self.function(*args)
        _watch(__name__.partition(".")[0])
        tape = Tape()
        returned = tape.run(self.function, args)
        if not tape.complete:
            self._incomplete[key] = self._incomplete.get(key, 0) + 1
            _drop_oldest(self._incomplete)
            return returned
        plan = Plan(tape, args, devices.pop())
        self._plans[key] = plan, plan.function(args, self._no_gradient)
        _drop_oldest(self._plans)
        return returned


class ReadyKernel:
    """A `@triton.jit` function whose launches cost little; made by `ready`."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.calls = Ready(self._launch)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Return the launch for a grid, as of the kernel itself."""
        return functools.partial(self._call, grid)

    def _call(self, grid: Any, *args: Any, **named: Any) -> None:
        if callable(grid):  # asked each time: it may depend on more than the arguments
            grid = grid({**self._defaults, **dict(zip(self._names, args, strict=False)), **named})
        self.calls(grid, tuple(named), *args, *named.values())

    def _launch(self, grid: Any, names: tuple[str, ...], *values: Any) -> None:
        first = len(values) - len(names)
        self.kernel[grid](*values[:first], **dict(zip(names, values[first:], strict=True)))

    @functools.cached_property
    def _names(self) -> list[str]:
        return list(self.kernel.arg_names)

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        parameters = inspect.signature(self.kernel.fn).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}


def ready(kernel: Any) -> ReadyKernel:
    """Return `kernel`, to be launched in the same way at a fraction of the cost.

        add = ready(add_kernel)
        add[(blocks,)](x, y, out, x.numel(), BLOCK=1024)

    `kernel[grid](...)` costs some 20 µs of Python each time; a launch that is ready costs what the
    driver takes and a few µs (chapter 06). The first launch with certain dtypes, shapes, strides,
    alignment, device and numbers goes through Triton; later ones with the same look it up. A
    change of the kernel's source, or of a global that it uses, is seen. Numbers that differ at
    every launch gain nothing, nor does an autotuned kernel: give it its best configuration. On CPU
    tensors the kernel is interpreted, as always. TypeError if `kernel` is no Triton kernel.
    """
    if not isinstance(kernel, KernelInterface):
        raise TypeError(
            f"ready() takes a function decorated with @triton.jit, not a {type(kernel).__name__}"
        )
    return ReadyKernel(kernel)


def _drop_oldest(records: dict[Any, Any]) -> None:
    if len(records) > MOST:
        del records[next(iter(records))]


def kind_of_call(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What tells a call from those that would launch something else; None if that is not known."""
    key: list[Any] = []
    for value in args:
        kind = value.__class__
        if kind is Tensor or kind is Parameter:
            try:
                address, stride = value.data_ptr(), value.stride()
            except RuntimeError:
                return None  # a tensor without strides or memory
            if address == 0 or value.is_neg():
                return None  # no memory of its own, or numbers to be negated when they are read
            key += (value.dtype, value.shape, stride, value.get_device(), address & 15)
        elif value is None:
            key.append(None)
        elif kind in _VALUES:
            key += (kind, value or repr(value))  # 0.0 equals −0.0 and 1 equals True
        else:
            return None  # what it says may change
    return tuple(key)
