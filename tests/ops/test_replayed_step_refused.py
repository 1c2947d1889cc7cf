"""What a replayed step refuses, each in a sentence, and what has changed since it was prepared."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import vmap

from kernels.ops.layers import replaying
from kernels.ops.layers.replayed_step import ReplayedStep
from tests.ops.test_encoder_layer import LENGTH, WIDTH, made, random
from tests.ops.test_replayed_step import dtype_of, equal, ready_of, stack, with_gradients


def test_an_encoder_in_eval_and_what_is_none():
    with pytest.raises(TypeError, match="encoder is a Linear; it takes a FusedEncoder or a Fused"):
        ReplayedStep(nn.Linear(2, 2))
    sentence = r"encoder is in eval; call train\(\) first; ReplayedEncoder is for inference$"
    layer = made()
    with pytest.raises(ValueError, match=sentence):
        ReplayedStep(layer.eval())
    step, x, dy = ready_of(layer.train())
    y = step(x)
    layer.eval()
    y.backward(dy)  # as any layer may
    for call in (step, step.prepare):
        with pytest.raises(ValueError, match=sentence):
            call(x)


def test_what_was_not_prepared():
    step, x, _ = ready_of(made())
    with pytest.raises(ValueError, match=r"src of shape \(1, 6, 16\) .* is not prepared; call pre"):
        step(x[:1])
    with pytest.raises(ValueError, match="with these masks is not prepared"):
        step(x, torch.zeros(LENGTH, LENGTH))
    with pytest.raises(ValueError, match="that wants no gradient is not prepared"):
        step(x.detach())
    with pytest.raises(ValueError, match=r"torch.float64 on cpu .* is not prepared"):
        step(x.detach().double().requires_grad_())


def test_what_the_encoder_refuses_is_refused_by_prepare_and_leaves_nothing():
    step, x, _ = ready_of(made())
    with pytest.raises(TypeError, match="src is a list; it takes a torch.Tensor"):
        step.prepare([1.0])
    with pytest.raises(TypeError, match="src_key_padding_mask is a list; it takes a torch.Tensor"):
        step.prepare(x, None, [True])
    with pytest.raises(ValueError, match="src_mask has the shape"):
        step.prepare(x, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="with these masks is not prepared"):
        step(x, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="mask wants a gradient; a replayed step has none for a"):
        step.prepare(x, torch.zeros(LENGTH, LENGTH, requires_grad=True))


def test_a_backward_whose_activations_are_gone():
    step, x, dy = ready_of(made(dropout=0.3))
    first, second = step(x), step(x)
    with pytest.raises(RuntimeError, match="a later call has overwritten the activations of this"):
        first.backward(dy)
    assert x.grad is None
    second.backward(dy)
    again = r"this call has gone back before, and its activations are gone; call it again$"
    y = step(x)
    y.backward(dy, retain_graph=True)
    with pytest.raises(RuntimeError, match=again):
        y.backward(dy)
    with pytest.raises(RuntimeError, match=again):
        second.backward(dy)


def test_a_later_call_of_another_shape_overwrites_too():
    step, x, dy = ready_of(made())
    other = random(1, LENGTH, WIDTH).requires_grad_()
    step.prepare(other)
    assert len({id(one.gradients) for one in step._prepared.values()}) == 1
    y = step(x)
    with torch.no_grad():
        step(other)
    with pytest.raises(RuntimeError, match="a later call has overwritten"):
        y.backward(dy)


def test_a_derivative_of_a_gradient():
    step, x, dy = ready_of(made())
    y = step(x)
    with pytest.raises(
        NotImplementedError, match="a replayed step has no second derivative; go ba"
    ):
        torch.autograd.grad(y, x, dy, create_graph=True)
    torch.autograd.grad(y, x, dy)


def stepped(layer):
    with torch.no_grad():
        layer.linear1.bias.add_(1.0)


def test_a_parameter_written_to_between_both_ways():
    layer = made()
    step, x, dy = ready_of(layer)
    for change in (stepped, lambda one: setattr(one.linear1.bias, "data", torch.ones(24))):
        y = step(x)
        change(layer)
        with pytest.raises(RuntimeError, match="a parameter was written to or moved between"):
            y.backward(dy)
    step.prepare(x)
    stepped(layer)  # behind a backward it is the next call's
    both = (with_gradients(call, layer.parameters(), x, dy, 2) for call in (step, layer))
    assert equal(*both)


CHANGES = {
    "another dtype": (
        lambda one: one.double(),
        "'self_attn.in_proj_weight' lies elsewhere than at prepare.., or has another shape or d",
    ),
    "other memory": (
        lambda one: setattr(one.linear2.weight, "data", one.linear2.weight.data.clone()),
        "'linear2.weight' lies elsewhere than at prepare",
    ),
    "another tensor": (
        lambda one: one.load_state_dict(made(seed=3).state_dict(), assign=True),
        "'self_attn.in_proj_weight' lies elsewhere",
    ),
    "none": (lambda one: setattr(one.norm1, "bias", None), "'norm1.bias' is gone since prepare"),
    "frozen": (
        lambda one: one.linear1.bias.requires_grad_(False),
        r"'linear1.bias' wants no gradient, and did at prepare\(\); call prepare\(\) again$",
    ),
    "no longer frozen": (
        lambda one: one.norm2.bias.requires_grad_(),
        "'norm2.bias' wants a gradient, and did not at prepare",
    ),
    "another module": (
        lambda one: setattr(one, "linear1", nn.Linear(WIDTH, 24)),
        "a module of the encoder is another than at prepare",
    ),
    "another dropout": (
        lambda one: setattr(one.dropout1, "p", 0.5),
        r"a setting of the encoder \(mode, dropout, eps, activation\) is not as at prepare",
    ),
    "another eps": (
        lambda one: setattr(one.norm1, "eps", 0.5),
        "a setting of the encoder .mode, d",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_has_changed_since_is_told_and_prepared_again(kind):
    change, sentence = CHANGES[kind]
    layer = made(dropout=0.3)
    layer.norm2.bias.requires_grad_(False)
    step, x, dy = ready_of(layer)
    change(layer)
    with pytest.raises(RuntimeError, match=sentence):
        step(x)
    x, dy = (one.to(dtype_of(layer)) for one in (x.detach(), dy))
    if kind == "another dtype":  # no kernel takes float64
        layer.bfloat16()
        x, dy = x.bfloat16(), dy.bfloat16()
    x.requires_grad_()
    step.prepare(x)
    parameters = list(layer.parameters())
    both = (with_gradients(call, parameters, x, dy, 2) for call in (step, layer))
    assert equal(*both)


def test_a_layer_of_a_stack_in_eval_drops_nothing():
    encoder = stack(dropout=0.3)
    step, x, _ = ready_of(encoder)
    encoder.layers[1].eval()
    with pytest.raises(RuntimeError, match="a setting of the encoder .mode, dropout"):
        step(x)
    step.prepare(x)
    torch.manual_seed(2)
    y = step(x)
    torch.manual_seed(2)
    assert torch.equal(y, encoder(x))


def test_a_state_that_is_copied_in_is_read():
    layer = made(dropout=0.3)
    step, x, dy = ready_of(layer)
    layer.load_state_dict(made(seed=3).state_dict())
    both = (with_gradients(call, layer.parameters(), x, dy, 2) for call in (step, layer))
    assert equal(*both)


def test_where_no_step_is_replayed(monkeypatch):
    layer = made()
    step, x, _ = ready_of(layer)
    told = "no step is replayed inside {}; call the encoder itself there$"
    with torch.autocast("cpu", torch.bfloat16):
        for call in (step, step.prepare):
            with pytest.raises(RuntimeError, match=told.format("autocast")):
                call(x)
    with pytest.raises(RuntimeError, match=told.format("a transform of torch.func")):
        vmap(step)(x[None])
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(RuntimeError, match=told.format("forward-mode differentiation")),
    ):
        step(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(RuntimeError, match=told.format("torch.compile")):
        step(x)
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=told.format("the capture of a graph")):
        replaying.refuse_elsewhere(torch.device("cuda", 0))


def test_a_compiler_leaves_the_call_to_python():
    layer = made()
    step, x, dy = ready_of(layer)
    compiled = torch.compile(lambda u: 2 * step(u), backend="eager")
    both = (
        with_gradients(call, layer.parameters(), x, dy, 2)
        for call in (compiled, lambda u: 2 * layer(u))
    )
    assert equal(*both)


def test_another_stream(monkeypatch):
    step, _, _ = ready_of(made())
    streams = iter((7, 7, 8))
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=next(streams))
    )
    for _ in range(2):
        step._stream.refuse_others(torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="another stream before.*make a ReplayedStep for each"):
        step._stream.refuse_others(torch.device("cuda", 0))
