"""The shape of an operation: what the bench, the ledgers, the tests and the grader iterate over.

An operation is one module in `kernels/ops/<family>/`. At its end stands one `Op`: the tensors it
takes and returns, each with its dimensions by name; its float64 reference; its variants (the same
function computed in different numbers of launches); and a `Pass` for each way through it, with the
bytes it must move, the FLOPs it must do, how near it must come, and where its suite measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.cases import DTYPES, Case, Options, Shape, cases, dtype_name
from kernels.moves import Moves

# What a reader calls: these are held to shapes beyond the suite's too. A variant that is taught, or
# another's, stands for the suite's shapes alone.
FASTEST = ("fused", "fused_cuda", "fused_hopper")
SUITES = ("ceilings", "norms", "pointwise", "matmul", "attention", "losses", "encoder", "inference")
PASSES = ("fwd", "bwd", "train")


@dataclass(frozen=True)
class Cost:
    """What a pass of an operation must do at least, whatever computes it.

    `read_bytes` counts each input once and `write_bytes` each output once: the ideal bytes. An
    FMA is 2 FLOPs; exp, rsqrt, erf and tanh are 1 each.
    """

    flops: int
    read_bytes: int
    write_bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.read_bytes + other.read_bytes,
            self.write_bytes + other.write_bytes,
        )

    @property
    def bytes_ideal(self) -> int:
        """Bytes read and written, each input and each output once."""
        return self.read_bytes + self.write_bytes

    @property
    def intensity(self) -> float:
        """FLOPs per ideal byte: the place on the roofline's horizontal axis."""
        return self.flops / self.bytes_ideal


@dataclass(frozen=True)
class Tolerance:
    """How far an output may lie from the float64 reference.

    `relative_norm` bounds ‖out − ref‖ / ‖ref‖; `largest` bounds max |out − ref| divided by
    max |ref|. Both come from the dtype's epsilon and the length of the reduction.
    """

    relative_norm: float
    largest: float


def _available(_device: torch.device) -> str | None:
    return None


def _everywhere(_case: Case) -> bool:
    return True


@dataclass(frozen=True)
class Variant:
    """One way to compute an operation.

    `fn` takes the tensors and options of `Op.inputs` by keyword and returns the output, or a tuple
    of outputs. With "bwd" in `passes`, PyTorch's autograd goes back through it.
    `unavailable(device)` is None where the variant runs, else one sentence that says why not.
    `fits(case)` is whether it takes such sizes and options at all.
    `counted` tells how its bytes are counted with no GPU: "triton" (its launches are Triton
    kernels), "cuda" (its launches are kernels in CUDA C++), "aten" (PyTorch operators, each a
    launch or a view), "formula" (kernels in Gluon, which no interpreter runs: `moves` is the count,
    and a profiler confirms it on a card), or "" (opaque: compiled graphs and vendor libraries,
    whose bytes only a profiler sees). `moves(case, pass_)` is what its launches must move, which
    the tests hold the ledger to; None where nobody has written it down.
    `cases` are those that a suite measures it in, for one that is too slow to set up everywhere;
    None is all of them. `own_random` says that it draws other random numbers than the reference.
    `waits` says that a call waits for the GPU, or replays a CUDA graph of its own, so that no CUDA
    graph takes it: it is timed from Python alone. `part` says that it computes a part of the
    operation, as a product without its norm: what no variant does without, beside which they are
    timed. Nobody holds it to values.
    """

    name: str
    fn: Callable[..., Any]
    passes: tuple[str, ...] = ("fwd",)
    counted: str = ""
    unavailable: Callable[[torch.device], str | None] = _available
    cases: tuple[Case, ...] | None = None
    own_random: bool = False
    waits: bool = False
    part: bool = False
    fits: Callable[[Case], bool] = _everywhere
    moves: Callable[[Case, str], Moves] | None = None

    def belongs(self, case: Case) -> bool:
        """Whether a suite measures the variant in this case unasked."""
        return (self.cases is None or case in self.cases) and self.fits(case)

    def has(self, pass_: str) -> bool:
        """Whether it has a pass; what goes back can be trained."""
        return pass_ in self.passes or (pass_ == "train" and "bwd" in self.passes)


def named(*variants: Variant) -> dict[str, Variant]:
    """Return variants by name, in their order; ValueError if two have one name."""
    found: dict[str, Variant] = {}
    for variant in variants:
        if variant.name in found:
            raise ValueError(f"variant {variant.name!r} stands twice")
        found[variant.name] = variant
    return found


Candidates = Callable[[Case], Mapping[str, Callable[..., Any]]]


@dataclass(frozen=True)
class Pass:
    """One way through an operation: what it must do, how near it comes, where it is measured.

    `tolerance(case, name)` bounds the error of an output, or of the gradient of an input, by its
    name. `cases` are those that the suite measures, shape by shape, where all of the operation's
    would take too long. `candidates(case)` are the configurations of `fused` that `tune` compares,
    as functions of the inputs by name. `beyond` are cases at which the launches of this way alone,
    of the fastest variants, must compile beside those of the operation's shapes.
    """

    cost: Callable[[Case], Cost]
    tolerance: Callable[[Case, str], Tolerance]
    cases: tuple[Case, ...] | None = None
    candidates: Candidates | None = None
    beyond: tuple[Case, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Backward(Pass):
    """The way back: gradients of the inputs `differentiates`, in this order.

    Autograd through the reference gives them in float64. Autograd goes back through `candidates`.
    `train_cases` are where forward and backward are measured as one call, a training step.
    """

    differentiates: tuple[str, ...]
    train_cases: tuple[Case, ...] = ()


@dataclass(frozen=True)
class Random:
    """Where random numbers decide.

    `outcomes(**inputs)` are the two values in float64 that each element of the output may have:
    where it is kept, and where it is dropped, which happens with the probability that the input
    called `probability` holds. The reference takes `first_row` beside its inputs: the place of its
    first part, along the first independent dimension, in the whole.

    Of several outputs it is the one at `place` that numbers decide over, and the references of all
    are `outputs(that one's reference, **inputs)`. `outcomes` is None where one dropout follows
    another, so that an element may have any value: a variant that draws numbers of its own is held
    to the reference at the probability 0, forward too.
    """

    outcomes: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None
    probability: str = "p"
    place: int = 0
    outputs: Callable[..., tuple[torch.Tensor, ...]] | None = None

    def without(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs with the probability 0, when nothing is left to chance.

        A backward is held to the reference there if its variant draws numbers of its own: what it
        dropped shows in no output where both outcomes are near, as around GELU's 0.
        """
        return {**inputs, self.probability: 0.0}


@dataclass(frozen=True)
class Op:
    """An operation and all that is known of it.

    `dims` names the sizes of a shape by a letter each: "RN" for rows of N columns, "MKN" for a
    product, "BHSD" for attention. `tensors` and `outputs` give each tensor's dimensions in these
    letters ("N" for a weight); `multiples` gives further ones, each so many times one of `dims`.
    `independent` are the letters along which each part is computed alone: a reference may go part
    by part there. `degrees` says how counts grow with a size, as the degree of a polynomial: 1 for
    rows, 2 for the length of attention's sequences; empty is 1 for what is independent, and what
    is not named is never extended.

    `inputs(shape, dtype, device, seed, **options)` makes fresh random inputs as keyword arguments
    of `reference` and of every variant; what is no tensor among them, an option such as `causal`
    for one, is passed on. `reference` computes in float64 and returns float64, a tensor or a tuple
    like the variants.

    `shapes`, `dtypes` and `options` are what its suite is made of. `beyond` are shapes that no
    suite measures but whose kernels must be right and compile: rows wider than any measured one,
    rows that can't be loaded 16 bytes at a time. `small` are shapes for a test to run where not any
    size will do; empty is a few sizes of rows and columns.

    `made_of` are the operations whose operators its fused variants call, where it has none of its
    own: their kernels, transforms and bytes are proved under their names.
    """

    name: str
    suite: str
    dims: str
    tensors: Mapping[str, str]
    outputs: Mapping[str, str]
    inputs: Callable[..., dict[str, Any]]
    reference: Callable[..., Any]
    variants: Mapping[str, Variant]
    shapes: tuple[Shape, ...]
    forward: Pass
    dtypes: tuple[torch.dtype, ...] = tuple(DTYPES.values())
    options: tuple[Options, ...] = ((),)
    backward: Backward | None = None
    random: Random | None = None
    independent: str = ""
    degrees: Mapping[str, int] = field(default_factory=dict)
    beyond: tuple[Shape, ...] = ()
    small: tuple[Shape, ...] = ()
    multiples: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    made_of: tuple[str, ...] = ()

    def sizes(self, shape: Shape) -> dict[str, int]:
        """Return the size of each letter that a tensor's dimensions are told by."""
        found = dict(zip(self.dims, shape, strict=True))
        more = {one: times * found[of] for one, (of, times) in self.multiples.items()}
        return found | more

    def cases_of(self, pass_: str) -> tuple[Case, ...]:
        """Return the cases that the suite measures a pass in, shape by shape."""
        chosen = self.pass_(pass_).cases
        names = [dtype_name(dtype) for dtype in self.dtypes]
        return cases(self.shapes, *names, options=self.options) if chosen is None else chosen

    @property
    def passes(self) -> tuple[str, ...]:
        """The passes that any variant has, in the order of PASSES."""
        return tuple(p for p in PASSES if any(v.has(p) for v in self.variants.values()))

    @property
    def growth(self) -> Mapping[str, int]:
        """The degree in each size that counts are extended along."""
        return self.degrees or dict.fromkeys(self.independent, 1)

    def compiled_at(self, variant: Variant) -> dict[Case, tuple[str, ...]]:
        """Return the cases that a variant is compiled for ahead of time, and the passes of each.

        "fwd" is a call without gradients, "train" the forward of a training step, "bwd" the rest.
        """
        fastest = variant.name in FASTEST
        shapes = (*self.shapes, *self.beyond) if fastest else self.shapes
        names = [dtype_name(dtype) for dtype in self.dtypes]
        whole = ("fwd", "train", "bwd") if variant.has("train") else ("fwd",)
        found: dict[Case, tuple[str, ...]]
        found = dict.fromkeys(cases(shapes, *names, options=self.options), whole)
        for pass_ in (p for p in ("fwd", "bwd") if fastest and variant.has(p)):
            for case in self.pass_(pass_).beyond:
                found[case] = tuple(dict.fromkeys((*found.get(case, ()), pass_)))
        return found

    def pass_(self, name: str) -> Pass:
        """Return the pass `fwd`, `bwd` or `train`; ValueError with one sentence if it has none."""
        if name == "fwd":
            return self.forward
        back = self.backward
        if back is None or name not in PASSES:
            known = "'fwd', 'bwd' or 'train'" if back else "'fwd'"
            raise ValueError(f"{self.name!r} has no pass {name!r}; it takes {known}")
        if name == "bwd":
            return back

        def both(case: Case) -> Cost:
            return self.forward.cost(case) + back.cost(case)

        return Pass(both, back.tolerance, back.train_cases, back.candidates)

    def cost(
        self, shape: Shape, dtype: torch.dtype, pass_: str = "fwd", options: Options = ()
    ) -> Cost:
        """Return what a pass must do at least, at a shape in a dtype."""
        return self.pass_(pass_).cost(Case(shape, dtype, options))

    def tolerance(self, dtype: torch.dtype, shape: Shape) -> Tolerance:
        """Return the bound on the first output's error."""
        return self.forward.tolerance(Case(shape, dtype), next(iter(self.outputs)))

    def gradient_tolerance(self, name: str, dtype: torch.dtype, shape: Shape) -> Tolerance:
        """Return the bound on the error of the gradient of the input called `name`."""
        return self.pass_("bwd").tolerance(Case(shape, dtype), name)

    def variant(self, name: str) -> Variant:
        """Return the variant called `name`; KeyError with one sentence if there is none."""
        if name not in self.variants:
            known = ", ".join(self.variants)
            raise KeyError(f"variant {name!r} of {self.name!r} is unknown; it has: {known}")
        return self.variants[name]

    def make(self, case: Case, device: torch.device | str, seed: int) -> dict[str, Any]:
        """Return fresh random inputs of a case."""
        return self.inputs(case.shape, case.dtype, device, seed, **dict(case.options))

    def resized(self, shape: Shape, **sizes: int) -> Shape:
        """Return `shape` with other sizes along the dimensions named: `resized(shape, R=8)`."""
        return tuple(sizes.get(letter, n) for letter, n in zip(self.dims, shape, strict=True))
