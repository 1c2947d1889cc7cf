"""The shape of an operation: what the bench, the ledgers, the tests and the grader iterate over.

An operation is one file in `kernels/ops/`. At its end stands one `Op`: the inputs it takes, its
float64 reference, its variants (the same function computed in different numbers of launches), and
its cost (the bytes it must move and the FLOPs it must do). `register` puts it into the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

SUITES = ("ceilings", "norms", "pointwise", "matmul", "attention", "encoder", "inference")
PASSES = ("fwd", "bwd", "train")
DTYPES: Mapping[str, torch.dtype] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}
_LONG_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """What a pass of an operation must do at least, whatever computes it.

    `read_bytes` counts each input once and `write_bytes` each output once: the ideal bytes. An
    FMA is 2 FLOPs; exp, rsqrt, erf and tanh are 1 each.
    """

    flops: int
    read_bytes: int
    write_bytes: int

    @property
    def bytes_ideal(self) -> int:
        """Bytes read and written, each input and each output once."""
        return self.read_bytes + self.write_bytes

    @property
    def intensity(self) -> float:
        """FLOPs per ideal byte: the place on the roofline's horizontal axis."""
        return self.flops / self.bytes_ideal


def _available(_device: torch.device) -> str | None:
    return None


@dataclass(frozen=True)
class Variant:
    """One way to compute an operation.

    `fn` takes the tensors and options of `Op.inputs` by keyword and returns the output, or a tuple
    of outputs. With "bwd" in `passes`, PyTorch's autograd goes back through it.
    `unavailable(device)` is None where the variant runs, else one sentence that says why not.
    `counted` tells how its bytes are counted with no GPU: "triton" (its launches are Triton
    kernels), "cuda" (its launches are kernels in CUDA C++), "aten" (PyTorch operators, each a
    launch or a view), or "" (opaque: compiled graphs and vendor libraries, whose bytes only a
    profiler sees). `cells` are the shapes and dtypes that a suite measures it in, for one that is
    too slow to set up everywhere; None is all of them.
    `own_random` says that it draws other random numbers than the reference does.
    """

    name: str
    fn: Callable[..., Any]
    passes: tuple[str, ...] = ("fwd",)
    counted: str = ""
    unavailable: Callable[[torch.device], str | None] = _available
    cells: tuple[tuple[Shape, torch.dtype], ...] | None = None
    own_random: bool = False

    def belongs(self, shape: Shape, dtype: torch.dtype) -> bool:
        """Whether a suite measures the variant at this shape and dtype unasked."""
        return self.cells is None or (shape, dtype) in self.cells


@dataclass(frozen=True)
class Tolerance:
    """How far an output may lie from the float64 reference.

    `relative_norm` bounds ‖out − ref‖ / ‖ref‖; `largest` bounds max |out − ref| divided by
    max |ref|. Both come from the dtype's epsilon and the length of the reduction.
    """

    relative_norm: float
    largest: float


@dataclass(frozen=True)
class Op:
    """An operation and all that is known of it.

    `inputs(shape, dtype, device, seed, **options)` makes fresh random inputs as keyword arguments
    of `reference` and of every variant. `reference` computes in float64 and returns float64, a
    tensor or a tuple like the variants.
    `shapes` are the shapes of its suite, and `rows_independent` says that each row of the shape's
    first dimension is computed alone, so that counts extend linearly in the rows. `operators` are
    the names under `torch.ops.fusing_kernels` that belong to it. `candidates(shape, dtype)` are
    the configurations of `fused` that `tune` compares, as functions of the inputs by name, and
    `backward_candidates` those of its backward, as functions that autograd goes back through.

    Where random numbers decide, `takes_first_row` says that `reference` takes `first_row`, the
    place of its rows in the whole, and `outcomes(**inputs)` are the two values in float64 that each
    element may have: where it is kept, and where it is dropped with the probability `p`.

    `differentiates` are the inputs that "bwd" makes gradients of, in this order; autograd through
    `reference` gives them in float64, and `gradient_tolerance(name, dtype, shape)` bounds the
    error of each.

    `cells` are the shapes and dtypes that its suite measures a pass in, for a pass that would take
    too long in all of them; a pass that it does not name is measured in all.
    """

    name: str
    suite: str
    inputs: Callable[..., dict[str, Any]]
    reference: Callable[..., Any]
    variants: Mapping[str, Variant]
    cost: Callable[[Shape, torch.dtype, str], Cost]
    tolerance: Callable[[torch.dtype, Shape], Tolerance]
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...] = field(default_factory=lambda: tuple(DTYPES.values()))
    rows_independent: bool = False
    operators: tuple[str, ...] = ()
    candidates: Callable[[Shape, torch.dtype], Mapping[str, Callable[..., Any]]] | None = None
    takes_first_row: bool = False
    outcomes: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None = None
    differentiates: tuple[str, ...] = ()
    gradient_tolerance: Callable[[str, torch.dtype, Shape], Tolerance] | None = None
    backward_candidates: Callable[[Shape, torch.dtype], Mapping[str, Callable[..., Any]]] | None = (
        None
    )
    cells: Mapping[str, tuple[tuple[Shape, torch.dtype], ...]] = field(default_factory=dict)

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that any variant has, in the order of PASSES."""
        return tuple(p for p in PASSES if any(p in v.passes for v in self.variants.values()))

    def cells_of(self, pass_: str) -> tuple[tuple[Shape, torch.dtype], ...]:
        """Return the shapes and dtypes that the suite measures a pass in, shape by shape."""
        everywhere = tuple((shape, dtype) for shape in self.shapes for dtype in self.dtypes)
        return self.cells.get(pass_, everywhere)

    def variant(self, name: str) -> Variant:
        """Return the variant called `name`; KeyError with one sentence if there is none."""
        if name not in self.variants:
            known = ", ".join(self.variants)
            raise KeyError(f"variant {name!r} of {self.name!r} is unknown; it has: {known}")
        return self.variants[name]


_OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Put `op` into the registry and return it.

    ValueError if its name is taken, its suite is unknown, a variant's key is not its name, or a
    pass is unknown or lacks what checks it.
    """
    if op.name in _OPS:
        raise ValueError(f"operation {op.name!r} is registered already")
    if op.suite not in SUITES:
        raise ValueError(f"suite {op.suite!r} of {op.name!r} is unknown; suites: {SUITES}")
    for key, variant in op.variants.items():
        if key != variant.name:
            raise ValueError(f"variant {variant.name!r} of {op.name!r} stands under {key!r}")
        unknown = set(variant.passes) - set(PASSES)
        if unknown:
            raise ValueError(f"passes {sorted(unknown)} of {op.name!r} {key!r} are unknown")
        if "bwd" in variant.passes and variant.own_random:
            raise ValueError(
                f"variant {key!r} of {op.name!r} draws its own random numbers: nothing can check "
                f"its gradients, so it takes no pass 'bwd'"
            )
    if "bwd" in op.passes and not (op.differentiates and op.gradient_tolerance):
        raise ValueError(
            f"operation {op.name!r} has the pass 'bwd', so it needs differentiates and "
            f"gradient_tolerance"
        )
    strange = set(op.cells) - set(op.passes)
    if strange:
        raise ValueError(f"cells of {op.name!r} name passes that it lacks: {sorted(strange)}")
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


def dtype_name(dtype: torch.dtype) -> str:
    """Return `fp16`, `bf16` or `fp32`, as the data files write it."""
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise ValueError(f"dtype {dtype} is not one of {', '.join(DTYPES)}")


def parse_dtype(text: str) -> torch.dtype:
    """Return the dtype called `text`: `fp16`, `bf16`, `fp32` or PyTorch's long name."""
    short = _LONG_DTYPES.get(text, text)
    if short not in DTYPES:
        known = ", ".join([*DTYPES, *_LONG_DTYPES])
        raise ValueError(f"dtype {text!r} is unknown; it takes one of: {known}")
    return DTYPES[short]


def shape_name(shape: Shape) -> str:
    """Return `4096x8192` for (4096, 8192), as the data files write it."""
    return "x".join(str(size) for size in shape)


def parse_shape(text: str) -> Shape:
    """Return (4096, 8192) for `4096x8192`; ValueError with one sentence otherwise."""
    parts = text.lower().split("x")
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"shape {text!r} is not understood; write sizes joined by x: 4096x8192")
    return tuple(int(part) for part in parts)
