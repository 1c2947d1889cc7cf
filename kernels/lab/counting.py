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


def by_rows(at: Callable[[int], Ledger], rows: int) -> Ledger:
    """The ledger at `rows` rows, extended from `at(few rows)` where the numbers lie on a line.

    Where they don't, or where `rows` are few, `at(rows)` itself.
    """
    if rows > max(ROW_COUNTS):
        try:
            return extend_rows([(few, at(few)) for few in ROW_COUNTS], rows)
        except ValueError:
            pass
    return at(rows)


def count_op(op: Op, variant: str, shape: Shape, dtype: torch.dtype, pass_: str = "fwd") -> Ledger:
    """The ledger of one variant of an operation at one shape.

    A Triton variant of an operation whose rows are independent is interpreted at a few rows and
    extended linearly (`method` "linear"); where the numbers don't lie on a line, and for other
    operations, every program is interpreted ("full"). Variants made of PyTorch operators run on
    fake CUDA tensors ("aten"). ValueError for a variant that is opaque: compiled graphs, vendor
    libraries.
    """
    if op.variant(variant).counted == "":
        raise ValueError(
            f"variant {variant!r} of {op.name!r} can't be counted: what it launches is decided "
            f"by a compiler or a library; its DRAM bytes are measured by `profile`"
        )
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
