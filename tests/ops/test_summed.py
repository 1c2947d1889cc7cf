"""Dropouts behind a product that sum its bias's gradient: against float64, compiled, in a layer."""

import pytest
import torch

from kernels.lab.counting.aot import TARGETS
from kernels.launch import assume_capability, interpreting, recording
from kernels.ops.chains import dropped, dropped_sums
from kernels.ops.chains.activation_dropout import reference
from kernels.ops.layers import joined, steps, stochastic, summed
from kernels.ops.layers.steps import Dropped, Norm, Product
from kernels.ops.norms.backward import backward as norm_backward
from kernels.ops.shared.operators import _ordinary, needs_gradient
from kernels.philox import kept_elements, scale
from tests.ops.sound import assert_sound

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SEED, P = torch.tensor([2**40 + 5, 7]), 0.3


@pytest.fixture(autouse=True)
def two_sms(monkeypatch):
    """Few programs, so that each has several tiles."""
    monkeypatch.setattr(dropped_sums, "multiprocessors", lambda _: 2)


def random(*shape, seed=0, dtype=FP32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def near(found, exact, terms=1):
    """Whether each is its exact value, rounded once, a sum's terms being of fp32."""
    unit = torch.finfo(found.dtype).eps  # that of two roundings, where the other is rounded too
    assert ((found.double() - exact).abs() <= unit * exact.abs() + 2.0**-20 * terms).all()


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
@pytest.mark.parametrize("activation", ["", "relu", "gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("shape", [(1, 8), (37, 24), (2, 50, 136), (300, 520)], ids=str)
def test_gradient_and_sums_beside_float64(shape, activation, dtype):
    dy, x = random(*shape, dtype=dtype), random(*shape, seed=1, dtype=dtype)
    given = x if activation else None
    dx, sums = dropped_sums.backward(dy, given, SEED, P, activation)
    # The same bits as without sums, so that all that was shown of these holds.
    assert torch.equal(dx, dropped.backward(dy, given, SEED, P, activation))
    leaf = x.double().requires_grad_()
    if activation:
        y = reference(leaf, activation, P, SEED)
    else:
        y = leaf * scale(P) * kept_elements(shape, P, SEED)
    (exact,) = torch.autograd.grad(y, leaf, dy.double())
    near(sums, exact.reshape(-1, shape[-1]).sum(0), terms=dx.numel() // shape[-1])


def of_norm(rows, n_cols, dtype, added=True):
    """Dy, dh, h, weight and bias, mean and inv_std of h's rows."""
    dy, dh, h = (random(rows, n_cols, seed=n, dtype=dtype) for n in range(3))
    weight, bias = (random(n_cols, seed=n, dtype=dtype) for n in (3, 4))
    mean = h.float().mean(-1)
    inv_std = torch.rsqrt(h.float().var(-1, unbiased=False) + 1e-5)
    return dy, dh if added else None, h, weight, bias, mean, inv_std


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(("rows", "n_cols"), [(1, 16), (300, 24), (13, 1000), (101, 264)])
def test_through_a_norm_it_is_what_launches_of_their_own_give(rows, n_cols, added, dtype):
    given = of_norm(rows, n_cols, dtype, added)
    through, dweight, dbias = norm_backward(*given, wants_weight=True, wants_bias=True)
    found = dropped_sums.norm_backward(*given, SEED, P)
    # What is dropped is what was written.
    assert torch.equal(found[1], dropped.backward(found[0], None, SEED, P, ""))
    near(found[0], through.double())
    for one, other in zip(found[2:4], (dweight, dbias), strict=True):
        near(one, other.double(), terms=4 * rows)
    dx = found[0].double() * scale(P) * kept_elements((rows, n_cols), P, SEED)
    near(found[4], dx.sum(0), terms=rows)
    known = stochastic.sums_for(n_cols)
    for _ in range(2):
        with interpreting() as launches:
            by_atomics = dropped_sums.norm_backward(*given, SEED, P, known)
        assert [launch.name for launch in launches] == ["dropped_norm_backward_sums"]
        assert all(map(torch.equal, found[:2], by_atomics[:2]))
        for one, other in zip(by_atomics[2:], found[2:], strict=True):
            near(one, other.double(), terms=4 * rows)
        assert not known.any()


@pytest.mark.parametrize("shape", [(0, 16), (3, 0, 16)], ids=str)
def test_no_rows_have_sums_of_zero(shape):
    none, mean = torch.empty(shape), torch.empty(0)
    dx, sums = dropped_sums.backward(none, None, SEED, P, "")
    assert dx.shape == none.shape
    assert torch.equal(sums, torch.zeros(16))
    weight = torch.ones(16)
    found = dropped_sums.norm_backward(none, none, none, weight, weight, mean, mean, SEED, P)
    assert all(torch.equal(one, torch.zeros(16)) for one in found[2:])


@pytest.mark.parametrize("operator", ["element", "normed"])
def test_every_way_to_an_operator_gives_the_same(operator):
    """Several gradients at once go by PyTorch's operators, a compiler by what shapes come out."""
    if operator == "element":
        call, rest = summed.back_with_sums, (random(5, 24, seed=1), SEED, P, "gelu_tanh")
    else:
        call, rest = summed.normed_back_with_sums, (*of_norm(5, 24, FP32)[1:], SEED, P, None)
    several = random(2, 5, 24, seed=7)
    batched = torch.func.vmap(lambda dy: call(dy, *rest))(several)
    for n, dy in enumerate(several):
        alone = call(dy, *rest)
        for one, of_all in zip(alone, batched, strict=True):
            torch.testing.assert_close(of_all[n], one, atol=1e-5, rtol=1e-5)
        torch.library.opcheck(
            call.operator, (dy, *rest), test_utils=("test_schema", "test_faketensor")
        )


# ------------------------------------------------------------------------------------- in a layer


@pytest.fixture
def joins(monkeypatch):
    """Steps join on a CPU too."""
    monkeypatch.setattr(joined, "joins", lambda x: needs_gradient(x) and _ordinary())


def parameters(k, n, dtype=FP32):
    """A product's weight and bias, leaves."""
    weight, bias = random(n, k, seed=5) * k**-0.5, random(n, seed=6)
    return Product(weight.to(dtype).requires_grad_(), bias.to(dtype).requires_grad_())


def norm_of(n, **frozen):
    weight, bias = (1 + 0.2 * random(n, seed=one) for one in (8, 9))
    asks = {name: name not in frozen for name in ("weight", "bias")}
    return Norm(
        weight.requires_grad_(asks["weight"]),
        bias.requires_grad_(asks["bias"]),
        1e-5,
    )


def ways(product, residual, norm=None):
    """What may stand behind a product, by name: the sum or tuple of what it returns."""
    dropped_by = Dropped(P, SEED)
    return {
        "added": lambda x: steps.added(x, product, residual, dropped_by),
        "activated": lambda x: steps.activated(x, product, "gelu_erf", dropped_by),
        "normed": lambda x: torch.cat(
            steps.added_and_normed(x, product, residual, norm, dropped_by)
        ),
        "sum alone": lambda x: steps.added_and_normed(x, product, residual, norm, dropped_by)[1],
        "norm alone": lambda x: steps.added_and_normed(x, product, residual, norm, dropped_by)[0],
    }


def gradients(way, frozen=(), n_cols=24):
    product, residual = parameters(16, n_cols), random(6, n_cols, seed=2).requires_grad_()
    norm, x = norm_of(n_cols, **dict.fromkeys(frozen, True)), random(6, 16).requires_grad_()
    y = ways(product, residual, norm)[way](x)
    leaves = [x, *product, residual, *(one for one in norm[:2] if one.requires_grad)]
    with interpreting() as launches:
        found = torch.autograd.grad(y, leaves, random(*y.shape, seed=3), allow_unused=True)
    return found, [launch.name for launch in launches]


WAYS = ("added", "activated", "normed", "sum alone", "norm alone")


@pytest.mark.parametrize("frozen", [(), ("weight",), ("weight", "bias")], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_steps_gradients_are_those_of_its_operations(way, frozen, joins, monkeypatch):
    together, names = gradients(way, frozen)
    assert "add_parts" in names
    monkeypatch.setattr(joined, "joins", lambda _x: False)
    apart, names_apart = gradients(way, frozen)
    assert "add_parts" not in names_apart
    for one, other in zip(together, apart, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


def test_a_norm_goes_back_in_one_launch_with_its_dropout(joins):
    _, names = gradients("normed")
    assert [one for one in names if "norm" in one or "parts" in one] == [
        "dropped_norm_backward_sums",
        "add_parts",
    ]


def test_rows_without_whole_calls_of_random_numbers_are_left_to_the_operations(joins):
    _, names = gradients("added", n_cols=20)
    assert "add_parts" not in names
    assert "dropped_backward_tile" in names


def test_a_bias_that_asks_for_no_gradient_costs_no_sums(joins):
    product = parameters(16, 24)
    product.bias.requires_grad_(False)
    y = ways(product, random(6, 24))["added"](random(6, 16).requires_grad_())
    with interpreting() as launches:
        torch.autograd.grad(y.sum(), product.weight)
    names = {launch.name for launch in launches}
    assert not names & {"dropped_backward_sums", "add_parts"}


def test_a_second_derivative_is_refused_in_one_sentence(joins):
    product, x = parameters(16, 24), random(6, 16).requires_grad_()
    y = ways(product, random(6, 24))["added"](x)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative here"):
        torch.autograd.grad(dx.sum(), x)


@pytest.mark.parametrize(
    ("card", "dtype"), [*((card, FP16 if card == 75 else BF16) for card in TARGETS), (90, FP32)]
)
def test_it_compiles_for_every_card_without_a_spill(card, dtype):
    """No registered operation launches these where there is no GPU."""
    with assume_capability(card), recording() as launches:
        for n_cols, activation in ((3072, "gelu_erf"), (4096, "gelu_tanh"), (1000, "")):
            dy = torch.empty(4096, n_cols, dtype=dtype)
            dropped_sums.backward(dy, dy if activation else None, SEED, 0.1, activation)
        for n_cols in (768, 1024, dropped_sums.WIDEST):
            for known in (None, stochastic.sums_for(n_cols)):
                dropped_sums.norm_backward(*of_norm(4096, n_cols, dtype), SEED, 0.1, known)
    assert {launch.name for launch in launches} == {
        *("dropped_backward_sums", "dropped_norm_backward_sums", "add_parts")
    }
    for launch in launches:
        assert_sound(launch, card)
