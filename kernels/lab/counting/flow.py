"""The data flow of an encoder in inference: each tensor's writer, readers, bytes and lifetime.

A layer runs on CPU tensors that nobody touches, and its launches are written down and not run. So
any size is told at once, and any card's launches, those of kernels that no interpreter runs too. A
launch is taken to move each byte of a tensor that it is given once, those that pad the sums of
folded weights among them. Tests hold that to the ledger of launches that are interpreted, and
lifetimes to `kernels.ops.layers.workspace`.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.lab.counting.fake_cuda import replaced
from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic
from kernels.lab.counting.operands import moves_bytes, tensors_in
from kernels.lab.counting.our_operators import OURS
from kernels.lab.counting.views import distinct_bytes
from kernels.launch import recording
from kernels.ops.chains.gated import GELU_ERF, GELU_TANH
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.prologues import ways

Tensor = torch.Tensor

# What a layer's launches write, in order; a norm that goes into its product writes nothing.
_WRITTEN = {
    True: ("LN(x)", "qkv", "o", "h", "LN(h)", "a", "y"),
    False: ("qkv", "o", "x + attention", "h", "a", "h + MLP", "y"),
}


@dataclass(frozen=True)
class Carried:
    """A tensor that one launch writes for others.

    `size` is in bytes. `writer` and `readers` number launches from 1, `until` is the last launch
    that finds its memory taken: that of its last reader, or later where somebody still holds it.
    An output that nobody reads is held to the end.
    """

    name: str
    size: int
    writer: int
    readers: tuple[int, ...]
    until: int

    @property
    def needed_until(self) -> int:
        """The last launch that reads it; its own where none does."""
        return max((self.writer, *self.readers))


@dataclass(frozen=True)
class Flow:
    """The launches of a call, a ledger whose tensors have the layer's names, and what they carry.

    `parameters` are the names of tensors that were there before and are not the input. `operators`
    holds for each launch the number of the operator, from 0, that makes it.
    """

    ledger: Ledger
    carried: tuple[Carried, ...]
    parameters: frozenset[str]
    operators: tuple[int, ...]

    def alive(self, launch: int) -> tuple[Carried, ...]:
        """The tensors that take memory while a launch runs, numbered from 1."""
        return tuple(one for one in self.carried if one.writer <= launch <= one.until)

    def bytes_alive(self, launch: int) -> int:
        """What they take, in bytes."""
        return sum(one.size for one in self.alive(launch))

    @property
    def peak(self) -> int:
        """The most bytes that are taken at once: beside the input and the parameters."""
        return max(map(self.bytes_alive, range(1, len(self.ledger.steps) + 1)))

    def bytes_needed(self, launch: int) -> int:
        """What those take that the launch writes, or that it or a later one reads."""
        needed = [one for one in self.carried if one.writer <= launch <= one.needed_until]
        return sum(one.size for one in needed)

    @property
    def activations(self) -> Ledger:
        """The ledger without the parameters: what goes from launch to launch."""
        return Ledger(
            tuple(
                replace(
                    step, tensors=tuple(t for t in step.tensors if t.tensor not in self.parameters)
                )
                for step in self.ledger
            ),
            self.ledger.method,
        )


def flow(
    encoder: FusedEncoder | FusedEncoderLayer,
    x: Tensor,
    *,
    folded: bool | Callable[[int, int, int], bool] = False,
    **masks: Any,
) -> Flow:
    """Call `encoder(x, **masks)` in inference and return its data flow.

    x: (B, S, E), batch first, on any device, or "meta"; nothing is read of it. The launches are
    those of the card at hand or of `assume_capability`. `folded`: norms go into the products behind
    them, whose weights were folded before, as `ways.best` does on a Hopper card; or a rule of a
    product's rows, depth and columns that says where. A layer's tensors are named as in its
    equations, those of a stack with the number of the layer before them.
    """
    mine = _hollow(encoder)
    x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(replaced(ways, "folds", _rule(folded)))
        seen = _Seen({"x": x}, dict(mine.named_parameters()))
        stack.enter_context(recording())  # where weights are folded in place, and not by a launch
        stack.enter_context(seen)
        y = mine(x, **masks)
        seen.end()
        del y
    return seen.flow(_names(mine, seen.written, seen.folds))


def _rule(folded: bool | Callable[[int, int, int], bool]) -> Callable[..., bool]:
    def folds(x: Tensor, _norm_weight: Any, _norm_bias: Any, weight: Tensor, *_: Any) -> bool:
        columns, depth = weight.shape
        return folded if isinstance(folded, bool) else folded(x.numel() // depth, depth, columns)

    return folds


def _hollow(encoder: nn.Module) -> Any:
    """A copy in eval() whose parameters were never touched: they take no memory."""
    memo: dict[int, Any] = {}
    for one in encoder.parameters():
        empty = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype)
        memo[id(one)] = nn.Parameter(empty, requires_grad=False)
    return copy.deepcopy(encoder, memo).eval()


def _names(encoder: Any, written: int, folds: list[bool]) -> list[str]:
    """Names for what is written, by the layer's equations; ValueError if they are not as many.

    `folds` says of each product behind a norm, in order, whether it has the norm in it.
    """
    stacked = isinstance(encoder, FusedEncoder)
    layers = list(encoder.layers) if stacked else [encoder]
    gone, found = iter(folds), []
    for number, one in enumerate(layers, 1):
        for name in _of_layer(one):
            if name[:3] == "LN(" and next(gone, False):
                continue
            found.append(f"{number}.{name}" if stacked else name)
    found += ["LN(y)"] if stacked and encoder.norm is not None else []
    if len(found) != written:
        raise ValueError(f"the launches write {written} tensors, and the layer has {len(found)}")
    return found


def _of_layer(layer: FusedEncoderLayer) -> list[str]:
    names = list(_WRITTEN[layer.norm_first])
    if layer.activation_form not in (GELU_ERF, GELU_TANH):  # a launch of its own
        names.insert(names.index("a"), "u")
    return names


@dataclass
class _Tensor:
    name: str
    size: int
    writer: int = 0  # 0: it was there before
    until: int | None = None


class _Seen(TorchDispatchMode):
    """What operators are given, what their launches are given, and when memory is free again."""

    def __init__(self, inputs: dict[str, Tensor], parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self._known: dict[int, _Tensor] = {}
        self._gone: list[weakref.ref[Any]] = []
        self._kept: list[Any] = []  # a storage of a given tensor keeps its number
        self._steps: list[Step] = []
        self._operators: list[int] = []
        self._n_operators = 0
        self.written = 0
        self.folds: list[bool] = []
        self._all: list[_Tensor] = []
        for name, one in {**inputs, **parameters}.items():
            self._give(name, one)
        self._inputs = set(inputs)

    def _give(self, name: str, tensor: Tensor) -> _Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._kept.append(storage)
            self._known[storage._cdata] = self._new(name, storage.nbytes())
        return self._known[storage._cdata]

    def _new(self, name: str, size: int) -> _Tensor:
        made = _Tensor(name, size)
        self._all.append(made)
        return made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace != OURS:
            result = func(*args, **kwargs)
            if moves_bytes(func, tensors_in((args, kwargs)), tensors_in(result)):
                raise ValueError(f"{func._schema.name} moves bytes; a flow is of launches alone")
            return result
        name = func._schema.name.split("::")[1]
        if name.startswith("norm_linear"):
            self.folds.append(name == "norm_linear_folded")
        declared = [argument.name for argument in func._schema.arguments]
        for argument, value in zip(declared, args, strict=False):
            for one in tensors_in(value):
                self._give(f"{argument} of {name}", one)
        with recording() as launches:
            result = func(*args, **kwargs)
        outputs = {one.untyped_storage()._cdata for one in tensors_in(result)}
        inside: dict[int, _Tensor] = {}
        for launch in launches:
            self._launch(launch.name, launch.grid, _given(launch.arguments), outputs, inside)
        for held in inside.values():
            held.until = len(self._steps)
        for one in tensors_in(result):
            self._follow(one)
        self._n_operators += 1
        return result

    def _launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        given: list[Tensor],
        outputs: set[int],
        inside: dict[int, _Tensor],
    ) -> None:
        number = len(self._steps) + 1
        moved: dict[int, tuple[_Tensor, set[tuple[Any, ...]], int]] = {}
        for tensor in given:
            storage = tensor.untyped_storage()
            key = storage._cdata
            found = self._known.get(key) or inside.get(key)
            if found is None:
                # A table that the host made is given; anything else is first met where it is made.
                table = not tensor.is_floating_point()
                found = self._new("table" if table else "", storage.nbytes())
                if not table:
                    found.writer = number
                    self.written += 1
                (self._known if key in outputs else inside)[key] = found
                self._kept.append(storage) if table else None
            views, total = moved.get(key, (found, set(), 0))[1:]
            view = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
            flat = (tensor.storage_offset(), tensor.numel())
            if view not in views and flat not in views:
                total += distinct_bytes(tensor)
            moved[key] = found, views | {view, flat}, min(total, found.size)
        traffic = []
        for found, _, size in moved.values():
            place = f"#{self._all.index(found)}"
            if found.writer == number:
                traffic.append(TensorTraffic(place, write_unique=size, write_requested=size))
            else:
                traffic.append(TensorTraffic(place, read_unique=size, read_requested=size))
        self._steps.append(Step(name, "launch", tuple(traffic), grid))
        self._operators.append(self._n_operators)

    def _follow(self, tensor: Tensor) -> None:
        """Note at which launch the memory of an operator's output is free."""
        storage = tensor.untyped_storage()
        found = self._known.get(storage._cdata)
        if found is None or found.writer == 0:  # one element in the place of an absent output
            return
        key = storage._cdata

        def gone(_: Any) -> None:
            self._known.pop(key, None)
            found.until = len(self._steps)

        self._gone.append(weakref.ref(storage, gone))

    def end(self) -> None:
        """Say that the call has returned: what is there now is held to the end."""
        for one in self._all:
            if one.until is None:
                one.until = len(self._steps)

    def flow(self, names: list[str]) -> Flow:
        """What was seen, with these names for what was written."""
        for one, name in zip((t for t in self._all if t.writer), names, strict=True):
            one.name = name
        told = {f"#{place}": one.name for place, one in enumerate(self._all)}
        steps = tuple(
            replace(step, tensors=tuple(replace(t, tensor=told[t.tensor]) for t in step.tensors))
            for step in self._steps
        )
        carried = []
        for one in self._all:
            if one.writer:
                readers = tuple(
                    number for number, s in enumerate(steps, 1) if s.tensor(one.name).read_unique
                )
                until = len(steps) if one.until is None else one.until
                carried.append(Carried(one.name, one.size, one.writer, readers, until))
        before = {one.name for one in self._all if not one.writer} - self._inputs
        return Flow(
            Ledger(steps, "arguments"), tuple(carried), frozenset(before), tuple(self._operators)
        )


def _given(arguments: dict[str, Any]) -> list[Tensor]:
    """The tensors that a launch is given, those behind descriptors too."""
    found = []
    for value in arguments.values():
        one = getattr(value, "base", None) if not isinstance(value, torch.Tensor) else value
        if isinstance(one, torch.Tensor):
            found.append(one)
    return found
