"""What a launch is compiled to, with no GPU: registers, spills, shared memory.

Read off the binary by the `cuobjdump` that comes with Triton, whatever compiler made it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import triton

from kernels.launch import kept

_TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Compiled:
    """What a launch was compiled to, for one compute capability.

    `stack_bytes` is per thread and above 0 if registers spill. `matrix_instruction` is the PTX
    name (`mma.sync`, `wgmma.mma_async`, `tcgen05.mma`) or None if only plain arithmetic is used.
    `serialized` says that the assembler lets each asynchronous product wait for the one before.
    `ptx` is "" for CUDA C++, which NVRTC turns into a binary at once.
    """

    kernel: str
    capability: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    num_warps: int
    matrix_instruction: str | None
    serialized: bool = False
    ptx: str = field(default="", repr=False)
    cubin: bytes = field(default=b"", repr=False)


class Specialization(Protocol):
    """What would be compiled of a launch for one compute capability."""

    @property
    def kernel(self) -> str:
        """The kernel's name."""

    @property
    def capability(self) -> int:
        """The compute capability, 75 for sm_75."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What two launches share if they run the same binary."""

    def compile(self) -> Compiled:
        """Compile it; several threads may do so at once."""


def resource_usage(cubin: bytes, function: str | None = None) -> dict[str, int]:
    """REG, STACK, SHARED and LOCAL of a function of a binary, of the only one without a name."""
    what = "--dump-resource-usage"
    made_from = (cubin, what, kept.identity(_TOOL))
    told = kept.kept("resources", made_from, lambda: _cuobjdump(cubin, what).encode()).decode()
    if function is not None:
        told = told.partition(f"Function {function}:")[2].partition("Function ")[0]
    found = re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", told)
    return {name: int(value) for name, value in found}


def disassembly(cubin: bytes) -> str:
    """The machine instructions of a binary, SASS, as text."""
    return _cuobjdump(cubin, "--dump-sass")


def _cuobjdump(cubin: bytes, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_TOOL), what, file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
    return told.stdout + told.stderr
