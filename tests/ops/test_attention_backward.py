"""Attention's backward with every option, against float64: what it sees, moves and launches."""

import math

import pytest
import torch
import torch.nn.functional as F

from kernels.lab.counting import traffic
from kernels.launch import assume_capability, compile_launch, interpreting, recording
from kernels.ops.attention.attention import OP, attention, reference
from kernels.ops.attention.backward import backward
from kernels.ops.attention.backward_configurations import Tilings
from kernels.ops.attention.configurations import Tiling
from kernels.ops.attention.formula import Given
from kernels.ops.attention.forward import forward
from kernels.ops.attention.moves import backward_moves, queries_asked_for
from kernels.ops.attention.operators import backward_operator
from kernels.registry import DTYPES, Case
from tests.ops.sound import assert_sound
from tests.ops.test_attention import (
    ADVERSARIAL,
    LENGTHS,
    OPTIONS,
    allowed,
    differentiate,
    layouts,
    make,
    off,
    seeded,
)

INFINITY = float("inf")
EVEN = Tilings(*(Tiling(16, 16, 4, 1),) * 2)
UNEVEN = Tilings(Tiling(32, 16, 4, 1), Tiling(16, 32, 4, 1))
BACK = ["attention_dq", "attention_dkdv"]


def given_of(q, k, v, **options):
    options.setdefault("scale", q.shape[-1] ** -0.5)
    return Given(q, k, v, want_lse=True, **options)


def upstreams(q, seed=5):
    d_out = torch.randn(q.shape, generator=seeded(seed)).to(q.dtype)
    return d_out, torch.randn(q.shape[:3], generator=seeded(seed + 1))


def exact_gradients(given, d_out, d_lse, also_bias=False):
    """Through the reference in float64; a row that sees nothing has no gradient of its lse."""
    tensors = [t.double().requires_grad_() for t in (given.q, given.k, given.v)]
    options = given._asdict()
    for name in ("q", "k", "v", "top_left", "want_lse", "by_hand"):
        del options[name]
    if also_bias:
        options["bias"] = given.bias.double().requires_grad_()
        tensors.append(options["bias"])
    out, lse = reference(*tensors[:3], return_lse=True, **options)
    outs, above = [out], [d_out.double()]
    if d_lse is not None:
        outs.append(lse)
        above.append(d_lse.double().masked_fill(lse == -INFINITY, 0))
    return torch.autograd.grad(outs, tensors, above, allow_unused=True)


def assert_right(given, bound=1e-5, tilings=(EVEN, UNEVEN, None)):
    """All gradients in small tiles and in the card's, lse's own among them; the same bits twice."""
    d_out, d_lse = upstreams(given.q)
    out, lse = forward(*given)
    wants = given.bias is not None and given.bias.dtype != torch.bool
    exact = exact_gradients(given, d_out, d_lse, wants)
    for one in tilings:
        found = backward(given, out, lse, d_out, d_lse, wants, one)
        again = backward(given, out, lse, d_out, d_lse, wants, one)
        for got, same, truth in zip(found, again, exact, strict=False):
            assert got.shape == truth.shape
            assert torch.equal(got, same)
            assert off(got, truth) <= bound


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
    # Lengths and tiles that divide one another or don't, in either way.
    tilings = (EVEN,) if queries % 16 else (UNEVEN,)
    assert_right(given_of(*make(queries, keys, batch=1), **options), tilings=tilings)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 5}], ids=str)
def test_one_loop_masks_all_on_a_t4(options):
    with assume_capability(75):
        assert_right(given_of(*make(20, 37, own=1), **options))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("own", [1, 2])
def test_options(name, own):
    assert_right(given_of(*make(20, 37, own=own), **OPTIONS[name]()))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("dim", [1, 5, 64, 80, 96, 128, 256])
def test_head_dimensions(dim, dtype):
    given = given_of(*make(20, 37, batch=1, dim=dim, dtype=dtype), causal=True)
    d_out, _ = upstreams(given.q)
    exact = exact_gradients(given, d_out, None)
    found = backward(given, *forward(*given), d_out, None, False)
    for got, truth in zip(found, exact, strict=False):
        assert got.dtype == dtype
        assert off(got, truth) <= allowed(dtype)


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_errors_are_within_twice_pytorchs(name, dtype):
    q, k, v = ADVERSARIAL[name](*make(37, batch=1, dim=32, dtype=dtype))
    given = given_of(q, k, v, causal=True)
    d_out, _ = upstreams(q)
    exact = exact_gradients(given, d_out, None)
    theirs = differentiate(
        F.scaled_dot_product_attention, (q, k, v), (d_out,), is_causal=True
    )  # PyTorch's own, on a CPU
    scores = float((q.float() @ k.float().mT).abs().max()) * 32**-0.5
    for got, baseline, truth in zip(
        backward(given, *forward(*given), d_out, None, False), theirs, exact, strict=False
    ):
        assert got.isfinite().all()
        # What cancels in dp − delta is as large as the outputs are: a share of that is lost.
        lost = 2.0**-21 * float(v.double().norm() * d_out.double().norm()) / 32
        size = max(float(truth.norm()), 1e-30)
        bound = allowed(dtype, off(baseline, truth)) + 2.0**-21 * scores + lost / size
        assert off(got, truth) <= bound


@pytest.mark.parametrize(
    "sizes", [(2, 2, 20, 37), (1, 2, 20, 37), (2, 1, 1, 37), (1, 1, 20, 1), (1, 1, 1, 1)]
)
@pytest.mark.parametrize("name", ["plain", "causal", "lengths", "dropout"])
def test_the_gradient_of_a_bias(sizes, name):
    bias = torch.randn(sizes, generator=seeded(3))
    given = given_of(*make(20, 37, own=1), bias=bias, **OPTIONS[name]())
    # A bias that all scores of a row share moves none of them: its sum cancels but for lse's.
    tilings = (UNEVEN,) if sizes[0] == 1 else (EVEN,)
    assert_right(given, 1e-4 if sizes[-1] == 1 else 1e-5, tilings)


def test_a_bias_in_its_own_dtype_and_layout():
    q, k, v = make(20, 37)
    wide = torch.randn(1, 2, 20, 74, generator=seeded(3))
    assert_right(given_of(q, k, v, bias=wide[..., ::2], window=9))
    given = given_of(q, k, v, bias=wide[..., :37].half())
    d_bias = backward(given, *forward(*given), *upstreams(q), True)[3]
    assert d_bias.dtype == torch.float16
    exact = exact_gradients(given, *upstreams(q), True)[3]
    assert off(d_bias, exact) <= allowed(torch.float16)
    assert_right(given_of(q, k, v, bias=wide[..., :37] > 0, causal=True))


def test_rows_that_see_nothing_have_gradients_of_zero():
    q, k, v = make(20, 37)
    bias = torch.zeros(1, 1, 20, 37)
    bias[..., 3:9, :] = -INFINITY
    bias[..., 12, :33] = -INFINITY
    d_out, d_lse = upstreams(q)
    d_lse[:, :, 4] = math.nan  # of a row whose lse is −inf: nobody can have made it from numbers
    given = given_of(q, k, v, bias=bias)
    for one in (given, given._replace(bias=bias == 0)):
        d_q, d_k, d_v, _ = backward(one, *forward(*one), d_out, d_lse, False)
        assert d_q[:, :, 3:9].eq(0).all()
        assert d_q[:, :, 12].ne(0).any()
        assert all(x.isfinite().all() for x in (d_q, d_k, d_v))
    early = given_of(*make(37, 20), causal=True)
    d_q = backward(early, *forward(*early), *upstreams(early.q), False)[0]
    assert d_q[:, :, :17].eq(0).all()
    assert d_q.isfinite().all()


def test_what_is_padding_may_be_anything_and_gets_zeros():
    q, k, v = make(20, 37, batch=1)
    d_out, d_lse = upstreams(q)
    short = given_of(q[:, :, :10], k[:, :, :30], v[:, :, :30], causal=True)
    exact = backward(short, *forward(*short), d_out[:, :, :10], d_lse[:, :, :10], False)
    k[:, :, 30:], v[:, :, 30:] = math.nan, INFINITY
    q[:, :, 10:], d_out[:, :, 10:], d_lse[:, :, 10:] = math.nan, math.nan, math.nan
    told = {"q_lengths": torch.tensor([10]), "k_lengths": torch.tensor([30])}
    for tilings in (EVEN, UNEVEN):
        given = given_of(q, k, v, causal=True, **told)
        found = backward(given, *forward(*given), d_out, d_lse, False, tilings)
        for got, truth, end in zip(found, exact, (10, 30, 30), strict=False):
            torch.testing.assert_close(got[:, :, :end], truth)
            assert got[:, :, end:].eq(0).all()
    given = given_of(q[:, :, :10], k, v, key_padding_mask=torch.arange(37)[None] >= 30)
    found = backward(given, *forward(*given), d_out[:, :, :10], None, False, EVEN)
    assert all(x.isfinite().all() for x in found[:3])
    assert found[1][:, :, 30:].eq(0).all()
    assert found[2][:, :, 30:].eq(0).all()


@pytest.mark.parametrize(("name", "tensors"), list(layouts()), ids=[n for n, _ in layouts()])
def test_every_layout(name, tensors):
    apart = [x.contiguous() for x in tensors]
    upstream = torch.randn(1, 1, 1, 16, generator=seeded(2)).expand(apart[0].shape)
    exact = differentiate(attention, apart, (upstream,), causal=True)
    leaves = [x.detach().requires_grad_() for x in tensors]
    found = torch.autograd.grad(attention(*leaves, causal=True), leaves, upstream)
    for got, truth in zip(found, exact, strict=True):
        assert torch.equal(got, truth)
    ones = torch.autograd.grad(attention(*leaves, causal=True).sum(), leaves)  # strides of 0
    assert all(one.isfinite().all() for one in ones)


def test_gradients_lie_as_their_tensors_do():
    packed = torch.randn(2, 20, 3, 2, 16).unbind(2)
    leaves = [x.transpose(1, 2).requires_grad_() for x in packed]
    for one in torch.autograd.grad(attention(*leaves).sum(), leaves):
        assert one.transpose(1, 2).is_contiguous()


def test_it_goes_back_in_two_launches_and_one_more_for_a_bias():
    q, k, v = (t.requires_grad_() for t in make(20, 37))
    bias = torch.randn(1, 2, 20, 37, requires_grad=True)
    for leaves, options, wanted in (
        ((q, k, v), {}, BACK),
        ((q, k, v), {"bias": bias.detach()}, BACK),
        ((q, k, v, bias), {"bias": bias}, [*BACK, "attention_dbias"]),
    ):
        out = attention(q, k, v, **options)
        with interpreting() as launches:
            torch.autograd.grad(out, leaves, torch.randn(out.shape))
        assert [launch.name for launch in launches.seen] == wanted


def test_what_is_differentiated_again_goes_by_operators():
    leaves = [t.requires_grad_() for t in make(5, 7, batch=1)]
    with interpreting() as launches:
        first = torch.autograd.grad(attention(*leaves).sum(), leaves, create_graph=True)
    assert [launch.name for launch in launches.seen] == ["attention_forward"]
    assert all(one.requires_grad for one in first)
    given = given_of(*leaves)
    lse = torch.zeros(leaves[0].shape[:3])
    found = backward_operator(leaves[0], None, leaves[0], lse, *given, False)
    with pytest.raises(NotImplementedError, match="no second derivative here"):
        found[0].sum().backward()


def test_a_gradient_of_the_log_sum_exp_alone():
    given = given_of(*make(20, 37), causal=True)
    leaves = [t.requires_grad_() for t in given[:3]]
    lse = attention(*leaves, causal=True, return_lse=True)[1]
    _, d_lse = upstreams(given.q)
    found = torch.autograd.grad(lse, leaves, d_lse)
    exact = exact_gradients(given, torch.zeros(given.q.shape), d_lse)
    for got, truth in zip(found[:2], exact, strict=False):
        assert off(got, truth) <= 1e-5
    assert found[2].eq(0).all()


def test_no_queries_no_keys_no_heads():
    for queries, keys, batch in ((0, 5, 1), (5, 0, 1), (0, 0, 1), (5, 5, 0)):
        leaves = [t.requires_grad_() for t in make(queries, keys, batch=batch)]
        out = attention(*leaves)
        for one, leaf in zip(torch.autograd.grad(out.sum(), leaves), leaves, strict=True):
            assert one.shape == leaf.shape
            assert one.eq(0).all()


def test_the_operator_passes_pytorchs_own_checks():
    q, k, v = make(20, 37)
    bias = torch.randn(1, 2, 20, 37)
    given = given_of(q, k, v, bias=bias, causal=True)
    out, lse = forward(*given)
    d_out, d_lse = upstreams(q)
    operator = torch.ops.fusing_kernels.attention_backward.default
    torch.library.opcheck(operator, (d_out, d_lse, out, lse, *given, True))
    # (Asked for no gradient of the bias, it leaves that output unwritten: nothing to compare.)
    torch.library.opcheck(operator, (d_out, None, out, lse, *given, True))


def test_places_beyond_32_bits():
    far = torch.empty_strided((1, 1, 2, 16), (2**32, 2**32, 2**31, 1), dtype=torch.float16)
    many = torch.empty_strided((70000, 2, 1, 16), (0, 0, 16, 1), dtype=torch.float16)
    with recording() as launches:
        for x in (far, many):
            lse = torch.empty(x.shape[:3])
            backward(Given(x, x, x), x, lse, x, None, False, EVEN)
    assert [launch.grid for launch in launches.seen] == [(1, 1, 1)] * 2 + [(140000, 1, 1)] * 2
    for launch in launches.seen[:2]:
        ptx = compile_launch(launch, 90).ptx
        assert ptx.count("mul.lo.s64") + ptx.count("mul.wide.s32") > 8


# --------------------------------------------------------------------------------- what it moves


@pytest.mark.parametrize("length", [32, 37, 100])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": 20}, {"causal": True, "window": 20}], ids=str
)
def test_requested_bytes_are_the_formulas(length, options):
    given = given_of(*make(length, batch=1), **options)
    out, lse = forward(*given)
    d_out, _ = upstreams(given.q)
    case = Case((1, 2, length, 16), torch.float32, tuple(options.items()))
    for tilings in (EVEN, UNEVEN):
        ledger = traffic.count(backward, given, out, lse, d_out, None, False, tilings)
        told = backward_moves(case, tilings)
        assert (ledger.launches, ledger.bytes_unique) == (told.launches, told.unique)
        assert ledger.bytes_requested == told.requested


def test_queries_asked_for_by_hand():
    # Tiles of 16 by 16 over 64: 4 + 3 + 2 + 1 of 16 queries where it is causal, else 4 times all.
    tiling = Tiling(16, 16, 4, 1)
    assert queries_asked_for(64, 64, tiling, True, None) == 160
    assert queries_asked_for(64, 64, tiling, False, None) == 256
    # With a window of 16 the tile behind the diagonal's sees these keys too, but for the last.
    assert queries_asked_for(64, 64, tiling, True, 16) == 16 + 3 * 32
    assert queries_asked_for(64, 64, tiling, True, 1) == 64


def test_flops_and_bytes_as_papers_count_them():
    shape = (2, 16, 8192, 64)
    forth, back = (OP.cost(shape, torch.bfloat16, pass_) for pass_ in ("fwd", "bwd"))
    assert back.flops == 5 * forth.flops // 2 == 10 * 2 * 16 * 8192**2 * 64
    assert back.bytes_ideal == 2 * forth.bytes_ideal == 8 * 2 * 16 * 8192 * 64 * 2


@pytest.mark.parametrize("name", ["window", "padding", "lengths", "dropout"])
def test_every_option_compiles_without_a_spill(name):
    """Where few registers are left, on a T4 and an A100; the rest is held by what is registered."""
    q, k, v = (torch.empty(2, 2, n, 128, dtype=torch.float16) for n in (128, 512, 512))
    options = OPTIONS[name]()
    if "key_padding_mask" in options:
        options["key_padding_mask"] = torch.zeros(2, 512, dtype=torch.bool)
        options["bias"] = torch.empty(2, 1, 128, 512, dtype=torch.float16)
    given = given_of(q, k, v, **options)
    lse = torch.empty(q.shape[:3])
    for card in (75, 80):
        with assume_capability(card), recording() as launches:
            backward(given, q, lse, q, None, given.bias is not None)
        for launch in launches.seen:
            assert_sound(launch, card)
