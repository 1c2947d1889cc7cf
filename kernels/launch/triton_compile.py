"""Compile a recorded launch for any compute capability, with no GPU.

`kernels.launch.binary` then reads off registers, stack (a spill shows there) and shared memory.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import triton_key
from triton.runtime.jit import create_function_from_signature

from kernels.launch import kept
from kernels.launch.binary import Compiled, resource_usage
from kernels.launch.gluon import is_gluon
from kernels.launch.launches import Launch
from kernels.launch.settled import settle

_MATRIX = re.compile(r"(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)")
# ptxas says so, and no more, where it lets each asynchronous product wait for the one before.
_SERIALIZED = re.compile(r"\(C\d+\) Potential Performance Loss: wgmma\.mma_async .* serialized")


@dataclass(frozen=True)
class TritonSpecialization:
    """What Triton would compile of a launch for one compute capability; it holds no tensors."""

    kernel: str
    capability: int
    source: ASTSource
    options: dict[str, Any]

    @property
    def key(self) -> tuple[str, str, int]:
        """What two launches share if they run the same binary."""
        options = sorted((name, str(value)) for name, value in self.options.items())
        return self.source.hash(), str(options), self.capability

    def compile(self) -> Compiled:
        """Compile it, or read it from Triton's cache on disk; several threads may do so at once."""
        target = GPUTarget("cuda", self.capability, 32)
        compiled = triton.compile(self.source, target=target, options=self.options)
        used = resource_usage(compiled.asm["cubin"])
        matrix = _MATRIX.search(compiled.asm["ptx"])
        return Compiled(
            kernel=self.kernel,
            capability=self.capability,
            registers=used["REG"],
            stack_bytes=used["STACK"],
            shared_bytes=int(compiled.metadata.shared),
            num_warps=int(compiled.metadata.num_warps),
            matrix_instruction=matrix.group(0) if matrix else None,
            serialized=_serialized(compiled.asm["ptx"], self.capability),
            ptx=compiled.asm["ptx"],
            cubin=compiled.asm["cubin"],
        )


def _source_of(kernel: Any) -> type[ASTSource]:
    if not is_gluon(kernel):
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource


def _serialized(ptx: str, capability: int) -> bool:
    """Whether the assembler lets the asynchronous products of a kernel wait for one another.

    Triton doesn't pass on what its ptxas says of it, so that it is asked once more.
    """
    if "wgmma.mma_async" not in ptx:
        return False
    ptxas = get_ptxas(capability)

    def asked() -> bytes:
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(ptx)
            file.flush()
            command = [ptxas.path, f"--gpu-name=sm_{capability}a", "-o", os.devnull, file.name]
            return subprocess.run(command, capture_output=True, check=True).stderr

    told = kept.kept("ptxas", (ptx, str(capability), ptxas.version), asked)
    return _SERIALIZED.search(told.decode()) is not None


def specialize(
    kernel: Any, arguments: dict[str, Any], launch_options: dict[str, Any], capability: int
) -> TritonSpecialization:
    """Return what a launch would have compiled on a compute capability such as 75 or 90.

    `kernel` is the `@triton.jit` function, `launch_options` its warps, its stages and the like.
    """
    for one in (kernel, *arguments.values()):  # a constexpr may be a function of Triton's
        settle(one)
    backend = make_backend(GPUTarget("cuda", capability, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    options = {"debug": False, **launch_options}
    bound, specialization, _ = bind(**arguments, **options)
    parsed, signature, constexprs, attributes = kernel._pack_args(
        backend, options, bound, specialization, None
    )
    source = _source_of(kernel)(kernel, signature, constexprs, attributes)
    return TritonSpecialization(str(kernel.__name__), capability, source, dict(parsed.__dict__))


@functools.cache
def ready(capabilities: tuple[int, ...]) -> None:
    """Have at hand, once in a process, what Triton finds out at its first compilation.

    That is a hash of its own files, versions of its assemblers and a package that it imports late.
    A process that forks calls it before: otherwise each of its forks takes half a second for that.
    """
    importlib.import_module("triton.experimental.gluon")
    triton_key()
    for capability in capabilities:
        backend = make_backend(GPUTarget("cuda", capability, 32))
        backend.hash()
        backend.parse_options({}).hash()
        assert get_ptxas(capability).version


def compile_launch(launch: Launch, capability: int) -> Compiled:
    """Compile `launch` for a compute capability such as 75 or 90; no GPU is needed."""
    return launch.specialize(capability).compile()
