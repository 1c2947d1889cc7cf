"""The PyTorch ledger: what each operator reads and writes, counted on fake CUDA tensors.

Fake tensors have shapes, strides and a device, and no data, so any size is counted at once. They
claim to lie on a GPU since a CPU decomposes some operators otherwise. Views are free, and so is an
allocation. An operator of this package counts through the launches of its kernels.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from kernels.lab.counting.counter import Counter
from kernels.lab.counting.fake_cuda import differentiable_fakes, in_place_of, no_context
from kernels.lab.counting.ledger import Ledger
from kernels.lab.counting.operands import tensors_in
from kernels.lab.counting.spelled import SpelledMode
from kernels.passes import back
from kernels.registry import Case, Op

Tensor = torch.Tensor


def fake_inputs(op: Op, case: Case) -> dict[str, Any]:
    """An operation's inputs as fake tensors: of any size, since they hold nothing."""
    with FakeTensorMode():
        return op.make(case, "cpu", seed=0)


def count(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Ledger:
    """Run `fn(*args, **kwargs)` on fake CUDA tensors and return the ledger of its operators.

    Every tensor that `fn` meets, real or fake, is taken for one on the GPU and replaced by a fake
    one of the same shape, strides and dtype: arguments, parameters and buffers of a
    `torch.nn.Module`, attributes, tensors closed over. It runs without gradients. A tensor is named
    after its argument, parameter or variable, or after the operator and step that made it (`sub3`).
    No GPU is touched; where PyTorch goes by the card, it is that of `assume_capability`, the one at
    hand or an H100. ValueError where what is launched goes by values, which fake tensors don't
    have, unless they came from outside: a mask to index with is then taken for all True, and the
    step's note says so.
    """
    with _counting(fn, args, kwargs) as (counter, call), torch.no_grad():
        call()
    return Ledger(tuple(counter.steps), "aten")


def count_training(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Ledger, Ledger]:
    """The ledgers of a training step: of `fn(*args, **kwargs)` as `count`, and of the way back.

    Each parameter, and each other tensor that requires a gradient, gets one, as by `backward()` on
    a module whose gradients are None. Outputs of one number, losses, start with 1; other outputs
    with a gradient named `dy`, or `dy1`, `dy2` if there are several. ValueError if no output
    depends on a tensor that requires a gradient.
    """
    with _counting(fn, args, kwargs) as (counter, call):
        with torch.enable_grad():
            outputs = [one for one in tensors_in(call()) if one.requires_grad]
        if not outputs:
            raise ValueError("no output depends on a tensor that requires a gradient")
        forward, counter.steps = tuple(counter.steps), []
        wide = [one for one in outputs if one.dim()]
        given = iter(counter.gradients_of(wide))
        torch.autograd.backward(outputs, [next(given) if one.dim() else None for one in outputs])
    return Ledger(forward, "aten"), Ledger(tuple(counter.steps), "aten")


def count_backward(
    op: Op, fn: Callable[..., Any], inputs: Mapping[str, Any], pass_: str = "bwd"
) -> Ledger:
    """Return the ledger of autograd's way back through `fn(**inputs)`, on fake CUDA tensors.

    The operators of the forward are left out, but for the pass "train". A gradient of an output is
    named `dy`, or `dy1`, `dy2` if there are several; what the forward saved is named after the
    operator that made it.
    """
    with _counting(fn, (), dict(inputs)) as (counter, call):
        fakes = {name: tree_map(counter.fakes.of, value) for name, value in inputs.items()}
        counter.forgets = True
        called = functools.partial(_called_with, call)
        back_again = back(op, called, fakes, counter.gradients_of, again=pass_ == "train")
        counter.forgets = False
        back_again()
    return Ledger(tuple(counter.steps), "aten")


def _called_with(call: Callable[..., Any], **kwargs: Any) -> Any:
    return call(**kwargs)


@contextlib.contextmanager
def _counting(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Counter, Callable[..., Any]]]:
    """A block in which what runs is counted: yields the counter, and `fn` with its arguments.

    Keywords that the call is given take the place of those of `kwargs`.
    """
    around = dict(_closed_over(fn))
    met = [fn, *args, *kwargs.values(), *around.values()]
    with no_context(), differentiable_fakes() as fakes:
        given, named = tree_map(fakes.of, args), tree_map(fakes.of, kwargs)
        counter = Counter(fakes)
        counter.remember(_named_arguments(fn, given, named))
        state = _state(met, around)
        counter.remember((name, fakes.of(value)) for name, value in state)
        modules = [one for one in met if isinstance(one, torch.nn.Module)]
        with in_place_of(fakes, modules), counter, SpelledMode(counter, fakes).counting():
            yield counter, functools.partial(fn, *given, **named)


def _state(met: list[Any], around: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Parameters, buffers and tensors closed over, each with its name."""
    prefixes = {id(value): f"{name}." for name, value in around.items()}
    for one in met:
        if isinstance(one, torch.nn.Module):
            for name, value in one.state_dict(keep_vars=True).items():
                yield prefixes.get(id(one), "") + name, value
    for name, value in around.items():
        if isinstance(value, Tensor):
            yield name, value


def _closed_over(fn: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The tensors and modules that a function finds around it, by the name it has for them."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    try:
        around = inspect.getclosurevars(fn)
    except (TypeError, ValueError):  # a module or a builtin has none that can be seen
        return
    for name, value in {**around.globals, **around.nonlocals}.items():
        if isinstance(value, Tensor | torch.nn.Module):
            yield name, value


def _named_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterable[tuple[str, Any]]:
    function = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments.items()
    except (TypeError, ValueError):  # a builtin has no signature
        return [*((f"argument {i}", value) for i, value in enumerate(args)), *kwargs.items()]
