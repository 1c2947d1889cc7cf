"""What surrounds an encoder layer in use: its states, DDP, one stream, a short training."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from kernels.ops.layers.by_operators import by_operators
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer, draw
from kernels.ops.layers.masks import Seen
from kernels.ops.layers.replaying import OneStream
from tests.ops.test_encoder_layer import BATCH, HEADS, INNER, LENGTH, WIDTH, made, random

# ------------------------------------------------------------------------------------------ states


def without(state, *names):
    return {name: value for name, value in state.items() if name not in names}


STATES = {
    "a shape": (
        lambda s: {**s, "linear1.weight": torch.zeros(32, 16)},
        r"'linear1.weight' has the shape \(32, 16\) in state_dict; this FusedEncoderLayer takes "
        r"\(24, 16\)$",
    ),
    "missing": (
        lambda s: without(s, "norm2.bias"),
        r"state_dict has no 'norm2.bias'; this FusedEncoderLayer takes a tensor of shape \(16,\) "
        "for it$",
    ),
    "two missing": (
        lambda s: without(s, "linear1.bias", "norm2.bias"),
        r"has no 'linear1.bias'; .* of shape \(24,\) for it, and 1 more that are missing$",
    ),
    "more": (
        lambda s: {**s, "norm3.weight": torch.zeros(16)},
        "state_dict has 'norm3.weight', which is no parameter of this FusedEncoderLayer; it takes "
        "self_attn.in_proj_weight, .*norm2.bias$",
    ),
    "of DDP": (
        lambda s: {f"module.{name}": value for name, value in s.items()},
        "has 'module.self_attn.in_proj_weight'; this FusedEncoderLayer takes its names without "
        "'module.' before them$",
    ),
    "no tensor": (
        lambda s: {**s, "linear1.bias": [0.0] * 24},
        r"'linear1.bias' is a list in state_dict; .* takes a torch.Tensor of shape \(24,\)$",
    ),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_wrong_state_is_told_in_a_sentence_and_nothing_is_loaded(kind):
    change, sentence = STATES[kind]
    layer = made()
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(RuntimeError, match=sentence):
        layer.load_state_dict(change(made(nn.TransformerEncoderLayer, seed=4).state_dict()))
    assert all(torch.equal(one, before[name]) for name, one in layer.state_dict().items())


def test_a_wrong_state_of_a_stack_names_its_layer():
    stack = FusedEncoder(made(), 2)
    state = FusedEncoder(made(), 3).state_dict()
    with pytest.raises(RuntimeError, match=r"has 'layers.2.self_attn.in_proj_weight', which is no"):
        stack.load_state_dict(state)
    with pytest.raises(
        RuntimeError, match=r"no 'layers.0.self_attn.in_proj_weight'; this FusedEnc"
    ):
        stack.load_state_dict({})
    other = FusedEncoder(FusedEncoderLayer(WIDTH, HEADS, INNER + 8), 2).state_dict()
    with pytest.raises(RuntimeError, match=r"'layers.0.linear1.weight' has the shape \(32, 16\)"):
        stack.load_state_dict(other, strict=False)
    found = stack.load_state_dict(without(state, "layers.0.norm1.bias"), strict=False)
    assert found.missing_keys == ["layers.0.norm1.bias"]


# --------------------------------------------------------------------------- what stands around it


@pytest.fixture
def one_process():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_ddp_on_one_process_gives_the_same_bits(norm_first, one_process):
    told = {"norm_first": norm_first, "dropout": 0.3, "stochastic_mode": True}
    plain, layer = made(**told), made(**told)
    both = plain, DistributedDataParallel(layer)
    x, dy = random(BATCH, LENGTH, WIDTH), random(BATCH, LENGTH, WIDTH, seed=3)
    for one in both:
        torch.manual_seed(5)
        one(x).backward(dy)
    for one, other in zip(plain.parameters(), layer.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_a_second_stream_is_refused(monkeypatch):
    one = OneStream("ReplayedEncoder")
    streams = iter((7, 7, 8))
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=next(streams))
    )
    for _ in range(2):
        one.refuse_others(torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match=r"called on another stream before.*for each stream$"):
        one.refuse_others(torch.device("cuda", 0))


# ------------------------------------------------------------------------------- a short training

WORDS, STEPS = 4, 12


class Reader(nn.Module):
    """A model of a sequence of words: each place is to tell the word at the place across.

    A quarter of the answers are chance, so that the loss never comes near 0.
    """

    def __init__(self, layers):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words, chance, through):
        x = self.words(words) + self.places.weight
        for number, layer in enumerate(self.layers):
            x = through(layer, x, number)
        answers = torch.where(chance < WORDS, chance, words.flip(1))
        return F.cross_entropy(self.head(x).flatten(0, 1), answers.flatten())


def losses(kind, through, n_steps, n_layers=1, batch=4, device="cpu", **told):
    """The loss of each step of Adam, all of it by the same numbers for every kind of layer."""
    torch.manual_seed(0)
    given = {"activation": "gelu", "batch_first": True, **told}
    layers = [kind(WIDTH, HEADS, INNER, **given) for _ in range(n_layers)]
    model = Reader(layers).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator, found = torch.Generator().manual_seed(1), []
    for step in range(n_steps):
        words = torch.randint(WORDS, (batch, LENGTH), generator=generator).to(device)
        chance = torch.randint(4 * WORDS, (batch, LENGTH), generator=generator).to(device)
        torch.manual_seed(step)
        drawn = draw(torch.device(device), n_layers)
        loss = model(
            *(words, chance),
            lambda layer, x, number: through(layer, x, drawn[number]),  # noqa: B023
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
        found.append(float(loss.detach()))
    return torch.tensor(found)


def by_masks(layer, x, seeds):
    return by_operators(layer, x, seeds)


def fused(layer, x, seeds):
    return layer.through(x, Seen(), seeds)


def as_called(layer, x, _seeds):
    return layer(x)


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_a_short_training_goes_as_pytorchs(norm_first):
    """Of a few steps; a GPU makes 200 of them, in `tests/gpu/test_encoder_gpu.py`."""
    told = {"norm_first": norm_first, "dropout": 0.0}
    ours = losses(FusedEncoderLayer, as_called, STEPS, **told)
    theirs = losses(nn.TransformerEncoderLayer, as_called, STEPS, **told)
    assert theirs[-3:].mean() < 0.98 * theirs[:3].mean()  # it learns
    assert bool(((ours / theirs - 1).abs() < 0.02).all())
    other = {**told, "norm_first": not norm_first}
    wrong = losses(nn.TransformerEncoderLayer, as_called, STEPS, **other)
    assert bool(((wrong / theirs - 1).abs() > 0.02).any())


def test_a_short_training_with_dropout_goes_as_pytorchs_with_the_same_masks():
    told = {"norm_first": True, "dropout": 0.1}
    ours = losses(FusedEncoderLayer, fused, STEPS, **told, stochastic_mode=True)
    theirs = losses(nn.TransformerEncoderLayer, by_masks, STEPS, **told)
    assert bool(((ours / theirs - 1).abs() < 0.02).all())
    other = losses(nn.TransformerEncoderLayer, by_masks, STEPS, **told | {"dropout": 0.0})
    assert not torch.allclose(other, theirs, rtol=1e-3)
