"""The operations by name, and the operators under which PyTorch knows them.

What an operation is stands in `kernels.operation`, where it is measured in `kernels.cases`, what it
moves in `kernels.moves`: their names can be imported from here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernels.cases import (
    DTYPES,
    Case,
    Options,
    Shape,
    cases,
    dtype_name,
    options_name,
    parse_dtype,
    parse_options,
    parse_shape,
    shape_name,
)
from kernels.moves import Moved, MovedStep, Moves
from kernels.operation import (
    PASSES,
    SUITES,
    Backward,
    Candidates,
    Cost,
    Op,
    Pass,
    Random,
    Tolerance,
    Variant,
    named,
)

__all__ = [
    "DTYPES",
    "PASSES",
    "SUITES",
    "Backward",
    "Candidates",
    "Case",
    "Cost",
    "Moved",
    "MovedStep",
    "Moves",
    "Op",
    "Operator",
    "Options",
    "Pass",
    "Random",
    "Shape",
    "Tolerance",
    "Variant",
    "add_operator",
    "cases",
    "dtype_name",
    "get",
    "named",
    "operator",
    "operators_of",
    "ops",
    "options_name",
    "parse_dtype",
    "parse_options",
    "parse_shape",
    "register",
    "shape_name",
]

_BY_MOVES = ("triton", "cuda", "formula")  # ways of counting that `Variant.moves` is held to
_OPS: dict[str, Op] = {}
_OPERATORS: dict[str, Operator] = {}


@dataclass(frozen=True)
class Operator:
    """An operator under `torch.ops.fusing_kernels`, and the operations that call it.

    `tensors` are the dimensions of its tensor arguments by letters, `*` for all leading dimensions
    as one: "*N" for (..., N). Along `independent` each part is computed alone, so that its counts
    extend. `moves` takes the operator's arguments by name and tells by a formula what it launches,
    or None: for launches of more programs than anybody waits for.
    """

    name: str
    of: tuple[str, ...]
    tensors: Mapping[str, str]
    independent: str = ""
    moves: Callable[..., Moves | None] | None = None


def add_operator(operator: Operator) -> None:
    """Remember an operator; ValueError if its name is taken, or an independent letter unused."""
    if operator.name in _OPERATORS:
        raise ValueError(f"operator {operator.name!r} is defined already")
    unused = set(operator.independent) - set("".join(operator.tensors.values()))
    if unused:
        raise ValueError(f"operator {operator.name!r} has no dimension {sorted(unused)}")
    _OPERATORS[operator.name] = operator


def operator(name: str) -> Operator | None:
    """Return an operator of this package by its name; None for another's."""
    return _OPERATORS.get(name)


def operators_of(op_name: str) -> list[Operator]:
    """Return the operators that an operation calls, by its name."""
    return [one for one in _OPERATORS.values() if op_name in one.of]


def _fault(op: Op) -> str | None:
    """What is wrong with an operation, in one sentence; None if it may be registered."""
    if op.name in _OPS:
        return f"operation {op.name!r} is registered already"
    if op.suite not in SUITES:
        return f"suite {op.suite!r} of {op.name!r} is unknown; suites: {SUITES}"
    if len(set(op.dims)) != len(op.dims):
        return f"dims {op.dims!r} of {op.name!r} name a dimension twice"
    for what, letters in (("independent", op.independent), ("degrees", "".join(op.degrees))):
        if unknown := set(letters) - set(op.dims):
            return f"{what} of {op.name!r} names {sorted(unknown)}; its dims are {op.dims!r}"
    if missing := set(op.made_of) - set(_OPS):
        return f"{op.name!r} is made of {sorted(missing)}, which are not registered"
    if not op.shapes:
        return f"operation {op.name!r} has no shapes: its suite would measure nothing"
    ways = [p for p in (op.forward, op.backward) if p]
    told = [case.shape for p in ways for case in (*(p.cases or ()), *p.beyond)]
    for shape in (*op.shapes, *op.beyond, *op.small, *told):
        if len(shape) != len(op.dims):
            return f"shape {shape_name(shape)} of {op.name!r} does not fit its dims {op.dims!r}"
    for key, variant in op.variants.items():
        if key != variant.name:
            return f"variant {variant.name!r} of {op.name!r} stands under {key!r}"
        if unknown := set(variant.passes) - set(PASSES):
            return f"passes {sorted(unknown)} of {op.name!r} {key!r} are unknown"
        if variant.own_random and op.random is None:
            return f"variant {key!r} of {op.name!r} is random, and the operation has no `random`"
        if key.startswith("fused") and variant.counted in _BY_MOVES and not variant.moves:
            return f"variant {key!r} of {op.name!r} needs `moves`, which its ledger is held to"
    if "bwd" in op.passes and op.backward is None:
        return f"operation {op.name!r} has the pass 'bwd', so it needs `backward`"
    if op.backward is not None:
        if "bwd" not in op.passes:
            return f"operation {op.name!r} has a `backward` that no variant takes"
        if unknown := set(op.backward.differentiates) - set(op.tensors):
            return f"{op.name!r} differentiates {sorted(unknown)}, which are no tensors of it"
    return None


def register(op: Op) -> Op:
    """Put `op` into the registry and return it; ValueError with one sentence if it doesn't fit."""
    if fault := _fault(op):
        raise ValueError(fault)
    _OPS[op.name] = op
    return op


def get(name: str) -> Op:
    """Return the operation called `name`; KeyError with one sentence if there is none."""
    if name not in _OPS:
        raise KeyError(f"operation {name!r} is unknown; known: {', '.join(sorted(_OPS))}")
    return _OPS[name]


def ops(suite: str | None = None) -> list[Op]:
    """Return the registered operations, of one suite if given, in the order of registration."""
    if suite is not None and suite not in SUITES:
        raise KeyError(f"suite {suite!r} is unknown; known: {', '.join(SUITES)}")
    return [op for op in _OPS.values() if suite is None or op.suite == suite]
