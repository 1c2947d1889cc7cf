"""The ledger of a registered operation's variant, at any shape, with no GPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels.lab import aten, passes, traffic
from kernels.lab.ledger import Ledger, extend_rows
from kernels.launch import recording
from kernels.registry import Op, Shape, get

Grids = tuple[tuple[int, int, int], ...]

# Numbers of rows to count at: the third must lie on the line through the other two. A few; for
# launches whose blocks take a row a thread, whole warps and whole blocks of them.
_ROW_COUNTS = ((4, 8, 12), (32, 64, 96), (256, 512, 768))


def grids(call: Callable[[], object]) -> Grids:
    """The grid of each launch of a call, in order; none of them runs."""
    with recording() as launches:
        call()
    return tuple(launch.grid for launch in launches)


def _on_a_line(counts: tuple[int, ...], few: list[Grids], rows: int, all_: Grids) -> bool:
    """Whether the launches at `rows` rows are those at `counts`, their grids growing linearly."""
    if any(len(seen) != len(all_) for seen in few):
        return False
    first, second = counts[:2]
    return all(
        (b - a) * (at - first) == (c - a) * (second - first)
        for at, seen in ((counts[2], few[2]), (rows, all_))
        for small, next_, then in zip(few[0], few[1], seen, strict=True)
        for a, b, c in zip(small, next_, then, strict=True)
    )


def row_counts(grids_at: Callable[[int], Grids], rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield numbers of rows whose launches stand to those at `rows` rows as on a line.

    Where a fixed number of programs shares all rows, a few rows have a smaller grid than many:
    there the numbers are multiples of one that keeps every program busy, and the grid is the same.
    """
    all_ = grids_at(rows)
    busy = max((math.prod(grid) for grid in all_), default=1)
    shared = [(n, 2 * n, 3 * n) for n in (busy * 2**power for power in range(7))]
    for counts in (*_ROW_COUNTS, *shared):
        if rows > max(counts) and _on_a_line(counts, [grids_at(n) for n in counts], rows, all_):
            yield counts


def by_rows(at: Callable[[int], Ledger], grids_at: Callable[[int], Grids], rows: int) -> Ledger:
    """The ledger at `rows` rows, extended from `at(few rows)` where the numbers lie on a line.

    Where they don't, or where `rows` are few, `at(rows)` itself. `grids_at(rows)` are the grids of
    the launches, without running them.
    """
    for counts in row_counts(grids_at, rows):
        try:
            return extend_rows([(few, at(few)) for few in counts], rows)
        except ValueError:
            continue
    return at(rows)


def count_op(op: Op, variant: str, shape: Shape, dtype: torch.dtype, pass_: str = "fwd") -> Ledger:
    """The ledger of one variant of an operation at one shape.

    A variant of kernels in Triton or CUDA C++, of an operation whose rows are independent, is run
    at a few rows and extended linearly (`method` "linear"); where the numbers don't lie on a line,
    and for other operations, every program is run ("full"). Variants made of PyTorch operators run
    on fake CUDA tensors ("aten"). Of a backward only the way back is counted. ValueError for a
    variant that is opaque, a compiled graph or a vendor's library, for one that can't run here,
    and for a pass that it lacks.
    """
    chosen = op.variant(variant)
    if chosen.counted == "":
        raise ValueError(
            f"variant {variant!r} of {op.name!r} can't be counted: what it launches is decided "
            f"by a compiler or a library; its DRAM bytes are measured by `profile`"
        )
    why = chosen.unavailable(torch.device("cpu"))
    if why is not None and chosen.counted != "aten":
        raise ValueError(f"variant {variant!r} of {op.name!r} can't be counted here: {why}")
    if pass_ not in chosen.passes or pass_ not in passes.TIMED:
        raise ValueError(f"variant {variant!r} of {op.name!r} has no pass {pass_!r}")
    return _count_op(op.name, variant, shape, dtype, pass_)


@functools.cache
def _count_op(name: str, variant: str, shape: Shape, dtype: torch.dtype, pass_: str) -> Ledger:
    op = get(name)
    fn = op.variant(variant).fn
    if op.variant(variant).counted == "aten":
        inputs = aten.fake_inputs(op, shape, dtype)
        return aten.count(fn, **inputs) if pass_ == "fwd" else aten.count_backward(op, fn, inputs)

    def at(rows: int) -> Ledger:
        inputs = op.inputs((rows, *shape[1:]), dtype, "cpu", seed=0)
        return traffic.count(passes.bind(op, op.variant(variant), inputs, pass_))

    def grids_at(rows: int) -> Grids:
        fakes = aten.fake_inputs(op, (rows, *shape[1:]), dtype)
        inputs = {name: _untouched(value) for name, value in fakes.items()}
        if pass_ == "fwd":
            return grids(functools.partial(fn, **inputs))
        with recording():  # the forward's launches, which don't run either
            call = passes.back(op, fn, inputs, lambda outs: [torch.empty_like(o) for o in outs])
        return grids(call)

    return by_rows(at, grids_at, shape[0]) if op.rows_independent else at(shape[0])


def _untouched(value: Any) -> Any:
    """Memory of a tensor's size that nothing has written: the system gives no pages for it."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
