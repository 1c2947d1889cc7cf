"""The registry: what it takes, what it refuses, and that one look-up finds everything."""

from dataclasses import replace

import pytest
import torch

import kernels.ops  # noqa: F401
from kernels import registry
from kernels.passes import as_tuple
from kernels.registry import Cost, Op, Tolerance, Variant


def an_op(name: str = "an_op_of_a_test", **changes) -> Op:
    op = Op(
        name=name,
        suite="norms",
        inputs=lambda shape, dtype, device, seed: {"x": torch.ones(shape, dtype=dtype)},
        reference=lambda x: x.double(),
        variants={"torch": Variant("torch", torch.clone)},
        cost=lambda shape, dtype, pass_: Cost(0, 8, 8),
        tolerance=lambda dtype, shape: Tolerance(1e-3, 1e-2),
        shapes=((4, 4),),
    )
    return replace(op, **changes)


@pytest.fixture
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_OPS", {})


def test_registered_once_found_by_name_and_suite(empty_registry):
    op = registry.register(an_op())
    assert registry.get(op.name) is op
    assert registry.ops() == registry.ops("norms") == [op]
    assert registry.ops("attention") == []
    with pytest.raises(ValueError, match="registered already"):
        registry.register(an_op())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"suite": "nope"}, "suite 'nope'"),
        ({"variants": {"a": Variant("b", torch.clone)}}, "variant 'b'"),
        ({"variants": {"a": Variant("a", torch.clone, passes=("sideways",))}}, "sideways"),
        ({"variants": {"a": Variant("a", torch.clone, passes=("fwd", "bwd"))}}, "it needs diff"),
        (
            {"variants": {"a": Variant("a", torch.clone, passes=("bwd",), own_random=True)}},
            "nothing can check its gradients",
        ),
        ({"cells": {"bwd": (((4, 4), torch.bfloat16),)}}, r"passes that it lacks: \['bwd'\]"),
    ],
)
def test_bad_operations_are_refused(empty_registry, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        registry.register(an_op(**changes))


def test_a_pass_is_measured_in_the_cells_that_are_named_for_it():
    op = an_op(
        variants={"torch": Variant("torch", torch.clone, passes=("fwd", "bwd"))},
        shapes=((4, 4), (8, 4)),
        dtypes=(torch.float16, torch.float32),
        cells={"bwd": (((8, 4), torch.float32),)},
    )
    assert op.passes == ("fwd", "bwd")
    assert len(op.cells_of("fwd")) == 4
    assert op.cells_of("bwd") == (((8, 4), torch.float32),)


def test_unknown_names_are_told_with_the_known_ones():
    with pytest.raises(KeyError, match=r"'nope' is unknown; known: .*layernorm"):
        registry.get("nope")
    with pytest.raises(KeyError, match="it has: torch"):
        an_op().variant("nope")
    with pytest.raises(KeyError, match="suite 'nope'"):
        registry.ops("nope")


def test_dtypes_and_shapes_are_read_and_written():
    for short, dtype in registry.DTYPES.items():
        assert registry.parse_dtype(short) == dtype
        assert registry.dtype_name(dtype) == short
    assert registry.parse_dtype("bfloat16") == torch.bfloat16
    with pytest.raises(ValueError, match="'int8' is unknown"):
        registry.parse_dtype("int8")
    with pytest.raises(ValueError, match="int64"):
        registry.dtype_name(torch.int64)
    assert registry.parse_shape("2x3x4") == (2, 3, 4)
    assert registry.shape_name((2, 3, 4)) == "2x3x4"
    for text in ("", "4x", "x4", "4,4", "-1x2"):
        with pytest.raises(ValueError, match="not understood"):
            registry.parse_shape(text)


def test_cost_counts_each_byte_once():
    cost = Cost(flops=80, read_bytes=30, write_bytes=10)
    assert cost.bytes_ideal == 40
    assert cost.intensity == 2.0


@pytest.mark.parametrize("op", registry.ops(), ids=lambda op: op.name)
def test_every_operation_is_whole(op):
    for shape in op.shapes:
        for dtype in op.dtypes:
            cost = op.cost(shape, dtype, "fwd")
            assert cost.read_bytes > 0
            assert cost.write_bytes > 0
            assert 0 < op.tolerance(dtype, shape).relative_norm < 0.1
    few = (3, *op.shapes[0][1:])
    inputs = op.inputs(few, torch.float32, "cpu", 0)
    other = op.inputs(few, torch.float32, "cpu", 1)
    tensors = [name for name, value in inputs.items() if isinstance(value, torch.Tensor)]
    assert not torch.equal(inputs[tensors[0]], other[tensors[0]])
    assert all(out.dtype == torch.float64 for out in as_tuple(op.reference(**inputs)))
    for pass_, name in ((p, n) for p in op.passes if p != "fwd" for n in op.differentiates):
        for shape, dtype in op.cells_of(pass_):
            assert op.cost(shape, dtype, pass_).write_bytes > 0
            assert 0 < op.gradient_tolerance(name, dtype, shape).relative_norm < 0.1
        assert isinstance(inputs[name], torch.Tensor)
