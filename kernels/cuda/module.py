"""`cuda(source)`: the kernels of a source as callables, their launches checked before they run."""

from __future__ import annotations

import contextlib
import functools
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernels.cuda import nvrtc
from kernels.cuda.cuda_launch import CudaLaunch, on_host
from kernels.cuda.emulator.process import Variables
from kernels.cuda.emulator.process import launch as emulate
from kernels.cuda.emulator.results import Counts
from kernels.cuda.emulator.unsupported import built
from kernels.cuda.errors import CudaError
from kernels.cuda.signature import (
    Declaration,
    Parameter,
    Signature,
    declarations,
    has_variables,
    split_outside_brackets,
)
from kernels.hardware import LIMITS, MAX_GRID
from kernels.launch import launches, tape
from kernels.launch.errors import Program

_MAX_THREADS, _MAX_THREADS_Z = 1024, 64
_MAX_SHARED = max(limits.shared_bytes_per_block for limits in LIMITS.values())
_FORMATS = {
    torch.float32: "<f",
    torch.float64: "<d",
    torch.float16: "<e",
    torch.bool: "<?",
    torch.int8: "<b",
    torch.uint8: "<B",
    torch.int16: "<h",
    torch.uint16: "<H",
    torch.int32: "<i",
    torch.uint32: "<I",
    torch.int64: "<q",
    torch.uint64: "<Q",
}
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def cuda(source: str, *, time_limit_s: float = 20.0, instances: Sequence[str] = ()) -> Module:
    """Make the kernels of CUDA C++ `source` callable; CudaError if it declares none.

    Nothing is compiled before the first launch. `time_limit_s` bounds an emulated launch.
    `instances` of its templates are compiled together, the first time that one of them is wanted
    with no GPU: ten of them take little longer than one.
    """
    return Module(source, declarations(source), time_limit_s, tuple(instances))


@dataclass(frozen=True)
class Module:
    """A source's kernels: `module.name`, or `module["name<float, 4>"]` for one of a template."""

    source: str
    declared: dict[str, Declaration]
    time_limit_s: float
    instances: tuple[str, ...] = ()
    variables: Variables = field(default_factory=dict, compare=False, repr=False)

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, expression: str) -> Kernel:
        match = re.fullmatch(r"\s*(\w+)\s*(?:<(.*)>)?\s*", expression, re.DOTALL)
        if match is None or match[1] not in self.declared:
            known = ", ".join(sorted(self.declared))
            raise CudaError(f"the source has no kernel {expression!r}; it has {known}")
        arguments = tuple(split_outside_brackets(match[2] or ""))
        return Kernel(self, self.declared[match[1]].signature(arguments))

    def entries(self, wanted: Signature) -> tuple[Signature, ...]:
        """The kernels to build together with `wanted`: all, or instances of templates."""
        if "<" in wanted.expression:
            return self._together if wanted in self._together else (wanted,)
        return self._plain

    def together(self, wanted: Signature) -> tuple[str, ...]:
        """The kernels that share variables of the source with `wanted`: it alone without any."""
        if not self._has_variables:
            return (wanted.expression,)
        return tuple(one.expression for one in self.entries(wanted))

    @functools.cached_property
    def _has_variables(self) -> bool:
        return has_variables(self.source)

    @functools.cached_property
    def _plain(self) -> tuple[Signature, ...]:
        found = []
        for one in self.declared.values():
            with contextlib.suppress(CudaError):  # its parameters can't be given: no harm to others
                found += [] if one.template else [one.signature()]
        return tuple(found)

    @functools.cached_property
    def _together(self) -> tuple[Signature, ...]:
        return tuple(self[expression].signature for expression in self.instances)


@dataclass(frozen=True)
class Kernel:
    """One kernel, waiting for a grid and a block: `kernel[grid, block]` or with shared bytes."""

    module: Module
    signature: Signature

    def __getitem__(self, configuration: Any) -> Launcher:
        name = self.signature.expression
        if not isinstance(configuration, tuple) or len(configuration) not in (2, 3):
            raise CudaError(
                f"kernel {name!r} is launched as kernel[grid, block](...) or "
                f"kernel[grid, block, shared_bytes](...), not with {configuration!r}"
            )
        grid = _size(name, "grid", configuration[0], MAX_GRID)
        block = _size(name, "block", configuration[1], MAX_GRID)
        threads = block[0] * block[1] * block[2]
        if threads > _MAX_THREADS or block[2] > _MAX_THREADS_Z:
            raise CudaError(
                f"kernel {name!r}: a block has at most 1024 threads, 64 of them along z, "
                f"not {block}"
            )
        shared = configuration[2] if len(configuration) == 3 else 0
        if not isinstance(shared, int) or not 0 <= shared <= _MAX_SHARED:
            raise CudaError(
                f"kernel {name!r}: shared_bytes is a number from 0 to {_MAX_SHARED}, not {shared!r}"
            )
        return Launcher(self, grid, block, shared)

    def __call__(self, *_: object) -> None:
        """Say that a grid and a block are missing."""
        name = self.signature.expression
        raise CudaError(f"kernel {name!r} needs a grid and a block: kernel[grid, block](...)")


@dataclass(frozen=True)
class Launcher:
    """A kernel with its grid and block, ready for arguments."""

    kernel: Kernel
    grid: Program
    block: Program
    shared_bytes: int

    def __call__(self, *arguments: Any) -> Counts | None:
        """Launch, and return the emulator's `Counts` where it ran there.

        CPU tensors run on the emulator, CUDA tensors on the card, and inside `interpreting()` on
        the emulator too. Inside `recording()` nothing runs.
        """
        return self._launch(arguments, trace=False)

    def traced(self, *arguments: Any) -> Counts:
        """Launch on the emulator and keep the trace of every warp's requests."""
        counts = self._launch(arguments, trace=True)
        if counts is None:
            raise CudaError("a trace is taken on the emulator: give CPU tensors")
        return counts

    def _launch(self, arguments: Sequence[Any], trace: bool) -> Counts | None:
        module, signature = self.kernel.module, self.kernel.signature
        device, mode = _check(signature, arguments), launches.mode()
        tape.spoil()  # only launches of Triton can be made again from a tape
        on_gpu = device is not None and device.type == "cuda"
        if device is not None and on_gpu and mode is None:
            if not trace:
                size = (self.grid, self.block, self.shared_bytes)
                nvrtc.launch(
                    module.source, signature, arguments, *size, device, module.together(signature)
                )
            return None
        launch = CudaLaunch(
            kernel=self.kernel,
            arguments={
                one.name: value for one, value in zip(signature.parameters, arguments, strict=True)
            },
            grid=self.grid,
            block=self.block,
            shared_bytes=self.shared_bytes,
        )
        counts = None
        if mode != "record":
            moved, bring_back = on_host(arguments)
            counts = self._emulate(moved, trace or launches.wants_trace())
            bring_back()
            launch = replace(launch, arena=counts, trace=counts.trace)
        launches.keep(launch)
        return counts

    def _emulate(self, arguments: Sequence[Any], trace: bool) -> Counts:
        module, signature = self.kernel.module, self.kernel.signature
        entries = module.entries(signature)
        return emulate(
            built(module.source, module.declared, entries, signature),
            entries.index(signature),
            signature.expression,
            signature.parameters,
            [
                value if one.pointer else _pack(signature.expression, one, value)
                for one, value in zip(signature.parameters, arguments, strict=True)
            ],
            self.grid,
            self.block,
            self.shared_bytes,
            module.time_limit_s,
            trace,
            module.variables,
        )


def _size(kernel: str, what: str, given: Any, largest: tuple[int, int, int]) -> Program:
    if type(given) is int and 1 <= given <= largest[0]:  # most launches; nothing more to look at
        return given, 1, 1
    parts = given if isinstance(given, tuple | list | torch.Size) else (given,)
    sizes = (*(int(part) for part in parts if isinstance(part, int)), 1, 1, 1)
    wrong = len(parts) not in (1, 2, 3) or len(sizes) != len(parts) + 3
    if wrong or any(not 1 <= n <= most for n, most in zip(sizes, largest, strict=False)):
        raise CudaError(
            f"kernel {kernel!r}: the {what} is one to three whole numbers from 1 to {largest}, "
            f"not {given!r}"
        )
    return sizes[0], sizes[1], sizes[2]


def _check(signature: Signature, arguments: Sequence[Any]) -> torch.device | None:
    """The tensors' device, None where there is none; CudaError for what doesn't fit."""
    name, parameters = signature.expression, signature.parameters
    if len(arguments) != len(parameters):
        wanted = ", ".join(f"{one.declared} {one.name}" for one in parameters)
        raise CudaError(
            f"kernel {name!r} takes {len(parameters)} arguments ({wanted}), not {len(arguments)}"
        )
    device: torch.device | None = None
    for one, value in zip(parameters, arguments, strict=True):
        if not one.pointer:
            _pack(name, one, value)
            continue
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise CudaError(
                f"kernel {name!r}: {one.name!r} is a `{one.type}*` and takes a tensor, not "
                f"{value!r}"
            )
        fits = one.dtype is None or value.dtype in (one.dtype, _SIGNED.get(one.dtype))
        if not fits:
            raise CudaError(
                f"kernel {name!r}: {one.name!r} is a `{one.type}*` and takes {one.dtype}, not a "
                f"tensor of {value.dtype}"
            )
        if value.device.type not in ("cpu", "cuda") or value.layout != torch.strided:
            raise CudaError(
                f"kernel {name!r}: {one.name!r} must be a dense tensor on the CPU or a CUDA GPU, "
                f"not {value.layout} on {value.device}"
            )
        if device is not None and value.device != device:
            raise CudaError(
                f"kernel {name!r}: {one.name!r} is on {value.device}, an argument before it on "
                f"{device}; all must be on one"
            )
        device = value.device
    return device


def _pack(kernel: str, parameter: Parameter, value: Any) -> bytes:
    """The bytes of a number as the parameter's type; CudaError if it doesn't fit."""
    dtype = parameter.dtype
    assert dtype is not None
    real = dtype.is_floating_point
    good = isinstance(value, int | float) if real else isinstance(value, int)
    try:
        if not good:
            raise TypeError
        if dtype is torch.bfloat16:
            return int(torch.tensor(value, dtype=dtype).view(torch.int16) & 0xFFFF).to_bytes(
                2, "little"
            )
        return struct.pack(_FORMATS[dtype], value)
    except (TypeError, struct.error, OverflowError):
        raise CudaError(
            f"kernel {kernel!r}: {parameter.name!r} is a `{parameter.type}` and takes a "
            f"{'number' if real else 'whole number in its range'}, not "
            f"{type(value).__name__} {str(value)[:40]}"
        ) from None
