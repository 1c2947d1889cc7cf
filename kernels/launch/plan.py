"""A taped call as a Python function, written out: guard, allocations, launches, results.

What is left of a call is little enough to be read, and a loop over it would cost as much again as
the call: so the function is source text, as `Plan.source` shows, with its values in its globals.
Its guard is the one that holds compiled code, `TensorGuards`: one look in C++ at type, dtype,
shape, strides, device and dispatch keys of each tensor, which modes, transforms and autocast change
too.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.backends.nvidia import driver
from triton.compiler import CompiledKernel

from kernels.launch import launches
from kernels.launch.encoded import Encoded, beneath, encoded
from kernels.launch.settled import settle
from kernels.launch.tape import Source, Tape, Taped, is_descriptor

Tensor = torch.Tensor

MISS = object()  # what a plan returns for a call that is not its own
changes = [0]  # how often something changed that calls depend on; see `kernels.launch.again`

_ABSENT = object()


# Inductor's own way to an empty CUDA tensor: it parses no dtype, device and layout.
_empty_cuda = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cuda", None)
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_device = getattr(torch._C, "_cuda_getDevice", None)


@functools.cache
def way(launcher: type) -> str:
    """How a compiled kernel is launched, by the class of its launcher.

    "c": the function that Triton 3.5 and 3.6 compile for a kernel's signature, as it stands.
    "launcher": the launcher around it, which takes (x, y, z, stream, function, metadata, three
    hooks, *arguments). "plain", `kernel[grid](...)`: a launcher that is not known.
    """
    try:
        parameters = list(inspect.signature(launcher.__call__).parameters)[1:]
    except (TypeError, ValueError):
        return "plain"
    known = ["gridX", "gridY", "gridZ", "stream", "function"]
    more = ["kernel_metadata", "launch_metadata", "launch_enter_hook", "launch_exit_hook"]
    if parameters == [*known, *more, "args"]:
        return "launcher"
    if parameters != [*known, "args"]:
        return "plain"
    compiled = getattr(driver, "_BASE_ARGS_FORMAT", None) == "iiiKKppOOOOOO"
    return "c" if compiled else "launcher"


def _guard_of(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    guards: Any = torch._C._dynamo.guards.TensorGuards
    check: Callable[..., bool] = guards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return check


@functools.cache
def guards_hold() -> bool:
    """Whether `TensorGuards` is there and tells tensors apart as plans rely on it."""
    one = torch.zeros(2, 4)
    others = [one.half(), one[:, ::2], torch.zeros(4, 2), torch._neg_view(one), one.to("meta")]
    others += [torch.zeros(2, 4, requires_grad=True), torch.nn.Parameter(one)]
    try:
        holds = _guard_of([one])
        right = holds(one.clone()) and not any(map(holds, others))
        with TorchDispatchMode():
            return right and not holds(one)
    except (AttributeError, TypeError, RuntimeError):
        return False


class _At:
    """The base of a descriptor: all that a launcher asks of it is its address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def _described(descriptor: Any, base: Any) -> Any:
    """The same descriptor of another base."""
    other = copy.copy(descriptor)
    other.base = base
    return other


def _at(descriptor: Any, address: int) -> Any:
    """The same descriptor of an address."""
    return _described(descriptor, _At(address))


class Plan:
    """A call that can be made again. It keeps no tensor of the first one alive, but for tables."""

    def __init__(self, tape: Tape, args: tuple[Any, ...], device: torch.device) -> None:
        self.device = device
        self._tensors = [n for n, value in enumerate(args) if isinstance(value, Tensor)]
        self._constants = {n: v for n, v in enumerate(args) if n not in self._tensors}
        self._aligned = {n: args[n].data_ptr() & 15 for n in self._tensors}
        self._kernels = list({id(t.kernel): t.kernel for t in tape.launches}.values())
        for kernel in self._kernels:
            settle(kernel)  # finds out the globals that it uses
        self.ways = [self._way(taped) for taped in tape.launches]
        self._names = self._values()
        self._tests = self._conditions()
        self._work = self._written(tape)

    @staticmethod
    def _way(taped: Taped) -> str:
        compiled = taped.compiled
        if not isinstance(compiled, CompiledKernel) or _stream is None:
            return "plain"
        launcher = compiled.run
        found = way(launcher.__class__)
        scratch = ("global_scratch_size", "profile_scratch_size")
        if found == "c" and any(getattr(launcher, name, 1) for name in scratch):
            return "launcher"  # which allocates what the kernel asks for
        return found

    def function(self, args: tuple[Any, ...], no_gradient: bool) -> Callable[..., Any]:
        """Return the function, its guard made for tensors such as `args` and for the state now.

        With `no_gradient` it returns MISS where autograd would ask for a gradient.
        """
        names = {**self._names, "seen": changes[0]}
        exec(compile(self.source(args, no_gradient, names), "<a ready launch>", "exec"), names)
        made: Callable[..., Any] = names["call"]
        return made

    def source(
        self, args: tuple[Any, ...], no_gradient: bool = False, names: dict[str, Any] | None = None
    ) -> str:
        """Return the text of the function for such `args`; what its guard needs goes to `names`."""
        names = {} if names is None else names
        tests = [*self._guard(args, names), *self._tests]
        # The guard holds a tensor's requires_grad too, so that only the mode is left to ask for.
        if no_gradient and any(args[n].requires_grad for n in self._tensors):
            names["gradient"] = torch.is_grad_enabled
            tests.append("gradient()")
        lines = [f"    if {test}: return MISS" for test in tests]
        lines += [f"    {line}" for line in self._work]
        arguments = ", ".join(f"a{n}" for n in range(len(args)))
        return "\n".join([f"def call({arguments}):", *lines]) + "\n"

    def _guard(self, args: tuple[Any, ...], names: dict[str, Any]) -> list[str]:
        """A guard of all tensors, and another of those that stand there a second time."""
        if not guards_hold():
            return ["True"]
        rounds: list[list[int]] = []
        for number in self._tensors:
            for round_ in rounds:
                if all(args[number] is not args[other] for other in round_):
                    round_.append(number)
                    break
            else:
                rounds.append([number])
        for at, round_ in enumerate(rounds):
            names[f"guard{at}"] = _guard_of([args[n] for n in round_])
        return [
            f"not guard{at}({', '.join(f'a{n}' for n in round_)})"
            for at, round_ in enumerate(rounds)
        ]

    # ---------------------------------------------------------------- text that calls share

    def _values(self) -> dict[str, Any]:
        return {
            "MISS": MISS, "changes": changes, "active": launches.open_blocks,
            "forward_ad": forward_ad, "modes": torch._C._len_torch_function_stack,
            "stream": _stream, "device": self.device, "At": _At,
            "absent": _ABSENT, "described": _described,
        }  # fmt: skip

    def _written(self, tape: Tape) -> list[str]:
        lines = [*self._addresses(), *self._allocations(tape, self._names)]
        lines += [self._launch(n, taped, self._names) for n, taped in enumerate(tape.launches)]
        return [*lines, f"return {self._results(tape, self._names)}"]

    def _conditions(self) -> list[str]:
        """What a call of another kind, or in another state, is told by."""
        names, tests = self._names, []
        for number, value in self._constants.items():
            if value is None or isinstance(value, bool):
                tests.append(f"a{number} is not {value}")
                continue
            told = self._constant(value, f"c{number}")
            names[f"t{number}"] = type(value)
            kind = type(value).__name__ if type(value) in (int, float, str) else f"t{number}"
            tests.append(f"a{number}.__class__ is not {kind} or a{number} != {told}")
            if value == 0:  # and 0.0 equals −0.0
                tests.append(f"repr(a{number}) != {repr(value)!r}")
        tests.append("changes[0] != seen or active or modes()")
        tests.append("forward_ad._current_level >= 0")
        for number, kernel in enumerate(self._kernels):
            for at, ((name, _), (_, scope)) in enumerate(kernel.used_global_vals.items()):
                here = f"{number}_{at}"
                names[f"g{here}"], names[f"v{here}"] = scope, scope.get(name, _ABSENT)
                tests.append(f"g{here}.get({name!r}, absent) is not v{here}")
        for hook in ("launch_enter_hook", "launch_exit_hook"):
            # Lists of functions; that another takes their place is told (`kernels.launch.hook`).
            chain = getattr(knobs.runtime, hook)
            names[hook] = getattr(chain, "calls", () if chain is None else (chain,))
        tests.append("launch_enter_hook or launch_exit_hook")
        if self.device.type == "cuda" and torch.cuda.device_count() > 1:
            names["current"] = _device
            tests.append(f"current() != {self.device.index}")
        return tests

    def _addresses(self) -> list[str]:
        """The addresses of the arguments, and what the compiler was told of them."""
        lines = [f"p{n} = a{n}.data_ptr()" for n in self._tensors]
        odd = {n: off for n, off in self._aligned.items() if off}
        even = [f"p{n}" for n in self._tensors if n not in odd]
        tests = [f"({' | '.join(even)}) & 15"] if even else []
        tests += [f"p{n} & 15 != {off}" for n, off in odd.items()]
        return [*lines, *(f"if {test}: return MISS" for test in tests)]

    def _constant(self, value: Any, name: str) -> str:
        """A value as it stands in the text: itself, where its text is the whole of it."""
        if (
            value is None
            or type(value) in (bool, int, str)
            or (type(value) is float and math.isfinite(value))
        ):
            return repr(value)
        self._names[name] = value
        return name

    def _allocations(self, tape: Tape, names: dict[str, Any]) -> list[str]:
        first = len(self._tensors) + len(self._constants)
        used = {source.number for taped in tape.launches for _, source in taped.sources}
        quick = self.device.type == "cuda" and _empty_cuda is not None
        names["empty"] = _empty_cuda if quick else torch.empty_strided
        lines = []
        for number, (size, stride, dtype) in enumerate(tape.made, first):
            names[f"d{number}"] = dtype
            more = f"d{number}" if quick else f"dtype=d{number}, device=device"
            lines.append(f"a{number} = empty({tuple(size)}, {tuple(stride)}, {more})")
            if number in used:
                lines.append(f"p{number} = a{number}.data_ptr()")
        return lines

    def _launch(self, number: int, taped: Taped, names: dict[str, Any]) -> str:
        how, sources = self.ways[number], dict(taped.sources)
        under = beneath(taped.compiled.run.launch) if how == "c" else None
        launcher, metas = (None, {}) if under is None else under
        values = []
        for place, value in enumerate(taped.values):
            name = f"x{number}_{place}"
            if place in sources:
                source = sources[place]
                base = self._tensor(source, names) if how == "plain" else _address(source)
                if is_descriptor(value) and place in metas:
                    empty = _described(value, None)
                    at = functools.partial(_at, empty)
                    names[name] = Encoded(at, metas[place])
                    base = f"*{name}[{base}]"
                elif is_descriptor(value):
                    names[name] = _described(value, None)
                    base = base if how == "plain" else f"At({base})"
                    base = f"described({name}, {base})"
                values.append(base)
            elif is_descriptor(value) and place in metas:
                # A table's, which no call gives another base: encoded now, and kept with its table.
                names[name], names[f"{name}_of"] = encoded(value, metas[place]), value
                values.append(f"*{name}")
            else:
                values.append(self._constant(value, name))
        listed, grid = ", ".join(values), ", ".join(map(str, taped.grid))
        if how == "plain":
            names[f"launch{number}"] = functools.partial(taped.kernel[taped.grid], **taped.options)
            return f"launch{number}({listed})"
        compiled = taped.compiled
        names[f"f{number}"], names[f"m{number}"] = compiled.function, compiled.packed_metadata
        fixed = f"m{number}, None, None, None"
        if how == "c":
            run = compiled.run
            names[f"launch{number}"] = run.launch if launcher is None else launcher
            flags = bool(run.launch_cooperative_grid), bool(run.launch_pdl)
            fixed = f"{flags[0]}, {flags[1]}, None, None, {fixed}"
        else:
            names[f"launch{number}"] = compiled.run
        index = self.device.index
        return f"launch{number}({grid}, stream({index}), f{number}, {fixed}, {listed})"

    def _tensor(self, source: Source, names: dict[str, Any]) -> str:
        whole = f"a{source.number}"
        if source.view is None:
            return whole
        names["view"] = _view
        return f"view({whole}, {source.view[0]}, {source.view[1]}, {source.offset})"

    def _results(self, tape: Tape, names: dict[str, Any]) -> str:
        results = tape.results
        if not isinstance(results, tuple) or isinstance(results, Source):
            return "None" if results is None else self._tensor(results, names)
        told = ["None" if one is None else self._tensor(one, names) for one in results]
        return f"({', '.join(told)},)"


def _address(source: Source) -> str:
    return f"p{source.number}" + (f" + {source.offset}" if source.offset else "")


def _view(whole: Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
    return whole.as_strided(size, stride, whole.storage_offset() + offset // whole.element_size())
