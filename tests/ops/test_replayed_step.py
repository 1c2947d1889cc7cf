"""A replayed step of training on a CPU: what stands for its graphs does the work again.

So the copies, the counter and what autograd is given are those of a GPU. That graphs hold the same
numbers is proved in `tests/gpu/test_replayed_step_gpu.py`.
"""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call

from kernels.launch.tape import lasting
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.prepared_step import ALIGNED, Gradients
from kernels.ops.layers.replayed_step import ReplayedStep
from tests.ops.test_encoder_layer import BATCH, LENGTH, WIDTH, made, random, some

SHAPE = BATCH, LENGTH, WIDTH


def stack(seed=0, **told):
    """Two layers, whose numbers differ, and a norm."""
    found = FusedEncoder(made(**told), 2, nn.LayerNorm(WIDTH))
    torch.manual_seed(seed)
    with torch.no_grad():
        for one in found.parameters():
            one.add_(torch.randn_like(one) * 0.1)
    return found


KINDS = {
    "pre": lambda: made(dropout=0.3, norm_first=True),
    "post": lambda: made(dropout=0.3),
    "stack": lambda: stack(dropout=0.3, norm_first=True),
    "length first": lambda: made(dropout=0.3, batch_first=False),
    "flags": lambda: made(
        dropout=0.3, gelu_checkpoint=True, attn_dropout_checkpoint=True, norm_checkpoint=True
    ),
    "stochastic": lambda: made(dropout=0.3, stochastic_mode=True),
    "bf16": lambda: made(dropout=0.3, norm_first=True).bfloat16(),
    "two dtypes": lambda: with_wide_norms(made(dropout=0.3)),
    "no dropout": lambda: made(norm_first=True),
    "no bias": lambda: made(dropout=0.3, bias=False),
}


def with_wide_norms(layer):
    layer.bfloat16()
    layer.norm1.float()
    return layer


def dtype_of(encoder):
    return next(encoder.parameters()).dtype


def inputs(encoder, seed=1, wants=True):
    """src and dy."""
    dtype = dtype_of(encoder)
    x, dy = (random(*SHAPE, dtype=dtype, seed=one) for one in (seed, seed + 1))
    return x.requires_grad_(wants), dy


def ready_of(encoder, *told, **more):
    step = ReplayedStep(encoder)
    x, dy = inputs(encoder)
    step.prepare(x, *told, **more)
    return step, x, dy


def with_gradients(call, parameters, x, dy, seed):
    """y of `call(x)` by masks of this seed, and the gradients of x and of the parameters."""
    leaf = x.detach().requires_grad_(x.requires_grad)
    torch.manual_seed(seed)
    y = call(leaf)
    wanted = [one for one in (leaf, *parameters) if one.requires_grad]
    return y.detach(), *torch.autograd.grad(y, wanted, dy)


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


# ------------------------------------------------------------------------------------ as the layer


@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_the_bits_of_the_encoder_in_every_call(kind):
    encoder = KINDS[kind]()
    step, parameters = ReplayedStep(encoder), list(encoder.parameters())
    before = [one.clone() for one in (*parameters, *encoder.buffers())]
    drawn = torch.get_rng_state()
    step.prepare(inputs(encoder)[0])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert equal(before, [*parameters, *encoder.buffers()])
    assert all(one.grad is None for one in parameters)
    found = []
    for seed in (3, 4):
        x, dy = inputs(encoder, seed)
        ours = with_gradients(step, parameters, x, dy, seed)
        assert equal(ours, with_gradients(encoder, parameters, x, dy, seed)), seed
        found.append((ours, [one.clone() for one in ours]))
    for shown, kept in found:  # nothing that was handed out was written over
        assert equal(shown, kept)
    assert not torch.equal(found[0][0][0], found[1][0][0])


def test_each_call_draws_other_masks():
    step, x, _ = ready_of(made(dropout=0.5))
    first, second = step(x), step(x)
    assert not torch.equal(first, second)


def test_masks_are_copied_in_and_stand_by_shape():
    layer = made(norm_first=True)
    step, x, dy = ready_of(layer)
    hidden, number = some(BATCH, LENGTH), random(LENGTH, LENGTH, seed=5)
    step.prepare(x, src_key_padding_mask=hidden)
    step.prepare(x, number)
    step.prepare(x, is_causal=True)
    for told in (
        {"src_key_padding_mask": some(BATCH, LENGTH, seed=8)},
        {},
        {"mask": random(LENGTH, LENGTH, seed=7)},
        {"is_causal": True},
    ):
        ours = with_gradients(lambda u: step(u, **told), layer.parameters(), x, dy, 0)  # noqa: B023
        named = {"src_mask" if name == "mask" else name: one for name, one in told.items()}
        theirs = with_gradients(lambda u: layer(u, **named), layer.parameters(), x, dy, 0)  # noqa: B023
        assert equal(ours, theirs), told


@pytest.mark.parametrize("kind", ["length first", "post"])
def test_one_sequence_without_a_batch(kind):
    layer = KINDS[kind]()
    x, dy = random(LENGTH, WIDTH).requires_grad_(), random(LENGTH, WIDTH, seed=2)
    step = ReplayedStep(layer)
    step.prepare(x)
    both = (with_gradients(call, layer.parameters(), x, dy, 4) for call in (step, layer))
    assert equal(*both)


def test_src_without_a_gradient_is_another_step():
    layer = made(dropout=0.3)
    x, dy = inputs(layer, wants=False)
    step = ReplayedStep(layer)
    step.prepare(x)
    ours = with_gradients(step, layer.parameters(), x, dy, 2)
    assert equal(ours, with_gradients(layer, layer.parameters(), x, dy, 2))
    with pytest.raises(ValueError, match="src .* that wants a gradient is not prepared; call prep"):
        step(x.clone().requires_grad_())


@pytest.mark.parametrize("kind", ["post", "stack"])
def test_frozen_parameters_get_none(kind):
    encoder = KINDS[kind]()
    for name, one in encoder.named_parameters():
        one.requires_grad_("linear1" not in name and "norm2" not in name)
    step, x, dy = ready_of(encoder)
    both = (with_gradients(call, encoder.parameters(), x, dy, 2) for call in (step, encoder))
    assert equal(*both)
    y = step(x)
    y.backward(dy)
    assert all((one.grad is None) != one.requires_grad for one in encoder.parameters())


def test_with_nothing_to_learn_there_is_no_way_back():
    layer = made(dropout=0.3).requires_grad_(False)
    x, dy = inputs(layer)
    step = ReplayedStep(layer)
    step.prepare(x)  # src alone
    both = (with_gradients(call, (), x, dy, 2) for call in (step, layer))
    assert equal(*both)
    step.prepare(x.detach())
    assert not step(x.detach()).requires_grad


def test_without_gradients_a_call_is_a_forward():
    layer = made(dropout=0.3)
    step, x, _ = ready_of(layer)
    for block in (torch.no_grad, torch.inference_mode):
        with block():
            torch.manual_seed(4)
            y = step(x)
            assert not y.requires_grad
            torch.manual_seed(4)
            assert torch.equal(y, layer(x))


class Partly(nn.Module):
    """A last module with a parameter that nothing comes of, and one that it shares."""

    def __init__(self, shared):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))
        self.shared = shared

    def forward(self, x):
        return x * self.shared


def test_a_parameter_that_nothing_comes_of_gets_none_and_a_shared_one_its_sum():
    encoder = FusedEncoder(made(dropout=0.3), 1)
    encoder.norm = Partly(encoder.layers[0].norm2.weight)
    step, x, dy = ready_of(encoder)
    found = []
    for call in (step, encoder):
        encoder.zero_grad()
        torch.manual_seed(3)
        call(x).backward(dy)
        found.append([one.grad for one in encoder.parameters()])
    assert [one is None for one in found[0]] == [one is None for one in found[1]]
    assert encoder.norm.unused.grad is None
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True) if pair[0] is not None)


# ------------------------------------------------------------------------- what is handed out


@pytest.mark.parametrize("set_to_none", [True, False])
def test_two_micro_batches_add_up_over_steps(set_to_none):
    """SGD over accumulated gradients: every parameter the same bits as the encoder's, each step."""
    ours, theirs = (made(dropout=0.3, norm_first=True) for _ in range(2))
    step, x, dy = ready_of(ours)
    runs = []
    for model, call in ((ours, step), (theirs, theirs)):
        sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        shown = []
        for turn in range(2):
            sgd.zero_grad(set_to_none=set_to_none)
            for part in range(2):
                torch.manual_seed(10 * turn + part)
                call(x.detach().roll(turn + part, 0).requires_grad_()).backward(dy * (1 + part))
            sgd.step()
            shown += [one.detach().clone() for one in model.parameters()]
            shown += [one.grad.clone() for one in model.parameters()]
        runs.append(shown)
    assert equal(*runs)


def test_a_gradient_that_is_held_stays_and_is_one_piece_of_memory():
    layer = made(dropout=0.3)
    step, x, dy = ready_of(layer)
    step(x).backward(dy)
    held = [one.grad for one in layer.parameters()]
    kept = [one.clone() for one in held]
    assert len({one.untyped_storage().data_ptr() for one in held}) == 1  # no copy of each besides
    assert all(one.data_ptr() % 16 == 0 and one.is_contiguous() for one in held)
    held_x, kept_x = x.grad, x.grad.clone()
    layer.zero_grad()
    x.grad = None
    step(x).backward(-dy)
    assert equal(held, kept)
    assert torch.equal(held_x, kept_x)
    own = {one.untyped_storage().data_ptr() for one in (*held, held_x)}
    assert not own & {one.grad.untyped_storage().data_ptr() for one in (*layer.parameters(), x)}


def test_nothing_that_is_handed_out_is_what_a_replay_writes():
    layer = made(dropout=0.3)
    step, x, dy = ready_of(layer)
    y = step(x)
    found = torch.autograd.grad(y, (x, *layer.parameters()), dy)
    (ready,) = step._prepared.values()
    static = [ready.src, ready.dy, ready.y, ready.dsrc, *ready.gradients.places]
    taken = {one.untyped_storage().data_ptr() for one in static}
    assert not taken & {one.untyped_storage().data_ptr() for one in (x, dy, y, *found)}
    with torch.no_grad():
        x.zero_()  # what the user writes is not what the backward reads
    layer.zero_grad()
    x = inputs(layer)[0]
    torch.manual_seed(1)
    y = step(x)
    with torch.no_grad():
        x.zero_()
        y.zero_()
    ours = torch.autograd.grad(y, (x, *layer.parameters()), dy)
    theirs = with_gradients(layer, layer.parameters(), inputs(layer)[0], dy, 1)
    assert equal(ours, theirs[1:])


def test_memory_of_gradients_is_dense_and_aligned():
    like = [
        torch.ones(3, 5),
        torch.ones(7, dtype=torch.bfloat16),
        torch.ones(4, 6).T,
        torch.ones(1),
    ]
    found = Gradients(like)
    assert [one.shape for one in found.places] == [one.shape for one in like]
    assert found.places[2].stride() == like[2].stride()
    assert found.nbytes == 4 * ALIGNED
    assert found.suits(like)
    assert not found.suits(like[:2])
    assert not found.suits([one.float() for one in like])
    for number, place in enumerate(found.places):
        place.fill_(number + 1)
    copies = found.copies()
    found.places[0].zero_()
    for number, one in enumerate(copies):
        assert bool((one == number + 1).all())


def test_hooks_of_parameters_are_called_once_a_backward_and_not_by_prepare():
    layer, seen = made(dropout=0.3), []
    layer.linear1.weight.register_hook(lambda grad: seen.append("hook") or 2 * grad)
    layer.linear1.bias.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad))
    step, x, dy = ready_of(layer)
    assert seen == []
    torch.manual_seed(3)
    step(x).backward(dy)
    assert len(seen) == 2
    ours = layer.linear1.weight.grad
    layer.zero_grad()
    torch.manual_seed(3)
    layer(x).backward(dy)
    assert torch.equal(ours, layer.linear1.weight.grad)


def test_between_two_modules_and_with_an_optimizer_in_place():
    """A model of which the step is a part learns as the one of the plain layer does."""

    def losses(replays):
        torch.manual_seed(0)
        before, layer, behind = nn.Linear(WIDTH, WIDTH), made(dropout=0.1), nn.Linear(WIDTH, 1)
        parts = nn.ModuleList([before, layer, behind])
        call = ReplayedStep(layer) if replays else layer
        if replays:
            call.prepare(before(random(*SHAPE)))
        adam, found = torch.optim.Adam(parts.parameters(), lr=1e-2), []
        for turn in range(4):
            torch.manual_seed(turn)
            loss = behind(call(before(random(*SHAPE, seed=turn)))).square().mean()
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
            adam.step()
            found.append(float(loss.detach()))
        return found

    assert losses(replays=True) == losses(replays=False)


def test_it_is_freed_with_its_last_name():
    layer = made()
    step, x, dy = ready_of(layer)
    y = step(x)
    (ready,) = step._prepared.values()
    gone = weakref.ref(ready)
    del step, ready
    y.backward(dy)  # a call that is open holds what it needs
    del y
    gc.collect()
    assert gone() is None


def test_tables_of_launches_live_as_long_as_the_step():
    """As attention's on Hopper do: a cache of the last few hundred is all that holds them else."""
    table = lasting(torch.ones(3))
    gone = weakref.ref(table)
    step, _, _ = ready_of(made())
    del table
    gc.collect()
    assert gone() is not None
    del step
    gc.collect()
    assert gone() is None


def test_aliases_do_not_bind_the_encoder():
    """The encoder's own call, between replays, is of the user's parameters."""
    layer = made()
    step, x, dy = ready_of(layer)
    y = step(x)
    layer(x).backward(dy)
    y.backward(dy)
    assert all(one.grad is not None for one in layer.parameters())
    assert isinstance(layer.linear1.weight, nn.Parameter)
    assert isinstance(layer, FusedEncoderLayer)
    assert functional_call(layer, {}, (x,)).requires_grad
