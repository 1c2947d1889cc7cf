"""A norm and a product on a card: as near as PyTorch, large means, folded weights, the way back."""

import pytest
import torch
from torch import nn

from kernels import passes
from kernels.ops.prologues import ways
from kernels.ops.prologues.layernorm_linear import layernorm_linear
from kernels.ops.prologues.modules import LayerNormLinear
from kernels.registry import Case, get

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
OPS = [get(name) for name in ways.CENTRED]
LN = OPS[0]
EVERY = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
SHAPES = [
    (4096, 1024, 3072),
    (8448, 320, 776),  # tiles that divide nothing
    (16384, 256, 264),  # as many steps as the kernel begins with
    (4100, 1096, 3080),  # not in whole steps
    (16, 1024, 3072),
    (1000, 1001, 1003),  # rows at odd places
]


def given_of(op, shape, dtype, mean=0.5):
    given = op.inputs(shape, dtype, "cuda", seed=sum(shape))
    given["x"] = (torch.randn(shape[:2], device="cuda") + mean).to(dtype)
    return given


def off(y, op, given):
    exact = op.reference(**{name: value.detach().double() for name, value in given.items()})
    return ((y.double() - exact).norm() / exact.norm()).item()


def launched_by(op, shape, dtype):
    case = Case(shape, dtype)
    found = [op.variant(n) for n in ("two_kernels", "one_kernel", "one_kernel_folding")]
    found += [op.variant("one_kernel_folded")]
    hopper = op.variant("fused_hopper")
    return found + ([hopper] if HOPPER and hopper.fits(case) else [])


@EVERY
@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_is_as_near_as_pytorch(op, shape, dtype):
    given = given_of(op, shape, dtype)
    theirs = off(op.variant("torch").fn(**given), op, given)
    for variant in launched_by(op, shape, dtype):
        y = variant.fn(**given)
        assert off(y, op, given) <= 1.2 * theirs, variant.name
        assert torch.equal(y, variant.fn(**given)), variant.name


@EVERY
@pytest.mark.parametrize("shape", [(4096, 1024, 3072), (16384, 256, 264)], ids=str)
def test_every_tiling_that_tune_compares_gives_the_same_bits_each_time(op, shape):
    """A tile written over while it is multiplied shows in some runs, and in few elements."""
    given = given_of(op, shape, torch.bfloat16)
    theirs = off(op.variant("torch").fn(**given), op, given)
    for name, fn in op.forward.candidates(Case(shape, torch.bfloat16)).items():
        y = fn(**given)
        assert off(y, op, given) <= 1.2 * theirs, name
        assert all(torch.equal(y, fn(**given)) for _ in range(8)), name


@DTYPES
@pytest.mark.parametrize("k", [1024, 4096])
@pytest.mark.parametrize("mean", [0, 10, 100])
def test_a_mean_up_to_100_costs_no_more_than_it_costs_pytorch(mean, k, dtype):
    given = given_of(LN, (4096, k, 1024), dtype, mean)
    theirs = off(LN.variant("torch").fn(**given), LN, given)
    for variant in launched_by(LN, (4096, k, 1024), dtype):
        assert off(variant.fn(**given), LN, given) <= 2 * theirs, variant.name


@DTYPES
def test_a_mean_of_1000_is_bounded(dtype):
    given = given_of(LN, (4096, 1024, 1024), dtype, 1000)
    theirs = off(LN.variant("torch").fn(**given), LN, given)
    for variant in launched_by(LN, (4096, 1024, 1024), dtype):
        assert off(variant.fn(**given), LN, given) <= 2 * theirs + 2000 * 2.0**-22, variant.name


@EVERY
@pytest.mark.parametrize("shape", [(4096, 1024, 3072), (1000, 520, 776), (77, 1001, 300)], ids=str)
def test_gradients_are_as_near_as_pytorchs(op, shape):
    given = given_of(op, shape, torch.bfloat16)
    dy = torch.randn(shape[0], shape[2], device="cuda", dtype=torch.bfloat16)

    def back(fn, given):
        return passes.back(op, fn, given, lambda outputs: [dy.to(outputs[0].dtype)])()

    exact = back(op.reference, {name: value.double() for name, value in given.items()})
    theirs, ours = (back(op.variant(way).fn, given) for way in ("torch", "two_kernels"))
    for truth, other, got in zip(exact, theirs, ours, strict=True):
        assert (got - truth).norm() <= 1.5 * (other - truth).norm() + 1e-6 * truth.norm()


@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
def test_the_public_function_folds_for_inference_and_again_after_a_step():
    layer = LayerNormLinear(1024, 3072, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(4, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    told = (layer.norm.weight, layer.norm.bias, layer.linear.weight, layer.linear.bias)
    names = ("norm_weight", "norm_bias", "weight", "bias")
    parameters = dict(zip(names, told, strict=True))
    assert not ways.folds(x, *told)
    with torch.no_grad():
        assert ways.folds(x, *told)
        assert torch.equal(layer(x), LN.variant("fused_hopper").fn(x=x, **parameters))
    layer(x).float().pow(2).mean().backward()
    torch.optim.SGD(layer.parameters(), 1.0).step()
    with torch.no_grad():
        y = layer(x)
        given = {"x": x, **parameters}
        assert off(y, LN, given) <= 1.2 * off(LN.variant("torch").fn(**given), LN, given)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = layer(x)
    graph.replay()
    assert torch.equal(captured, y)


def test_compiled_whole_with_inductor():
    given = given_of(LN, (512, 256, 384), torch.bfloat16)
    compiled = torch.compile(layernorm_linear, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(**given), layernorm_linear(**given))
    leaves = {name: nn.Parameter(value) for name, value in given.items()}
    compiled(**leaves).sum().backward()
    assert all(one.grad is not None for one in leaves.values())
