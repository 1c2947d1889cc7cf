"""Steps of an encoder layer that go back together: the same gradients, fewer launches."""

import pytest
import torch

from kernels.lab.profiling.profile import timeline
from kernels.ops.layers import joined, steps
from kernels.ops.layers.masks import Seen
from kernels.ops.layers.steps import Dropped
from tests.gpu.test_encoder_gpu import WIDTH, both_ways, made, off, random

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def apart(monkeypatch):
    monkeypatch.setattr(joined, "joins", lambda _x: False)


@pytest.mark.proves("kernels.ops.layers.joined")
@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [333, 512])
def test_heads_get_the_bits_that_attention_alone_gives(monkeypatch, length, causal, p):
    qkv, d_rows = random(2, length, 3 * WIDTH), random(2, length, WIDTH, seed=3)
    dropped = Dropped(p, torch.tensor([11, 5], device="cuda") if p else None)
    found = []
    for alone in (False, True):
        if alone:
            apart(monkeypatch)
        leaf = qkv.detach().requires_grad_()
        rows = steps.attended(leaf, 16, Seen(causal), dropped)
        found.append((rows, *torch.autograd.grad(rows, leaf, d_rows)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.proves(
    "kernels.ops.layers.joined", "kernels.ops.layers.summed", "kernels.ops.layers.steps"
)
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_a_step_launches_less_and_gives_the_same(monkeypatch, norm_first):
    layer = made(norm_first=norm_first, dropout=0.1)
    x, dy = random(8, 512, WIDTH), random(8, 512, WIDTH, seed=3)
    found, launched = [], []
    for alone in (False, True):
        if alone:
            apart(monkeypatch)
        for _ in range(3):
            torch.manual_seed(9)
            gradients = both_ways(layer, layer, x, dy)
        found.append(gradients)
        launched.append(timeline(lambda: both_ways(layer, layer, x, dy)))
    together, by_themselves = map(len, launched)
    # With a norm before attention one adds x's two gradients. On Hopper one puts dq, dk and dv
    # together, and one makes the bits of attention's dropout; and two launches sum a bias's
    # gradient there. A dropout that does so has one more, and takes a norm's two with it.
    if HOPPER:
        behind_norms = 3 * (1 if norm_first else 2)
        behind_others = 2 if norm_first else 1
        assert by_themselves - together == norm_first + 2 + behind_norms + behind_others
    assert together < by_themselves
    names = ("y", "x", *dict(layer.named_parameters()))
    for name, one, other in zip(names, *found, strict=True):
        assert off(one, other.double()) <= 2.0**-8, name
