"""The PyTorch ledger: what each operator reads and writes, counted on fake CUDA tensors.

Fake tensors have shapes, strides and a device, and no data, so any size is counted at once. They
claim to lie on a GPU since a CPU decomposes some operators otherwise. Views are free, and so is an
allocation. An operator of this package counts through the launches of its kernels.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from kernels.lab.counting import traffic
from kernels.lab.counting.by_rows import by_rows
from kernels.lab.counting.fake_cuda import (
    FakeCudaMode,
    SpelledMode,
    differentiable_fakes,
    no_context,
)
from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic
from kernels.passes import back
from kernels.registry import Case, Op, operator

OURS = "fusing_kernels"
# They allocate memory, or return what they were given: no bytes move.
_FREE = (
    *("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"),
    *("_unsafe_view", "lift_fresh"),
)
# They write their first argument without reading it.
_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_")
# Of their first argument they read as many bytes as they return, and not all of it.
_GATHERS = ("index", "index_select", "gather", "embedding")


def distinct_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a view's distinct elements: an expanded dimension counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride != 0 else min(size, 1)
    return count * tensor.element_size()


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors anywhere inside an operator's arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def moves_bytes(func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    """Whether an operator reads or writes memory: views and allocations do not."""
    space, name = func._schema.name.split("::")
    if space == "prim" or name in _FREE:
        return False
    given = {tensor.untyped_storage()._cdata for tensor in inputs}
    shared = all(tensor.untyped_storage()._cdata in given for tensor in outputs)
    return func._schema.is_mutable or not outputs or not shared


class _Counter(TorchDispatchMode):
    """Write down a step for every operator that moves bytes."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.forgets = False  # whether steps are left out: a forward before its backward
        self._written = 0  # operators so far, left out or not: they number the tensors they made
        self._names = names
        # Kept alive: a new storage must not get the identity of one that is gone.
        self._seen: list[Any] = []

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        self._seen.append(storage)
        return storage._cdata

    def _name(self, tensor: torch.Tensor, default: str) -> str:
        return self._names.setdefault(self._storage(tensor), default)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace == OURS:
            steps = () if self.forgets else _count_ours(func, args, kwargs).steps
            self.steps += steps
            self._written += max(1, len(steps))
            last = steps[-1].name if steps else func._schema.name.split("::")[1]
            for tensor in tensors_in(result):
                self._name(tensor, f"{last}_{self._written}")
        else:
            self._add(func, args, kwargs, result)
        return result

    def spelled(
        self, operator: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        """Write down an operator that `SpelledMode` put in another's place and that did not run."""
        self._write_down(operator, inputs, outputs, [])

    def _add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        operator = func._schema.name.split("::")[1]
        inputs, outputs = tensors_in((args, kwargs)), tensors_in(result)
        if not moves_bytes(func, inputs, outputs):
            return
        overwritten = tensors_in(kwargs.get("out")) if func._schema.is_mutable else []
        if operator in _OVERWRITES:
            overwritten.append(inputs[0])
        unread = {id(tensor) for tensor in overwritten}
        read = [tensor for tensor in inputs if id(tensor) not in unread]
        self._write_down(operator, read, outputs, overwritten)

    def _write_down(
        self,
        operator: str,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        overwritten: list[torch.Tensor],
    ) -> None:
        self._written += 1
        label = f"{operator.strip('_')}{self._written}"
        traffic_of: dict[str, TensorTraffic] = {}
        for number, tensor in enumerate(inputs):
            size = distinct_bytes(tensor)
            if operator in _GATHERS and number == 0:
                size = min(size, sum(distinct_bytes(out) for out in outputs))
            name = self._name(tensor, "constant")
            read = TensorTraffic(name, read_unique=size, read_requested=size)
            traffic_of[name] = max(traffic_of.get(name, read), read, key=lambda t: t.read_unique)
        for number, tensor in enumerate(outputs or overwritten):
            size = distinct_bytes(tensor)
            name = self._name(tensor, label if number == 0 else f"{label}.{number}")
            written = TensorTraffic(name, write_unique=size, write_requested=size)
            traffic_of[name] = traffic_of.get(name, TensorTraffic(name)) + written
        if not self.forgets:
            self.steps.append(Step(operator, "aten", tuple(traffic_of.values())))


def _count_ours(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ledger:
    """Count one of this package's operators by its launches, on random CPU tensors.

    Along the dimensions that it names as independent a few parts are counted, and extended.
    """
    known = operator(func._schema.name.split("::")[1])
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    dims = known.tensors if known else {}
    letter = known.independent[:1] if known else ""
    whole = [n for n, d in dims.items() if letter in d and isinstance(given.get(n), torch.Tensor)]

    def call(parts: int | None, make: Callable[[Sequence[int]], torch.Tensor]) -> Any:
        def real(name: str, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if parts is not None and letter in dims[name]:
                return make(_shrunk(value, dims[name], letter, parts)).to(value.dtype)
            steps = zip(value.shape, value.stride(), strict=True)
            span = 1 + sum((size - 1) * stride for size, stride in steps if size)
            return make((int(span),)).to(value.dtype).as_strided(value.shape, value.stride())

        return functools.partial(func, **{name: real(name, value) for name, value in given.items()})

    with torch.utils._python_dispatch._disable_current_modes():
        if not letter or not all(given[name].is_contiguous() for name in whole):
            return traffic.count(call(None, torch.randn))
        return by_rows(
            lambda parts: traffic.count(call(parts, torch.randn)),
            lambda parts: call(parts, torch.empty),
            _size(given[whole[0]], dims[whole[0]], letter),
        )


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


def _empty_cuda(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


def _fake(value: Any) -> Any:
    made = isinstance(value, FakeTensor) and value.device.type == "cuda"
    return value if made else _empty_cuda(value)


def fake_inputs(op: Op, case: Case) -> dict[str, Any]:
    """An operation's inputs as fake tensors: of any size, since they hold nothing."""
    with FakeTensorMode():
        return op.make(case, "cpu", seed=0)


def count(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Ledger:
    """Run `fn(*args, **kwargs)` on fake CUDA tensors and return the ledger of its operators.

    Tensors among the arguments, real or fake, are replaced by fake ones of the same shape, strides
    and dtype; the parameters and buffers of a `torch.nn.Module` likewise. A tensor is named after
    its argument, or after the operator and step that made it (`sub3`). No GPU is touched.
    """
    existing = [t.fake_mode for t in tensors_in((args, kwargs)) if isinstance(t, FakeTensor)]
    with no_context(), existing[0] if existing else FakeTensorMode():
        args, kwargs = tree_map(_fake, args), tree_map(_fake, kwargs)
        names: dict[int, str] = {}
        _remember(names, _named_arguments(fn, args, kwargs))
        if isinstance(fn, torch.nn.Module):
            state = {k: _fake(v) for k, v in fn.state_dict(keep_vars=True).items()}
            _remember(names, state.items())
            call: Callable[..., Any] = functools.partial(_call_with, fn, state)
        else:
            call = fn
        with _Counter(names) as counter, torch.no_grad(), FakeCudaMode(counter.spelled):
            call(*args, **kwargs)
    return Ledger(tuple(counter.steps), "aten")


def count_backward(
    op: Op, fn: Callable[..., Any], inputs: Mapping[str, Any], pass_: str = "bwd"
) -> Ledger:
    """Return the ledger of autograd's way back through `fn(**inputs)`, on fake CUDA tensors.

    The operators of the forward are left out, but for the pass "train". A gradient of an output is
    named `dy`, or `dy1`, `dy2` if there are several; what the forward saved is named after the
    operator that made it.
    """

    def gradients_of(outputs: Any) -> list[torch.Tensor]:
        made = [torch.empty_like(output) for output in outputs]
        many = len(made) > 1
        _remember(names, ((f"dy{i}" if many else "dy", one) for i, one in enumerate(made, 1)))
        return made

    with no_context(), differentiable_fakes():
        fakes = {name: _empty_cuda(value) for name, value in inputs.items()}
        names: dict[int, str] = {}
        _remember(names, fakes.items())
        with _Counter(names) as counter, SpelledMode(counter.spelled):
            counter.forgets = True
            call = back(op, fn, fakes, gradients_of, again=pass_ == "train")
            counter.forgets = False
            call()
    return Ledger(tuple(counter.steps), "aten")


def _call_with(module: torch.nn.Module, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    return torch.func.functional_call(module, state, args, kwargs)


def _remember(names: dict[int, str], named: Iterable[tuple[str, Any]]) -> None:
    for name, value in named:
        for number, tensor in enumerate(tensors_in(value)):
            label = name if number == 0 else f"{name}[{number}]"
            names[tensor.untyped_storage()._cdata] = label


def _named_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterable[tuple[str, Any]]:
    function = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments.items()
    except (TypeError, ValueError):  # a builtin has no signature
        return [*((f"argument {i}", value) for i, value in enumerate(args)), *kwargs.items()]
