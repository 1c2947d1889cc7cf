"""What a training step keeps and holds, counted on fake tensors, beside formulas and autograd."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernels.lab.counting.kept import TrainingStep, training_step
from kernels.lab.counting.kept_names import names_of
from kernels.lab.drawing import memory
from kernels.ops.layers.encoder_layer import FusedEncoderLayer

BF16 = torch.bfloat16
FLAGS = {"gelu_checkpoint": True, "attn_dropout_checkpoint": True}
ALL_FLAGS = FLAGS | {"norm_checkpoint": True}
KINDS = [
    (nn.TransformerEncoderLayer, {}),
    (FusedEncoderLayer, {}),
    (FusedEncoderLayer, FLAGS),
    (FusedEncoderLayer, ALL_FLAGS),
]


def made(kind, width=64, heads=2, inner=256, **changes):
    told = {"dropout": 0.1, "activation": "gelu", "batch_first": True, "dtype": BF16, **changes}
    return kind(width, heads, inner, device="meta", **told)


def empty(*shape):
    return torch.empty(shape, dtype=BF16, device="meta")


def a_chain(x):
    """Keeps exp(x), the output of a sine's argument's, and nothing of the doubling."""
    return (x.exp() * 2).sin()


def test_a_tensor_is_kept_if_the_way_back_reads_it():
    step = training_step(a_chain, torch.empty(1000))
    told = {one.name: (one.kept, one.read_on, one.read_back) for one in step.made}
    assert told == {
        "exp 1": (True, ("mul",), ("mul",)),
        "mul 1": (True, ("sin",), ("cos",)),
        "sin 1": (True, (), ()),  # the output, which the caller has
    }
    assert [one.bytes for one in step.made] == [4000] * 3
    assert step.kept_bytes == 12_000


def test_moments_tell_what_is_alive_and_the_peak_is_the_most():
    step = training_step(a_chain, torch.empty(1000))
    forward = [one for one in step.moments if not one.back]
    assert [one.operator for one in forward] == ["exp", "mul", "sin"]
    assert [one.bytes for one in forward] == [4000, 8000, 12_000]
    assert step.peak.back
    assert step.peak.bytes == max(one.bytes for one in step.moments) == 20_000
    assert {"exp 1", "mul 1", "sin 1"} < set(step.peak.alive)


def test_names_and_what_the_caller_has():
    weight = nn.Linear(30, 20, bias=False, device="meta")
    step = training_step(weight, torch.empty(5, 30), {"mm 1": "y"})
    assert [one.name for one in step.made] == ["y"]
    # Neither the input nor the parameter, nor its gradient, nor that of the output.
    assert set(step.moments[-1].alive) <= {"y", "mm 2", "mm 3"}
    assert step.peak.bytes == 4 * 5 * 20 + 4 * 5 * 30
    assert all(parameter.grad is None for parameter in weight.parameters())


def test_two_tensors_called_alike_are_refused():
    with pytest.raises(ValueError, match="two tensors are called 'exp 1'"):
        training_step(a_chain, torch.empty(10), {"mul 1": "exp 1"})


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize(("batch", "length", "width", "inner"), [(2, 8, 64, 256), (3, 40, 32, 48)])
def test_what_an_encoder_layer_keeps_by_formula(norm_first, batch, length, width, inner):
    """In numbers a token; post-LN one sum more is kept."""
    tokens, heads = batch * length, 2
    sums = 0 if norm_first else width
    statistics = 8 if norm_first else 16  # bytes a row, of one norm or two
    lse = 4 * heads
    formulas = {
        nn.TransformerEncoderLayer: 2 * (8 * width + 2 * inner + sums) + (2 * width + inner),
        FusedEncoderLayer: 2 * (7 * width + 2 * inner + sums),
    }
    for kind, row in formulas.items():
        layer = made(kind, width, heads, inner, norm_first=norm_first)
        step = training_step(layer, empty(batch, length, width), names_of(layer))
        of_norms = 16 if kind is nn.TransformerEncoderLayer else statistics
        seeds = 16 if kind is nn.TransformerEncoderLayer else 64
        assert step.kept_bytes == tokens * (row + of_norms + lse) + seeds


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
def test_flags_and_where_the_peak_lies(norm_first):
    """Pre-LN: of the MLP 8E + 3I, with gelu_checkpoint 8E + 2I; of attention 10E."""
    width, tokens, more = 64, 2 * 8, 0 if norm_first else 1
    for inner, flags in ((256, {}), (256, {"gelu_checkpoint": True}), (256, FLAGS), (32, FLAGS)):
        layer = made(FusedEncoderLayer, width, 2, inner, norm_first=norm_first, **flags)
        step = training_step(layer, empty(2, 8, width), names_of(layer))
        of_mlp = (8 + more) * width + (2 if "gelu_checkpoint" in flags else 3) * inner
        of_mlp -= width * ("attn_dropout_checkpoint" in flags)
        wanted = 2 * tokens * max(of_mlp, 10 * width)
        small = tokens * 4 * (2 + 4) + 64
        assert 0 <= step.peak.bytes - wanted <= small, (inner, flags)


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize(("kind", "flags"), KINDS, ids=["torch", "fused", "flags", "all flags"])
def test_every_tensor_of_the_forward_has_its_name(kind, flags, norm_first):
    layer = made(kind, norm_first=norm_first, **flags)
    names = names_of(layer)
    step = training_step(layer, empty(2, 8, 64), names)
    told = [one.name for one in step.made]
    assert len(set(told)) == len(told)
    assert set(told) <= set(names.values())
    read_back = {one.name for one in step.kept if one.read_back}
    assert {one.name for one in step.kept} - read_back == {"y"}
    again = {name for name in ("a again", "o again") if flags}
    if "norm_checkpoint" in flags:
        again.add("LN(h) again" if norm_first else "h again")
    assert again == {n for m in step.moments for n in m.alive if n.endswith("again")}


def test_with_all_flags_the_peak_is_below_six_tenths_of_pytorchs():
    """Pre-LN with I = 4E: 6E + 2I numbers a token, which are 14E; PyTorch's 23.5E."""
    shape, flags = (8, 2048, 1024), ALL_FLAGS
    peaks = [
        training_step(made(kind, 1024, 16, 4096, norm_first=True, **told), empty(*shape)).peak.bytes
        for kind, told in ((nn.TransformerEncoderLayer, {}), (FusedEncoderLayer, flags))
    ]
    assert peaks[1] <= 0.6 * peaks[0]


def test_a_whole_layer_checkpointed_keeps_its_output_alone():
    layer = made(FusedEncoderLayer, norm_first=True)
    again = functools.partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False)
    x = empty(2, 8, 64)
    step = training_step(again, x)
    assert step.kept_bytes == x.nbytes
    assert step.peak.bytes == training_step(layer, x).peak.bytes


def test_real_memory_is_as_counted():
    """Of PyTorch's operators on a CPU: what autograd saved, to the byte."""
    x = torch.randn(100, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = a_chain(x)
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in saved}
    storages[y.untyped_storage()._cdata] = y.untyped_storage().nbytes()
    assert sum(storages.values()) == training_step(a_chain, x).kept_bytes


# ---------------------------------------------------------------------------------- the picture


def test_bands_share_out_all_that_is_alive():
    step = training_step(a_chain, torch.empty(1000))
    bands = {"kept": ("exp 1", "mul 1"), "output": ("sin 1",)}
    found = memory.in_bands(step, bands, "rest")
    assert [sum(of.values()) for of in found] == [one.bytes for one in step.moments]
    assert found[2] == {"kept": 8000, "output": 4000, "rest": 0}
    with pytest.raises(ValueError, match="exp 1 stand in two bands; a tensor takes one"):
        memory.in_bands(step, {"one": ("exp 1",), "other": ("exp 1",)}, "rest")


def test_the_picture_stacks_the_bands_up_to_the_peak():
    step = training_step(a_chain, torch.empty(1000))
    assert isinstance(step, TrainingStep)
    figure = memory.over_a_step({"a chain": step}, {"kept": ("exp 1",)}, "rest", 1000, "kB")
    (axes,) = figure.axes
    tops = {}
    for bar in axes.patches:
        place = round(bar.get_x() + bar.get_width() / 2)
        tops[place] = max(tops.get(place, 0), bar.get_y() + bar.get_height())
    assert [tops[n] for n in sorted(tops)] == [one.bytes / 1000 for one in step.moments]
    (marker,) = [line for line in axes.lines if line.get_marker() == "v"]
    assert marker.get_ydata()[0] == step.peak.bytes / 1000
    assert marker.get_xdata()[0] == 1 + step.moments.index(step.peak)
