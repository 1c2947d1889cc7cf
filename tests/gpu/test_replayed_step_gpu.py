"""A training step replayed from CUDA graphs: the layer's bits, its masks, a run, and its time.

What needs no GPU, the copies and all that is refused, is in `tests/ops/test_replayed_step.py`.
"""

import gc

import pytest
import torch
from torch import nn

from kernels.lab.measuring import timing
from kernels.ops.layers import encoder_layer
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.replayed_step import ReplayedStep
from tests.gpu.test_encoder_gpu import BF16, WIDTH, both_ways, made, padding, random
from tests.ops.test_encoder_duties import fused

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
ORDERS = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])


def stack(**told):
    """Two layers in bf16 whose numbers differ, and a last norm."""
    found = FusedEncoder(made(**told), 2, nn.LayerNorm(WIDTH)).to("cuda", BF16)
    torch.manual_seed(1)
    with torch.no_grad():
        for one in found.parameters():
            one.add_(torch.randn_like(one) * 0.01)
    return found


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def written_over():
    """Memory that the allocator gives out now, full of NaN."""
    return [torch.full((8 << 20,), torch.nan, device="cuda") for _ in range(8)]


@pytest.mark.proves("kernels.ops.layers.replayed_step", "kernels.ops.layers.prepared_step")
@ORDERS
def test_without_dropout_every_bit_is_the_layers(norm_first):
    """Of two shapes and a mask, in turn, whose graphs share one pool."""
    layer = made(norm_first=norm_first)
    shapes = [(8, 128), (3, 333)]
    # A plain call that is open, whose graph holds the parameters' accumulators on this stream.
    still_open = layer(random(8, 128, WIDTH).requires_grad_())
    step = ReplayedStep(layer)
    for shape in shapes:
        step.prepare(random(*shape, WIDTH).requires_grad_())
    step.prepare(
        random(*shapes[0], WIDTH).requires_grad_(), src_key_padding_mask=padding(*shapes[0])
    )
    assert all(one.grad is None for one in layer.parameters())
    found = []
    for turn in range(12):
        shape = shapes[turn % 2]
        x, dy = random(*shape, WIDTH, seed=turn), random(*shape, WIDTH, seed=100 + turn)
        told = {"src_key_padding_mask": padding(*shape, seed=turn)} if turn % 4 == 0 else {}
        leaf = x.clone().requires_grad_()
        y = step(leaf, **told)
        x.zero_()
        kept = written_over()
        grads = torch.autograd.grad(y, (leaf, *layer.parameters()), dy)
        del kept
        ours = (y.detach(), *grads)
        theirs = both_ways(layer, lambda u, told=told: layer(u, **told), leaf, dy)
        assert same(ours, theirs), turn
        found.append((ours, [one.clone() for one in ours]))
    for shown, kept in found:
        assert same(shown, kept)
    assert still_open.grad_fn is not None
    del step, y  # and with them the graphs: what was handed out must stay
    gc.collect()
    torch.cuda.empty_cache()
    _ = written_over()
    for shown, kept in found:
        assert same(shown, kept)


@pytest.mark.proves("kernels.ops.layers.replayed_step", "kernels.ops.layers.prepared_step")
@ORDERS
def test_each_replay_draws_its_masks_and_goes_back_by_them(norm_first, monkeypatch):
    """The seeds lie in the graph's memory: the layer itself takes them, and gives the same bits."""
    layer, drawn = made(norm_first=norm_first, dropout=0.1), []
    real = encoder_layer.draw

    def watched(*told):
        drawn.append(real(*told))
        return drawn[-1]

    monkeypatch.setattr(encoder_layer, "draw", watched)
    x, dy = random(8, 128, WIDTH).requires_grad_(), random(8, 128, WIDTH, seed=3)
    step = ReplayedStep(layer)
    step.prepare(x)
    in_graph, seen = drawn[-1], []
    monkeypatch.undo()
    for turn in range(6):
        torch.manual_seed(turn // 2)
        y = step(x)
        seeds = in_graph.clone()
        ours = (y.detach(), *torch.autograd.grad(y, (x, *layer.parameters()), dy))
        theirs = both_ways(layer, lambda u, seeds=seeds: fused(layer, u, seeds), x, dy)
        assert same(ours, theirs), turn
        seen.append(seeds)
    assert torch.equal(seen[0], seen[1])
    torch.manual_seed(0)
    assert torch.equal(seen[0], encoder_layer.draw(x.device))  # by the same state, the layer's own
    assert not torch.equal(seen[1], seen[2])
    seeds = set()
    for _ in range(100):  # and it goes on from replay to replay
        step(x)
        seeds.add(tuple(in_graph.flatten().tolist()))
    assert len(seeds) == 100


@pytest.mark.proves("kernels.ops.layers.replayed_step", "kernels.ops.layers.prepared_step")
@ORDERS
def test_two_hundred_steps_are_the_layers_bit_by_bit(norm_first):
    """A stack, two micro-batches a step, whose gradients add up, and Adam in place."""

    def run(replays):
        model = stack(norm_first=norm_first)
        call = ReplayedStep(model) if replays else model
        x, wanted = random(2, 128, WIDTH), random(2, 128, WIDTH, seed=5)
        if replays:
            call.prepare(x)
        adam, found = torch.optim.Adam(model.parameters(), lr=3e-4), []
        for turn in range(200):
            adam.zero_grad(set_to_none=turn % 3 > 0)
            for part in range(2):
                one, other = (both.roll(turn + part, 1) for both in (x, wanted))
                loss = (call(one).float() - other).square().mean()
                loss.backward()
            adam.step()
            found.append(loss.detach())
        return torch.stack(found), [one.detach() for one in model.parameters()]

    (ours, last), (theirs, others) = run(True), run(False)
    assert theirs[-1] < 0.9 * theirs[0]  # it learns
    assert torch.equal(ours, theirs)
    assert same(last, others)


@pytest.mark.proves("kernels.ops.layers.replayed_step", "kernels.ops.layers.prepared_step")
def test_other_streams_and_captures_are_refused():
    step, x = ReplayedStep(made(dropout=0.1)), random(8, 128, WIDTH)
    step.prepare(x)
    step(x)
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="another str"):
        step(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _ = x + 1
        with pytest.raises(RuntimeError, match="inside the capture of a graph"):
            step(x)
    step(x)


@pytest.mark.proves("kernels.ops.layers.replayed_step", "kernels.ops.layers.prepared_step")
def test_memory_does_not_grow_from_step_to_step():
    layer, x = made(dropout=0.1), random(8, 128, WIDTH).requires_grad_()
    dy, step = torch.ones_like(x), ReplayedStep(layer)
    step.prepare(x)

    def one():
        layer.zero_grad()
        x.grad = None
        step(x).backward(dy)

    for _ in range(3):
        one()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        one()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.proves("kernels.ops.layers.replayed_step", "kernels.ops.layers.prepared_step")
@ORDERS
def test_from_python_a_small_step_takes_two_thirds_of_the_layers_time_at_most(norm_first):
    layer, x = made(norm_first=norm_first, dropout=0.1), random(8, 128, WIDTH).requires_grad_()
    dy, step = random(8, 128, WIDTH, seed=3), ReplayedStep(layer)
    step.prepare(x)
    wanted = (x, *layer.parameters())
    calls = {
        name: lambda call=call: torch.autograd.grad(call(x), wanted, dy)
        for name, call in (("layer", layer), ("step", step))
    }
    for _ in range(3):
        for call in calls.values():
            call()
    taken = timing.time_host(calls, torch.cuda.synchronize, seconds=2.0)
    took = {name: timing.quantile(times, 0.5) for name, times in taken.items()}
    assert took["step"] <= 2 / 3 * took["layer"], took
