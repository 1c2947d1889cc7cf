"""The encoder layer on a GPU: as near as PyTorch's, in as few launches as counted, replayed.

Timings are the suite's. Here stand its numbers, its launches, its memory.
"""

import copy
import gc

import pytest
import torch
from torch import nn

from kernels import registry
from kernels.lab.measuring import step_memory
from kernels.lab.profiling.profile import timeline
from kernels.ops.layers.by_operators import by_operators
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import N_DROPOUTS, FusedEncoderLayer
from kernels.ops.layers.replayed import ReplayedEncoder
from kernels.ops.layers.workspace import workspace_bytes
from tests.ops.test_encoder_duties import as_called, by_masks, fused, losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
WIDTH, HEADS, INNER = 1024, 16, 4096
BF16 = torch.bfloat16
ORDERS = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])


def made(kind=FusedEncoderLayer, dropout=0.0, dtype=BF16, **changes):
    torch.manual_seed(0)
    told = {"activation": "gelu", "batch_first": True, "device": "cuda", **changes}
    layer = kind(WIDTH, HEADS, INNER, dropout, **told)
    with torch.no_grad():
        for one in layer.parameters():
            one.add_(torch.randn_like(one) * 0.02)
    return layer.to(dtype)


def random(*shape, dtype=BF16, seed=1):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def padding(batch, length, seed=2):
    """True behind the end of each sequence, none of which is empty."""
    generator = torch.Generator("cuda").manual_seed(seed)
    ends = torch.randint(1, length + 1, (batch, 1), generator=generator, device="cuda")
    return torch.arange(length, device="cuda") >= ends


def both_ways(layer, call, x, dy):
    leaf = x.detach().requires_grad_()
    y = call(leaf)
    return y.detach(), *torch.autograd.grad(y, (leaf, *layer.parameters()), dy)


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


@pytest.mark.proves(
    "kernels.ops.layers.encoder_layer", "kernels.ops.layers.steps", "kernels.ops.chains.dropped"
)
@ORDERS
@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("shape", [(1, 128), (8, 128), (3, 333)], ids=str)
def test_outputs_and_gradients_are_as_near_as_pytorchs(norm_first, p, masked, shape):
    layer = made(norm_first=norm_first, dropout=p)
    x, dy = random(*shape, WIDTH), random(*shape, WIDTH, seed=3)
    mask = padding(*shape) if masked else None
    hidden = torch.zeros(1, device="cuda", dtype=torch.float64)
    if mask is not None:
        hidden = torch.zeros(mask.shape, device="cuda").masked_fill(mask, -torch.inf)
        hidden = hidden[:, None, None, :].double()
    torch.manual_seed(9)
    seeds = torch.randint(-(2**63), 2**63 - 1, (N_DROPOUTS, 2), device="cuda")
    wide = copy.deepcopy(layer).double()
    exact = both_ways(wide, lambda u: by_operators(wide, u, seeds, hidden), x.double(), dy.double())
    near = both_ways(layer, lambda u: by_operators(layer, u, seeds, hidden), x, dy)
    torch.manual_seed(9)
    ours = both_ways(layer, lambda u: layer(u, src_key_padding_mask=mask), x, dy)
    names = ("y", "x", *dict(layer.named_parameters()))
    for name, one, other, truth in zip(names, ours, near, exact, strict=True):
        assert off(one, truth) <= 2 * off(other, truth) + 2.0**-22, name


@pytest.mark.proves("kernels.ops.layers.encoder_layer", "kernels.ops.layers.steps")
@ORDERS
def test_it_launches_what_was_counted(norm_first):
    layer, x = made(norm_first=norm_first, dropout=0.1), random(8, 512, WIDTH)
    most = {True: 5 if HOPPER else 10, False: 7 if HOPPER else 10}[norm_first]
    with torch.no_grad():
        for _ in range(3):
            layer.eval()(x)
        kernels = timeline(lambda: layer(x))
    assert len(kernels) <= most, kernels
    layer.train()
    leaf = x.detach().requires_grad_()
    for _ in range(3):
        layer(leaf).backward(x)
    kernels = timeline(lambda: layer(leaf))
    assert len(kernels) <= 10, kernels


@pytest.mark.proves("kernels.ops.layers.replayed", "kernels.ops.layers.workspace")
@ORDERS
def test_a_thousand_replays_with_other_inputs_and_masks(norm_first):
    batch, length = 8, 128
    stack = FusedEncoder(made(norm_first=norm_first), 2, nn.LayerNorm(WIDTH)).to("cuda", BF16)
    ready = ReplayedEncoder(stack.eval())
    x, mask = random(batch, length, WIDTH), padding(batch, length)
    ready.prepare(x, src_key_padding_mask=mask)
    ready.prepare(x)
    assert ready.bytes_set_aside == workspace_bytes(stack, batch, length, 2)
    pieces = 2 << 20  # the allocator takes memory from the driver in multiples of 2 MiB
    assert ready.bytes_used <= -(-ready.bytes_set_aside // pieces) * pieces
    ready(x)
    torch.cuda.synchronize()
    with torch.no_grad():
        for turn in range(1000):
            x = random(batch, length, WIDTH, seed=turn)
            told = {"src_key_padding_mask": padding(batch, length, seed=turn)} if turn % 2 else {}
            y = ready(x, **told)
            if turn % 50 < 2:
                assert torch.equal(y, stack(x, **told)), turn
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        ready(x, **told)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="another str"):
        ready(x, **told)
    y = ready(x, **told)
    kept = y.clone()
    del ready  # and with it the graphs: what y shows must stay
    gc.collect()
    torch.cuda.empty_cache()
    _ = torch.full((64 << 20,), 7, dtype=torch.uint8, device="cuda")
    assert torch.equal(y, kept)


@pytest.mark.proves(
    "kernels.ops.layers.encoder_layer",
    "kernels.ops.layers.steps",
    "kernels.ops.layers.again",
    "kernels.lab.measuring.step_memory",
)
def test_the_memory_of_a_step_is_recorded_and_flags_make_it_six_tenths_of_pytorchs():
    """Pre-LN; post-LN, whose norms have two readers, keeps one tensor more."""
    shape = (8, 2048, WIDTH)
    failed = []
    found = step_memory.peaks([shape], failed.append)
    assert not failed
    of_mlp, of_rows = (2 * 8 * 2048 * width for width in (INNER, WIDTH))
    for name, most in (("encoder_pre", 0.6), ("encoder_post", 0.62)):
        peaks = found[name][registry.shape_name(shape)]
        assert peaks["fused_checkpointed"] <= most * peaks["torch"], (name, peaks)
        assert peaks["fused"] < peaks["torch"], (name, peaks)
        # Where the peak lies in a step may move, but by no more than what a step keeps.
        assert peaks["fused"] - peaks["fused gelu_checkpoint"] >= of_mlp - of_rows, (name, peaks)
        assert peaks["fused_checkpointed"] <= peaks["fused gelu_checkpoint"], (name, peaks)


@pytest.mark.proves("kernels.ops.layers.encoder_layer", "kernels.ops.layers.steps")
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_compiled_whole_with_inductor(p):
    layer = made(dropout=p, norm_first=True)
    whole = torch.compile(layer, fullgraph=True)
    x, dy = random(2, 128, WIDTH), random(2, 128, WIDTH, seed=3)
    found = []
    for call in (layer, whole) if p == 0 else (whole, whole):  # inductor draws other seeds
        torch.manual_seed(2)
        found.append(both_ways(layer, call, x, dy))
    for one, other in zip(*found, strict=True):
        assert off(one, other.double()) <= 2.0**-6


@pytest.mark.proves("kernels.ops.layers.encoder_layer", "kernels.ops.layers.steps")
def test_a_captured_step_draws_other_masks_in_each_replay():
    layer, x = made(dropout=0.5), random(2, 64, WIDTH)
    with torch.no_grad():
        for _ in range(3):
            layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


@pytest.mark.proves("kernels.ops.layers.stochastic", "kernels.ops.layers.stochastic_kernels")
@ORDERS
def test_stochastic_mode_is_as_near_and_launches_two_less(norm_first):
    shape = (8, 2048, WIDTH)
    x, dy = random(*shape), random(*shape, seed=3)
    found, launched = [], []
    for mode in (False, True):
        layer = made(dropout=0.1, norm_first=norm_first, stochastic_mode=mode)
        for _ in range(3):
            torch.manual_seed(9)
            found.append(both_ways(layer, layer, x, dy))
        launched.append(len(timeline(lambda layer=layer: both_ways(layer, layer, x, dy))))
        assert layer._sums is None or not layer._sums.any()
    assert launched[0] - launched[1] == 2
    names = ("y", "x", *dict(layer.named_parameters()))
    for name, fixed, one, other in zip(names, found[0], *found[4:], strict=True):
        assert off(one, fixed.double()) <= 2.0**-7, name
        # Only sums by atomics may differ: a norm's launch has those of the bias before it too.
        if not name.startswith("norm") and name not in ("self_attn.out_proj.bias", "linear2.bias"):
            assert torch.equal(one, other), name


@pytest.mark.proves("kernels.ops.layers.encoder_layer", "kernels.ops.layers.steps")
@ORDERS
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_two_hundred_steps_of_training_go_as_pytorchs(norm_first, p):
    """With dropout by the same masks, PyTorch's operators one after the other."""
    told = {"norm_first": norm_first, "dropout": p, "device": "cuda", "n_layers": 2, "batch": 16}
    ours = losses(FusedEncoderLayer, fused, 200, **told)
    theirs = losses(nn.TransformerEncoderLayer, by_masks if p else as_called, 200, **told)
    assert theirs[-20:].mean() < 0.6 * theirs[0]  # it learns
    if p == 0:
        assert bool(((ours / theirs - 1).abs() < 0.02).all())
    assert abs(float(ours[-20:].mean() / theirs[-20:].mean()) - 1) < 0.03
