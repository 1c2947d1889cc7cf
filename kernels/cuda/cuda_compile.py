"""Compile a recorded launch in CUDA C++ for any compute capability: NVRTC needs no GPU."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from kernels.cuda import nvrtc
from kernels.cuda.errors import CudaError
from kernels.hardware import WARP_THREADS
from kernels.launch.binary import Compiled, disassembly, resource_usage
from kernels.launch.errors import Program

# What the assembler calls them, newest first, and the PTX names that Triton's kernels are told by.
_MATRIX = (
    (r"\bUTC\w*MMA\b", "tcgen05.mma"),
    (r"\b[HIQ]GMMA\b", "wgmma.mma_async"),
    (r"\b[HIQD]MMA\b", "mma.sync"),
)


def no_compiler() -> str | None:
    """Why CUDA C++ can't be compiled here for a GPU, in one sentence; None if it can."""
    try:
        nvrtc.try_compiling()
    except CudaError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class CudaSpecialization:
    """What NVRTC would compile of a launch for one compute capability; it holds no tensors.

    `together` are the kernels that are compiled in one go, `kernel` among them.
    """

    source: str
    kernel: str
    together: tuple[str, ...]
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
        cubin, names = nvrtc.compile_cubin(self.source, self.together, self.capability)
        used = resource_usage(cubin, names[self.kernel])
        return Compiled(
            kernel=self.kernel,
            capability=self.capability,
            registers=used["REG"],
            stack_bytes=used["STACK"],
            shared_bytes=used["SHARED"] + self.shared_bytes,
            num_warps=-(-self.block[0] * self.block[1] * self.block[2] // WARP_THREADS),
            matrix_instruction=self._matrix_instruction(cubin, names[self.kernel]),
            cubin=cubin,
        )

    def _matrix_instruction(self, cubin: bytes, function: str) -> str | None:
        # Disassembly is slow, and NVRTC makes a matrix instruction of what asks for one alone.
        if not re.search(r"\b(?:w|wg)?mma", self.source):
            return None
        sass = disassembly(cubin).partition(f"Function : {function}\n")[2].partition("Function :")
        return next((name for pattern, name in _MATRIX if re.search(pattern, sass[0])), None)
