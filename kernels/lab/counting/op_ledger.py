"""The ledger of a registered operation's variant, in any case, with no GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels import passes
from kernels.lab.counting import aten, by_formula, traffic
from kernels.lab.counting.by_rows import by_rows
from kernels.lab.counting.by_sizes import by_sizes
from kernels.lab.counting.ledger import Ledger
from kernels.launch import recording
from kernels.registry import Case, Op, Options, Shape, get


def count_op(
    op: Op,
    variant: str,
    shape: Shape,
    dtype: torch.dtype,
    pass_: str = "fwd",
    options: Options = (),
) -> Ledger:
    """The ledger of one variant of an operation at one shape; see `count_case`."""
    return count_case(op, variant, Case(shape, dtype, options), pass_)


def count_case(op: Op, variant: str, case: Case, pass_: str = "fwd") -> Ledger:
    """The ledger of one variant of an operation in one case.

    Launches of kernels in Triton or CUDA C++ are run at a few sizes and extended along the
    dimensions that the operation names: `method` is "linear" where these are rows alone, and
    "polynomial" where there are several, or one that counts grow with the square of. Where the
    numbers don't lie on the curve, and along other dimensions, every program is run ("full"). A
    variant that tells by a formula what each launch moves is not run where that takes too long,
    from `by_formula.MOST_FLOPS` on ("formula").
    Variants made of PyTorch operators run on fake CUDA tensors ("aten"). Of a backward only the way
    back is counted. ValueError for a variant that is opaque (a compiled graph, a vendor's library),
    that no interpreter runs, that can't run here or takes no such case, and for a pass it lacks.
    """
    chosen = op.variant(variant)
    if chosen.counted == "":
        raise ValueError(
            f"variant {variant!r} of {op.name!r} can't be counted: what it launches is decided "
            f"by a compiler or a library; its DRAM bytes are measured by `profile`"
        )
    if chosen.counted == "formula":
        raise ValueError(
            f"variant {variant!r} of {op.name!r} can't be counted launch by launch: no interpreter "
            f"runs its kernels; Variant.moves tells by a formula what they move"
        )
    why = chosen.unavailable(torch.device("cpu"))
    if why is not None and chosen.counted != "aten":
        raise ValueError(f"variant {variant!r} of {op.name!r} can't be counted here: {why}")
    if not chosen.has(pass_):
        raise ValueError(f"variant {variant!r} of {op.name!r} has no pass {pass_!r}")
    if not chosen.fits(case):
        raise ValueError(f"variant {variant!r} of {op.name!r} does not take {case.name}")
    return _count(op.name, variant, case, pass_)


@functools.cache
def _count(name: str, variant: str, case: Case, pass_: str) -> Ledger:
    op = get(name)
    chosen = op.variant(variant)
    if chosen.counted == "aten":
        fakes = aten.fake_inputs(op, case)
        if pass_ == "fwd":
            return aten.count(chosen.fn, **fakes)
        return aten.count_backward(op, chosen.fn, fakes, pass_)

    if op.pass_(pass_).cost(case).flops > by_formula.MOST_FLOPS:
        ledger = by_formula.by_formula(chosen, case, pass_)
        if ledger is not None:
            return ledger

    def sized(sizes: dict[str, int]) -> Case:
        return Case(op.resized(case.shape, **sizes), case.dtype, case.options)

    def at(sizes: dict[str, int]) -> Ledger:
        return _run(name, variant, sized(sizes), pass_)

    def call_at(sizes: dict[str, int]) -> Callable[[], object]:
        fakes = aten.fake_inputs(op, sized(sizes))
        inputs = {name: _untouched(value) for name, value in fakes.items()}
        if pass_ == "fwd":
            return functools.partial(chosen.fn, **inputs)
        with recording():  # the forward's launches, which don't run either
            empty = _empty_like_each
            return passes.back(op, chosen.fn, inputs, empty, again=pass_ == "train")

    whole = {letter: case.shape[op.dims.index(letter)] for letter in op.growth}
    if len(whole) == 1 and 1 in op.growth.values():
        (letter,) = whole
        return by_rows(
            lambda rows: at({letter: rows}), lambda rows: call_at({letter: rows}), whole[letter]
        )
    return by_sizes(at, call_at, whole, op.growth) if whole else at({})


@functools.cache
def _run(name: str, variant: str, case: Case, pass_: str) -> Ledger:
    """The ledger of a case whose programs all run; many a case is extended from the same few."""
    op = get(name)
    inputs = op.make(case, "cpu", seed=0)
    return traffic.count(passes.bind(op, op.variant(variant), inputs, pass_))


def forget() -> None:
    """Forget what was counted: a configuration is another one now."""
    _count.cache_clear()
    _run.cache_clear()


def _empty_like_each(outputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [torch.empty_like(output) for output in outputs]


def _untouched(value: Any) -> Any:
    """A tensor of this size that is never written: until then it takes no memory.

    Whole numbers are zeros, since a function may index with them.
    """
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return made if value.is_floating_point() else made.zero_()
