"""Compile a recorded launch in CUDA C++ for any compute capability: NVRTC needs no GPU."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from kernels.cuda import gpu
from kernels.cuda.launches import CudaLaunch
from kernels.launch.binary import Compiled, disassembly, resource_usage
from kernels.launch.errors import Program

# What the assembler calls them, newest first, and the PTX names that Triton's kernels are told by.
_MATRIX = (
    (r"\bUTC\w*MMA\b", "tcgen05.mma"),
    (r"\bW?[HIQ]GMMA\b", "wgmma.mma_async"),
    (r"\b[HIQD]MMA\b", "mma.sync"),
)


@dataclass(frozen=True)
class CudaSpecialization:
    """What NVRTC would compile of a launch for one compute capability; it holds no tensors."""

    source: str
    kernel: str
    capability: int
    block: Program
    shared_bytes: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What two launches share if they run the same binary in blocks of the same size."""
        digest = hashlib.sha256(self.source.encode()).hexdigest()
        return digest, f"{self.kernel} {self.block} {self.shared_bytes}", self.capability

    def compile(self) -> Compiled:
        """Compile it; CudaError with one sentence if cuda.core is missing or the source wrong."""
        cubin, function = gpu.compile_cubin(self.source, self.kernel, self.capability)
        used = resource_usage(cubin, function)
        sass = disassembly(cubin)
        names = [name for pattern, name in _MATRIX if re.search(pattern, sass)]
        return Compiled(
            kernel=self.kernel,
            capability=self.capability,
            registers=used["REG"],
            stack_bytes=used["STACK"],
            shared_bytes=used["SHARED"] + self.shared_bytes,
            num_warps=-(-self.block[0] * self.block[1] * self.block[2] // 32),
            matrix_instruction=names[0] if names else None,
            sass=sass,
        )


def specialize(launch: CudaLaunch, capability: int) -> CudaSpecialization:
    """Return what `launch` would have compiled on a compute capability such as 75 or 90."""
    source = launch.kernel.module.source
    return CudaSpecialization(source, launch.name, capability, launch.block, launch.shared_bytes)
