"""The loss over a vocabulary on a GPU: against float64, in memory, ignored and wrong targets."""

import pytest
import torch
import torch.nn.functional as F

from kernels.ops.losses import configurations
from kernels.ops.losses.chunks import peak_bytes, walk
from kernels.ops.losses.linear_cross_entropy import (
    OP,
    fused_simple,
    linear_cross_entropy,
    reference,
)
from kernels.ops.losses.tuning import to_try
from kernels.registry import DTYPES, Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
WORKSPACE = 64 << 20  # bytes that cuBLAS may take beside


def make(tokens, width, words, dtype=torch.bfloat16):
    given = OP.inputs((tokens, width, words), dtype, "cuda", seed=tokens + words)
    return given["x"], given["weight"], given["targets"]


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


def step(fn, x, weight, targets, upstream=None, **options):
    leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
    loss = fn(*leaves, targets, **options)
    return loss.detach(), *torch.autograd.grad(loss, leaves, upstream)


def theirs(x, weight, targets, **options):
    return F.cross_entropy(F.linear(x, weight), targets, **options)


@pytest.mark.proves("kernels.ops.losses.loss_kernels", "kernels.ops.losses.chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_errors_are_within_twice_pytorchs(dtype, reduction, monkeypatch):
    monkeypatch.setattr(configurations, "LOGITS_BYTES", 1 << 21)
    for shape in ((700, 256, 5000), (384, 512, 32768), (130, 100, 50257)):
        given = make(*shape, dtype=dtype)
        wide = given[0].double(), given[1].double(), given[2]
        upstream = torch.randn((shape[0],) if reduction == "none" else (), device="cuda").to(dtype)
        for options in ({}, {"label_smoothing": 0.1}):
            options |= {"reduction": reduction}
            exact = step(reference, *wide, upstream.double(), **options)
            found = step(linear_cross_entropy, *given, upstream, **options)
            near = step(theirs, *given, upstream, **options)
            for got, other, truth in zip(found, near, exact, strict=True):
                bound = max(2 * off(other, truth), 2 * torch.finfo(dtype).eps) + 2.0**-18
                assert off(got, truth) <= bound
    if reduction == "mean":
        assert off(fused_simple(*given), reference(*wide)) <= 2 * torch.finfo(dtype).eps + 2.0**-18


@pytest.mark.proves("kernels.ops.losses.chunks", "kernels.ops.losses.configurations")
def test_memory_is_the_formula_s_and_a_tenth_of_pytorchs():
    x, weight, targets = make(8192, 1024, 131_072)

    def beyond(fn):
        step(fn, x[:128], weight, targets[:128])  # cuBLAS takes its workspace once
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = step(fn, x, weight, targets)
        peak = torch.cuda.max_memory_allocated() - before
        return peak - sum(one.nbytes for one in found[1:])

    ours = beyond(linear_cross_entropy)
    assert ours <= peak_bytes(8192, 1024, 131_072, 2) + WORKSPACE
    assert ours <= beyond(theirs) / 10


@pytest.mark.proves("kernels.ops.losses.operators")
def test_the_gradients_are_given_away_once():
    x, weight, targets = make(512, 256, 5000)
    leaves = x.requires_grad_(), weight.requires_grad_()
    loss = linear_cross_entropy(*leaves, targets)
    first = torch.autograd.grad(loss, leaves, torch.full_like(loss, 3.0), retain_graph=True)
    kept = [one.clone() for one in first]
    again = torch.autograd.grad(loss, leaves, torch.full_like(loss, 3.0))
    for one, other, before in zip(first, again, kept, strict=True):
        assert torch.equal(one, before)
        assert off(other, one.double()) <= 2 * torch.finfo(x.dtype).eps
    loss = linear_cross_entropy(*leaves, targets)
    loss.backward()
    plain = step(linear_cross_entropy, x, weight, targets)
    assert torch.equal(x.grad, plain[1])
    assert torch.equal(weight.grad, plain[2])


@pytest.mark.proves("kernels.ops.losses.operators", "kernels.ops.losses.loss_kernels")
def test_ignored_and_wrong_targets():
    x, weight, targets = make(512, 256, 5000)
    loss, d_x, d_weight = step(linear_cross_entropy, x, weight, targets)
    assert not d_x[targets == -100].any()
    assert bool(d_x[targets != -100].any(-1).all())
    none = torch.full_like(targets, -100)
    loss, d_x, d_weight = step(linear_cross_entropy, x, weight, none)
    assert bool(loss.isnan())
    assert not d_x.any()
    assert not d_weight.any()
    targets[5] = 5000
    each, d_x, _ = step(
        linear_cross_entropy, x, weight, targets, torch.ones_like(x[:, 0]), reduction="none"
    )
    assert each.isnan().nonzero().tolist() == [[5]]
    assert d_x.isnan().any(-1).nonzero().tolist() == [[5]]


@pytest.mark.proves("kernels.ops.losses.tuning")
def test_every_way_that_is_compared():
    x, weight, targets = make(4096, 256, 16384)
    exact = reference(x, weight, targets)
    for how in to_try(Case((4096, 256, 16384), torch.bfloat16)).values():
        assert off(walk(x, weight, targets, -100, 0.0, "mean", **how).loss, exact) <= 2.0**-7


def test_a_cuda_graph_takes_a_training_step():
    x, weight, targets = make(512, 256, 5000)
    leaves = x.requires_grad_(), weight.requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wanted = torch.autograd.grad(linear_cross_entropy(*leaves, targets), leaves)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = torch.autograd.grad(linear_cross_entropy(*leaves, targets), leaves)
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
