"""What a training step keeps and what is alive while it runs: tensor by tensor, with no GPU.

The step runs on fake CUDA tensors, so any size is counted at once. A storage is followed from the
operator that makes it until its last reference is gone, as in `alive`; here it has a name, and
every operator leaves a moment behind. What an operator takes inside and gives back before it
returns is not seen: partial sums of a norm, two numbers a row of attention, a library's workspace.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from kernels.lab.counting.fake_cuda import Fakes, differentiable_fakes, in_place_of, no_context
from kernels.lab.counting.operands import moves_bytes, on_gpu, tensors_in
from kernels.lab.counting.spelled import SpelledMode

Tensor = torch.Tensor


@dataclass(frozen=True)
class Moment:
    """An operator at its end, when its inputs and its outputs are both there.

    alive: bytes by the name of the tensor, beside what the caller has: the input, parameters and
    their gradients, and the gradient of the output.
    """

    operator: str
    back: bool  # behind the forward
    alive: dict[str, int]

    @property
    def bytes(self) -> int:
        """All that is alive."""
        return sum(self.alive.values())


@dataclass(frozen=True)
class Made:
    """A tensor that the forward made.

    written_by: the operator. read_on, read_back: operators that read it, in the forward and on the
    way back. kept: whether it is there behind the forward, for autograd's graph or for the caller.
    """

    name: str
    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    written_by: str
    read_on: tuple[str, ...]
    read_back: tuple[str, ...]
    kept: bool


@dataclass(frozen=True)
class TrainingStep:
    """A forward and its way back, moment by moment, and the tensors of the forward."""

    moments: tuple[Moment, ...]
    made: tuple[Made, ...]

    @property
    def peak(self) -> Moment:
        """The moment with the most bytes alive, the first if there are several."""
        return max(self.moments, key=lambda one: one.bytes)

    @property
    def kept(self) -> tuple[Made, ...]:
        """What is there behind the forward, the output with it."""
        return tuple(one for one in self.made if one.kept)

    @property
    def kept_bytes(self) -> int:
        """Their bytes."""
        return sum(one.bytes for one in self.kept)


def training_step(
    fn: Callable[..., Tensor], x: Tensor, names: Mapping[str, str] | None = None
) -> TrainingStep:
    """Run `fn(x)` and the way back from its output, and tell what was alive when.

    fn: a module in training, or a function whose modules are given by `functools.partial` or a
    closure. x: the input, real or fake, which gets a gradient as each parameter does. A tensor is
    called after the operator that made it and a number ("add 2" is the second that `add` made), or
    what `names` says for that. ValueError where two would be called alike.
    """
    modules = [one for one in met(fn) if isinstance(one, nn.Module)]
    with no_context(), differentiable_fakes() as fakes, in_place_of(fakes, modules):
        leaf = fakes.of(x).detach().requires_grad_()
        parameters = [p for one in modules for p in one.parameters()]
        followed = _Followed(fakes, names or {})
        followed.know([leaf, *parameters, *(b for one in modules for b in one.buffers())])
        with followed, SpelledMode(followed, fakes).counting(), torch.enable_grad():
            y = fn(leaf)
            followed.turn()
            dy = torch.empty_like(y)
            followed.know(dy)
            y.backward(dy)
        gradients = {followed.number(p.grad) for p in parameters if p.grad is not None}
    return followed.step(gradients)


def met(fn: Callable[..., Any]) -> list[Any]:
    """A function, and what it is given or finds around it."""
    found: list[Any] = [fn]
    while isinstance(fn, functools.partial):
        found += [*fn.args, *fn.keywords.values()]
        fn = fn.func
        found.append(fn)
    if inspect.isfunction(fn):
        around = inspect.getclosurevars(fn)
        found += [*around.globals.values(), *around.nonlocals.values()]
    return found


class _Followed(TorchDispatchMode):
    """Follow each storage that an operator makes, and note what is alive behind each operator."""

    def __init__(self, fakes: Fakes, names: Mapping[str, str]) -> None:
        super().__init__()
        self._fakes, self._names = fakes, names
        self._back = False
        self._moments: list[tuple[str, bool, tuple[int, ...]]] = []
        self._made: list[_Told] = []
        self._by: Counter[str] = Counter()  # how many tensors an operator has made
        self._alive: dict[int, int] = {}  # the number of a storage, by its identity
        self._seen: dict[int, Any] = {}  # what holds the identity: the caller's storage, or a ref

    def know(self, tensors: Any) -> None:
        """Tensors that are the caller's: they are not followed."""
        for tensor in tensors_in(tensors):
            storage = tensor.untyped_storage()
            self._seen[id(storage)] = storage
            self._alive.pop(id(storage), None)

    def number(self, tensor: Tensor) -> int | None:
        """Of the storage of a tensor; None of what is the caller's."""
        return self._alive.get(id(tensor.untyped_storage()))

    def turn(self) -> None:
        """The forward is done: what is alive is kept."""
        self._back = True
        for number in self._alive.values():
            self._made[number].kept = True
        self._n_forward = len(self._made)

    def step(self, gradients: Collection[int | None]) -> TrainingStep:
        """What was followed, less the gradients of parameters."""
        told = self._made
        for name, often in Counter(one.name for one in told).items():
            if often > 1:
                raise ValueError(f"two tensors are called {name!r}; each takes a name of its own")
        moments = tuple(
            Moment(name, back, {told[n].name: told[n].bytes for n in alive if n not in gradients})
            for name, back, alive in self._moments
        )
        return TrainingStep(moments, tuple(one.done() for one in told[: self._n_forward]))

    def spelled(self, operator: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """An operator that was put in another's place; its tensors were seen."""

    def tell(self, note: str) -> None:
        """A note on an attention, which nobody reads here."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, follow what it made and note what is alive."""
        kwargs = kwargs or {}
        if "lift" not in func._schema.name:  # a constant that `torch.tensor` made on the CPU
            args, kwargs = tree_map(self._fakes.of, (args, kwargs))
        result = func(*args, **kwargs)
        name = func._schema.name.split("::")[1].strip("_")
        inputs, outputs = on_gpu((args, kwargs)), on_gpu(result)
        for tensor in outputs:
            self._follow(tensor, name)
        if moves_bytes(func, inputs, outputs):
            for tensor in inputs:
                number = self.number(tensor)
                if number is not None:
                    self._made[number].readers[self._back][name] = None
            self._moments.append((name, self._back, tuple(self._alive.values())))
        return result

    def _follow(self, tensor: Tensor, operator: str) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._seen:
            return
        self._by[operator] += 1
        label = f"{operator} {self._by[operator]}"
        shape = tuple(tensor.shape)
        told = _Told(self._names.get(label, label), storage.nbytes(), shape, tensor.dtype, operator)
        self._alive[key] = len(self._made)
        self._made.append(told)

        def gone(_: Any) -> None:
            self._alive.pop(key, None)
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, gone)


@dataclass
class _Told:
    """What is known of a tensor while its step runs; `readers` on and back, in their order."""

    name: str
    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    written_by: str
    kept: bool = False
    readers: tuple[dict[str, None], dict[str, None]] = field(default_factory=lambda: ({}, {}))

    def done(self) -> Made:
        on, back = (tuple(one) for one in self.readers)
        rest = (self.bytes, self.shape, self.dtype, self.written_by)
        return Made(self.name, *rest, on, back, self.kept)
