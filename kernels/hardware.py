"""What every NVIDIA card has, and what an SM of each compute capability has.

The operations choose their configurations by it, and the instruments hold kernels to it. Sizes are
in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WARP_THREADS = 32
MAX_GRID = (2**31 - 1, 65535, 65535)  # blocks, or programs, along x, y and z
VECTOR_BYTES = 16  # what a thread loads or stores by one instruction at most

_KIB = 1 << 10


@dataclass(frozen=True)
class Limits:
    """What one SM of a compute capability has; sizes in bytes, registers of 32 bits."""

    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    fp32_fmas_per_clock: int
    registers_per_sm: int = 65536


# By compute capability, 75 for 7.5, from the CUDA Programming Guide's technical specifications. A
# block has 1 KiB less than its SM from 8.0 on: CUDA keeps it.
# 12.0: the Blackwell Tuning Guide says 128 KB an SM, L1 included; the guide's 100 KB is kept, which
# is what shared memory can be set to. Both say 99 KB a block.
LIMITS: Mapping[int, Limits] = {
    75: Limits(64 * _KIB, 64 * _KIB, 64),
    80: Limits(164 * _KIB, 163 * _KIB, 64),
    86: Limits(100 * _KIB, 99 * _KIB, 128),
    89: Limits(100 * _KIB, 99 * _KIB, 128),
    90: Limits(228 * _KIB, 227 * _KIB, 128),
    100: Limits(228 * _KIB, 227 * _KIB, 128),
    120: Limits(100 * _KIB, 99 * _KIB, 128),
}
