"""Steps of a layer that go back together: the gradients of the same steps one by one."""

import pytest
import torch

from kernels.launch import gluon, recording
from kernels.ops.layers import joined, steps, stochastic
from kernels.ops.layers.masks import Seen
from kernels.ops.layers.steps import Dropped
from kernels.ops.shared.operators import _ordinary, needs_gradient
from kernels.registry import DTYPES
from tests.ops.test_encoder_layer import both_ways, made

BF16 = torch.bfloat16
SEED = torch.tensor([5, 7])


def random(*shape, seed=0, dtype=BF16):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def parameters(width, wide):
    """The norm's weight and bias, and a product's."""
    norm = (1 + 0.2 * random(width, seed=1)).to(BF16), random(width, seed=2)
    return *norm, random(wide, width, seed=3) * width**-0.5, random(wide, seed=4)


def exact(given, dy, dx):
    """Gradients in float64 of LayerNorm(x) · wᵀ + b with dy, and of x with dx."""
    leaves = [one.double().requires_grad_() for one in given]
    x, norm_weight, norm_bias, weight, bias = leaves
    normed = torch.nn.functional.layer_norm(x, x.shape[-1:], norm_weight, norm_bias)
    y = normed @ weight.T + bias
    return torch.autograd.grad((y, x * 1), leaves, (dy.double(), dx.double()))


@pytest.mark.parametrize("by_atomics", [False, True])
def test_the_gradient_of_what_goes_on_meets_the_norms(by_atomics):
    x = random(2, 5, 16)
    given = [x, *parameters(16, 24)]
    dy, dx = random(2, 5, 24, seed=5), random(2, 5, 16, seed=6)
    leaves = [one.clone().requires_grad_() for one in given]
    sums = stochastic.sums_for(16) if by_atomics else None
    y, onward = joined.projected(*leaves, 1e-5, sums)
    assert torch.equal(onward, x)
    apart = steps.projected(x, steps.Norm(*given[1:3], 1e-5), steps.Product(*given[3:]))
    assert torch.equal(y, apart)
    found = torch.autograd.grad((y, onward), leaves, (dy, dx))
    for one, right in zip(found, exact(given, dy, dx), strict=True):
        assert (one.double() - right).abs().max() <= 2.0**-6 * right.abs().max()


@pytest.mark.parametrize("used", ["product", "onward"])
def test_one_of_the_two_may_not_be_used(used):
    x = random(2, 3, 16)
    leaf = x.clone().requires_grad_()
    y, onward = joined.projected(leaf, *parameters(16, 8), 1e-5)
    chosen = y if used == "product" else onward
    (found,) = torch.autograd.grad(chosen, leaf, torch.ones_like(chosen))
    if used == "onward":
        assert torch.equal(found, torch.ones_like(x))
    else:
        given = [x, *parameters(16, 8)]
        right = exact(given, torch.ones_like(y), torch.zeros_like(x))[0]
        assert (found.double() - right).abs().max() <= 2.0**-6 * right.abs().max()


@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("causal", [False, True])
def test_the_gradients_of_heads_are_written_into_rows(causal, p):
    qkv, d_rows = random(2, 6, 3 * 2 * 8), random(2, 6, 2 * 8, seed=1)
    seed = SEED if p else None
    found = []
    for way in (
        lambda leaf: joined.attended(leaf, 2, causal, p, seed),
        lambda leaf: steps.attended(leaf, 2, Seen(causal), Dropped(p, seed)),
    ):
        leaf = qkv.clone().requires_grad_()
        rows = way(leaf)
        found.append((rows, *torch.autograd.grad(rows, leaf, d_rows)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_second_derivative_is_refused_in_one_sentence():
    leaf = random(1, 4, 3 * 8).requires_grad_()
    rows = joined.attended(leaf, 1, False, 0.0, None)
    (d_leaf,) = torch.autograd.grad(rows.sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative here"):
        torch.autograd.grad(d_leaf.sum(), leaf)


@pytest.mark.skipif(gluon.no_gluon() is not None, reason="no Gluon for Hopper")
def test_on_hopper_no_launch_puts_gradients_together():
    heads, length = 4, 256
    qkv = torch.empty(2, length, 3 * heads * 64, dtype=DTYPES["bf16"])
    out = torch.empty(2, length, heads, 64, dtype=DTYPES["bf16"]).transpose(1, 2)
    lse = torch.empty(2, heads, length)
    with recording() as launches:
        found = joined.rows_back(out, out, lse, None, qkv, None, heads, False, 0.0, 0.125)
    _, dkdv, dq = launches
    assert (dkdv.name, dq.name) == ("hopper_dkdv", "hopper_dq")
    given = dkdv.arguments | dq.arguments
    written = [given[f"{name}_desc"].base for name in ("dk", "dv", "dq")]
    places = [one.data_ptr() - found.data_ptr() for one in written]
    assert places == [2 * heads * 64, 4 * heads * 64, 0]
    assert {one.stride() for one in written} == {(length * 3 * heads * 64, 64, 3 * heads * 64, 1)}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_on_hopper_attention_leaves_what_it_dropped(p, keeps):
    qkv = torch.empty(2, 256, 3 * 4 * 64, dtype=DTYPES["bf16"])
    seed = torch.zeros(2, dtype=torch.int64) if p else None
    with recording() as launches:
        *_, bits = joined.rows_forward(qkv, seed, 4, False, p, 0.125, keeps)
    (forward,) = launches
    assert forward.name == "hopper_attention"
    there = bits is not None and bits.dim() == 3
    assert there == (keeps and p > 0)
    assert (forward.arguments["bits_ptr"] is not None) == there
    if there:
        assert bits.shape == (8, 8, 256)
        assert forward.arguments["bits_ptr"].data_ptr() == bits.data_ptr()


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_every_way_to_rows_of_heads_gives_the_same(p):
    """Transforms go by PyTorch's operators, a compiler by what shapes come out."""
    several, seed = random(2, 2, 5, 3 * 2 * 8, dtype=torch.float32), SEED if p else None
    told = seed, 2, True, p, 0.3, True
    batched = torch.func.vmap(lambda qkv: joined.rows_forward(qkv, *told)[:2])(several)
    for n, qkv in enumerate(several):
        for one, of_all in zip(joined.rows_forward(qkv, *told)[:2], batched, strict=True):
            torch.testing.assert_close(of_all[n], one, atol=1e-5, rtol=1e-5)
        torch.library.opcheck(
            joined.rows_forward.operator,
            (qkv, *told),
            test_utils=("test_schema", "test_faketensor"),
        )


@pytest.fixture
def off_a_gpu(monkeypatch):
    """Steps join on a CPU too."""
    monkeypatch.setattr(joined, "joins", lambda x: needs_gradient(x) and _ordinary())


FLAGS = {
    "plain": {},
    "checkpointed": dict.fromkeys(
        ("gelu_checkpoint", "attn_dropout_checkpoint", "norm_checkpoint"), True
    ),
    "stochastic": {"stochastic_mode": True},
}


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_a_layer_has_the_gradients_that_it_has_apart(monkeypatch, norm_first, p, flags):
    layer = made(norm_first=norm_first, dropout=p, **FLAGS[flags])
    x, dy = (random(2, 5, 16, seed=n, dtype=torch.float32) for n in (1, 2))
    found = []
    for joins in (lambda _x: False, lambda x: needs_gradient(x) and _ordinary()):
        monkeypatch.setattr(joined, "joins", joins)
        torch.manual_seed(9)
        found.append(both_ways(layer, layer, x, dy))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_transforms_and_several_gradients_at_once_go_through_a_layer(off_a_gpu):
    layer = made(norm_first=True, dropout=0.0)
    x, dx = (random(1, 3, 16, seed=n, dtype=torch.float32) for n in (1, 2))

    def summed(one):
        return layer(one).square().sum()

    leaf = x.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(summed(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(summed)(x), by_autograd)
    with torch.autograd.forward_ad.dual_level():
        along = torch.autograd.forward_ad.unpack_dual(
            summed(torch.autograd.forward_ad.make_dual(x, dx))
        ).tangent
    torch.testing.assert_close(along, (by_autograd * dx).sum())
    y = layer(leaf)
    several = torch.stack([torch.ones_like(y), random(*y.shape, seed=3, dtype=y.dtype)])
    (batched,) = torch.autograd.grad(y, leaf, several, is_grads_batched=True, retain_graph=True)
    for one, dy in zip(batched, several, strict=True):
        (alone,) = torch.autograd.grad(y, leaf, dy, retain_graph=True)
        torch.testing.assert_close(one, alone)
