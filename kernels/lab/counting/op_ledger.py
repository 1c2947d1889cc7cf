"""The ledger of a registered operation's variant, at any shape, with no GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels import passes
from kernels.lab.counting import aten, traffic
from kernels.lab.counting.by_rows import by_rows
from kernels.lab.counting.ledger import Ledger
from kernels.launch import recording
from kernels.registry import Op, Shape, get


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

    def call_at(rows: int) -> Callable[[], object]:
        fakes = aten.fake_inputs(op, (rows, *shape[1:]), dtype)
        inputs = {name: _untouched(value) for name, value in fakes.items()}
        if pass_ == "fwd":
            return functools.partial(fn, **inputs)
        with recording():  # the forward's launches are not run either
            return passes.back(op, fn, inputs, lambda outs: [torch.empty_like(o) for o in outs])

    return by_rows(at, call_at, shape[0]) if op.rows_independent else at(shape[0])


def _untouched(value: Any) -> Any:
    """A tensor of this size that is never written: until then it takes no memory."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
