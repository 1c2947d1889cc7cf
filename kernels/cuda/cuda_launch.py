"""A launch in CUDA C++ as the ledgers and the graders see it, beside Triton's in one list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.cuda.emulator.results import Counts
from kernels.hardware import WARP_THREADS
from kernels.launch.binary import Specialization
from kernels.launch.errors import Program
from kernels.launch.launches import Launch


@dataclass(frozen=True, kw_only=True)
class CudaLaunch(Launch):
    """One launch of a `__global__` function; `arena` holds the emulator's counts if it was run.

    `kernel` is a `Kernel` of `kernels.cuda`; `grid` and `block` are sizes along x, y and z;
    `shared_bytes` is the dynamic shared memory.
    """

    block: Program
    shared_bytes: int
    arena: Counts | None = None

    @property
    def name(self) -> str:
        """The kernel's name, with its template arguments."""
        return self.kernel.signature.expression

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes of all warps' requests of global memory; how many of them took no part.

        A warp whose lanes all stay away makes no request, and counts for nothing.
        """
        lines = self.arena.lines if self.arena else ()
        lanes = WARP_THREADS * sum(line.requests for line in lines)
        return lanes, lanes - sum(line.bytes_requested // line.width for line in lines)

    @property
    def bytes_sectors(self) -> int | None:
        """Bytes of the 32-byte sectors of each warp's request of global memory."""
        return self.arena.bytes_sectors if self.arena else None

    def specialize(self, capability: int) -> Specialization:
        """What NVRTC would compile of it for a compute capability such as 75 or 90."""
        from kernels.cuda.cuda_compile import CudaSpecialization

        module = self.kernel.module
        together = tuple(one.expression for one in module.entries(self.kernel.signature))
        return CudaSpecialization(
            module.source, self.name, together, capability, self.block, self.shared_bytes
        )


def on_host(arguments: Sequence[Any]) -> tuple[list[Any], Callable[[], None]]:
    """The arguments with tensors of a GPU copied to the host, and what brings them back.

    Views of one storage stay views of one storage.
    """
    copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
    moved: list[Any] = []
    for value in arguments:
        if isinstance(value, torch.Tensor) and value.is_cuda:
            storage = value.untyped_storage()
            key = storage.data_ptr() or -len(moved) - 1  # storages of zero bytes aren't one
            if key not in copies:
                copies[key] = (storage, storage.cpu())
            empty = torch.empty(0, dtype=value.dtype)
            value = empty.set_(copies[key][1], value.storage_offset(), value.shape, value.stride())
        moved.append(value)

    def bring_back() -> None:
        for storage, copy in copies.values():
            storage.copy_(copy)

    return moved, bring_back
