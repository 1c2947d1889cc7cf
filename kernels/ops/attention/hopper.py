"""The launch of attention forward by the kernel written for Hopper, and its table of work.

The kernel stands in `hopper_kernels.py`. No interpreter runs it; `moves.hopper_moves` says by a
formula what it moves, `configurations.suits_hopper` where it stands.
"""

from __future__ import annotations

import functools
import heapq
import math

import torch
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch import lasting, multiprocessors
from kernels.ops.attention.configurations import (
    HOPPER,
    HOPPER_DROPPED,
    HOPPER_GROUP_ROWS,
    HOPPER_MASKED,
    HopperTiling,
)
from kernels.ops.attention.hopper_kernels import hopper_attention
from kernels.ops.attention.moves import blocks_met
from kernels.ops.shared.operators import device_guard
from kernels.philox import scale as drop_scale
from kernels.philox import threshold

Tensor = torch.Tensor

_TYPES = {torch.bfloat16: ttgl.bfloat16, torch.float16: ttgl.float16}
_L2_SHARE = 34 << 20  # bytes of k and v of the heads that run together: fits the L2 of an H100


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
    config: HopperTiling,
    programs: int,
    device: torch.device,
) -> Tensor:
    """Which program computes which tiles, in which order: (programs, 2 + most tiles), int32.

    A row holds the number of its tiles, then head << 16 | tile for each, then a 0 that is read and
    not used. Each tile goes to the program that is free first, by a cost of its tiles of keys and 2
    more; causal heads go in sections whose keys and values the L2 holds. Handing them out in turn
    cost 15 to 28 % on an H100.
    """
    tiles = range(-(-n_queries // config.rows))
    costs = [
        blocks_met(t * config.rows, n_queries, n_keys, config.rows, config.block_keys, causal)
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
    lse: Tensor | None,
    *,
    scale: float,
    causal: bool,
    key_padding_mask: Tensor | None = None,
    q_lengths: Tensor | None = None,
    k_lengths: Tensor | None = None,
    dropout_p: float = 0.0,
    seed_offset: Tensor | None = None,
    bits: Tensor | None = None,
) -> None:
    """Write the attention of q (B, H, Sq, D) over k and v (B, Hk, Sk, D) into out and lse.

    q, k, v are as `suits_hopper` asks, and out (B, H, Sq, D) too; lse (B, H, Sq) is fp32 and
    contiguous, the natural logarithm of Σ exp, or None. A causal mask is aligned at the last query
    and the last key; a row that sees no key gives zeros, and an lse of −inf. `scale` is above 0, so
    that the largest score is the largest product. Padding, lengths and dropout, alone and of less
    than all, are those of `attention`; the table of work goes by the tensors' sizes, since lengths
    lie in the memory of the device. `bits` gets what a dropout drops, as
    `dropped_bits.shape` has it.
    """
    (b, h, n_queries, d), (_, hk, n_keys, _) = q.shape, k.shape
    drops = threshold(dropout_p) > 0
    config = (HOPPER_DROPPED if drops else HOPPER if key_padding_mask is None else HOPPER_MASKED)[d]
    tiles = b * h * -(-n_queries // config.rows)
    ragged = any(one is not None for one in (key_padding_mask, q_lengths, k_lengths))
    programs = min(multiprocessors(q.device), tiles)
    table = schedule(b * h, n_queries, n_keys, d, causal, config, programs, q.device)
    with device_guard(q):
        hopper_attention[(programs,)](
            _described(q, HOPPER_GROUP_ROWS),
            _described(k, config.block_keys),
            _described(v, config.block_keys),
            _described(out, HOPPER_GROUP_ROWS),
            out if lse is None else lse,
            q_lengths,
            k_lengths,
            key_padding_mask,
            *((None, None) if key_padding_mask is None else key_padding_mask.stride()),
            *(seed_offset if drops else None, threshold(dropout_p), drop_scale(dropout_p)),
            *(bits, *((0, 0) if bits is None else bits.shape[1:])),
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
            MASK=causal or ragged or n_keys % config.block_keys != 0,
            CAUSAL=causal and ragged,  # else `shift` tells it all
            RAGGED=ragged,
            HAS_LSE=lse is not None,
            REGISTERS=config.registers,
            OF_PRODUCER=config.of_producer,
            num_warps=4,
            maxnreg=65536 // ((config.groups + (2 if drops else 1)) * 128) // 8 * 8,
        )
