"""The ledger of a registered operation's variant, at any shape, with no GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels.lab import aten, traffic
from kernels.lab.ledger import Ledger, extend_rows
from kernels.registry import Op, Shape, get

# Few rows, and a third count that must lie on the line through the other two.
ROW_COUNTS = (4, 8, 12)
# For a launch whose blocks take a row a thread: there a few rows are one block, however many.
_WARPS_OF_ROWS = (32, 64, 96)


def by_rows(at: Callable[[int], Ledger], rows: int) -> Ledger:
    """The ledger at `rows` rows, extended from `at(few rows)` where the numbers lie on a line.

    Where they don't, or where `rows` are few, `at(rows)` itself.
    """
    for counts in (ROW_COUNTS, _WARPS_OF_ROWS):
        if rows <= max(counts):
            break
        ledgers = [at(few) for few in counts]
        both = zip(ledgers[0], ledgers[1], strict=False)
        if counts is ROW_COUNTS and any(one.grid == more.grid for one, more in both):
            continue
        try:
            return extend_rows(zip(counts, ledgers, strict=True), rows)
        except ValueError:
            break
    return at(rows)


def count_op(op: Op, variant: str, shape: Shape, dtype: torch.dtype, pass_: str = "fwd") -> Ledger:
    """The ledger of one variant of an operation at one shape.

    A variant of kernels in Triton or CUDA C++, of an operation whose rows are independent, is run
    at a few rows and extended linearly (`method` "linear"); where the numbers don't lie on a line,
    and for other operations, every program is run ("full"). Variants made of PyTorch operators run
    on fake CUDA tensors ("aten"). ValueError for a variant that is opaque, a compiled graph or a
    vendor's library, and for one that can't run here.
    """
    if op.variant(variant).counted == "":
        raise ValueError(
            f"variant {variant!r} of {op.name!r} can't be counted: what it launches is decided "
            f"by a compiler or a library; its DRAM bytes are measured by `profile`"
        )
    why = op.variant(variant).unavailable(torch.device("cpu"))
    if why is not None and op.variant(variant).counted != "aten":
        raise ValueError(f"variant {variant!r} of {op.name!r} can't be counted here: {why}")
    if pass_ not in op.variant(variant).passes:
        raise ValueError(f"variant {variant!r} of {op.name!r} has no pass {pass_!r}")
    return _count_op(op.name, variant, shape, dtype)


@functools.cache
def _count_op(name: str, variant: str, shape: Shape, dtype: torch.dtype) -> Ledger:
    op = get(name)
    fn = op.variant(variant).fn
    if op.variant(variant).counted == "aten":
        return aten.count(fn, **aten.fake_inputs(op, shape, dtype))

    def at(rows: int) -> Ledger:
        return traffic.count(fn, **op.inputs((rows, *shape[1:]), dtype, "cpu", seed=0))

    return by_rows(at, shape[0]) if op.rows_independent else at(shape[0])
