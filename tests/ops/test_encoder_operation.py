"""The encoder layer as an operation: its cells, its costs, what a variant makes and keeps."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import kernels.ops  # noqa: F401  (registers the operations)
from kernels import passes, registry
from kernels.lab import selection
from kernels.lab.counting import aten
from kernels.lab.measuring import correctness
from kernels.ops.layers import encoder_common as common
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.registry import Case, cases

NAMES = ("encoder_pre", "encoder_post")
OPS = pytest.mark.parametrize("op", [registry.get(name) for name in NAMES], ids=lambda op: op.name)
FP32, BF16 = torch.float32, torch.bfloat16


def test_the_bench_plans_every_shape_in_inference_and_training():
    cells = [one for one in selection.select("encoder") if one.op.name in NAMES]
    fwd, train = ([c for c in cells if c.pass_ == p] for p in ("fwd", "train"))
    assert len(cells) == len(fwd) + len(train) == 2 * 2 * 8
    assert {c.case for c in fwd} == set(cases(common.SHAPES, "bf16"))
    assert {c.case for c in train} == set(cases(common.SHAPES, "bf16", options=(common.TRAINED,)))
    for cell in cells:
        names = [variant.name for variant in cell.variants]
        graphed = ["compile_graphs"] if cell.case.shape[2] == 1024 else []
        eager = ["eager"] if cell.case.shape == (8, 128, 1024) else []
        fast = ["eager_fastpath"] if cell.pass_ == "fwd" else []
        ours = ["fused", "fused_graphs"]
        ours += ["fused_checkpointed"] if cell.pass_ == "train" else []
        assert names == [*eager, "torch", *fast, "compile", *graphed, *ours]


@OPS
def test_the_parameters_are_those_of_the_layer(op):
    width = 24
    sizes = op.sizes((2, 5, width))
    layer = FusedEncoderLayer(width, common.n_heads(width), sizes["I"])
    own = {name: tuple(value.shape) for name, value in layer.named_parameters()}
    told = {
        path: tuple(sizes[letter] for letter in dims) for path, dims in common.PARAMETERS.values()
    }
    assert own == told
    assert [common.n_heads(width) for width in (768, 1024)] == [12, 16]


@OPS
@pytest.mark.parametrize("shape", common.SHAPES[:2], ids=str)
def test_costs_are_those_that_are_told(op, shape):
    batch, length, e = shape
    t, size = batch * length, 2
    cost = op.cost(shape, BF16)
    assert cost.bytes_ideal == (2 * t * e + 12 * e * e + 13 * e) * size
    products = 24 * t * e * e + 4 * batch * length * length * e
    assert products < cost.flops < 1.05 * products
    back = op.cost(shape, BF16, "bwd")
    assert 2 * products < back.flops < 2.6 * products
    assert back.bytes_ideal == (3 * t * e + 2 * (12 * e * e + 13 * e)) * size


@OPS
def test_the_products_of_the_reference_are_the_flops_of_the_cost(op):
    """PyTorch's own counter, of the layer by operators; it counts an FMA as two, and no sum."""
    shape = (2, 16, 128)
    fakes = aten.fake_inputs(op, Case(shape, FP32))
    with FlopCounterMode(display=False) as counter:
        op.variant("eager").fn(**fakes)
    batch, length, e = shape
    assert counter.get_total_flops() == 24 * batch * length * e * e + 4 * batch * length**2 * e


@OPS
def test_a_part_of_the_reference_is_part_of_the_whole(op):
    """Each part's masks begin where its sequences stand."""
    inputs = op.make(Case((3, 5, 12), FP32, common.TRAINED), "cpu", seed=3)
    whole = op.reference(**inputs)
    last = op.reference(**{**inputs, "x": inputs["x"][2:]}, first_row=2)
    torch.testing.assert_close(whole[2:], last)
    assert not torch.allclose(whole[2:], op.reference(**{**inputs, "x": inputs["x"][2:]}))


@OPS
def test_gradients_are_compared_part_by_part(op, monkeypatch):
    case = Case((3, 5, 12), FP32, common.TRAINED)
    inputs = op.make(case, "cpu", seed=3)
    call = passes.bind(op, op.variant("fused"), inputs, "train", seed=1)
    above = passes.upstream(call.outputs, 1)
    monkeypatch.setattr(correctness, "CHUNK_ELEMENTS", 60)
    found = correctness.gradient_errors(op, case.shape, inputs, above, call())
    assert list(found) == list(common.TENSORS)
    assert max(found.values()) < op.backward.tolerance(case, "x").relative_norm


@OPS
def test_a_variant_makes_its_layer_once_and_another_for_other_parameters(op):
    inputs = op.make(Case((2, 5, 12), FP32), "cpu", seed=3)
    fn, owner = op.variant("fused").fn, inputs["in_proj_weight"]
    with torch.no_grad():
        y = fn(**inputs)
        assert torch.equal(fn(**inputs), y)
        assert len(owner._encoder_layers) == 1
        other = {**inputs, "linear2_bias": inputs["linear2_bias"] + 1.0}
        assert not torch.equal(fn(**other), y)
        assert len(owner._encoder_layers) == 2
    gone = weakref.ref(owner)
    del owner, inputs, other
    gc.collect()
    assert gone() is None  # with the layers that were made for it


@OPS
@pytest.mark.parametrize("pass_", ["fwd", "train"])
def test_a_compiler_is_asked_once_a_case(op, pass_, monkeypatch):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn, dynamic, mode: real(fn, backend=backend))
    common._compiled.cache_clear()
    torch._dynamo.reset()
    options = () if pass_ == "fwd" else common.TRAINED
    case, op_inputs = Case((2, 5, 12), FP32, options), []
    for seed in (1, 2):
        op_inputs.append(op.make(case, "cpu", seed))
        with torch.no_grad():
            call = passes.bind(op, op.variant("compile"), op_inputs[-1], pass_)
            call()
            y = call()
        if pass_ == "fwd":
            torch.testing.assert_close(y, op.variant("torch").fn(**op_inputs[-1]))
    common._compiled.cache_clear()
    assert len(graphs) == 1


@OPS
def test_the_fast_path_is_taken_where_it_is_named_and_nowhere_else(op, monkeypatch):
    seen = []
    real = torch._transformer_encoder_layer_fwd

    def watched(*args):
        seen.append(1)
        return real(*args)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", watched)
    inputs = op.make(Case((2, 5, 12), FP32), "cpu", seed=3)
    with torch.no_grad():
        op.variant("torch").fn(**inputs)
        assert not seen
        op.variant("eager_fastpath").fn(**inputs)
    assert seen == [1]
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_layers_kind_is_pytorchs_unless_told():
    called = common.Call(True, lambda layer, x, seeds: x)
    op = registry.get("encoder_pre")
    inputs = op.make(Case((1, 2, 12), FP32), "cpu", seed=3)
    called(**inputs)
    (layer,) = inputs["in_proj_weight"]._encoder_layers.values()
    assert type(layer) is nn.TransformerEncoderLayer


@pytest.mark.parametrize("name", ["encoder_pre", "encoder_post"])
def test_pytorchs_layer_takes_one_product_for_queries_keys_and_values(name):
    """As with a model's parameters; a weight that asks for no gradient has a product a token."""
    op = registry.get(name)
    inputs = op.inputs((2, 5, 12), torch.float32, "cpu", 0)
    seen = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Names():
        op.variant("torch").fn(**inputs)
    assert seen.count("bmm") == 0
    assert seen.count("mm") + seen.count("addmm") == 4
