"""Time the configurations of an operation's kernel against the copy: what chose its table.

    python -m kernels.lab tune layernorm --shape 16384x8192 --dtype bf16
    python -m kernels.lab tune layernorm --pass bwd

Configurations that fail to launch are told and left out. Nothing is written: the winner goes into
the operation's table by hand, with the measurement beside it.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from kernels import registry
from kernels.lab.measuring import cell_bench, timing
from kernels.lab.measuring.copying import COPIES
from kernels.lab.selection import NO_GPU, Cell, RefusalError, load_ops, select
from kernels.registry import Candidates, Op, Variant


def run(
    op_name: str, shapes: Sequence[str], dtypes: Sequence[str], seconds: float, pass_: str = "fwd"
) -> int:
    """Print, for each shape and dtype, the configurations from the fastest on; return 0."""
    load_ops()
    try:
        op = registry.get(op_name)
    except KeyError as error:
        raise RefusalError(str(error.args[0])) from error
    if candidates_of(op, pass_) is None:
        raise RefusalError(
            f"operation {op_name!r} has one configuration of the pass {pass_!r}: nothing to tune"
        )
    cells = [
        cell
        for cell in select(op.suite, "all", shapes, dtypes or ["bf16"], pass_)
        if cell.op.name == op_name
    ]
    if not torch.cuda.is_available():
        raise RefusalError(NO_GPU)
    for cell in cells:
        if cell_bench.unsupported(cell.case.dtype) is None:
            cell_bench.say(f"{cell.name}: {_line(_times(cell, seconds))}")
            gc.collect()
            torch.cuda.empty_cache()
    return 0


def candidates_of(op: Op, pass_: str) -> Candidates | None:
    """The configurations of a pass, as functions of the inputs by name; None if it has but one."""
    return op.pass_(pass_).candidates if pass_ in op.passes else None


@torch.no_grad()
def _times(cell: Cell, seconds: float) -> dict[str, float]:
    """Median device time in µs of each configuration and of both copies."""
    device = cell_bench.this_device()
    bench = cell_bench.Bench(seconds)
    candidates = candidates_of(cell.op, cell.pass_)
    assert candidates is not None
    tried = candidates(cell.case)
    variants = [*COPIES, *(Variant(name, fn, (cell.pass_,)) for name, fn in tried.items())]
    cost = cell.cost
    calls = timing.calls_in_window(cost.bytes_ideal / 3e6, cost.bytes_ideal, bench.memory)
    inputs = cell_bench.input_sets(cell, device, bench.seed, calls)
    copied = cell_bench.copy_sets(cell, device, bench.seed, calls)
    pool = torch.cuda.graph_pool_handle()
    replays: dict[str, Any] = {}
    for variant in variants:
        sets = copied if variant in COPIES else inputs
        makers = [partial(cell_bench.bind, cell, variant, one) for one in sets]
        if bench.attempt(variant.name, lambda make=makers[0]: make()()) is not None:  # type: ignore[misc]
            graph = bench.attempt(variant.name, partial(timing.make_and_capture, makers, pool))
            if graph is not None:
                replays[variant.name] = graph.replay
    timing.time_windows(replays, bench.stream, seconds=0.0)  # warms up; thrown away
    samples = timing.time_windows(replays, bench.stream, seconds=seconds, calls=calls)
    return {name: timing.quantile(times, 0.5) for name, times in samples.items()}


def _line(times: dict[str, float]) -> str:
    ordered = sorted(times.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {time_us:.1f}" for name, time_us in ordered) + " µs"
