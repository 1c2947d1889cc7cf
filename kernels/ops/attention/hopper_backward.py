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
from kernels.ops.attention import dropped_bits
from kernels.ops.attention.backward_configurations import (
    HOPPER_BACKWARD,
    HOPPER_ROWS,
)
from kernels.ops.attention.dropped_bits_kernels import attention_dropped_bits
from kernels.ops.attention.hopper_backward_kernels import attention_rows, hopper_dkdv
from kernels.ops.attention.hopper_dq_kernels import hopper_dq
from kernels.ops.shared.operators import device_guard
from kernels.philox import scale as drop_scale
from kernels.philox import threshold

Tensor = torch.Tensor

_TYPES = {torch.bfloat16: ttgl.bfloat16, torch.float16: ttgl.float16}
_L2_SHARE = 34 << 20  # bytes that heads which run together stream: fits the L2 of an H100
BITS_ROWS, BITS_WORDS = 128, 4  # of a program that makes bits
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
    dropout_p: float = 0.0,
    seed_offset: Tensor | None = None,
    bits: Tensor | None = None,
) -> None:
    """Write the gradients of q (B, H, Sq, D), k and v (B, Hk, Sk, D) into dq, dk and dv.

    q, k, v, d_out and the gradients are as `suits_hopper_backward` asks; out has q's shape, its
    last dimension side by side; lse and d_lse (B, H, Sq) are fp32 and contiguous. A causal mask is
    aligned at the last query and the last key; a row that sees no key gets zeros. Dropout, of less
    than all, is that of `attention`: `bits` are what its forward left, and if None they are made,
    for as many heads at a time as `MOST_MADE` bytes hold.
    """
    (b, h, n_queries, d), (_, hk, n_keys, _) = q.shape, k.shape
    queries_a_key = h // hk
    _, n_words, padded = dropped_bits.shape(b * h, n_queries, n_keys)
    row_lse = torch.empty((b * h, padded), dtype=torch.float32, device=q.device)
    row_delta = torch.empty((b * h, padded), dtype=torch.float32, device=q.device)
    half = HOPPER_ROWS // 2
    with device_guard(q):
        attention_rows[(b * h * padded // half,)](
            *(out, d_out, lse, d_lse, row_lse, row_delta),
            *(*out.stride()[:3], *d_out.stride()[:3], 1 / drop_scale(dropout_p)),
            *(h, n_queries, padded),
            D=d,
            BLOCK=half,
            num_warps=4,
        )
        kept_scale = drop_scale(dropout_p)
        if bits is not None or not threshold(dropout_p):
            found, rows = (dq, dk, dv), (row_lse, row_delta)
            _products((q, k, v, d_out), rows, bits, found, kept_scale, scale=scale, causal=causal)
            return
        of_batch, heads = dropped_bits.sections(b, hk, queries_a_key * padded * n_words * 4)
        bits = torch.empty(
            (min(b * h, of_batch * heads * queries_a_key), n_words, padded),
            dtype=torch.int32, device=q.device,
        )  # fmt: skip
        for first, first_key in (
            (batch, head) for batch in range(0, b, of_batch) for head in range(0, hk, heads)
        ):
            some, of_keys = slice(first, first + of_batch), slice(first_key, first_key + heads)
            of_queries = slice(first_key * queries_a_key, (first_key + heads) * queries_a_key)
            own_lse = row_lse.view(b, h, padded)[some, of_queries].reshape(-1, padded)
            own_delta = row_delta.view(b, h, padded)[some, of_queries].reshape(-1, padded)
            own = own_lse.shape[0]
            attention_dropped_bits[(own * padded // BITS_ROWS * n_words // BITS_WORDS,)](
                *(seed_offset, bits, first * h + of_queries.start, n_keys - n_queries),
                *(n_queries, -(-n_keys // 8) * 8, padded, n_words, threshold(dropout_p)),
                CAUSAL=causal,
                ROWS=BITS_ROWS,
                WORDS=BITS_WORDS,
                num_warps=4,
            )
            _products(
                (q[some, of_queries], k[some, of_keys], v[some, of_keys], d_out[some, of_queries]),
                (own_lse, own_delta),
                bits[:own],
                (dq[some, of_queries], dk[some, of_keys], dv[some, of_keys]),
                kept_scale,
                scale=scale,
                causal=causal,
            )


def _products(
    given: tuple[Tensor, Tensor, Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    bits: Tensor | None,
    gradients: tuple[Tensor, Tensor, Tensor],
    kept_scale: float,
    *,
    scale: float,
    causal: bool,
) -> None:
    """Launch dK and dV, then dQ, of q, k, v and d_out.

    `rows` are L and delta of each row (heads, padded), delta divided by `kept_scale`, the factor of
    what a dropout keeps, and `bits` (heads, words, padded) says what that is.
    """
    (q, k, v, d_out), (dq, dk, dv), (row_lse, row_delta) = given, gradients, rows
    (b, h, n_queries, d), (_, hk, n_keys, _) = q.shape, k.shape
    config = HOPPER_BACKWARD[d]
    padded = row_lse.shape[1]
    processors = multiprocessors(q.device)
    programs_q = min(processors, b * h * -(-n_queries // HOPPER_ROWS))
    programs_k = min(processors, b * hk * -(-n_keys // HOPPER_ROWS))
    table_q = schedule(b * h, n_queries, n_keys, d, causal, False, programs_q, q.device)
    table_k = schedule(b * hk, n_keys, n_queries, d, causal, True, programs_k, q.device)
    scale2, half = scale * math.log2(math.e), HOPPER_ROWS // 2
    run = {"num_warps": 4, "maxnreg": _MAX_REGISTERS}
    registers = {"REGISTERS": config.registers, "OF_PRODUCER": config.of_producer}
    n_words = 0 if bits is None else bits.shape[1]
    block = config.block_queries
    hopper_dkdv[(programs_k,)](
        *(_described(q, block), _described(k, half), _described(v, half)),
        *(_described(d_out, block), _numbers(row_lse, block), _numbers(row_delta, block)),
        None if bits is None else _numbers(bits, block),
        *(_described(dk, half), _described(dv, half)),
        *(n_keys - n_queries, n_queries, padded, n_words, hk),
        *(table_k, table_k.shape[1], scale2, scale * kept_scale, kept_scale),
        GROUP=h // hk,
        BLOCK=block,
        D=d,
        STAGES=config.stages_of_queries,
        CAUSAL=causal,
        HELD=config.held,
        **registers,
        **run,
    )
    block = config.block_keys
    hopper_dq[(programs_q,)](
        *(_described(q, half), _described(k, block), _described(v, block)),
        *(_described(d_out, half), _described(dq, half), row_lse, row_delta, bits),
        *(n_keys - n_queries if causal else n_keys, n_keys, padded, n_words, h, h // hk),
        *(table_q, table_q.shape[1], scale2, scale * kept_scale),
        BLOCK=block,
        D=d,
        STAGES=config.stages_of_keys,
        CAUSAL=causal,
        MASK=causal or n_keys % block != 0,
        HELD=config.held,
        **registers,
        launch_pdl=True,
        **run,
    )
