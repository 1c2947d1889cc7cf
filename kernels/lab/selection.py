"""What a command of the lab works on: the cells of a suite, chosen by shape, dtype and variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import registry
from kernels.lab.measuring.ceilings import ceiling_ops
from kernels.lab.measuring.copying import COPY
from kernels.passes import TIMED
from kernels.registry import Op, Shape, Variant

NO_GPU = (
    "this machine has no GPU to measure on; bytes are counted without one: "
    "python -m kernels.lab count layernorm"
)


class RefusalError(Exception):
    """A request that cannot be served, in one sentence; a command ends with exit code 2."""


@dataclass(frozen=True)
class Cell:
    """One row of comparisons: the variants of an operation at one shape, dtype and pass."""

    op: Op
    shape: Shape
    dtype: torch.dtype
    pass_: str
    variants: tuple[Variant, ...]

    @property
    def name(self) -> str:
        """The cell as a reader writes it: `layernorm 4096x4096 bf16`."""
        told = f"{self.op.name} {registry.shape_name(self.shape)} {registry.dtype_name(self.dtype)}"
        return told if self.pass_ == "fwd" else f"{told} {self.pass_}"

    @property
    def has_copy(self) -> bool:
        """Whether a copy row belongs to the cell; a ceiling is one itself."""
        return self.op.suite != "ceilings"


def load_ops() -> None:
    """Register every operation of the book."""
    import kernels.ops  # noqa: F401


def suite_ops(suite: str) -> list[Op]:
    """Return a suite's operations; RefusalError if there is no such suite or it has none."""
    if suite not in registry.SUITES:
        known = ", ".join(registry.SUITES)
        raise RefusalError(f"suite {suite!r} is unknown; it takes one of: {known}")
    if suite == "ceilings":
        return ceiling_ops()
    load_ops()
    found = registry.ops(suite)
    if not found:
        raise RefusalError(
            f"suite {suite!r} has no operations yet; it takes one of: {', '.join(suites())}"
        )
    return found


def suites() -> list[str]:
    """Return the suites that can be measured today."""
    load_ops()
    return [s for s in registry.SUITES if s == "ceilings" or registry.ops(s)]


def _parsed_dtypes(texts: Sequence[str]) -> list[torch.dtype]:
    try:
        return [registry.parse_dtype(text) for text in texts]
    except ValueError as error:
        raise RefusalError(str(error)) from error


def parse_shapes(texts: Sequence[str], ops: Sequence[Op]) -> list[Shape]:
    """Return the shapes; RefusalError unless each fits an operation's number of dimensions."""
    found = []
    for text in texts:
        try:
            shape = registry.parse_shape(text)
        except ValueError as error:
            raise RefusalError(str(error)) from error
        if 0 in shape or len(shape) not in {len(s) for op in ops for s in op.shapes}:
            taken = ", ".join(dict.fromkeys(registry.shape_name(op.shapes[0]) for op in ops))
            raise RefusalError(
                f"shape {text!r} does not fit; it takes sizes above 0 as in: {taken}"
            )
        found.append(shape)
    return list(dict.fromkeys(found))


def _places(
    op: Op, pass_: str, shapes: Sequence[Shape], dtypes: Sequence[torch.dtype]
) -> list[tuple[Shape, torch.dtype]]:
    """The shapes and dtypes of a pass: the operation's own, or those asked for beside them."""
    usual = op.cells_of(pass_)
    own_shapes = list(dict.fromkeys(shape for shape, _ in usual))
    own_dtypes = list(dict.fromkeys(dtype for _, dtype in usual))
    return [
        (shape, dtype)
        for shape in shapes or own_shapes
        for dtype in ([d for d in op.dtypes if d in dtypes] if dtypes else own_dtypes)
        if (shape, dtype) in usual or shape not in own_shapes or dtype not in own_dtypes
    ]


def select(
    suite: str,
    variants: str = "all",
    shapes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    pass_: str = "all",
) -> list[Cell]:
    """Return the cells of a suite in the order of its operations, passes, shapes and dtypes.

    `variants` is `all` or names joined by commas; `shapes` and `dtypes` are as a command line
    gives them, all that the operation has for the pass if empty; `pass_` is `fwd`, `bwd` or `all`.
    With `all` variants, one that names the cells it belongs to stands in no other. RefusalError
    names what is not understood.
    """
    if pass_ not in (*TIMED, "all"):
        raise RefusalError(f"pass {pass_!r} is unknown; it takes one of: {', '.join(TIMED)}, all")
    ops = suite_ops(suite)
    known = list(dict.fromkeys([COPY, *(name for op in ops for name in op.variants)]))
    wanted = known if variants == "all" else [part.strip() for part in variants.split(",")]
    for name in wanted:
        if name not in known:
            raise RefusalError(
                f"variant {name!r} is unknown in suite {suite!r}; "
                f"it takes all, or some of: {', '.join(known)}"
            )
    chosen_shapes = parse_shapes(shapes, ops)
    chosen_dtypes = _parsed_dtypes(dtypes)
    cells = []
    for op in ops:
        fitting = [s for s in chosen_shapes if len(s) == len(op.shapes[0])]
        if shapes and not fitting:
            continue
        for one in [p for p in TIMED if p in op.passes and pass_ in (p, "all")]:
            named = [v for name, v in op.variants.items() if name in wanted and one in v.passes]
            for shape, dtype in _places(op, one, fitting, chosen_dtypes):
                took = tuple(v for v in named if variants != "all" or v.belongs(shape, dtype))
                cell = Cell(op, shape, dtype, one, took)
                if took or (cell.has_copy and COPY in wanted):
                    cells.append(cell)
    if not cells:
        raise RefusalError(
            f"nothing is left of suite {suite!r} with these shapes, dtypes, variants and passes"
        )
    return cells
