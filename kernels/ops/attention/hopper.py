"""Attention forward by the kernel written for Hopper, its table of work, and where it steps aside.

The kernel stands in `hopper_kernels.py`. No interpreter runs it; `requested` says by a formula what
it asks for, which Nsight Compute confirms on a card (tests/gpu/test_hopper_attention_gpu.py).
"""

from __future__ import annotations

import functools
import heapq
import math
from typing import NamedTuple

import torch
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.hardware import VECTOR_BYTES
from kernels.launch import lasting, multiprocessors
from kernels.ops.attention.hopper_kernels import GROUP_ROWS, hopper_attention
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor

CAPABILITY = (9, 0)
_TYPES = {torch.bfloat16: ttgl.bfloat16, torch.float16: ttgl.float16}
_MOST_HEADS, _MOST_TILES = 1 << 15, 1 << 16  # of a table's entry, in 32 bits
_L2_SHARE = 34 << 20  # bytes of k and v of the heads that run together: fits the L2 of an H100


class Config(NamedTuple):
    """Groups of four warps, keys a tile, stages, registers a thread of a group and of the producer.

    H100, 16 heads, 16k tokens in all, bf16: for D = 128 three stages, and 232 registers, lost; for
    D = 64 two groups did.
    """

    groups: int
    block_keys: int
    stages: int
    registers: int
    of_producer: int

    @property
    def rows(self) -> int:
        """Queries of a program's tile."""
        return self.groups * int(GROUP_ROWS.value)


CONFIGS = {128: Config(2, 128, 2, 240, 24), 64: Config(3, 128, 2, 160, 32)}


def suits(q: Tensor, k: Tensor, v: Tensor, scale: float, capability: tuple[int, int]) -> bool:
    """Whether the kernel takes such tensors: the one rule by which it steps aside, beside options.

    It runs on capability 9.0, in 16 bits, for head dimensions 64 and 128, where the copy engine
    takes all three tensors (every stride but the last a multiple of 16 bytes) and the scale is
    above 0, so that the largest score is the largest product.
    """
    return (
        capability == CAPABILITY
        and q.dtype in _TYPES
        and q.shape[-1] in CONFIGS
        and 0 < scale < math.inf
        and q.shape[0] * q.shape[1] < _MOST_HEADS
        and q.shape[2] < _MOST_TILES * GROUP_ROWS.value
        and all(map(_by_copy_engine, (q, k, v)))
    )


def _by_copy_engine(x: Tensor) -> bool:
    size = x.element_size()
    strides = [stride for stride, n in zip(x.stride(), x.shape, strict=True) if n > 1]
    return (
        x.stride(-1) == 1
        and x.numel() > 0
        and all(0 < stride * size < 1 << 40 for stride in strides)
        and all(stride * size % VECTOR_BYTES == 0 for stride in x.stride()[:-1])
        and (x.data_ptr() | int(x.storage_offset()) * size) % VECTOR_BYTES == 0
    )


def n_blocks(
    first_row: int, rows: int, n_queries: int, n_keys: int, block: int, causal: bool
) -> int:
    """How many tiles of keys a tile of queries meets: one at least, where it sees none."""
    seen = min(n_keys, first_row + rows + n_keys - n_queries) if causal else n_keys
    return max(1, -(-seen // block))


def _order(heads: int, costs: list[int], together: int, causal: bool) -> list[tuple[int, int]]:
    """Tiles (head, tile of queries) as they are handed out, `together` heads at a time."""
    tiles = range(len(costs))
    found: list[tuple[int, int]] = []
    for first in range(0, heads, together):
        some = range(first, min(first + together, heads))
        if causal:  # the longest first, or the last ones would be waited for
            found += [(head, tile) for tile in reversed(tiles) for head in some]
        else:
            found += [(head, tile) for head in some for tile in tiles]
    return found


@functools.lru_cache(maxsize=256)
def schedule(
    heads: int,
    n_queries: int,
    n_keys: int,
    d: int,
    causal: bool,
    programs: int,
    device: torch.device,
) -> Tensor:
    """Which program computes which tiles, in which order: (programs, 2 + most tiles), int32.

    A row holds the number of its tiles, then head << 16 | tile for each, then a 0 that is read and
    not used. Each tile goes to the program that is free first, by a cost of its tiles of keys and 2
    more; causal heads go in sections whose keys and values the L2 holds. Handing them out in turn
    cost 15 to 28 % on an H100.
    """
    config = CONFIGS[d]
    tiles = range(-(-n_queries // config.rows))
    costs = [
        n_blocks(t * config.rows, config.rows, n_queries, n_keys, config.block_keys, causal)
        for t in tiles
    ]
    together = heads
    if causal:
        together = 1
        while together * 2 * n_keys * d * 4 <= _L2_SHARE and heads % (together * 2) == 0:
            together *= 2
    free = [(0, program) for program in range(programs)]
    mine: list[list[int]] = [[] for _ in range(programs)]
    for head, tile in _order(heads, costs, together, causal):
        since, program = heapq.heappop(free)
        mine[program].append(head << 16 | tile)
        heapq.heappush(free, (since + costs[tile] + 2, program))
    most = max(map(len, mine))
    rows = [[len(row), *row, *[0] * (most + 1 - len(row))] for row in mine]
    return lasting(torch.tensor(rows, dtype=torch.int32, device=device))


def _described(x: Tensor, rows: int) -> TensorDescriptor:
    d = x.shape[-1]
    layout = ttgl.NVMMASharedLayout.get_default_for([1, 1, rows, d], _TYPES[x.dtype])
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, d], layout)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool,
    lengths: Tensor | None = None,
) -> None:
    """Write the attention of q (B, H, Sq, D) over k and v (B, Hk, Sk, D) into out and lse.

    out (B, H, Sq, D) and k, v, q are as `suits` asks; lse (B, H, Sq) is fp32 and contiguous: the
    natural logarithm of Σ exp. `lengths` (B,) int32 says how many keys of each batch there are. A
    row that sees no key gives zeros, and an lse of −inf.
    """
    (b, h, n_queries, d), (_, hk, n_keys, _) = q.shape, k.shape
    config = CONFIGS[d]
    tiles = b * h * -(-n_queries // config.rows)
    programs = min(multiprocessors(q.device), tiles)
    table = schedule(b * h, n_queries, n_keys, d, causal, programs, q.device)
    with device_guard(q):
        hopper_attention[(programs,)](
            _described(q, GROUP_ROWS.value),
            _described(k, config.block_keys),
            _described(v, config.block_keys),
            _described(out, GROUP_ROWS.value),
            lse,
            table if lengths is None else lengths,
            n_keys - n_queries if causal else n_keys,
            n_queries,
            n_keys,
            h,
            h // hk,
            table,
            table.shape[1],
            scale * math.log2(math.e),
            GROUPS=config.groups,
            BLOCK_KEYS=config.block_keys,
            D=d,
            STAGES=config.stages,
            MASK=causal or lengths is not None or n_keys % config.block_keys != 0,
            HAS_LENGTHS=lengths is not None,
            REGISTERS=config.registers,
            OF_PRODUCER=config.of_producer,
            num_warps=4,
            maxnreg=65536 // ((config.groups + 1) * 128) // 8 * 8,
        )


def requested(
    b: int, h: int, n_queries: int, n_keys: int, d: int, itemsize: int, causal: bool
) -> tuple[int, int]:
    """Bytes of q, k and v that it reads, and of o and lse that it writes; the table apart.

    Each tile of queries reads k and v of the tiles that it meets, up to the last key there is.
    """
    config = CONFIGS[d]
    keys = 0
    for first in range(0, n_queries, config.rows):
        met = n_blocks(first, config.rows, n_queries, n_keys, config.block_keys, causal)
        keys += min(met * config.block_keys, n_keys)
    heads = b * h
    read = heads * d * itemsize * (n_queries + 2 * keys)
    return read, heads * n_queries * (d * itemsize + 4)
