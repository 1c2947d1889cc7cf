"""A norm and a product on a card: as near as PyTorch, large means, folded weights, the way back."""

import pytest
import torch
from torch import nn

from kernels import passes
from kernels.ops.epilogues.operators import gelu_form
from kernels.ops.prologues import ways
from kernels.ops.prologues.configurations import finishes_to_try
from kernels.ops.prologues.folding import kept_fold
from kernels.ops.prologues.forward import folded_forward
from kernels.ops.prologues.layernorm_linear import layernorm_linear
from kernels.ops.prologues.modules import LayerNormLinear
from kernels.registry import Case, get

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
OPS = [get(name) for name in (*ways.CENTRED, *ways.ACTIVATED)]
LN = OPS[0]
CENTRED = pytest.mark.parametrize("op", [OPS[0], OPS[2]], ids=lambda op: op.name)
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
    by_hand = [op.variant(name) for name in ("fused_hopper", "fused_hopper_folding")]
    return found + [one for one in by_hand if HOPPER and one.fits(case)]


@pytest.mark.proves(
    "kernels.ops.prologues.forward",
    "kernels.ops.prologues.kernels",
    "kernels.ops.prologues.hopper",
    "kernels.ops.prologues.hopper_kernels",
)
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


@pytest.mark.proves(
    "kernels.ops.prologues.kernels",
    "kernels.ops.prologues.hopper_kernels",
    "kernels.ops.prologues.tuning",
)
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


@pytest.mark.proves(
    "kernels.ops.prologues.folding",
    "kernels.ops.prologues.kernels",
    "kernels.ops.prologues.hopper_kernels",
)
@CENTRED
@DTYPES
@pytest.mark.parametrize("k", [1024, 4096])
@pytest.mark.parametrize("mean", [0, 10, 100])
def test_a_mean_up_to_100_costs_no_more_than_it_costs_pytorch(op, mean, k, dtype):
    given = given_of(op, (4096, k, 1024), dtype, mean)
    theirs = off(op.variant("torch").fn(**given), op, given)
    for variant in launched_by(op, (4096, k, 1024), dtype):
        assert off(variant.fn(**given), op, given) <= 2 * theirs, variant.name


@pytest.mark.proves(
    "kernels.ops.prologues.folding",
    "kernels.ops.prologues.kernels",
    "kernels.ops.prologues.hopper_kernels",
)
@CENTRED
@DTYPES
def test_a_mean_of_1000_is_bounded(op, dtype):
    given = given_of(op, (4096, 1024, 1024), dtype, 1000)
    theirs = off(op.variant("torch").fn(**given), op, given)
    for variant in launched_by(op, (4096, 1024, 1024), dtype):
        assert off(variant.fn(**given), op, given) <= 2 * theirs + 2000 * 2.0**-22, variant.name


@pytest.mark.proves("kernels.ops.prologues.operators", "kernels.ops.prologues.gelu_operators")
@EVERY
@pytest.mark.parametrize("shape", [(4096, 1024, 3072), (1000, 520, 776), (77, 1001, 300)], ids=str)
def test_gradients_are_as_near_as_pytorchs(op, shape):
    given = given_of(op, shape, torch.bfloat16)
    dy = torch.randn(shape[0], shape[2], device="cuda", dtype=torch.bfloat16)

    def back(fn, given):
        return passes.back(op, fn, given, lambda outputs: [dy.to(outputs[0].dtype)])()

    exact = back(op.reference, {name: value.double() for name, value in given.items()})
    theirs = back(op.variant("torch").fn, given)
    for variant in launched_by(op, shape, torch.bfloat16):
        if not variant.has("train"):
            continue
        for truth, other, got in zip(exact, theirs, back(variant.fn, given), strict=True):
            off_by, allowed = (got - truth).norm(), 1.5 * (other - truth).norm()
            assert off_by <= allowed + 1e-6 * truth.norm(), variant.name


@pytest.mark.proves("kernels.ops.prologues.hopper_kernels", "kernels.ops.prologues.configurations")
@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("shape", [(4100, 1088, 3080), (16384, 256, 264)], ids=str)
def test_every_way_to_finish_a_tile_with_gelu_is_right_each_time(shape, approximate):
    op, dtype = OPS[2], torch.float16
    given = given_of(op, shape, dtype)
    activation = gelu_form(approximate)
    exact = op.reference(**{n: v.double() for n, v in given.items()}, approximate=approximate)
    theirs = op.variant("torch").fn(**given, approximate=approximate)
    allowed = 1.2 * ((theirs.double() - exact).norm() / exact.norm())
    told = [given[name] for name in ("norm_weight", "norm_bias", "weight", "bias")]
    folded = kept_fold(*told, True)
    for finish in finishes_to_try(activation):

        def launch(finish=finish):
            how = {"hopper": True, "activation": activation, "finish": finish}
            return folded_forward(given["x"], folded, 1e-5, **how)

        y = launch()
        assert (y.double() - exact).norm() / exact.norm() <= allowed, finish.name
        assert all(torch.equal(y, launch()) for _ in range(8)), finish.name


@pytest.mark.proves(
    "kernels.ops.prologues.ways", "kernels.ops.prologues.folding", "kernels.ops.prologues.modules"
)
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


@pytest.mark.proves("kernels.ops.prologues.operators")
def test_compiled_whole_with_inductor():
    given = given_of(LN, (512, 256, 384), torch.bfloat16)
    compiled = torch.compile(layernorm_linear, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(**given), layernorm_linear(**given))
    leaves = {name: nn.Parameter(value) for name, value in given.items()}
    compiled(**leaves).sum().backward()
    assert all(one.grad is not None for one in leaves.values())
