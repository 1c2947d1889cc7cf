"""Norms and softmax on a GPU, forward and back: wide, far apart, captured, compiled whole."""

import pytest
import torch

from kernels.ops.norms.layernorm import layer_norm
from kernels.ops.norms.rmsnorm import rms_norm
from kernels.registry import DTYPES, get
from tests.ops.test_norms import OPS, differentiate
from tests.ops.test_softmax import assert_no_worse_than_torch, assert_within

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
EVERY = {**OPS, "softmax": get("softmax")}
SHAPES = (
    *((1, 1), (3, 17), (1000, 1024), (517, 1000), (300, 4096), (129, 5000)),
    *((133, 8192), (67, 16384), (40, 20_001), (9, 32_768), (5, 131_072)),
)


@pytest.mark.proves("kernels.ops.norms.operators", "kernels.ops.softmax.softmax")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_outputs_and_gradients_against_float64(name, shape, dtype):
    op = EVERY[name]
    given = dict(op.inputs(shape, dtype, "cuda", seed=torch.seed() % 2**31))
    upstream = [
        torch.randn(shape, device="cuda").to(dtype) for _ in range(1 + name.startswith("add_"))
    ]
    # Rows of one or few elements magnify rounding by 1/√eps.
    rest = {} if name == "softmax" else {"eps": 1.0 if shape[1] < 100 else 1e-5}
    fused, torchs = (op.variant(variant).fn for variant in ("fused", "torch"))
    ours, gradients = differentiate(fused, given, upstream, **rest)
    theirs, their_gradients = differentiate(torchs, given, upstream, **rest)
    wide = {tensor: value.double() for tensor, value in given.items()}
    exact, truths = differentiate(op.reference, wide, [u.double() for u in upstream], **rest)
    for one, other, truth in zip(ours, theirs, exact, strict=True):
        assert_within(one, truth, op.tolerance(dtype, shape), dtype)
        if truth.numel() > 10:  # PyTorch is exactly right now and then in one or two elements
            assert_no_worse_than_torch(one, other, truth)
    for tensor, truth in truths.items():
        if truth.norm() <= 1e-9 * upstream[0].norm():  # a row of one element: dx is 0
            assert gradients[tensor].abs().max() <= 1e-3
            continue
        if truth.numel() > 10:
            assert_no_worse_than_torch(gradients[tensor], their_gradients[tensor], truth)
        if shape[1] >= 1000:
            bound = op.gradient_tolerance(tensor, dtype, shape)
            assert_within(gradients[tensor], truth, bound, dtype)


@pytest.mark.proves("kernels.ops.norms.operators", "kernels.ops.softmax.softmax")
@pytest.mark.parametrize("name", EVERY)
def test_the_same_inputs_give_the_same_bits(name):
    given = EVERY[name].inputs((4096, 4096), torch.bfloat16, "cuda", seed=3)
    upstream = [
        torch.randn(4096, 4096, device="cuda").bfloat16()
        for _ in range(1 + name.startswith("add_"))
    ]
    fused = EVERY[name].variant("fused").fn
    first = differentiate(fused, given, upstream)[1]
    for _ in range(5):
        again = differentiate(fused, given, upstream)[1]
        for tensor in given:
            assert torch.equal(first[tensor], again[tensor])


@pytest.mark.proves("kernels.ops.norms.operators")
def test_offsets_beyond_32_bits_forward_and_back():
    rows, n_cols = 2**17 + 3, 16_392
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("needs 40 GB")
    x = torch.empty(rows, n_cols, device="cuda", dtype=torch.bfloat16).normal_().requires_grad_()
    weight = torch.ones(n_cols, device="cuda", dtype=torch.bfloat16)
    dy = torch.empty_like(x).normal_()
    (dx,) = torch.autograd.grad(rms_norm(x, weight), x, dy)
    last = x.detach()[-2:].double().requires_grad_()
    (truth,) = torch.autograd.grad(get("rmsnorm").reference(last, weight), last, dy[-2:].double())
    assert (dx[-2:].double() - truth).norm() <= 2**-7 * truth.norm()


@pytest.mark.proves("kernels.ops.norms.operators", "kernels.launch.triton_launch")
def test_a_captured_training_step_replays():
    x = torch.randn(64, 1024, device="cuda", requires_grad=True)
    weight = torch.ones(1024, device="cuda", requires_grad=True)
    dy = torch.randn(64, 1024, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.autograd.grad(layer_norm(x, weight), (x, weight), dy)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            gradients = torch.autograd.grad(layer_norm(x, weight), (x, weight), dy)
    with torch.no_grad():
        x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(
        gradients, torch.autograd.grad(layer_norm(x, weight), (x, weight), dy), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.proves("kernels.ops.norms.operators", "kernels.ops.softmax.softmax")
@pytest.mark.parametrize("name", EVERY)
def test_compiled_whole_with_inductor(name):
    given = EVERY[name].inputs((64, 1000), torch.float32, "cuda", seed=5)
    fn = EVERY[name].variant("fused").fn
    upstream = [torch.randn(64, 1000, device="cuda") for _ in range(1 + name.startswith("add_"))]
    ours, gradients = differentiate(torch.compile(fn, fullgraph=True), given, upstream)
    eager, truths = differentiate(fn, given, upstream)
    torch.testing.assert_close(ours, eager)
    torch.testing.assert_close(gradients, truths)
