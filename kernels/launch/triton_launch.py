"""A launch of a `@triton.jit` function as the ledgers and the graders see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton.runtime.jit import JITFunction

from kernels.launch.arena import Arena
from kernels.launch.binary import Specialization
from kernels.launch.launches import Launch


@dataclass(frozen=True, kw_only=True)
class TritonLaunch(Launch):
    """One launch of a `@triton.jit` function; `options` are its warps, its stages and the like."""

    kernel: JITFunction[Any]
    options: dict[str, Any]
    arena: Arena | None = None

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.__name__)

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes of all its loads, stores and atomics; how many of them a mask switched off."""
        return (self.arena.lanes, self.arena.masked_lanes) if self.arena else (0, 0)

    def specialize(self, capability: int) -> Specialization:
        """What Triton would compile of it for a compute capability such as 75 or 90."""
        from kernels.launch.triton_compile import specialize  # Triton's compiler is slow to import

        return specialize(self.kernel, self.arguments, self.options, capability)
