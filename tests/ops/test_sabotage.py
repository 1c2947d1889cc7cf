"""None of the proofs is blind: each sees a registered operation that was changed for the worse.

A copy of every operation is sabotaged in its output, a gradient, its bytes, its launches and its
registers, and given to the proofs of `test_registered.py`.
"""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl

import kernels.ops  # noqa: F401  (registers the operations)
from kernels import passes, registry
from kernels.registry import Case, Variant
from tests.ops import proving


def found_here(op, counted=("triton", "cuda"), pass_="fwd"):
    found = [v for v in proving.runnable(op) if v.has(pass_)]
    if op.made_of:  # the quickest to run
        return [v for v in found if v.name == "eager"]
    return [v for v in found if v.counted in counted]


OPS = [op for op in registry.ops() if found_here(op)]
WITH_KERNELS = [op for op in OPS if not op.made_of]


def test_what_nothing_stands_for_here_needs_a_card_with_fp8():
    assert {op.name for op in registry.ops()} - {op.name for op in OPS} <= {"layernorm_fp8_linear"}


def first(op, counted=("triton", "cuda"), pass_="fwd"):
    """The variant that stands for an operation: the fastest that is counted and runs here."""
    found = found_here(op, counted, pass_)
    fused = [v for v in found if v.name.startswith("fused")]
    return (fused or found)[-1]


def sabotaged(op, variant, fn):
    worse = dataclasses.replace(variant, fn=fn)
    return dataclasses.replace(op, variants={**op.variants, variant.name: worse}), worse


def a_case(op, dtype=torch.float32):
    return Case(proving.small(op)[1], dtype, op.options[0])


def changed(outputs, change):
    """Outputs with the first one changed, as a tuple or a tensor as they were."""
    if isinstance(outputs, tuple):
        return (change(outputs[0]), *outputs[1:])
    return change(outputs)


OUTPUTS = {
    "doubled": lambda y: 2 * y,
    "an element off": lambda y: y.index_add(
        0, torch.tensor([0]), (torch.arange(y[0].numel()) == 1).view_as(y[:1]) * y.std()
    ),
    "a row not written": lambda y: torch.where(
        (torch.arange(y.shape[0]) == y.shape[0] - 1).view(-1, *[1] * (y.dim() - 1)), torch.nan, y
    ),
    "shifted": lambda y: y.roll(1, -1),
}


@pytest.mark.parametrize("how", OUTPUTS)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_wrong_output_is_seen(op, how):
    if how != "doubled" and not next(iter(op.outputs.values())):
        pytest.skip("one number has neither rows nor an order")
    variant = first(op)
    case = a_case(op)
    proving.forward(op, variant, case, "contiguous")
    worse, wrong = sabotaged(op, variant, lambda **k: changed(variant.fn(**k), OUTPUTS[how]))
    assert next(iter(op.outputs)) in proving.refused(
        lambda: proving.forward(worse, wrong, case, "contiguous")
    )


class _Shifted(torch.autograd.Function):
    """The identity, whose gradient is a place off."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return dy.roll(1, -1)


@pytest.mark.parametrize("op", [op for op in OPS if op.backward], ids=lambda op: op.name)
def test_a_wrong_gradient_of_any_input_is_seen(op):
    variant = first(op, pass_="train")
    case = a_case(op)
    proving.backward(op, variant, case, "contiguous")
    for name in op.backward.differentiates:

        def wrong(*, name=name, **inputs):
            return variant.fn(**{**inputs, name: _Shifted.apply(inputs[name])})

        worse, bad = sabotaged(op, variant, wrong)
        proving.forward(worse, bad, case, "contiguous")  # the values are right
        assert f"the gradient of {name}" in proving.refused(
            lambda: proving.backward(worse, bad, case, "contiguous")  # noqa: B023
        )


@triton.jit
def touch(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n, other=0.0)
    tl.store(y_ptr + places, x, mask=places < n)


@pytest.mark.parametrize("op", WITH_KERNELS, ids=lambda op: op.name)
def test_bytes_and_launches_that_no_formula_names_are_seen(op):
    variant = first(op)
    case = a_case(op)
    proving.moves(op, variant, case, "fwd")

    def again(**inputs):
        outputs = variant.fn(**inputs)
        y = passes.as_tuple(outputs)[0]
        touch[(triton.cdiv(y.numel(), 1024),)](y, torch.empty_like(y), y.numel(), BLOCK=1024)
        return outputs

    worse, bad = sabotaged(op, variant, again)
    assert "launches" in proving.refused(lambda: proving.moves(worse, bad, case, "fwd"))
    more = dataclasses.replace(
        bad,
        moves=lambda *told: dataclasses.replace(
            variant.moves(*told), launches=variant.moves(*told).launches + 1
        ),
    )
    assert "bytes unique" in proving.refused(lambda: proving.moves(worse, more, case, "fwd"))


@triton.jit
def hoard(x_ptr, y_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places)
    tl.store(y_ptr + places, x / tl.sum(x, axis=0))  # all of x is kept until its sum is known


@pytest.mark.parametrize("op", WITH_KERNELS, ids=lambda op: op.name)
def test_a_spill_is_seen_on_any_way_through(op):
    def spill(x):
        hoard[(1,)](x, torch.empty_like(x), BLOCK=8192, num_warps=1)

    class Spills(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, dy):
            spill(torch.empty(8192))
            return dy

    name = next(iter(op.tensors))

    def forwards(**inputs):
        spill(torch.empty(8192))
        return passes.as_tuple(op.variant("eager").fn(**inputs))

    def backwards(**inputs):
        return op.variant("eager").fn(**{**inputs, name: Spills.apply(inputs[name])})

    forward = dataclasses.replace(op.forward, beyond=())
    backward = op.backward and dataclasses.replace(op.backward, beyond=())
    alone = dataclasses.replace(
        op,
        shapes=proving.small(op)[:1],  # `eager` computes them on the way
        beyond=(),
        dtypes=(torch.float32,),
        forward=forward,
        backward=backward,
    )
    ways = [("fwd", forwards)] + ([("bwd", backwards)] if op.backward else [])
    for pass_, fn in ways:
        variant = Variant("fused", fn, ("fwd", pass_), counted="triton")
        worse = dataclasses.replace(alone, variants={"fused": variant})
        assert f"{op.name} fused {pass_} fp32" in proving.refused(
            lambda: proving.compiled(worse, (90,))  # noqa: B023
        )
