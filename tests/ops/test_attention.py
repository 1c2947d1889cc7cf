"""Attention with every option, against float64 and PyTorch, and what other projects got wrong."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from kernels import passes
from kernels.lab.counting import aten, traffic
from kernels.launch import assume_capability, compile_launch, interpreting, recording
from kernels.ops.attention.attention import OP, attention, fused_simple, reference
from kernels.ops.attention.configurations import Tiling
from kernels.ops.attention.drop_in import scaled_dot_product_attention
from kernels.ops.attention.formula import Given, seen
from kernels.ops.attention.forward import forward
from kernels.ops.attention.moves import forward_moves, keys_asked_for
from kernels.ops.attention.operators import softmax_operator
from kernels.registry import DTYPES, Case
from tests.ops import proving
from tests.ops.sound import assert_sound

SMALL = Tiling(16, 16, num_warps=4, num_stages=1)
WIDE = Tiling(16, 32, num_warps=4, num_stages=1)
INFINITY = float("inf")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make(queries=37, keys=None, *, batch=2, heads=2, own=None, dim=16, dtype=torch.float32, seed=0):
    keys = queries if keys is None else keys
    generator = seeded(seed)
    sizes = (batch, heads, queries, dim), *((batch, own or heads, keys, dim),) * 2
    return tuple(torch.randn(size, generator=generator).to(dtype) for size in sizes)


def tiled(q, k, v, tiling=SMALL, return_lse=False, scale=None, **options):
    """`attention` without gradients in a tiling of one's own, so that few keys are many tiles."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, lse = forward(q, k, v, scale=scale, want_lse=return_lse, tiling=tiling, **options)
    return (out, lse) if return_lse else out


def off(got, exact):
    return float((got.double() - exact).norm()) / max(float(exact.norm()), 1e-30)


def allowed(dtype, baseline=0.0):
    """Twice PyTorch's own error, or the roundings of weights and output, and fp32's own."""
    return max(2 * baseline, 2 * torch.finfo(dtype).eps / 2 + 2.0**-21)


def assert_right(q, k, v, **options):
    """Output and log-sum-exp in small tiles and in the card's, against float64."""
    exact, exact_lse = reference(q, k, v, return_lse=True, **options)
    for call in (attention, tiled):
        out, lse = call(q, k, v, return_lse=True, **options)
        assert out.shape == q.shape
        assert out.dtype == q.dtype
        assert off(out, exact) <= allowed(q.dtype)
        assert torch.equal(lse == -INFINITY, exact_lse == -INFINITY)
        torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    assert torch.equal(attention(q, k, v, **options), attention(q, k, v, **options))


LENGTHS = [(37, 37), (16, 48), (1, 33), (33, 1), (1, 1), (48, 20), (20, 48), (32, 32)]


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window": 5},
        {"causal": True, "window": 5},
        {"causal": True, "window": 20},
        {"window": 1},
    ],
    ids=str,
)
def test_masks_at_every_length(queries, keys, options):
    q, k, v = make(queries, keys, batch=1)
    assert_right(q, k, v, **options)
    assert off(tiled(q, k, v, WIDE, **options), reference(q, k, v, **options)) <= allowed(q.dtype)


def test_what_a_query_sees():
    """The mask of reference and formula, spelled out place by place."""
    for queries, keys in LENGTHS:
        q, k, v = make(queries, keys, batch=1)
        for causal, window in ((True, None), (True, 4), (False, 4)):
            mask = seen(Given(q, k, v, causal=causal, window=window))
            for i in range(queries):
                at = i + keys - queries
                for j in range(keys):
                    told = not causal or j <= at
                    if window is not None:
                        told = told and abs(at - j) < window
                    assert bool(mask[i, j]) == told


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dim", [1, 5, 64, 80, 96, 128, 256])
def test_head_dimensions(dim, dtype):
    q, k, v = make(20, batch=1, dim=dim, dtype=dtype)
    exact = reference(q, k, v, causal=True)
    for call in (attention, tiled):
        assert off(call(q, k, v, causal=True), exact) <= allowed(dtype)


@pytest.mark.parametrize("own", [1, 2, 3, 6])
def test_heads_that_share_keys(own):
    q, k, v = make(20, 37, heads=6, own=own, batch=1)
    assert_right(q, k, v, causal=True)
    shared = [x.repeat_interleave(6 // own, 1) for x in (k, v)]
    assert torch.equal(attention(q, k, v), attention(q, *shared))


def test_scale():
    q, k, v = make(20, batch=1)
    assert_right(q, k, v, scale=0.7)
    assert_right(q, k, v, scale=3.0, causal=True)
    torch.testing.assert_close(attention(q, k, v, scale=0.5), attention(2 * q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_padding_and_lengths(causal):
    q, k, v = make(37, batch=3)
    padding = torch.rand(3, 37, generator=seeded(1)) < 0.4
    padding[1] = True  # nothing is seen
    padding[2, :20] = True  # more than a tile
    assert_right(q, k, v, causal=causal, key_padding_mask=padding)
    lengths = torch.tensor([37, 0, 20])
    assert_right(q, k, v, causal=causal, k_lengths=lengths)
    assert_right(q, k, v, causal=causal, q_lengths=lengths, k_lengths=lengths.int())
    assert_right(q, k, v, causal=causal, q_lengths=lengths, window=7)
    # Each sequence alone gives the same, the causal mask at its own last key.
    out = attention(q, k, v, causal=causal, q_lengths=lengths, k_lengths=lengths)
    for b, n in enumerate(lengths.tolist()):
        alone = [x[b : b + 1, :, :n] for x in (q, k, v)]
        torch.testing.assert_close(out[b : b + 1, :, :n], attention(*alone, causal=causal))
        assert out[b, :, n:].eq(0).all()


def test_what_is_padding_may_be_anything():
    q, k, v = make(20, 37, batch=1)
    exact = attention(q, k[:, :, :30], v[:, :, :30])
    k[:, :, 30:], v[:, :, 30:] = math.nan, INFINITY
    padding = torch.arange(37)[None] >= 30
    torch.testing.assert_close(attention(q, k, v, key_padding_mask=padding), exact)
    torch.testing.assert_close(attention(q, k, v, k_lengths=torch.tensor([30])), exact)
    q[:, :, 10:] = math.nan
    out = attention(q, k, v, k_lengths=torch.tensor([30]), q_lengths=torch.tensor([10]))
    torch.testing.assert_close(out[:, :, :10], exact[:, :, :10])
    assert out[:, :, 10:].eq(0).all()


@pytest.mark.parametrize("sizes", [(2, 2, 20, 37), (1, 2, 20, 37), (2, 1, 1, 37), (1, 1, 20, 1)])
def test_a_bias_is_broadcast(sizes):
    q, k, v = make(20, 37)
    bias = torch.randn(sizes, generator=seeded(3))
    assert_right(q, k, v, bias=bias)
    assert_right(q, k, v, bias=bias.half(), causal=True, scale=0.3)
    assert_right(q, k, v, bias=bias > 0)
    if sizes[-1] > 1:
        bias[..., ::3] = -INFINITY
        bias[..., 0, :] = -INFINITY
        assert_right(q, k, v, bias=bias)
        wide = torch.randn(*sizes[:-1], 74, generator=seeded(3))[..., ::2]
        assert_right(q, k, v, bias=wide)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 9}], ids=str)
def test_dropout_is_the_packages_own(options):
    q, k, v = make(20, 37, batch=1)
    for p, seed in ((0.3, 2**40 + 3), (1.0, 1)):
        draws = {"dropout_p": p, "seed_offset": torch.tensor([seed, 2])}
        assert_right(q, k, v, **options, **draws)
    one = attention(q, k, v, dropout_p=0.5, seed_offset=torch.tensor([7, 1]))
    assert not torch.equal(one, attention(q, k, v, dropout_p=0.5, seed_offset=torch.tensor([7, 2])))


def test_the_softmax_is_normalised_before_dropout():
    q, k, _ = make(16, 32, batch=1)
    v = torch.ones(1, 2, 32, 16)
    outs = [attention(q, k, v, dropout_p=0.5, seed_offset=torch.tensor([n, 0])) for n in range(9)]
    # The weights that stay, twice: 1 in the mean, and not in each row.
    assert torch.stack(outs).mean() == pytest.approx(1, abs=0.05)
    assert outs[0].std() > 0.1


ADVERSARIAL = {
    "large logits": lambda q, k, v: (30 * q, 30 * k, v),
    "one dominant key": lambda q, k, v: (q, k.index_fill(2, torch.tensor([21]), 40.0), v),
    "constant rows": lambda q, k, v: (torch.ones_like(q), torch.ones_like(k), v),
    "far from 0": lambda q, k, v: (q + 8, k + 8, v + 100),
    "rising keys": lambda q, k, v: (
        q.abs(), k.abs() * torch.arange(1, 38).view(-1, 1).to(k.dtype) / 4, v,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_errors_are_within_twice_pytorchs(name, causal, dtype):
    q, k, v = ADVERSARIAL[name](*make(37, batch=1, dim=32, dtype=dtype))
    exact = reference(q, k, v, causal=causal)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    for call in (attention, tiled, fused_simple):
        out = call(q, k, v, causal=causal)
        assert out.isfinite().all()
        # A score's own rounding in fp32 is a share of its size, and of its weight.
        scores = float((q.float() @ k.float().mT).abs().max()) * 32**-0.5
        assert off(out, exact) <= allowed(dtype, off(theirs, exact)) + 2.0**-22 * scores


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_rows_of_masks_alone_give_zeros(dtype):
    q, k, v = make(20, 37, dtype=dtype)
    bias = torch.zeros(1, 1, 20, 37)
    bias[..., 3:9, :] = -INFINITY
    bias[..., 12, :33] = -INFINITY
    for told in (bias.to(dtype), bias == 0):
        for call in (attention, tiled):
            out, lse = call(q, k, v, bias=told, return_lse=True)
            assert out[:, :, 3:9].eq(0).all()
            assert lse[:, :, 3:9].eq(-INFINITY).all()
            assert out[:, :, 12].ne(0).any()
            assert off(out, reference(q, k, v, bias=told)) <= allowed(dtype)
    early = attention(*make(37, 20, dtype=dtype), causal=True)
    assert early[:, :, :17].eq(0).all()
    assert early.isfinite().all()


def test_nan_is_not_hidden():
    q, k, v = make(20, batch=1, heads=1)
    q[0, 0, 3, 0] = math.nan
    out = attention(q, k, v)
    assert out[0, 0, 3].isnan().all()
    assert out[0, 0, 4:].isfinite().all()


def test_no_queries_no_keys_no_heads():
    for queries, keys, batch in ((0, 5, 1), (0, 0, 1), (5, 5, 0)):
        q, k, v = make(queries, keys, batch=batch)
        assert attention(q, k, v).shape == q.shape
    q, k, v = make(5, 0)
    out, lse = attention(q, k, v, return_lse=True)
    assert out.eq(0).all()
    assert lse.eq(-INFINITY).all()


def layouts():
    wide = torch.randn(2, 20, 3, 2, 16, generator=seeded(5))
    packed = [x.transpose(1, 2) for x in wide.unbind(2)]
    yield "packed", packed
    yield "expanded", [x[:1].expand(2, 2, 20, 16) for x in packed]
    yield "every second", [torch.randn(2, 2, 20, 32)[..., ::2] for _ in range(3)]
    yield "transposed", [torch.randn(2, 2, 16, 20).mT for _ in range(3)]
    yield "shifted", [torch.randn(2 * 2 * 20 * 16 + 1)[1:].view(2, 2, 20, 16) for _ in range(3)]
    yield "flipped heads", [x.transpose(0, 1) for x in packed]


@pytest.mark.parametrize(("name", "given"), list(layouts()), ids=[n for n, _ in layouts()])
def test_every_layout(name, given):
    exact = attention(*(x.contiguous() for x in given), causal=True)
    assert torch.equal(attention(*given, causal=True), exact)
    described = Tiling(16, 16, 4, 1, descriptors=True)
    torch.testing.assert_close(tiled(*given, tiling=described, causal=True), exact)


def test_the_output_lies_as_the_queries_do():
    packed = torch.randn(2, 20, 3, 2, 16).unbind(2)
    out = attention(*(x.transpose(1, 2) for x in packed))
    assert out.transpose(1, 2).is_contiguous()
    assert attention(*make(20)).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("dim", [64, 80])
def test_descriptors_load_what_pointers_do(dim, dtype):
    q, k, v = make(20, 37, dim=dim, dtype=dtype, own=1)
    described = Tiling(16, 16, 4, 1, descriptors=True)
    for options in ({}, {"causal": True}, {"window": 6}):
        with interpreting() as launches:
            out = tiled(q, k, v, tiling=described, **options)
        assert [launch.arguments["DESCRIPTORS"] for launch in launches.seen] == [True]
        assert torch.equal(out, tiled(q, k, v, **options))


def test_places_beyond_32_bits():
    # Tensors that nobody touches: a recorded launch reads nothing.
    far = torch.empty_strided((1, 1, 2, 16), (2**32, 2**32, 2**31, 1), dtype=torch.float16)
    many = torch.empty_strided((70000, 2, 1, 16), (0, 0, 16, 1), dtype=torch.float16)
    with recording() as launches:
        for x in (far, many):
            forward(x, x, x, scale=1.0, tiling=SMALL)
    assert launches.seen[0].arguments["k_row_stride"] == 2**31
    assert [launch.grid for launch in launches.seen] == [(1, 1, 1), (140000, 1, 1)]
    ptx = compile_launch(launches.seen[0], 90).ptx
    assert ptx.count("mul.lo.s64") + ptx.count("mul.wide.s32") > 8


SENTENCES = [
    (lambda q, k, v: attention(q.double(), k, v), TypeError, "q has dtype torch.float64; it takes"),
    (lambda q, k, v: attention(q, k.half(), v), TypeError, "k has dtype torch.float16 and q"),
    (lambda q, k, v: attention(q[0], k, v), ValueError, "q has the shape .* it takes .batch"),
    (lambda q, k, v: attention(q, k, v[:, :, :3]), ValueError, "v has the shape .* and k"),
    (lambda q, k, v: attention(q, k[:1], v[:1]), ValueError, "batch and head dimension must be"),
    (
        lambda q, k, v: attention(q[:, :1], k, v),
        ValueError,
        "k has 2 heads and q 1; those of k must divide",
    ),
    (lambda q, k, v: attention(q, k, v, window=0), ValueError, "window is 0; it takes a whole"),
    (lambda q, k, v: attention(q, k, v, scale=-1.0), ValueError, "scale is -1.0; it takes"),
    (lambda q, k, v: attention(q, k, v, dropout_p=0.5), ValueError, "seed_offset holds the seed"),
    (lambda q, k, v: attention(q, k, v, dropout_p=1.5), ValueError, "p is 1.5; the probability"),
    (lambda q, k, v: attention(q, k, v, bias=q), ValueError, "bias has the shape .* it takes"),
    (
        lambda q, k, v: attention(q, k, v, key_padding_mask=torch.zeros(2, 5)),
        TypeError,
        "key_padding_mask is of torch.float32; it takes a tensor of torch.bool",
    ),
    (
        lambda q, k, v: attention(q, k, v, k_lengths=torch.tensor([1])),
        ValueError,
        r"k_lengths has the shape \(1,\) on cpu; it takes \(2,\) on cpu",
    ),
    (
        lambda q, k, v: fused_simple(q[..., :5], k[..., :5], v[..., :5]),
        ValueError,
        "this kernel takes one shape",
    ),
    (
        lambda q, k, v: fused_simple(*(torch.empty(65536, 1, 1, 16),) * 3),
        ValueError,
        "q has 65536 heads in all; this kernel takes 65535 at most",
    ),
    (
        lambda q, k, v: attention(torch.zeros(1, 1, 2, 300), k, v),
        ValueError,
        "the last from 1 to 256",
    ),
    (
        lambda q, k, v: scaled_dot_product_attention(q, k[:, :1], v[:, :1]),
        ValueError,
        "fewer heads of keys need enable_gqa=True",
    ),
    (
        lambda q, k, v: scaled_dot_product_attention(q, k, v, torch.zeros(20, 20), is_causal=True),
        ValueError,
        "attn_mask is given and is_causal is True",
    ),
]


@pytest.mark.parametrize(("call", "error", "sentence"), SENTENCES)
def test_bad_input_gets_one_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence) as caught:
        call(*make(20))
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------- gradients


def differentiate(fn, tensors, upstream, **options):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    outputs = passes.as_tuple(fn(*leaves, **options))
    given = [u.to(o.dtype) for u, o in zip(upstream, outputs, strict=False)]
    return torch.autograd.grad(outputs, leaves, given)


OPTIONS = {
    "plain": lambda: {},
    "causal": lambda: {"causal": True},
    "scale": lambda: {"scale": 0.4, "causal": True},
    "window": lambda: {"window": 6, "causal": True},
    "padding": lambda: {"key_padding_mask": torch.rand(2, 37, generator=seeded(2)) < 0.5},
    "lengths": lambda: {
        "q_lengths": torch.tensor([20, 11]), "k_lengths": torch.tensor([30, 0]), "causal": True,
    },
    "dropout": lambda: {"dropout_p": 0.3, "seed_offset": torch.tensor([5, 6])},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("own", [1, 2])
def test_gradients(name, own):
    options = {**OPTIONS[name](), "return_lse": True}
    given = make(20, 37, own=own)
    out, lse = (torch.randn(size, generator=seeded(9)) for size in ((2, 2, 20, 16), (2, 2, 20)))
    nothing = reference(*given, **options)[1] == -INFINITY
    lse[nothing] = 0
    ours = differentiate(attention, given, (out, lse), **options)
    wide = [t.double() for t in given]
    exact = differentiate(reference, wide, (out, lse), **options)
    for got, truth in zip(ours, exact, strict=True):
        assert off(got, truth) <= 1e-5


@pytest.mark.parametrize("sizes", [(2, 2, 20, 37), (1, 2, 1, 37), (1, 1, 20, 37)])
def test_the_gradient_of_a_bias(sizes):
    bias = torch.randn(sizes, generator=seeded(0))
    upstream = torch.randn(2, 2, 20, 16, generator=seeded(1))

    def with_bias(fn):
        return lambda q, k, v, bias: fn(q, k, v, bias=bias, causal=True)

    given = (*make(20, 37), bias)
    ours = differentiate(with_bias(attention), given, (upstream,))
    exact = differentiate(with_bias(reference), [t.double() for t in given], (upstream,))
    for got, truth in zip(ours, exact, strict=True):
        assert off(got, truth) <= 1e-5


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_gradients_in_each_dtype_and_forward_alike(dtype):
    given = make(20, 37, dtype=dtype)
    upstream = torch.randn(given[0].shape, generator=seeded(4))
    ours = differentiate(attention, given, (upstream,), causal=True)
    exact = differentiate(
        reference, [t.double() for t in given], (upstream.to(dtype).double(),), causal=True
    )
    for got, truth in zip(ours, exact, strict=True):
        assert got.dtype == dtype
        assert off(got, truth) <= allowed(dtype)
    leaf = given[0].clone().requires_grad_()
    assert torch.equal(attention(leaf, *given[1:]).detach(), attention(*given))


def test_a_gradient_is_differentiated_again():
    given = [t.double().float().requires_grad_() for t in make(5, 7, batch=1)]

    def twice(fn, leaves):
        first = torch.autograd.grad(fn(*leaves).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)

    wide = [t.detach().double().requires_grad_() for t in given]
    for got, truth in zip(twice(attention, given), twice(reference, wide), strict=True):
        assert off(got, truth) <= 1e-4


# --------------------------------------------------------------------------------- what it moves


@pytest.mark.parametrize("length", [32, 37, 100])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": 20}, {"causal": True, "window": 20}], ids=str
)
def test_requested_bytes_are_the_formulas(length, options):
    q, k, v = make(length, batch=1)
    case = Case((1, 2, length, 16), torch.float32, tuple(options.items()))
    for tiling in (SMALL, WIDE, Tiling(32, 16, 4, 1)):
        ledger = traffic.count(tiled, q, k, v, tiling=tiling, **options)
        told = forward_moves(case, tiling)
        assert (ledger.launches, ledger.bytes_unique) == (told.launches, told.unique)
        assert ledger.bytes_requested == told.requested
    described = Tiling(16, 16, 4, 1, descriptors=True)
    ledger = traffic.count(tiled, q, k, v, tiling=described, **options)
    assert ledger.bytes_requested == forward_moves(case, described).requested


def alone(name):
    """The operation with one variant, since PyTorch's takes no window."""
    return replace(OP, variants={name: OP.variant(name)})


@pytest.mark.parametrize("window", [1, 20, 200])
def test_a_registered_case_may_have_a_window(window):
    for options in ((("window", window),), (("causal", True), ("window", window))):
        case = Case((1, 1, 150, 16), torch.float16, options)
        proving.forward(alone("eager"), OP.variant("eager"), case, "contiguous")
        proving.forward(alone("fused"), OP.variant("fused"), case, "apart")
        proving.moves(OP, OP.variant("fused"), case, "fwd")


def test_keys_asked_for_by_hand():
    # Tiles of 16 by 16 over 64: 1 + 2 + 3 + 4 of 16 keys where it is causal, else 4 times all.
    assert keys_asked_for(64, 64, SMALL, True, None) == 160
    assert keys_asked_for(64, 64, SMALL, False, None) == 256
    # With a window of 16 the tile before the diagonal's is seen too, but for the first.
    assert keys_asked_for(64, 64, SMALL, True, 16) == 16 + 3 * 32
    assert keys_asked_for(64, 64, SMALL, True, 1) == 64
    assert keys_asked_for(16, 64, SMALL, True, None) == 64


def test_flops_as_papers_count_them():
    shape = (2, 16, 8192, 64)
    whole = OP.cost(shape, torch.bfloat16)
    assert whole.flops == 4 * 2 * 16 * 8192**2 * 64
    assert OP.cost(shape, torch.bfloat16, options=(("causal", True),)).flops == whole.flops // 2
    shape, options = (1, 1, 10, 16), (("causal", True), ("window", 3))
    assert OP.cost(shape, torch.bfloat16, options=options).flops == 4 * 16 * (1 + 2 + 8 * 3)
    both = (("window", 3),)
    assert OP.cost(shape, torch.bfloat16, options=both).flops == 4 * 16 * (2 * 27 - 10)


# ------------------------------------------------------------------------------------ PyTorch


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.randn(20, 30, generator=seeded(1))},
        {"attn_mask": torch.rand(2, 1, 20, 30, generator=seeded(1)) < 0.7},
    ],
    ids=["plain", "causal", "scale", "added", "bool"],
)
@pytest.mark.parametrize("leading", [(2, 2), (2,), (), (2, 1, 2)], ids=str)
def test_the_call_of_pytorch(arguments, leading):
    mask = arguments.get("attn_mask")
    if mask is not None and mask.dim() == 4:
        mask = {0: mask[0, 0], 1: mask[0], 2: mask, 3: mask[:, None]}[len(leading)]
    if mask is not None:
        arguments = {"attn_mask": mask}
    q, k, v = (torch.randn(*leading, n, 16, generator=seeded(n)) for n in (20, 30, 30))
    ours = scaled_dot_product_attention(q, k, v, **arguments)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, **arguments))


@pytest.mark.parametrize("sizes", [(2, 1, 1, 30), (1, 1, 1, 30), (1, 30), (2, 1, 1, 1)])
def test_a_mask_of_keys_in_pytorchs_call_is_padding(sizes):
    q, k, v = make(20, 30)
    mask = torch.rand(sizes, generator=seeded(1)) < 0.7
    mask[..., 0] = True
    with interpreting() as launches:
        ours = scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, mask))
    (launch,) = launches.seen
    assert launch.arguments["bias_ptr"] is None
    assert launch.arguments["padding_ptr"] is not None


def test_more_queries_than_keys_in_pytorchs_call():
    q, k, v = make(30, 20)
    ours = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_autocast_in_pytorchs_call():
    q, k, v = make(20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = scaled_dot_product_attention(q, k.bfloat16(), v)
        theirs = F.scaled_dot_product_attention(q, k.bfloat16(), v)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert off(ours, theirs.double()) <= 4 * torch.finfo(torch.bfloat16).eps


def test_dropout_in_pytorchs_call_draws_anew():
    q, k, v = make(20)
    torch.manual_seed(1)
    one, other = (scaled_dot_product_attention(q, k, v, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(one, other)
    torch.manual_seed(1)
    assert torch.equal(scaled_dot_product_attention(q, k, v, dropout_p=0.5), one)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_a_graph_keeps_it_whole(dropout_p):
    q, k, v = make(20)

    def layer(q, k, v):
        return scaled_dot_product_attention(2 * q, k, v, dropout_p=dropout_p, is_causal=True) + 1

    seen = []

    def backend(graph, _):
        seen.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    torch.manual_seed(3)
    out = compiled(q, k, v)
    torch.manual_seed(3)
    torch.testing.assert_close(out, layer(q, k, v))
    ours = [n for n in seen[0].graph.nodes if "fusing_kernels" in str(n.target)]
    assert len(seen) == len(ours) == 1
    trained = torch.compile(layer, fullgraph=True, backend="aot_eager")
    if dropout_p == 0:
        upstream = torch.randn(q.shape)
        for one, other in zip(
            differentiate(trained, (q, k, v), (upstream,)),
            differentiate(layer, (q, k, v), (upstream,)),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


def test_a_ledger_counts_one_operator():
    q, k, v = make(20, dtype=torch.bfloat16)
    ledger = aten.count(lambda q, k, v: scaled_dot_product_attention(q, k, v) + 1, q, k, v)
    assert [step.name for step in ledger] == ["attention_forward", "add"]
    assert ledger.steps[0].bytes_unique == 4 * q.nbytes


def test_the_operators_pass_pytorchs_own_checks():
    q, k, v = make(20)
    rest = (None, None, None, None, None, True, False, None, 0.25, 0.0)
    operators = torch.ops.fusing_kernels
    torch.library.opcheck(operators.attention.default, (q, k, v, *rest, True, False))
    packed = torch.randn(2, 20, 2, 16).transpose(1, 2)
    torch.library.opcheck(operators.attention.default, (packed, k, v, *rest, True, False))
    leaves = [t.requires_grad_() for t in make(20)]
    torch.library.opcheck(operators.attention_with_grad.default, (*leaves, *rest, True, True))


@pytest.mark.parametrize("n_queries", [0, 20])
def test_the_softmax_between_two_products(n_queries):
    scores = torch.randn(2, 20, 37, generator=seeded(1))
    given = scores.double() * 0.5
    if n_queries:
        given = given.masked_fill(~torch.ones(20, 37).tril(17).bool(), -INFINITY)
    weights = softmax_operator(scores, 0.5, n_queries)
    torch.testing.assert_close(weights.double(), torch.softmax(given, -1), rtol=1e-5, atol=1e-7)
    torch.library.opcheck(
        torch.ops.fusing_kernels.attention_softmax.default, (scores, 0.5, n_queries)
    )


def test_two_halves_merge_by_log_sum_exp():
    q, k, v = make(20, 37)
    whole = attention(q, k, v)
    halves = [attention(q, k[:, :, at], v[:, :, at], return_lse=True) for at in (
        slice(None, 15), slice(15, None))]  # fmt: skip
    lse = torch.logaddexp(halves[0][1], halves[1][1])
    merged = sum(out * torch.exp(one - lse)[..., None] for out, one in halves)
    torch.testing.assert_close(merged, whole)


def options_to_compile(name, dtype):
    """The options of a name, in the sizes of a call with 128 queries and 512 keys."""
    options = OPTIONS[name]() if name in OPTIONS else {}
    if "key_padding_mask" in options:
        options["key_padding_mask"] = torch.zeros(2, 512, dtype=torch.bool)
    if name in ("bias", "padding"):
        options["bias"] = torch.empty(2, 1, 128, 512, dtype=dtype)
    return {"causal": True, **options}


@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("name", ["window", "padding", "lengths", "dropout", "bias"])
def test_every_option_compiles_without_a_spill(name, dim):
    """Where few registers are left, on a T4 and an A100; the rest is held by what is registered."""
    given = [torch.empty(2, 2, n, dim, dtype=torch.float16) for n in (128, 512, 512)]
    options = options_to_compile(name, torch.float16)
    for card in (75, 80):
        with assume_capability(card), recording() as launches:
            attention(*given, **options)
        assert_sound(launches.seen[0], card)


@pytest.mark.parametrize(
    ("card", "dim"),
    [(86, 128), (89, 128), (90, 128), (100, 128), (120, 128)]
    + [(card, dim) for card in (86, 90, 100, 120) for dim in (64, 80)]
    + [(90, 256), (120, 256)],
)
@pytest.mark.parametrize("name", ["window", "padding", "lengths", "dropout"])
def test_options_compile_for_newer_cards(name, card, dim):
    given = [torch.empty(2, 2, n, dim, dtype=torch.bfloat16) for n in (128, 512, 512)]
    options = {**options_to_compile(name, torch.bfloat16), "scale": 0.1}
    with assume_capability(card), recording() as launches:
        forward(*given, want_lse=True, **options)  # in Triton, on 9.0 too
    assert_sound(launches.seen[0], card)


def test_on_a_t4_no_dtype_has_tensor_cores():
    """bf16 compiles there too, in fp32 arithmetic, as fp16 does: no product of `tl.dot` is mma."""
    for dtype in (torch.float16, torch.bfloat16):
        q = torch.empty(2, 2, 128, 64, dtype=dtype)
        with assume_capability(75), recording() as launches:
            attention(q, q, q, causal=True)
        built = compile_launch(launches.seen[0], 75)
        assert built.matrix_instruction is None
        assert built.stack_bytes == 0
