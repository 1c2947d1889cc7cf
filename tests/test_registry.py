"""The registry: what it takes, what it refuses, and that one look-up finds everything."""

from dataclasses import replace

import pytest
import torch

import kernels.ops  # noqa: F401
from kernels import registry
from kernels.passes import as_tuple
from kernels.registry import Backward, Case, Cost, Op, Pass, Tolerance, Variant, cases, named


def an_op(name: str = "an_op_of_a_test", **changes) -> Op:
    op = Op(
        name=name,
        suite="norms",
        dims="RN",
        tensors={"x": "RN"},
        outputs={"y": "RN"},
        inputs=lambda shape, dtype, device, seed: {"x": torch.ones(shape, dtype=dtype)},
        reference=lambda x: x.double(),
        variants=named(Variant("torch", torch.clone)),
        shapes=((4, 4),),
        forward=Pass(lambda case: Cost(0, 8, 8), lambda case, name: Tolerance(1e-3, 1e-2)),
    )
    return replace(op, **changes)


def a_backward(**changes) -> Backward:
    back = Backward(
        cost=lambda case: Cost(0, 8, 8),
        tolerance=lambda case, name: Tolerance(1e-3, 1e-2),
        differentiates=("x",),
    )
    return replace(back, **changes)


BOTH = named(Variant("torch", torch.clone, passes=("fwd", "bwd")))


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
        ({"variants": BOTH}, "so it needs `backward`"),
        ({"backward": a_backward()}, "that no variant takes"),
        (
            {"variants": BOTH, "backward": a_backward(differentiates=("x", "w"))},
            r"differentiates \['w'\], which are no tensors",
        ),
        (
            {"variants": {"a": Variant("a", torch.clone, own_random=True)}},
            "the operation has no `random`",
        ),
        (
            {"variants": {"fused": Variant("fused", torch.clone, counted="triton")}},
            "'fused' of 'an_op_of_a_test' needs `moves`",
        ),
        ({"dims": "RR"}, "a dimension twice"),
        ({"made_of": ("nope",)}, r"is made of \['nope'\], which are not registered"),
        ({"independent": "B"}, r"independent of .* names \['B'\]; its dims are 'RN'"),
        ({"degrees": {"S": 2}}, r"degrees of .* names \['S'\]"),
        ({"shapes": ()}, "has no shapes"),
        ({"beyond": ((1, 2, 3),)}, "shape 1x2x3 of .* does not fit its dims 'RN'"),
        (
            {"variants": BOTH, "backward": a_backward(cases=cases([(4,)], "bf16"))},
            "shape 4 of .* does not fit",
        ),
    ],
)
def test_bad_operations_are_refused(empty_registry, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        registry.register(an_op(**changes))


def test_two_variants_of_one_name_are_refused():
    with pytest.raises(ValueError, match="variant 'a' stands twice"):
        named(Variant("a", torch.clone), Variant("a", torch.clone))


def test_a_pass_is_measured_in_the_cases_that_are_named_for_it():
    half, single = torch.float16, torch.float32
    op = an_op(
        variants=BOTH,
        shapes=((4, 4), (8, 4)),
        dtypes=(half, single),
        options=((), (("causal", True),)),
        backward=a_backward(cases=cases([(8, 4)], "fp32")),
    )
    assert op.passes == ("fwd", "bwd", "train")
    assert len(op.cases_of("fwd")) == 8
    assert Case((8, 4), half, (("causal", True),)) in op.cases_of("fwd")
    assert op.cases_of("bwd") == (Case((8, 4), single),)
    assert op.cases_of("train") == ()
    with pytest.raises(ValueError, match="has no pass 'bwd'; it takes 'fwd'"):
        an_op().cases_of("bwd")


def test_a_training_step_costs_both_ways():
    op = an_op(variants=BOTH, backward=a_backward(cost=lambda case: Cost(1, 2, 3)))
    assert op.cost((4, 4), torch.float32, "train") == Cost(1, 10, 11)


def test_options_are_read_and_written():
    options = (("causal", True), ("window", 1024), ("scale", 0.5), ("layout", "bshd"))
    text = "causal window=1024 scale=0.5 layout=bshd"
    assert registry.options_name(options) == text
    assert registry.parse_options(text) == options
    assert registry.parse_options("") == ()
    assert Case((2, 4), torch.bfloat16, options[:2]).name == "2x4 bf16 causal window=1024"
    for wrong in ("a a", "=3", "a=", "1"):
        with pytest.raises(ValueError, match="write names and values"):
            registry.parse_options(wrong)


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
    for pass_ in op.passes:
        for case in op.cases_of(pass_):
            cost = op.pass_(pass_).cost(case)
            assert cost.read_bytes > 0
            assert cost.write_bytes > 0
            names = op.outputs if pass_ == "fwd" else op.backward.differentiates
            for name in names:
                assert 0 < op.pass_(pass_).tolerance(case, name).relative_norm < 0.1
    few = Case(op.resized(op.shapes[0], **dict.fromkeys(op.independent, 3)), torch.float32)
    inputs, other = op.make(few, "cpu", 0), op.make(few, "cpu", 1)
    sizes = op.sizes(few.shape)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    for name, dims in op.tensors.items():
        assert tensors[name].shape == tuple(sizes[letter] for letter in dims)
        assert not torch.equal(tensors[name], other[name])
    outputs = as_tuple(op.reference(**inputs))
    assert all(out.dtype == torch.float64 for out in outputs)
    for out, dims in zip(outputs, op.outputs.values(), strict=True):
        assert out.shape == tuple(sizes[letter] for letter in dims)
