"""What holds of every registered operation: functions that raise AssertionError where it doesn't.

They take an operation, not its name: a copy of one that was changed for the worse can be given to
them, which is how `test_sabotage.py` shows that none of them is blind.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernels import passes
from kernels.lab.counting import aot, aten, traffic
from kernels.lab.counting import by_formula as formulas
from kernels.registry import DTYPES, Case, Op, Shape, Variant
from tests.ops import layouts

Tensor = torch.Tensor

CPU = torch.device("cpu")
FEW = 4  # parts along an independent dimension that a test interprets
FP32 = 2.0**-24


def runnable(op: Op, device: torch.device = CPU) -> list[Variant]:
    """The variants that run here; one that a compiler makes anew for each shape takes too long.

    What computes a part of the operation is none of them.
    """
    found = [v for v in op.variants.values() if v.unavailable(device) is None and not v.part]
    return [v for v in found if device.type == "cuda" or not v.name.startswith("compile")]


def small(op: Op) -> tuple[Shape, ...]:
    """Shapes to run: divisible, ragged, one part, sizes of 1, wide, and no parts at all."""
    if op.small:
        return op.small

    def shape(parts: int, size: int) -> Shape:
        return tuple(parts if letter in op.independent else size for letter in op.dims)

    widest = max(n for told in op.beyond or op.shapes for n in told[1:])
    sizes = ((FEW, 64), (FEW, 1000), (1, 17), (5, 3), (3, 1), (2, 17_000), (2, widest), (0, 16))
    return tuple(dict.fromkeys(shape(*one) for one in sizes))


def _is_wide(shape: Shape) -> bool:
    return math.prod(shape) > 30_000


def given(op: Op, case: Case, layout: str, device: torch.device, seed: int) -> dict[str, Any]:
    """Inputs of a case, in a layout by its name: one of `LAYOUTS`, "expanded" or "leading"."""
    inputs = op.make(case, device, seed)
    for name, dims in op.tensors.items():
        if layout == "expanded":
            inputs[name] = layouts.expanded(inputs[name], dims, op.independent[:1])
        elif layout == "leading":
            inputs[name] = layouts.leading(inputs[name], dims)
        else:
            inputs[name] = layouts.LAYOUTS[layout](inputs[name])
    return inputs


def combinations(op: Op) -> Iterator[tuple[Case, str]]:
    """Cases with a layout each: every shape in every dtype, and every layout in a dtype or two."""
    names = [*layouts.LAYOUTS]
    names += ["expanded"] if op.independent else []
    names += ["leading"] if layouts.takes_leading_dimensions(op) else []
    dtypes = [dtype for dtype in DTYPES.values() if dtype in op.dtypes]
    shapes = small(op)
    for options in op.options:
        for place, shape in enumerate(shapes):
            for number, dtype in enumerate(dtypes):
                if _is_wide(shape) and number != place % len(dtypes):
                    continue  # one dtype a wide shape: interpreting it takes a second
                layout = "contiguous" if number else names[place % len(names)]
                yield Case(shape, dtype, options), layout
        if op.made_of:
            continue  # a launch finds its layout as it does in the operation that is named there
        for place, layout in enumerate(names):
            for shape in shapes[:2]:
                yield Case(shape, dtypes[place % len(dtypes)], options), layout


def _seed(op: Op, variant: Variant, case: Case, layout: str) -> int:
    """Inputs of their own for each case, the same in every run: what fails once fails again."""
    return zlib.crc32(f"{op.name} {variant.name} {case.name} {layout}".encode()) % 2**31


def _wide(values: dict[str, Any]) -> dict[str, Any]:
    def one(value: Any) -> Any:
        real = isinstance(value, Tensor) and value.is_floating_point()
        return value.double() if real else value

    return {name: one(value) for name, value in values.items()}


def _near(
    what: str,
    got: Tensor,
    exact: Tensor,
    baseline: Tensor | None,
    relative_norm: float,
    floor: float = 1e-6,
    terms: float = 0.0,
) -> None:
    """Within the tolerance; or, where the result cancels, no further off than twice PyTorch is.

    `terms` is the size of what is added up, if that is known: an error is one of the terms'.
    Nothing is held to less than `floor`: a result can be 0 as the difference of larger terms.
    """
    assert bool(got.isfinite().all()), f"{what} is not finite, or not written everywhere"
    assert got.shape == exact.shape, f"{what} has the shape {tuple(got.shape)}"
    off, norm = float((got.double() - exact).norm()), float(exact.norm())
    allowed = relative_norm * max(norm, terms)
    if baseline is not None:
        unit = torch.finfo(got.dtype).eps / 2
        allowed = max(
            allowed, 2 * float((baseline.double() - exact).norm()) + (unit + 16 * FP32) * norm
        )
    assert off <= allowed + floor, f"{what} is off by {off:.3g}, and {allowed:.3g} is allowed"


def forward(op: Op, variant: Variant, case: Case, layout: str, device: torch.device = CPU) -> None:
    """The outputs against float64, new ones; the inputs unchanged; the same bits in training."""
    inputs = given(op, case, layout, device, seed=_seed(op, variant, case, layout))
    before = {n: v.clone() for n, v in inputs.items() if isinstance(v, Tensor)}
    with torch.no_grad():
        outputs = passes.as_tuple(variant.fn(**inputs))
        exact = passes.as_tuple(op.reference(**_wide(inputs)))
    assert len(outputs) == len(exact) == len(op.outputs)
    where = f"{op.name} {variant.name} {case.name} {layout}"
    for name, value in before.items():
        assert torch.equal(value, inputs[name]), f"{where} wrote into its input {name}"
    baseline, terms = None, 0.0
    if "torch" in op.variants and op.random is None:
        baseline = passes.as_tuple(op.variant("torch").fn(**inputs))
    if op.random is not None and op.random.outcomes is not None:
        # What is there when all is dropped, and what comes to it when all is kept.
        kept, dropped = op.random.outcomes(**_wide(inputs))
        terms = float(dropped.norm() + (kept - dropped).norm())
    for place, (name, one, truth) in enumerate(zip(op.outputs, outputs, exact, strict=True)):
        assert one.dtype == case.dtype, f"{where}: {name} is {one.dtype}"
        bound = op.forward.tolerance(case, name).relative_norm
        near = baseline[place] if baseline and variant.name != "torch" else None
        _near(f"{where}: {name}", one, truth, near, bound, terms=terms)
    if variant.has("train") and op.backward is not None:
        leaves = {n: inputs[n].detach().requires_grad_() for n in passes.differentiated(op, inputs)}
        trained = passes.as_tuple(variant.fn(**{**inputs, **leaves}))
        for name, one, other in zip(op.outputs, outputs, trained, strict=True):
            assert other.requires_grad, f"{where}: {name} has no gradient"
            assert torch.equal(one, other.detach()), f"{where}: {name} differs in training"


def backward(op: Op, variant: Variant, case: Case, layout: str, device: torch.device = CPU) -> None:
    """Every gradient against float64, from random gradients of the outputs.

    A variant that draws numbers of its own is held to it where nothing is left to chance.
    """
    inputs = given(op, case, layout, device, seed=_seed(op, variant, case, layout))
    if variant.own_random and op.random is not None:
        inputs = op.random.without(inputs)
    where = f"{op.name} {variant.name} {case.name} {layout}"
    back = op.pass_("bwd")
    call = passes.bind(op, variant, inputs, "bwd" if variant.has("bwd") else "train", seed=1)
    above = passes.upstream(call.outputs, 1)  # type: ignore[attr-defined]
    truth = passes.back(op, op.reference, _wide(inputs), lambda _: [a.double() for a in above])()
    near: tuple[Tensor | None, ...] = (None,) * len(truth)
    if "torch" in op.variants and variant.name != "torch" and op.random is None:
        near = passes.back(op, op.variant("torch").fn, inputs, lambda _: above)()
    names = passes.differentiated(op, inputs)
    # A norm of rows of one number divides fp32's roundings by √eps: some 300 times.
    floor = 1e-6 + 1024 * FP32 * sum(float(a.double().norm()) for a in above)
    # PyTorch's own rounds on the way, here and there: the terms of a sum too, which may cancel.
    theirs = 4 if variant.name == "torch" else 1
    if variant.name == "torch":
        unit = torch.finfo(case.dtype).eps / 2
        floor += theirs * unit * sum(float(a.double().norm()) for a in above)
    for name, got, exact, other in zip(names, call(), truth, near, strict=True):
        assert got.dtype == inputs[name].dtype, f"{where}: the gradient of {name} is {got.dtype}"
        bound = theirs * back.tolerance(case, name).relative_norm
        _near(f"{where}: the gradient of {name}", got, exact, other, bound, floor)


def moves(op: Op, variant: Variant, case: Case, pass_: str) -> None:
    """The ledger of a pass against the formula of what it moves, to the byte."""
    assert variant.moves is not None
    wanted = variant.moves(case, pass_)
    inputs = op.make(case, CPU, seed=1)
    ledger = traffic.count(passes.bind(op, variant, inputs, pass_))
    where = f"{op.name} {variant.name} {case.name} {pass_}"
    assert ledger.launches == wanted.launches, f"{where}: {ledger.launches} launches"
    ideal = op.pass_(pass_).cost(case).bytes_ideal
    assert ledger.bytes_unique >= ideal, f"{where} moves less than the ideal bytes"
    for what in ("unique", "requested"):
        told, counted = getattr(wanted, what), getattr(ledger, f"bytes_{what}")
        assert told in (None, counted), f"{where}: {counted:,} bytes {what}, by formula {told:,}"
    by_formula = formulas.by_formula(variant, case, pass_)
    if by_formula is not None:
        for one, other in zip(ledger, by_formula, strict=True):
            assert (one.name, one.grid) == (other.name, other.grid), where
            seen = [tensor for tensor in one.tensors if tensor.unique]
            assert seen == [*other.tensors], f"{where}: {seen}, by formula {other.tensors}"


def moves_of_operators(op: Op, variant: Variant, case: Case, pass_: str) -> None:
    """The ledger of PyTorch's operators moves the ideal bytes at least."""
    fakes = aten.fake_inputs(op, case)
    if pass_ == "fwd":
        ledger = aten.count(variant.fn, **fakes)
    else:
        ledger = aten.count_backward(op, variant.fn, fakes, pass_)
    assert ledger.aten_ops > 0
    assert ledger.bytes_unique >= op.pass_(pass_).cost(case).bytes_ideal * 0.99


def moved_in(op: Op) -> Iterator[Case]:
    """Cases to count: every small shape, in 16 bits and 32, a wide one in one of them."""
    dtypes = [d for d in (torch.bfloat16, torch.float32) if d in op.dtypes]
    for options in op.options:
        for place, shape in enumerate(s for s in small(op) if 0 not in s):
            for number, dtype in enumerate(dtypes):
                if not _is_wide(shape) or number == place % len(dtypes):
                    yield Case(shape, dtype, options)


def compiled(op: Op, capabilities: tuple[int, ...] = aot.TARGETS) -> None:
    """Every launch, without gradients, in training and going back, compiles and spills nowhere.

    What is known to be sound, by the digest of its source and its compilers, is not made again.
    """
    faults = [built.fault for built in aot.build_new(op, capabilities) if built.fault]
    assert faults == [], "\n".join(faults)


def refused(call: Callable[[], object]) -> str:
    """What a proof says against a sabotaged operation; AssertionError if it saw nothing."""
    try:
        call()
    except AssertionError as error:
        return str(error)
    raise RuntimeError("the sabotage was not seen")
