"""CUDA C++ on a GPU: compiled by NVRTC through NVIDIA's cuda.core, launched on PyTorch's stream."""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.cuda.errors import CudaError
from kernels.cuda.signature import Parameter, Signature
from kernels.launch import kept
from kernels.launch.errors import Program

_INCLUDE = Path(__file__).parent / "include"
_STATIC_SHARED_BYTES = 48 * 1024
# nvcc's headers have these two, NVRTC has no headers. Line numbers stay those of the source.
_PRELUDE = """\
#ifndef INFINITY
#define INFINITY (__int_as_float(0x7f800000))
#endif
#ifndef NAN
#define NAN (__int_as_float(0x7fffffff))
#endif
#line 1
"""


class _Stream:
    """PyTorch's current stream, in the form that cuda.core takes from others."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


_importing = threading.Lock()


def _core() -> Any:
    try:
        with _importing:  # another thread would see cuda.core half made
            import cuda.core as core
    except ImportError:
        raise CudaError(
            "CUDA C++ on a GPU is compiled by cuda.core, which isn't installed: "
            '`pip install "cuda-core[cu13]"` brings it (cu12 with an older driver); CPU tensors '
            "run on the emulator without it"
        ) from None
    return core


def _cuda_folders() -> list[Path]:
    """Where CUDA's headers may be: the toolkit's folder, and those of NVIDIA's packages."""
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    site = Path(torch.__file__).parents[1] / "nvidia"
    folders += sorted(site.glob("*/include"))
    return folders


def has_header(name: str) -> bool:
    """Whether a header of CUDA's, such as curand_kernel.h, is installed."""
    return any((folder / name).exists() for folder in _cuda_folders())


def _include_folders() -> list[str]:
    """Where headers are: ours, and CUDA's that a kernel may include."""
    names = ("cuda_fp16.h", "curand_kernel.h")
    found = [one for one in _cuda_folders() if any((one / name).exists() for name in names)]
    # Since CUDA 13 the C++ library, which cuRAND's header includes, has a folder of its own.
    found += [one / "cccl" for one in found if (one / "cccl").exists()]
    return [str(folder) for folder in (_INCLUDE, *found)]


_SCALARS: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bool: np.bool_,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.int16: np.int16,
    torch.uint16: np.uint16,
    torch.int32: np.int32,
    torch.uint32: np.uint32,
    torch.int64: np.int64,
    torch.uint64: np.uint64,
}


def _scalar(parameter: Parameter, value: Any) -> Any:
    """The value as a number of the parameter's own width."""
    if parameter.dtype is torch.bfloat16:
        bits = torch.tensor(value, dtype=torch.bfloat16).view(torch.int16)
        return np.int16(int(bits))
    assert parameter.dtype is not None
    return _SCALARS[parameter.dtype](value)


def _compile_error(said: str) -> CudaError:
    """The first error of NVRTC as one sentence, with the line it is about."""
    match = re.search(r"\((\d+)\)\s*:\s*error\s*:?\s*(.*)", said)
    if match:
        return CudaError(f"line {match[1]}: {match[2].strip()}", line=int(match[1]))
    return CudaError(f"the source doesn't compile: {' '.join(said.split())}")


def _program(source: str, expressions: tuple[str, ...], arch: str) -> Any:
    """The binary of kernels for an architecture such as 90; CudaError if the source is wrong."""
    core = _core()
    options = core.ProgramOptions(std="c++17", arch=f"sm_{arch}", include_path=_include_folders())
    try:
        return core.Program(_PRELUDE + source, code_type="c++", options=options).compile(
            "cubin", name_expressions=expressions
        )
    except Exception as error:
        if type(error).__name__ == "DynamicLibNotFoundError":
            raise CudaError(
                "CUDA C++ is compiled by NVRTC, which isn't installed: "
                "`pip install nvidia-cuda-nvrtc nvidia-cuda-runtime` brings it and its headers"
            ) from None
        raise _compile_error(str(error)) from None


@functools.cache
def try_compiling() -> None:
    """Compile a kernel of nothing; CudaError, each time, where nothing can be compiled."""
    _program("__global__ void nothing() {}", ("nothing",), "90")


_locks: dict[Any, threading.Lock] = {}


def compile_cubin(
    source: str, expressions: tuple[str, ...], capability: int
) -> tuple[bytes, dict[str, str]]:
    """The binary of kernels for a capability such as 75 or 90, and each one's name in it.

    Needs cuda.core and NVRTC, no GPU and no driver. Threads that ask for one binary compile it
    once.
    """
    wanted = (source, expressions, capability)
    with _locks.setdefault(wanted, threading.Lock()):
        return _cubin(*wanted)


@functools.cache
def _cubin(
    source: str, expressions: tuple[str, ...], capability: int
) -> tuple[bytes, dict[str, str]]:
    def compiled() -> bytes:
        code = _program(source, expressions, str(capability))
        names = [code.symbol_mapping[one].decode() for one in expressions]
        return json.dumps(names).encode() + b"\n" + bytes(code.code)

    made_from = (_PRELUDE, source, *expressions, str(capability), _compiler())
    names, _, cubin = kept.kept("nvrtc", made_from, compiled).partition(b"\n")
    return cubin, dict(zip(expressions, json.loads(names), strict=True))


@functools.cache
def _compiler() -> str:
    """What tells one NVRTC, one cuda.core and their headers from others."""
    core = _core()
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        library = Path(str(load_nvidia_dynamic_lib("nvrtc").abs_path))
    except Exception:  # there is none: compiling says so
        return ""
    headers = [header for folder in _include_folders() for header in Path(folder).glob("*.h")]
    own = [path.read_text(encoding="utf-8") for path in sorted(_INCLUDE.glob("*.*"))]
    return "\n".join([core.__version__, kept.identity(library, *sorted(headers)), *own])


@functools.cache
def _binary(source: str, expressions: tuple[str, ...], device: int) -> Any:
    """The loaded kernels; they share the variables that the source declares `__device__`."""
    return _program(source, expressions, _core().Device(device).arch)


@functools.cache
def _compile(
    source: str, expression: str, together: tuple[str, ...], device: int, shared_bytes: int
) -> tuple[Any, Any]:
    """The kernel and its device, compiled once for each source and card."""
    card = _core().Device(device)
    card.set_current()
    try:
        kernel = _binary(source, together, device).get_kernel(expression)
    except CudaError:  # one of the others can't be compiled, perhaps
        kernel = _binary(source, (expression,), device).get_kernel(expression)
    if shared_bytes > _STATIC_SHARED_BYTES:
        kernel.attributes.max_dynamic_shared_size_bytes(card.device_id, shared_bytes)
    return kernel, card


@functools.cache
def _stream(device: int, handle: int) -> Any:
    """PyTorch's stream as cuda.core's, made once: PyTorch's streams live as long as it does."""
    return _core().Device(device).create_stream(_Stream(handle))


def launch(
    source: str,
    signature: Signature,
    arguments: Sequence[Any],
    grid: Program,
    block: Program,
    shared_bytes: int,
    device: torch.device,
    together: tuple[str, ...] = (),
) -> None:
    """Launch on the current stream of `device`; arguments are checked already.

    `together` are the kernels that share variables of the source with this one.
    """
    core = _core()
    index = device.index if device.index is not None else torch.cuda.current_device()
    expression = signature.expression
    kernel, card = _compile(source, expression, together or (expression,), index, shared_bytes)
    card.set_current()
    values = [
        (0 if value is None else value.data_ptr()) if one.pointer else _scalar(one, value)
        for one, value in zip(signature.parameters, arguments, strict=True)
    ]
    stream = _stream(index, torch.cuda.current_stream(device).cuda_stream)
    config = core.LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)
    core.launch(stream, config, kernel, *values)
