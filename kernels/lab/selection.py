"""What a command of the lab works on: the cells of a suite, chosen by shape, dtype and variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import registry
from kernels.lab.measuring.ceilings import ceiling_ops
from kernels.lab.measuring.copying import COPY
from kernels.registry import PASSES, Case, Cost, Op, Options, Shape, Variant

NO_GPU = (
    "this machine has no GPU to measure on; bytes are counted without one: "
    "python -m kernels.lab count layernorm"
)


class RefusalError(Exception):
    """A request that cannot be served, in one sentence; a command ends with exit code 2."""


@dataclass(frozen=True)
class Cell:
    """One row of comparisons: the variants of an operation in one case, in one pass."""

    op: Op
    case: Case
    pass_: str
    variants: tuple[Variant, ...]

    @property
    def name(self) -> str:
        """The cell as a reader writes it: `layernorm 4096x4096 bf16`, `… bwd` for a backward."""
        told = f"{self.op.name} {self.case.name}"
        return told if self.pass_ == "fwd" else f"{told} {self.pass_}"

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """The cell as its rows hold it: operation, pass, shape, dtype, options."""
        return (
            self.op.name,
            self.pass_,
            registry.shape_name(self.case.shape),
            registry.dtype_name(self.case.dtype),
            registry.options_name(self.case.options),
        )

    @property
    def cost(self) -> Cost:
        """What the pass must do at least."""
        return self.op.pass_(self.pass_).cost(self.case)

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


def _parsed_options(texts: Sequence[str]) -> list[Options]:
    try:
        return [registry.parse_options(text) for text in texts]
    except ValueError as error:
        raise RefusalError(str(error)) from error


def _places(
    op: Op,
    pass_: str,
    shapes: Sequence[Shape],
    dtypes: Sequence[torch.dtype],
    options: Sequence[Options],
    asked: bool,
) -> list[Case]:
    """The cases of a pass: the operation's own, or those asked for beside them.

    A pass without cases of its own, as a training step, is measured where it is `asked` for.
    """
    usual = op.cases_of(pass_) or (op.cases_of("fwd") if asked else ())
    if not usual:
        return []
    own_shapes = list(dict.fromkeys(case.shape for case in usual))
    own_dtypes = list(dict.fromkeys(case.dtype for case in usual))
    own_options = list(dict.fromkeys(case.options for case in usual))
    return [
        case
        for shape in shapes or own_shapes
        for dtype in ([d for d in op.dtypes if d in dtypes] if dtypes else own_dtypes)
        for told in options or own_options
        if (case := Case(shape, dtype, told)) in usual
        or shape not in own_shapes
        or dtype not in own_dtypes
        or told not in own_options
    ]


def select(
    suite: str,
    variants: str = "all",
    shapes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    pass_: str = "all",
    options: Sequence[str] = (),
) -> list[Cell]:
    """Return the cells of a suite in the order of its operations, passes, shapes and dtypes.

    `variants` is `all` or names joined by commas; `shapes`, `dtypes` and `options` (`causal`, or
    "" for none) are as a command line gives them, all that the operation has for the pass if empty;
    `pass_` is `fwd`, `bwd`, `train` or `all`. With `all` variants, one that names the cases it
    belongs to stands in no other. RefusalError names what is not understood.
    """
    if pass_ not in (*PASSES, "all"):
        raise RefusalError(f"pass {pass_!r} is unknown; it takes one of: {', '.join(PASSES)}, all")
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
    chosen_dtypes, chosen_options = _parsed_dtypes(dtypes), _parsed_options(options)
    cells = []
    for op in ops:
        fitting = [s for s in chosen_shapes if len(s) == len(op.shapes[0])]
        if shapes and not fitting:
            continue
        for one in [p for p in op.passes if pass_ in (p, "all")]:
            named = [v for name, v in op.variants.items() if name in wanted and v.has(one)]
            chosen = (fitting, chosen_dtypes, chosen_options)
            for case in _places(op, one, *chosen, asked=pass_ == one):
                took = tuple(
                    v for v in named if v.fits(case) and (variants != "all" or v.belongs(case))
                )
                cell = Cell(op, case, one, took)
                if took or (cell.has_copy and COPY in wanted):
                    cells.append(cell)
    if not cells:
        raise RefusalError(
            f"nothing is left of suite {suite!r} with these shapes, dtypes, variants and passes"
        )
    return cells
