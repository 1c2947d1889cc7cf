"""What memory itself costs, measured: the latency of one load, and how many must be under way.

**chase**: one program follows a random cycle through a working set, one line of 128 bytes a hop,
each address known only when the load before it has arrived. Time over hops is the latency of a
load. `host` rows run again and again over the same lines, so they show the cache that holds the
working set; `graph` rows start from a flushed L2, so a set larger than the L2 shows DRAM.

**inflight**: a copy by a chosen number of programs, each with 4096 bytes of loads under way at a
time. By Little's law the bandwidth is the bytes under way over the latency, until it meets the
card's limit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.registry import Case, Cost, Op, Pass, Shape, Tolerance, Variant, named

LINE_WORDS = 32  # a line of 128 bytes, in words of 4
LARGEST_LAP = 160 * 1024  # lines; beyond it a call makes part of a lap
HOPS = 64 * 1024  # so that a launch's own microseconds vanish among them
FEW_HOPS = 16 * 1024
KIB, MIB = 1 << 10, 1 << 20
WORKING_SETS = (32 * KIB, 128 * KIB, MIB, 4 * MIB, 16 * MIB, 128 * MIB, 1024 * MIB)
BLOCK_WORDS = 1024
BLOCKS_EACH = 256
PROGRAMS = (1, 8, 33, 66, 132, 264, 528, 1056, 2112)


@triton.jit
def chase(next_ptr, end_ptr, start, hops):  # type: ignore[no-untyped-def]
    at = start
    for _ in range(hops):
        at = tl.load(next_ptr + at)
    tl.store(end_ptr, at)


@triton.jit
def copy_by_programs(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, n_blocks, BLOCK: tl.constexpr
):
    # A store needs what its load brings: once a block, the program waits for its loads.
    for number in tl.range(0, n_blocks):
        block = number.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        words = block * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + words, tl.load(x_ptr + words))


def hops_of(lines: int) -> int:
    """How many hops a call makes: whole laps where that is affordable."""
    return lines * max(1, HOPS // lines) if lines <= LARGEST_LAP else FEW_HOPS


def _cycle(
    shape: Shape, _dtype: torch.dtype, device: torch.device, seed: int, **_: Any
) -> dict[str, Any]:
    """A table in which word 32·k holds the word at which the line after line k begins."""
    lines, words = shape
    generator = torch.Generator(device=device).manual_seed(seed)
    order = torch.randperm(lines, generator=generator, device=device) * words
    table = torch.zeros(lines * words, dtype=torch.int32, device=device)
    table[order] = order.roll(-1).to(torch.int32)
    hops = hops_of(lines)
    return {
        "table": table,
        "start": int(order[0]),
        "hops": hops,
        "end": order[hops % lines].reshape(1),
    }


def _chase(table: torch.Tensor, start: int, hops: int, end: torch.Tensor) -> torch.Tensor:
    reached = torch.empty(1, dtype=torch.int32, device=table.device)
    chase[(1,)](table, reached, start, hops, num_warps=1)
    return reached


def _chase_cost(case: Case) -> Cost:
    return Cost(0, 4 * hops_of(case.shape[0]), 4)


def _words(
    shape: Shape, _dtype: torch.dtype, device: torch.device, seed: int, **_: Any
) -> dict[str, Any]:
    programs, words = shape
    generator = torch.Generator(device=device).manual_seed(seed)
    size = programs * words * BLOCKS_EACH
    return {
        "x": torch.randn(size, device=device, generator=generator),
        "programs": programs,
    }


def _copy(x: torch.Tensor, programs: int) -> torch.Tensor:
    y = torch.empty_like(x)
    copy_by_programs[(programs,)](x, y, BLOCKS_EACH, BLOCK=BLOCK_WORDS, num_warps=4)
    return y


def _copy_cost(case: Case) -> Cost:
    size = case.shape[0] * case.shape[1] * BLOCKS_EACH * 4
    return Cost(0, size, size)


def _exact(_case: Case, _name: str) -> Tolerance:
    return Tolerance(0.0, 0.0)


def probes() -> list[Op]:
    """Return the two probes, for the suite `ceilings`."""
    fp32 = (torch.float32,)
    return [
        Op(
            name="chase",
            suite="ceilings",
            inputs=_cycle,
            reference=lambda table, start, hops, end: end.double(),
            dims="LW",  # lines of 32 words
            tensors={},
            outputs={"reached": "1"},
            variants=named(Variant("kernel", _chase)),
            forward=Pass(_chase_cost, _exact),
            shapes=tuple((size // (4 * LINE_WORDS), LINE_WORDS) for size in WORKING_SETS),
            dtypes=fp32,
        ),
        Op(
            name="inflight",
            suite="ceilings",
            inputs=_words,
            reference=lambda x, programs: x.double(),
            dims="PW",  # programs, each of blocks of so many words
            tensors={},
            outputs={"y": "X"},
            variants=named(Variant("kernel", _copy)),
            forward=Pass(_copy_cost, _exact),
            shapes=tuple((programs, BLOCK_WORDS) for programs in PROGRAMS),
            dtypes=fp32,
        ),
    ]
