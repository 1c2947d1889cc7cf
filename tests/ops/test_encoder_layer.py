"""The fused encoder layer: against PyTorch's in float64, its masks, its names, and what it refuses.

Sizes are small: every launch is interpreted.
"""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernels.ops.layers.by_operators import by_operators
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import N_DROPOUTS, FusedEncoderLayer

BATCH, LENGTH, WIDTH, HEADS, INNER = 2, 6, 16, 2, 24
FP32_FLOOR = 2.0**-20
TANH = nn.GELU("tanh")


def made(kind=FusedEncoderLayer, seed=0, **changes):
    """A layer whose parameters are all away from where they begin: no bias 0, no weight 1."""
    torch.manual_seed(seed)
    told = {"dropout": 0.0, "activation": "gelu", "batch_first": True, **changes}
    layer = kind(WIDTH, HEADS, INNER, **told)
    with torch.no_grad():
        for one in layer.parameters():
            one.add_(torch.randn_like(one) * 0.2)
    return layer


def random(*shape, dtype=torch.float32, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def some(*shape, seed=2):
    """A bool mask that hides a third, and never all of a row."""
    hidden = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.35
    hidden[..., 0] = False
    return hidden


def masks(kind):
    """The masks of a call by the name of their kind."""
    whole = (BATCH * HEADS, LENGTH, LENGTH)
    return {
        "none": {},
        "causal": {
            "src_mask": nn.Transformer.generate_square_subsequent_mask(LENGTH),
            "is_causal": True,
        },
        "padding": {"src_key_padding_mask": some(BATCH, LENGTH)},
        "bool": {"src_mask": some(LENGTH, LENGTH)},
        "bool of heads": {"src_mask": some(*whole)},
        "number": {"src_mask": random(LENGTH, LENGTH)},
        "numbers": {
            "src_mask": random(*whole),
            "src_key_padding_mask": random(BATCH, LENGTH, seed=5),
        },
        "bool and padding": {
            "src_mask": some(LENGTH, LENGTH),
            "src_key_padding_mask": some(BATCH, LENGTH, seed=6),
        },
        "bool and number": {
            "src_mask": some(LENGTH, LENGTH),
            "src_key_padding_mask": random(BATCH, LENGTH, seed=5),
        },
    }[kind]


def hidden_by(told):
    """What the masks of a call add to the scores: float64, (B, H, S, S) or spreading to it."""

    def number(mask):
        if mask.dtype == torch.bool:
            return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -torch.inf)
        return mask.double()

    total = torch.zeros(1, 1, LENGTH, LENGTH, dtype=torch.float64)
    if "src_mask" in told:
        of = number(told["src_mask"])
        total = total + (of.view(BATCH, HEADS, LENGTH, LENGTH) if of.dim() == 3 else of)
    if "src_key_padding_mask" in told:
        total = total + number(told["src_key_padding_mask"])[:, None, None, :]
    return total


def seeds_of(seed):
    """The seeds that the layer draws after `torch.manual_seed(seed)`."""
    torch.manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (N_DROPOUTS, 2), dtype=torch.int64)


def off(got, exact):
    return float((got.detach().double() - exact).norm() / exact.norm())


def both_ways(layer, call, x, dy):
    """The output of `call(x)`, and the gradients of x and of all parameters."""
    leaf = x.detach().requires_grad_()
    y = call(leaf)
    return y.detach(), *torch.autograd.grad(y, (leaf, *layer.parameters()), dy)


FLAGS = {"gelu_checkpoint": True, "attn_dropout_checkpoint": True, "norm_checkpoint": True}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = [  # pre-LN, activation, dtype, masks, dropout
    (True, "gelu", BF16, "none", 0.0),
    (True, TANH, FP16, "padding", 0.0),
    (True, "relu", FP32, "bool", 0.0),
    (False, "gelu", FP16, "causal", 0.0),
    (False, TANH, FP32, "number", 0.0),
    (False, "relu", BF16, "bool and padding", 0.0),
    (True, "gelu", FP16, "numbers", 0.3),
    (True, "relu", BF16, "causal", 0.3),
    (False, TANH, BF16, "padding", 0.3),
    (False, "gelu", FP32, "bool of heads", 0.3),
]


def exact_and_near(layer, x, dy, told, seed):
    """Output and gradients in float64, and by PyTorch's operators in the layer's own dtype."""
    hidden, seeds = hidden_by(told), seeds_of(seed)
    wide = copy.deepcopy(layer).double()
    return (
        both_ways(wide, lambda u: by_operators(wide, u, seeds, hidden), x.double(), dy.double()),
        both_ways(layer, lambda u: by_operators(layer, u, seeds, hidden), x, dy),
    )


@pytest.mark.parametrize(("norm_first", "activation", "dtype", "kind", "p"), CASES, ids=str)
def test_outputs_and_gradients_are_as_near_as_pytorchs(norm_first, activation, dtype, kind, p):
    flags = FLAGS if kind in ("causal", "number") else {}
    layer = made(norm_first=norm_first, activation=activation, dropout=p, **flags).to(dtype)
    x = random(BATCH, LENGTH, WIDTH, dtype=dtype)
    dy = random(BATCH, LENGTH, WIDTH, dtype=dtype, seed=3)
    told = masks(kind)
    exact, near = exact_and_near(layer, x, dy, told, seed=9)
    torch.manual_seed(9)
    ours = both_ways(layer, lambda u: layer(u, **told), x, dy)
    names = ("y", "x", *dict(layer.named_parameters()))
    for name, one, other, truth in zip(names, ours, near, exact, strict=True):
        assert one.dtype == dtype, name
        assert off(one, truth) <= 2 * off(other, truth) + FP32_FLOOR, name


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu", TANH], ids=str)
def test_the_reference_is_pytorchs_layer(norm_first, activation):
    told = {"norm_first": norm_first, "activation": activation}
    theirs = made(nn.TransformerEncoderLayer, **told).double()
    x, call = random(BATCH, LENGTH, WIDTH).double(), masks("bool and padding")
    ours = by_operators(theirs, x, seeds_of(0), hidden_by(call))
    torch.testing.assert_close(theirs(x, **call), ours)


MASKS = ("none", "causal", "padding", "bool", "bool of heads", "number", "numbers")


@pytest.mark.parametrize("kind", [*MASKS, "bool and padding", "bool and number"])
def test_every_mask_is_pytorchs_in_inference(kind, monkeypatch):
    # On a CPU its fast path takes GELU in the form with the error function, whatever it was told.
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    norm_first = len(kind) % 2 == 0
    told = {"norm_first": norm_first, "activation": TANH, "batch_first": norm_first}
    ours, theirs = made(**told).eval(), made(nn.TransformerEncoderLayer, **told).eval()
    shape = (BATCH, LENGTH) if norm_first else (LENGTH, BATCH)
    x = random(*shape, WIDTH)
    with torch.no_grad():
        y = ours(x, **masks(kind))
        torch.testing.assert_close(y, theirs(x, **masks(kind)), rtol=1e-5, atol=1e-5)


def test_causal_takes_no_mask_where_pytorch_wants_one():
    layer, x = made().eval(), random(BATCH, LENGTH, WIDTH)
    with torch.no_grad():
        assert torch.equal(layer(x, is_causal=True), layer(x, **masks("causal")))


def test_unbatched():
    layer, theirs = made().eval(), made(nn.TransformerEncoderLayer).eval()
    x, padding = random(LENGTH, WIDTH), some(LENGTH)
    with torch.no_grad():
        y = layer(x, src_key_padding_mask=padding)
        torch.testing.assert_close(y, theirs(x, src_key_padding_mask=padding), rtol=1e-5, atol=1e-5)
        whole = layer(x[None], src_key_padding_mask=padding[None])
    assert torch.equal(y, whole[0])


def test_nothing_is_dropped_in_inference_and_no_two_calls_drop_the_same():
    layer, plain = made(dropout=0.5), made()
    x = random(BATCH, LENGTH, WIDTH)
    with torch.no_grad():
        assert torch.equal(layer.eval()(x), plain(x))
        layer.train()
        first, second = layer(x), layer(x)
        assert not torch.equal(first, second)
        torch.manual_seed(4)
        again = layer(x)
        torch.manual_seed(4)
        assert torch.equal(layer(x), again)


def test_a_query_that_sees_no_key_has_zeros_for_attention():
    layer, x = made(norm_first=True).eval(), random(1, LENGTH, WIDTH)
    with torch.no_grad():
        y = layer(x, src_key_padding_mask=torch.ones(1, LENGTH, dtype=torch.bool))
        layer.self_attn.in_proj_weight[2 * WIDTH :] = 0
        layer.self_attn.in_proj_bias[2 * WIDTH :] = 0
        torch.testing.assert_close(y, layer(x))


# ----------------------------------------------------------------------------- a drop-in's duties


def test_names_and_initial_values_are_pytorchs_and_states_go_either_way():
    told = {"dropout": 0.1, "norm_first": True, "bias": False}
    torch.manual_seed(5)
    ours = FusedEncoderLayer(WIDTH, HEADS, INNER, **told)
    torch.manual_seed(5)
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, **told)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)
    moved = made(nn.TransformerEncoderLayer, seed=6, norm_first=True, bias=False)
    ours.load_state_dict(moved.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = random(LENGTH, BATCH, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-5, atol=1e-5)


def test_copies_saved_layers_and_other_dtypes():
    layer, x = made(activation=TANH).eval(), random(BATCH, LENGTH, WIDTH)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    with torch.no_grad():
        y = layer(x)
        assert torch.equal(copy.deepcopy(layer)(x), y)
        assert torch.equal(torch.load(file, weights_only=False)(x), y)
        half = copy.deepcopy(layer).to(BF16)(x.bfloat16())
    assert half.dtype == BF16
    assert off(half, y.double()) < 2.0**-6


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_compiled_whole(p):
    layer = made(dropout=p, norm_first=True, **(FLAGS if p else {}))
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, dy = random(BATCH, LENGTH, WIDTH), random(BATCH, LENGTH, WIDTH, seed=3)
    found = []
    for call in (layer, whole):
        torch.manual_seed(2)
        found.append(both_ways(layer, call, x, dy))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_checkpointed_it_draws_the_same_masks_again():
    layer = made(dropout=0.4)
    x, dy = random(BATCH, LENGTH, WIDTH), random(BATCH, LENGTH, WIDTH, seed=3)
    torch.manual_seed(7)
    wanted = both_ways(layer, layer, x, dy)
    torch.manual_seed(7)
    got = both_ways(layer, lambda u: checkpoint(layer, u, use_reentrant=False), x, dy)
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one, other)


def test_inside_autocast_the_result_is_of_srcs_dtype():
    layer, x = made(norm_first=True), random(BATCH, LENGTH, WIDTH)
    with torch.autocast("cpu", dtype=BF16):
        y = layer(x)
    assert y.dtype == FP32
    y.sum().backward()
    assert all(one.grad.dtype == FP32 for one in layer.parameters())
    with torch.no_grad():
        assert off(y, layer(x).double()) < 2.0**-6


def test_a_stack_of_copies_is_pytorchs():
    ours = FusedEncoder(made(batch_first=False), 2, nn.LayerNorm(WIDTH)).eval()
    layer = made(nn.TransformerEncoderLayer, batch_first=False)
    theirs = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH)).eval()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    other = copy.deepcopy(theirs)
    with torch.no_grad():
        for one in other.parameters():
            one.add_(torch.randn_like(one) * 0.1)
    ours.load_state_dict(other.state_dict())
    x, told = random(LENGTH, BATCH, WIDTH), masks("padding")
    with torch.no_grad():
        torch.testing.assert_close(ours(x, **told), other(x, **told), rtol=1e-5, atol=1e-5)
    assert ours.layers[0].linear1.weight is not ours.layers[1].linear1.weight


def test_inside_pytorchs_stack_no_batch_is_packed():
    with pytest.warns(UserWarning, match="activation_relu_or_gelu was not True"):
        stack = nn.TransformerEncoder(made(), 1).eval()
    x, told = random(BATCH, LENGTH, WIDTH), masks("padding")
    with torch.no_grad():
        assert torch.equal(stack(x, **told), made().eval()(x, **told))


# ------------------------------------------------------------------------------------- wrong calls


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"d_model": 15}, ValueError, "d_model is 15 and nhead 2; nhead must divide"),
        ({"d_model": 1024}, ValueError, "heads of 256 numbers at most"),
        ({"nhead": 0}, ValueError, "nhead is 0; it takes a whole number, 1 or more"),
        ({"dim_feedforward": 2.5}, ValueError, "dim_feedforward is 2.5"),
        ({"dropout": 1.5}, ValueError, "dropout is 1.5; it takes a number from 0 to 1"),
        ({"dropout": "0.1"}, ValueError, "dropout is '0.1'"),
        ({"activation": "silu"}, ValueError, "activation is 'silu'; it takes 'relu' or 'gelu'"),
        ({"activation": F.silu}, TypeError, "activation is silu; it takes 'relu'"),
    ],
)
def test_a_wrong_layer_is_told_in_a_sentence(changes, error, sentence):
    told = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": INNER, **changes}
    with pytest.raises(error, match=sentence):
        FusedEncoderLayer(**told)


GOOD = torch.zeros(BATCH, LENGTH, WIDTH)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        ({"src": [1.0]}, TypeError, "src is a list; it takes a torch.Tensor"),
        ({"src": GOOD.double()}, TypeError, "src has dtype torch.float64"),
        ({"src": GOOD[..., :8]}, ValueError, r"src has the shape \(2, 6, 8\); it takes"),
        ({"src": GOOD[None]}, ValueError, r"it takes \(batch, length, 16\) or \(length, 16\)"),
        ({"src": GOOD.half()}, TypeError, "dtype torch.float32 and x torch.float16"),
        ({"src_mask": [1]}, TypeError, "src_mask is a list"),
        ({"src_mask": torch.zeros(6, 6).long()}, TypeError, "src_mask has dtype torch.int64"),
        ({"src_mask": torch.zeros(5, 6)}, ValueError, r"it takes \(6, 6\) or \(4, 6, 6\) here"),
        (
            {"src_key_padding_mask": torch.zeros(6, 2).bool()},
            ValueError,
            r"src_key_padding_mask has the shape \(6, 2\); it takes \(2, 6\) here",
        ),
    ],
)
def test_a_wrong_call_is_told_in_a_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        made()(**{"src": GOOD, **call})


def test_a_wrong_stack_is_told_in_a_sentence():
    with pytest.raises(TypeError, match="encoder_layer is a TransformerEncoderLayer; it takes"):
        FusedEncoder(made(nn.TransformerEncoderLayer), 2)
    with pytest.raises(ValueError, match="num_layers is 0; it takes a whole number"):
        FusedEncoder(made(), 0)


def test_a_second_derivative_is_refused():
    x = random(BATCH, LENGTH, WIDTH).requires_grad_()
    (dx,) = torch.autograd.grad(made()(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        dx.sum().backward()
