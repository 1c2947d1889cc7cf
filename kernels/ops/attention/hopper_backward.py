"""The launches of attention backward by the kernels written for Hopper, and their tables of work.

The kernels stand in `hopper_backward_kernels.py` and `hopper_dq_kernels.py`. No interpreter runs
them; `moves.hopper_moves` says by a formula what they move.
"""

from __future__ import annotations

import functools
import heapq
import math

import torch
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch import lasting, multiprocessors
from kernels.ops.attention.backward_configurations import HOPPER_BACKWARD, HOPPER_ROWS
from kernels.ops.attention.hopper_backward_kernels import attention_rows, hopper_dkdv
from kernels.ops.attention.hopper_dq_kernels import hopper_dq
from kernels.ops.shared.operators import device_guard

Tensor = torch.Tensor

_TYPES = {torch.bfloat16: ttgl.bfloat16, torch.float16: ttgl.float16}
_L2_SHARE = 34 << 20  # bytes that heads which run together stream: fits the L2 of an H100
_MAX_REGISTERS = 168  # a thread's at the launch: 65536 over 12 warps


@functools.lru_cache(maxsize=256)
def schedule(
    heads: int,
    n_kept: int,
    n_passing: int,
    d: int,
    causal: bool,
    keys_kept: bool,
    programs: int,
    device: torch.device,
) -> Tensor:
    """Which program computes which tiles, in which order, as `hopper.schedule` has them.

    A tile holds 128 of `n_kept` queries, or keys with `keys_kept`, which `n_passing` of the others
    pass by. Causal, the last tile of queries and the first of keys are the longest, and go first.
    """
    shift = n_kept - n_passing if keys_kept else n_passing - n_kept
    costs = []
    for first in range(0, n_kept, HOPPER_ROWS):
        met = n_passing
        if causal and keys_kept:
            met = n_passing - max(0, first - shift)
        elif causal:
            met = max(1, min(n_passing, first + HOPPER_ROWS + shift))
        costs.append(-(-met // HOPPER_ROWS))
    tiles = list(range(len(costs)))
    together = heads
    if causal:
        tiles = tiles if keys_kept else tiles[::-1]
        together = 1
        while together * 2 * n_passing * d * 4 <= _L2_SHARE and heads % (together * 2) == 0:
            together *= 2
    free = [(0, program) for program in range(programs)]
    mine: list[list[int]] = [[] for _ in range(programs)]
    for first in range(0, heads, together):
        some = range(first, min(first + together, heads))
        by_tile = [(head, tile) for tile in tiles for head in some]
        for head, tile in by_tile if causal else [(h, t) for h in some for t in tiles]:
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


def _numbers(x: Tensor, rows: int) -> TensorDescriptor:
    layout = ttgl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    return TensorDescriptor(x, [x.numel()], [1], [rows], layout)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    *,
    scale: float,
    causal: bool,
) -> None:
    """Write the gradients of q (B, H, Sq, D), k and v (B, Hk, Sk, D) into dq, dk and dv.

    q, k, v, d_out and the gradients are as `suits_hopper_backward` asks; out has q's shape, its
    last dimension side by side; lse and d_lse (B, H, Sq) are fp32 and contiguous. A causal mask is
    aligned at the last query and the last key; a row that sees no key gets zeros.
    """
    (b, h, n_queries, d), (_, hk, n_keys, _) = q.shape, k.shape
    config = HOPPER_BACKWARD[d]
    tiles_q, tiles_k = -(-n_queries // HOPPER_ROWS), -(-n_keys // HOPPER_ROWS)
    padded = tiles_q * HOPPER_ROWS
    row_lse = torch.empty((b * h, padded), dtype=torch.float32, device=q.device)
    row_delta = torch.empty((b * h, padded), dtype=torch.float32, device=q.device)
    processors = multiprocessors(q.device)
    programs_q, programs_k = min(processors, b * h * tiles_q), min(processors, b * hk * tiles_k)
    table_q = schedule(b * h, n_queries, n_keys, d, causal, False, programs_q, q.device)
    table_k = schedule(b * hk, n_keys, n_queries, d, causal, True, programs_k, q.device)
    scale2 = scale * math.log2(math.e)
    run = {"num_warps": 4, "maxnreg": _MAX_REGISTERS}
    registers = {"REGISTERS": config.registers, "OF_PRODUCER": config.of_producer}
    half = HOPPER_ROWS // 2
    with device_guard(q):
        attention_rows[(b * h * padded // half,)](
            *(out, d_out, lse, d_lse, row_lse, row_delta),
            *(*out.stride()[:3], *d_out.stride()[:3], h, n_queries, padded),
            D=d,
            BLOCK=half,
            num_warps=4,
        )
        block = config.block_queries
        hopper_dkdv[(programs_k,)](
            *(_described(q, block), _described(k, half), _described(v, half)),
            *(_described(d_out, block), _numbers(row_lse, block), _numbers(row_delta, block)),
            *(_described(dk, half), _described(dv, half)),
            *(n_keys - n_queries, n_queries, padded, hk),
            *(table_k, table_k.shape[1], scale2, scale),
            GROUP=h // hk,
            BLOCK=block,
            D=d,
            STAGES=config.stages_of_queries,
            CAUSAL=causal,
            AHEAD=config.ahead,
            **registers,
            **run,
        )
        block = config.block_keys
        hopper_dq[(programs_q,)](
            *(_described(q, half), _described(k, block), _described(v, block)),
            *(_described(d_out, half), _described(dq, half), row_lse, row_delta),
            *(n_keys - n_queries if causal else n_keys, n_keys, padded, h, h // hk),
            *(table_q, table_q.shape[1], scale2),
            BLOCK=block,
            D=d,
            STAGES=config.stages_of_keys,
            CAUSAL=causal,
            MASK=causal or n_keys % block != 0,
            **registers,
            **run,
        )
