"""Attention on a GPU: against float64 and PyTorch, ragged, grouped, strided, kept, in graphs."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.ops.attention.attention import attention, fused, fused_simple, reference
from kernels.ops.attention.backward import backward
from kernels.ops.attention.configurations import Tiling
from kernels.ops.attention.drop_in import scaled_dot_product_attention
from kernels.ops.attention.formula import Given
from kernels.ops.attention.forward import forward
from kernels.ops.attention.operators import operator
from kernels.ops.attention.tuning import backward_to_try, to_try
from kernels.registry import DTYPES, Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def make(queries, keys=None, *, batch=2, heads=4, own=None, dim=64, dtype=torch.bfloat16):
    keys = queries if keys is None else keys
    sizes = (batch, heads, queries, dim), *((batch, own or heads, keys, dim),) * 2
    generator = torch.Generator("cuda").manual_seed(queries + keys)
    return tuple(torch.randn(s, generator=generator, device="cuda").to(dtype) for s in sizes)


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


def unit(dtype):
    return torch.finfo(dtype).eps / 2


@pytest.mark.proves("kernels.ops.attention.forward_kernels", "kernels.ops.attention.simple")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [16, 64, 80, 128])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_errors_are_within_twice_pytorchs(dtype, dim, causal):
    for length in (1, 128, 1000, 2048):
        q, k, v = make(length, dim=dim, dtype=dtype)
        for large in (1, 20):
            exact = reference(large * q, k, v, causal=causal)
            theirs = F.scaled_dot_product_attention(large * q, k, v, is_causal=causal)
            bound = max(2 * off(theirs, exact), unit(dtype)) + 2.0**-19
            assert off(attention(large * q, k, v, causal=causal), exact) <= bound
            if dim != 80:
                assert off(fused_simple(large * q, k, v, causal=causal), exact) <= bound


def one_dominant(q, k, v):
    return q, k.index_fill(2, torch.tensor([5], device="cuda"), 40.0), v


HARD = {
    "large logits": lambda q, k, v: (30 * q, 30 * k, v),
    "one dominant key": one_dominant,
    "constant rows": lambda q, k, v: (torch.ones_like(q), torch.ones_like(k), v),
    "far from 0": lambda q, k, v: (q + 8, k + 8, v + 100),
}


@pytest.mark.proves("kernels.ops.attention.forward_kernels", "kernels.ops.attention.simple")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", HARD)
def test_errors_on_hard_numbers_are_within_twice_pytorchs(name, dim, causal):
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = HARD[name](*make(1000, dim=dim, dtype=dtype))
        exact = reference(q, k, v, causal=causal)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            theirs = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        bound = max(2 * off(theirs, exact), unit(dtype)) + 2.0**-19
        for call in (attention, fused, fused_simple):
            out = call(q, k, v, causal=causal)
            assert out.isfinite().all()
            assert off(out, exact) <= bound, call.__name__


@pytest.mark.proves("kernels.ops.attention.forward_kernels")
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_errors_under_masks_are_within_twice_pytorchs_formula(dtype, dim):
    """Flash attention takes no mask: here PyTorch's own steps are the baseline."""
    q, k, v = make(300, 500, dim=dim, dtype=dtype)
    mask = torch.randn(2, 1, 300, 500, device="cuda").to(dtype)
    mask[..., ::3] = -torch.inf
    mask[..., 7:9, :] = -torch.inf  # a row that sees nothing, and one that sees one key
    mask[..., 8, 100] = 1
    for bias in (mask, mask > 0):
        exact = reference(q, k, v, bias=bias)
        some = exact.ne(0).any(-1)
        with sdpa_kernel(SDPBackend.MATH):
            theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out = attention(q, k, v, bias=bias)
        assert (out[~some] == 0).all()
        bound = max(2 * off(theirs[some], exact[some]), unit(dtype)) + 2.0**-19
        assert off(out[some], exact[some]) <= bound


@pytest.mark.proves("kernels.ops.attention.configurations", "kernels.ops.attention.tuning")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_every_tiling_that_is_compared(dim, causal):
    q, k, v = make(1000, dim=dim)
    exact = reference(q, k, v, causal=causal)
    for name, tiling in to_try(Case((2, 16, 8192, dim), torch.bfloat16)).items():
        out, _ = forward(q, k, v, causal=causal, scale=dim**-0.5, tiling=tiling)
        assert off(out, exact) <= 2 * unit(q.dtype), name


OPTIONS = {
    "few queries": ((3, 1111), {"causal": True}),
    "more queries": ((1111, 777), {"causal": True}),
    "window": ((1000, 1000), {"causal": True, "window": 200}),
    "both sides": ((1000, 900), {"window": 100}),
    "padding": ((300, 700), {"key_padding_mask": lambda b, q, k: torch.rand(b, k) < 0.3}),
    "lengths": (
        (300, 300),
        {
            "causal": True,
            "q_lengths": lambda b, q, k: torch.tensor([100, 300]),
            "k_lengths": lambda b, q, k: torch.tensor([130, 0]),
        },
    ),
    "bias": ((300, 500), {"bias": lambda b, q, k: torch.randn(1, 4, q, k)}),
    "bool": ((300, 500), {"bias": lambda b, q, k: torch.rand(b, 1, q, k) < 0.5}),
    "dropout": (
        (300, 501),
        {"dropout_p": 0.2, "seed_offset": lambda b, q, k: torch.tensor([2**40 + 7, 1])},
    ),
}


@pytest.mark.proves("kernels.ops.attention.attention", "kernels.ops.attention.formula")
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_options(name, dim):
    (queries, keys), told = OPTIONS[name]
    given = make(queries, keys, own=2, dim=dim)
    options = {n: x(2, queries, keys).cuda() if callable(x) else x for n, x in told.items()}
    exact, exact_lse = reference(*given, return_lse=True, **options)
    out, lse = attention(*given, return_lse=True, **options)
    assert off(out, exact) <= 2 * unit(out.dtype)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-4, atol=1e-4)
    assert torch.equal(attention(*given, **options), out)  # from what was written down


def back(fn, tensors, upstreams, **options):
    """Gradients of the tensors and of a bias with numbers, in the tensors' dtypes."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    bias = options.get("bias")
    if bias is not None and bias.dtype != torch.bool:
        bias = bias.to(torch.promote_types(bias.dtype, leaves[0].dtype))
        options["bias"] = bias.detach().clone().requires_grad_()
        leaves.append(options["bias"])
    outputs = fn(*leaves[:3], return_lse=True, **options)
    return torch.autograd.grad(outputs, leaves, upstreams)


@pytest.mark.proves(
    "kernels.ops.attention.backward_kernels",
    "kernels.ops.attention.dbias_kernels",
    "kernels.ops.attention.backward",
    "kernels.ops.attention.operators",
)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
def test_gradients_with_every_option(name, dim):
    (queries, keys), told = OPTIONS[name]
    given = make(queries, keys, own=2, dim=dim)
    options = {n: x(2, queries, keys).cuda() if callable(x) else x for n, x in told.items()}
    out, lse = attention(*given, return_lse=True, **options)
    above = torch.randn_like(out), torch.randn_like(lse)
    above[1][lse == -torch.inf] = 0
    ours = back(attention, given, above, **options)
    wide = [t.double() for t in given]
    truth = back(reference, wide, [a.double() for a in above], **options)
    for one, other in zip(ours, truth, strict=True):
        assert off(one, other) <= 4 * unit(given[0].dtype)
    for one, other in zip(ours, back(attention, given, above, **options), strict=True):
        assert torch.equal(one, other)


@pytest.mark.proves(
    "kernels.ops.attention.backward_kernels", "kernels.ops.attention.simple_backward"
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [16, 64, 80, 128])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_errors_of_gradients_are_within_twice_pytorchs(dtype, dim, causal):
    def gradients(fn, given, above, **options):
        leaves = [t.detach().requires_grad_() for t in given]
        return torch.autograd.grad(fn(*leaves, **options), leaves, above)

    for length in (1, 128, 1000, 2048):
        given = make(length, dim=dim, dtype=dtype)
        above = torch.randn(1, 4, 1, dim, device="cuda", dtype=dtype).expand(given[0].shape)
        wide = [t.double() for t in given]
        truth = gradients(reference, wide, above.double(), causal=causal)
        theirs = gradients(F.scaled_dot_product_attention, given, above, is_causal=causal)
        size = max(float(t.norm()) for t in truth)  # one key: what two gradients are is 0
        for fn in (attention, fused_simple) if dim != 80 else (attention,):
            ours = gradients(fn, given, above, causal=causal)
            for one, other, exact in zip(ours, theirs, truth, strict=True):
                bound = max(2 * (other - exact).norm(), unit(dtype) * exact.norm())
                assert (one - exact).norm() <= bound + 2.0**-19 * size


@pytest.mark.proves("kernels.ops.attention.backward_configurations")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_every_tiling_of_the_backward_that_is_compared(dim, causal):
    q, k, v = make(1000, dim=dim)
    given = Given(q, k, v, causal=causal, scale=dim**-0.5, want_lse=True)
    above = torch.randn_like(q)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    truth = torch.autograd.grad(reference(*wide, causal=causal), wide, above.double())
    out, lse = forward(*given)
    for name, tilings in backward_to_try(Case((2, 16, 8192, dim), torch.bfloat16)).items():
        found = backward(given, out, lse, above, None, False, tilings)
        for one, other in zip(found[:3], truth, strict=True):
            assert off(one, other) <= 2 * unit(q.dtype), name


def test_more_heads_than_a_grid_has_along_y():
    q, k, v = make(1, 5, batch=70000, heads=1, dim=16)
    assert off(attention(q, k, v), reference(q, k, v)) <= 2 * unit(q.dtype)


def test_places_beyond_32_bits():
    memory = torch.empty(2**31 + 2**12, dtype=torch.bfloat16, device="cuda")
    q, k, v = make(2, batch=1, heads=1)
    far = memory.as_strided(k.shape, (2**31, 2**31, 2**31, 1))
    far.copy_(k)
    assert torch.equal(attention(q, far, v), attention(q, k, v))
    out = forward(q, far, v, scale=0.125, tiling=Tiling(16, 16, 4, 1))[0]
    assert off(out, reference(q, k, v)) <= 2 * unit(q.dtype)


def test_a_call_is_kept_and_a_graph_draws_anew():
    q, k, v = make(300)
    for _ in range(2):
        attention(q, k, v, causal=True)
    assert operator.ready.plans
    seed_offset = torch.tensor([1, 0], device="cuda")
    draws = {"dropout_p": 0.5, "seed_offset": seed_offset}
    attention(q, k, v, **draws)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, **draws)
        drawn = scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    seen = []
    for number in range(2):
        seed_offset[1] = number
        graph.replay()
        assert torch.equal(out, attention(q, k, v, **draws))
        seen.append((out.clone(), drawn.clone()))
    for one, other in zip(*seen, strict=True):
        assert not torch.equal(one, other)


def test_a_compiled_layer_keeps_it_whole():
    q, k, v = make(300)

    def layer(q, k, v):
        return scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), layer(q, k, v))
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    upstream = torch.randn_like(q)
    one = torch.autograd.grad(compiled(*leaves), leaves, upstream)
    other = torch.autograd.grad(layer(*leaves), leaves, upstream)
    for got, wanted in zip(one, other, strict=True):
        assert off(got, wanted.double()) <= 8 * unit(q.dtype)
