"""The record of a training step's memory: what is compared, refused, and told of a failure."""

import json

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.lab.__main__ import main
from kernels.lab.counting.alive import Alive
from kernels.lab.measuring import step_memory
from kernels.ops.layers.encoder_layer import FusedEncoderLayer

CPU = torch.device("cpu")


def test_the_layers_that_are_compared_have_their_flags():
    made = step_memory.layers(128, True, CPU)
    assert list(made) == ["torch", "compile", *step_memory.FLAGS]
    for name, flags in step_memory.FLAGS.items():
        layer = made[name]()
        assert isinstance(layer, FusedEncoderLayer)
        assert layer.norm_first
        assert layer.dropout.p == step_memory.DROPOUT
        own = {flag: getattr(layer, flag) for flag in (*step_memory.GELU, *step_memory.ATTENTION)}
        assert own == {flag: flag in flags for flag in own}


@pytest.fixture
def counted(monkeypatch):
    """Steps on fake tensors, whose bytes are counted: a stand-in for a GPU's allocator."""

    def peak(layer, x):
        if not isinstance(layer, FusedEncoderLayer):
            raise RuntimeError("out of memory\nand more")
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            for one in layer.modules():
                for name, value in one._parameters.items():
                    one._parameters[name] = None if value is None else mode.from_tensor(value)
            leaf = torch.empty(x.shape, dtype=x.dtype, requires_grad=True)
            dy = torch.empty_like(leaf)
            with Alive(list(layer.parameters()), leaf, dy) as alive:
                layer(leaf).backward(dy)
            gradients = sum(one.grad.nbytes for one in (leaf, *layer.parameters()))
        return alive.peak - gradients

    monkeypatch.setattr(step_memory, "peak_of_a_step", peak)
    monkeypatch.setattr(step_memory, "this_device", lambda: CPU)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def test_a_step_that_fails_is_told_and_the_others_are_kept(counted):
    told, shape = [], (8, 512, 128)
    found = step_memory.peaks([shape], told.append)
    assert len(told) == 4
    assert told[0].endswith("torch: RuntimeError: out of memory")
    for name in ("encoder_pre", "encoder_post"):
        peaks = found[name]["8x512x128"]
        assert list(peaks) == list(step_memory.FLAGS)
        of_mlp = 2 * 8 * 512 * 4 * 128
        assert peaks["fused"] - peaks["fused gelu_checkpoint"] == of_mlp
    assert "encoder_pre   8x512x128    fused_checkpointed" in step_memory.table(
        {"peak_bytes": found}
    )


def test_a_record_is_written_and_read(counted, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(step_memory.devices, "describe", lambda _: {"slug": "t4", "name": "T4"})
    monkeypatch.setattr(step_memory.peaks, "__defaults__", (((1, 8, 128),), step_memory.say))
    assert main(["memory", "--out", str(tmp_path)]) == 0
    (record,) = step_memory.step_memories(tmp_path)
    assert record == json.loads((tmp_path / "t4" / "memory.json").read_text())
    assert record["peak_bytes"]["encoder_pre"]["1x8x128"]["fused"] > 0
    assert "memory.json" in capsys.readouterr().out


def test_without_a_gpu_it_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(step_memory.torch.cuda, "is_available", lambda: False)
    assert main(["memory"]) == 2
    assert "no GPU" in capsys.readouterr().err
