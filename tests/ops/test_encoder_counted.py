"""What the encoder layer launches and keeps, counted with no GPU, beside PyTorch's."""

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.lab.counting import aten, traffic
from kernels.lab.counting.alive import Alive
from kernels.launch import assume_capability
from kernels.ops.epilogues import linear_bias_residual
from kernels.ops.layers import steps
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.replayed import ReplayedEncoder
from kernels.ops.layers.workspace import lifetimes, workspace_bytes
from kernels.ops.products import linear
from kernels.ops.products.configurations import BY_TORCH
from kernels.ops.prologues import ways
from kernels.ops.prologues.folding import Folded

BATCH, LENGTH, WIDTH, HEADS, INNER = 2, 6, 16, 2, 24
BF16 = torch.bfloat16
X = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0)).to(BF16)


def made(kind=FusedEncoderLayer, **changes):
    torch.manual_seed(0)
    told = {"dropout": 0.1, "activation": "gelu", "batch_first": True, "dtype": BF16, **changes}
    return kind(WIDTH, HEADS, INNER, **told)


def names(ledger):
    return [step.name for step in ledger.steps]


PRODUCT, GIVEN = "linear_tile", "epilogue_tile"
PRE = ["norm_row", PRODUCT, "attention_forward", GIVEN, "norm_row", GIVEN, GIVEN]
FOLDED = ["folded_tile", "attention_forward", GIVEN, "folded_tile", GIVEN]
POST = [PRODUCT, "attention_forward", GIVEN, "norm_row", GIVEN, GIVEN, "norm_row"]
TRAINED = [PRODUCT, "attention_forward", PRODUCT, "dropped_norm_row", PRODUCT, "dropped_tile"]
TRAINED_PRE = ["randint", "norm_row", *TRAINED, PRODUCT, "dropped_tile"]
TRAINED_POST = ["randint", *TRAINED, PRODUCT, "dropped_norm_row"]
ADDED = ["addmm", "add"]
PRE_BY_TORCH = ["norm_row", "attention_forward", *ADDED, "norm_row", "dropped_tile", *ADDED]
POST_BY_TORCH = [
    *("addmm", "attention_forward", *ADDED, "norm_row"),
    *("addmm", "dropped_tile", *ADDED, "norm_row"),
]
TRAINED_BY_TORCH = [
    *("attention_forward", "addmm", "dropped_norm_row", "addmm", "dropped_tile", "addmm")
]
TRAINED_PRE_BY_TORCH = ["randint", "norm_row", *TRAINED_BY_TORCH, "dropped_tile"]
TRAINED_POST_BY_TORCH = ["randint", "addmm", *TRAINED_BY_TORCH, "dropped_norm_row"]


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_the_launches_of_inference(norm_first):
    ours, theirs = (
        aten.count(made(kind, norm_first=norm_first).eval(), X)
        for kind in (FusedEncoderLayer, nn.TransformerEncoderLayer)
    )
    assert names(ours) == (PRE if norm_first else POST)
    assert ours.aten_ops == 0
    assert ours.launches <= 8 < theirs.aten_ops


def test_on_hopper_both_norms_go_into_their_products(monkeypatch):
    """Where `folds` says so, which `test_prologues` holds; its kernel in Triton stands in."""
    monkeypatch.setattr(ways, "folds", lambda *_: True)
    layer = made(norm_first=True).eval().requires_grad_(False)
    found = traffic.count(layer, X)
    assert names(found) == FOLDED
    assert len(FOLDED) == 5
    sizes = {one.tensor: one.unique for one in found.steps[3].tensors}
    assert sizes["x"] == X.nbytes  # what it normalises is h itself
    assert sizes["y"] == OF_MLP
    monkeypatch.undo()
    assert apart_folded(layer, X) <= 2.0**-7


def apart_folded(layer, x):
    """How far two ways of one layer are apart: folded, in this package's kernels, and not."""
    with torch.no_grad():
        plain = layer(x).double()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ways, "folds", lambda *_: True)
            return float((layer(x).double() - plain).norm() / plain.norm())


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_where_products_are_pytorchs_inference_takes_ten(norm_first, monkeypatch):
    for place in (linear, linear_bias_residual, steps):
        monkeypatch.setattr(place, "ways", lambda _: BY_TORCH)
    with assume_capability(75):
        layer = made(norm_first=norm_first)
        inference = names(aten.count(layer.eval(), X))
        training = names(aten.count_training(layer.train(), X)[0])
    assert inference == (PRE_BY_TORCH if norm_first else POST_BY_TORCH)
    assert training == (TRAINED_PRE_BY_TORCH if norm_first else TRAINED_POST_BY_TORCH)
    # The product of an operator that begins with a norm is PyTorch's, and no ledger sees it.
    assert len(inference) + 2 * norm_first == 10
    assert len(training) + norm_first == (10 if norm_first else 9)


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_the_launches_of_training(norm_first):
    (forward, back), (theirs, theirs_back) = (
        aten.count_training(made(kind, norm_first=norm_first), X)
        for kind in (FusedEncoderLayer, nn.TransformerEncoderLayer)
    )
    assert names(forward) == (TRAINED_PRE if norm_first else TRAINED_POST)
    assert len(forward.steps) <= 10 < len(theirs.steps)
    assert len(back.steps) < len(theirs_back.steps)
    assert names(back).count("stack") == 1  # the gradients of q, k and v, for one product back
    # Post-LN h goes into the MLP and past it: autograd adds the two gradients.
    more = ["stack"] if norm_first else ["add", "stack"]
    assert [s.name for s in back.steps if s.kind == "aten"] == more


def test_a_stack_draws_its_seeds_once():
    stack = FusedEncoder(made(norm_first=True), 2, nn.LayerNorm(WIDTH, dtype=BF16))
    with torch.enable_grad():
        forward, _ = aten.count_training(stack, X)
    assert names(forward) == [*TRAINED_PRE, *TRAINED_PRE[1:], "norm_row"]


# ------------------------------------------------------------------------------------------- kept


def faked(module, mode):
    """The module with a fake of each parameter in its place."""
    for one in module.modules():
        for name, value in one._parameters.items():
            fake = None if value is None else mode.from_tensor(value)
            one._parameters[name] = fake
    return module


def trained(x, **changes):
    """The gradients of x and of all parameters, the masks the same in every call."""
    layer, leaf = made(**changes), x.detach().requires_grad_()
    torch.manual_seed(3)
    y = layer(leaf)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return torch.autograd.grad(y, (leaf, *layer.parameters()), dy)


def held(size=X.shape, **changes):
    """The bytes alive behind a forward in training, the output's with them; on fake tensors."""
    with FakeTensorMode():
        layer, x = made(**changes), torch.empty(size, dtype=BF16, requires_grad=True)
        with Alive(list(layer.parameters()), x) as alive:
            y = layer(x)
            now = alive.now
            y.sum().backward()
            del y
        gradients = sum(one.grad.nbytes for one in (x, *layer.parameters()))
    assert alive.now == gradients  # what was made again is gone, and all that was kept
    return now


OF_MLP, OF_ATTENTION = X.nbytes // WIDTH * INNER, X.nbytes
OF_NORM = X.nbytes
FLAGS = {
    ("gelu_checkpoint",): OF_MLP,
    ("attn_dropout_checkpoint",): OF_ATTENTION,
    ("norm_checkpoint",): OF_NORM,
    ("gelu_checkpoint", "attn_dropout_checkpoint"): OF_MLP + OF_ATTENTION,
    ("gelu_checkpoint", "attn_dropout_checkpoint", "norm_checkpoint"): (
        OF_MLP + OF_ATTENTION + OF_NORM
    ),
}


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("p", [0.1, 0.0])
def test_what_the_flags_spare_to_the_byte(norm_first, p):
    whole = held(norm_first=norm_first, dropout=p)
    for flags, less in FLAGS.items():
        now = held(norm_first=norm_first, dropout=p, **dict.fromkeys(flags, True))
        if "norm_checkpoint" in flags and norm_first and p == 0:
            less -= OF_NORM  # a prologue, whose output is kept in no case
        assert whole - now == less, flags


def test_what_is_kept_by_formula():
    """In tokens of WIDTH: pre-LN with dropout x̂'s input is x itself, which the caller has."""
    rows = {"qkv": 3, "o": 1, "h": 1, "LayerNorm(h)": 1, "y": 1}
    statistics = BATCH * LENGTH * 4 * (HEADS + 2)  # attention's log-sum-exp, the second norm's two
    seeds = 4 * 2 * 8
    wanted = sum(rows.values()) * X.nbytes + 2 * OF_MLP + statistics + seeds
    assert held(norm_first=True) == wanted
    # Without dropout the second norm is a prologue too: what it gave is made again, and no number
    # of its rows is kept. Log-sum-exp stays.
    less = X.nbytes + 2 * BATCH * LENGTH * 4 + seeds
    assert held(norm_first=True, dropout=0.0) == wanted - less


def peak_of_a_step(n_layers=1, **changes):
    """The most bytes alive in a training step of a stack, beside x, dy, parameters, gradients."""
    real = FusedEncoder(made(**changes), n_layers)
    with FakeTensorMode() as mode:
        stack = faked(real, mode)
        x = torch.empty(8, 64, WIDTH, dtype=BF16, requires_grad=True)
        dy = torch.empty_like(x)
        with Alive(list(stack.parameters()), x, dy) as alive:
            stack(x).backward(dy)
        gradients = sum(one.grad.nbytes for one in (x, *stack.parameters()))
    return alive.peak - gradients


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_gelu_checkpoint_lowers_the_peak_of_a_step_by_what_it_spares(norm_first):
    """Of one layer too: what is made again is gone when its gradient comes."""
    of_mlp, flag = 8 * 64 * INNER * 2, {"gelu_checkpoint": True, "norm_first": norm_first}
    for n_layers in (1, 2, 4):
        spared = peak_of_a_step(n_layers, norm_first=norm_first) - peak_of_a_step(n_layers, **flag)
        assert spared == n_layers * of_mlp, n_layers


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_the_same_bits_come_back_with_all_flags(norm_first):
    flags = {"gelu_checkpoint": True, "attn_dropout_checkpoint": True, "norm_checkpoint": True}
    told = {"norm_first": norm_first}
    for one, other in zip(trained(X, **told), trained(X, **told, **flags), strict=True):
        assert torch.equal(one, other)


def test_a_backward_that_runs_twice_gives_the_same_bits():
    layer = made(gelu_checkpoint=True, attn_dropout_checkpoint=True, norm_checkpoint=True)
    x = X.detach().requires_grad_()
    y = layer(x)
    dy = torch.ones_like(y)
    first = torch.autograd.grad(y, (x, *layer.parameters()), dy, retain_graph=True)
    again = torch.autograd.grad(y, (x, *layer.parameters()), dy)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


# -------------------------------------------------------------------------------------- workspace


def peak(encoder, batch=BATCH, length=LENGTH):
    """The most bytes alive in inference, counted on fake tensors; its input is not among them."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fake = faked(copy.deepcopy(encoder), mode).eval()
        x = torch.empty(batch, length, WIDTH, dtype=BF16)
        with Alive(list(fake.parameters()), x) as alive:
            y = fake(x)
        assert alive.now == y.nbytes
    return alive.peak


@pytest.mark.parametrize("kind", ["pre", "post", "pre, folded"])
@pytest.mark.parametrize("inner", [8, INNER, 64])
def test_the_workspace_is_what_is_alive_at_most(kind, inner, monkeypatch):
    torch.manual_seed(0)
    norm_first = kind != "post"
    told = {"batch_first": True, "norm_first": norm_first, "activation": "gelu", "dtype": BF16}
    layer = FusedEncoderLayer(WIDTH, HEADS, inner, **told)
    if kind == "pre, folded":  # the folded weights, which are parameters' copies, are no workspace
        monkeypatch.setattr(ways, "folds", lambda *_: True)
        hollow = {n: torch.empty(n, WIDTH, dtype=BF16) for n in (3 * WIDTH, inner)}
        added = torch.empty(1)
        by_hand = lambda _w, _b, weight, *_: Folded(hollow[len(weight)], added, added)  # noqa: E731
        monkeypatch.setattr(ways, "kept_fold", by_hand)
    tokens = BATCH * LENGTH * 2
    behind = (2 if norm_first else 3) * WIDTH + inner
    most = max(4 * WIDTH, behind) * tokens
    # Beside its output the operator of attention returns one fp32 in place of the log-sum-exp.
    absent = 4 if behind < 4 * WIDTH else 0
    assert workspace_bytes(layer, BATCH, LENGTH, 2, grain=1) == most
    assert peak(layer) == most + absent
    for norm in (None, nn.LayerNorm(WIDTH, dtype=BF16)):
        stack = FusedEncoder(layer, 3, norm)
        assert peak(stack) == workspace_bytes(stack, BATCH, LENGTH, 2, grain=1) + absent
        assert workspace_bytes(stack, BATCH, LENGTH, 2) % 512 == 0


def test_a_norm_that_is_folded_leaves_no_tensor_and_the_most_is_the_same():
    layer = made(norm_first=True)
    whole, folded = (lifetimes(layer, folded=one) for one in (False, True))
    assert len(whole) == len(PRE) - 1  # LN + QKV is told as one step
    assert len(folded) == len(FOLDED)
    assert not any("LayerNorm" in name for step in folded for name in step.tensors)
    most = [max(sum(step.tensors.values()) for step in told) for told in (whole, folded)]
    assert most[0] == most[1]
    post = made(norm_first=False)
    assert lifetimes(post) == lifetimes(post, folded=True)


def test_replayed_it_gives_what_the_encoder_gives_and_refuses_what_it_cannot():
    layer = made(norm_first=True).eval()
    ready = ReplayedEncoder(layer)
    hidden = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    hidden[0, 4:] = True
    ready.prepare(X)
    ready.prepare(X, src_key_padding_mask=hidden)
    assert ready.bytes_set_aside == workspace_bytes(layer, BATCH, LENGTH, 2)
    with torch.no_grad():
        for x in (X, X.flip(0)):
            assert torch.equal(ready(x), layer(x))
            told = {"src_key_padding_mask": ~hidden}
            assert torch.equal(ready(x, **told), layer(x, **told))
    with pytest.raises(ValueError, match=r"src of shape \(1, 6, 16\) .* is not prepared; call pre"):
        ready(X[:1])
    with pytest.raises(ValueError, match="with these masks is not prepared"):
        ready(X, mask=torch.zeros(LENGTH, LENGTH))
    with pytest.raises(ValueError, match=r"the workspace has \d+ bytes; src of shape \(4, 6, 16\)"):
        ready.prepare(torch.cat([X, X]))
    with pytest.raises(ValueError, match="encoder is in training"):
        ReplayedEncoder(made())
    with pytest.raises(TypeError, match="encoder is a Linear; it takes a FusedEncoder"):
        ReplayedEncoder(nn.Linear(2, 2))
