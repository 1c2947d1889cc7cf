"""The bench on a GPU: one small cell from its times to its file."""

import subprocess
import sys

import pytest
import torch

import kernels.ops  # noqa: F401
from kernels import passes, registry
from kernels.lab.cards import devices
from kernels.lab.measuring import timing
from kernels.lab.profiling import profile
from kernels.lab.records.data import read_suite
from kernels.paths import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def test_a_small_cell_end_to_end(tmp_path):
    command = [sys.executable, "-m", "kernels.lab", "bench", "norms", "--out", str(tmp_path)]
    command += ["--shape", "512x1024", "--dtype", "fp16", "--variants", "torch,fused"]
    command += ["--pass", "fwd"]
    command += ["--seconds", "0.05", "--no-profile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows, record = read_suite(tmp_path / devices.describe()["slug"] / "norms.csv")
    mine = [row for row in rows if row.op == "layernorm"]
    assert {(row.variant, row.timing) for row in mine} == {
        (variant, timing_)
        for variant in ("copy", "torch", "fused")
        for timing_ in ("graph", "host")
    }
    for row in mine:
        assert row.launches == 1
        assert row.samples >= timing.MIN_SAMPLES
        assert 0 < row.time_us_p20 <= row.time_us_p50 <= row.time_us_p95 < 1e4
    assert record["card"]["name"] == torch.cuda.get_device_name()
    assert record["versions"]["torch"] == torch.__version__


def test_a_backward_end_to_end(tmp_path):
    command = [sys.executable, "-m", "kernels.lab", "bench", "norms", "--out", str(tmp_path)]
    command += ["--shape", "512x1024", "--dtype", "bf16", "--variants", "torch,compile,fused,copy"]
    command += ["--pass", "bwd", "--seconds", "0.05", "--no-profile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows, record = read_suite(tmp_path / devices.describe()["slug"] / "norms.csv")
    mine = [row for row in rows if row.op == "layernorm"]
    assert {row.pass_ for row in mine} == {"bwd"}
    graph = {row.variant: row for row in mine if row.timing == "graph"}
    assert set(graph) == {"copy", "torch", "compile", "fused"}
    for name, row in graph.items():
        assert (row.error is None) == (name == "copy")
        assert row.launches >= 1
        assert "layernorm:fused:512x1024:bf16:bwd" in record["timelines"]


def test_a_captured_backward_replays_into_its_own_gradients():
    op = registry.get("layernorm")
    inputs = op.inputs((64, 1024), torch.float32, "cuda", seed=0)
    for name in ("eager", "torch", "fused"):
        want = passes.bind(op, op.variant(name), inputs, "bwd", 1)()
        kept = []

        def make(name=name, kept=kept):
            call = passes.bind(op, op.variant(name), inputs, "bwd", 1)
            return lambda: kept.append(call())

        captured = timing.make_and_capture([make], torch.cuda.graph_pool_handle())
        for gradient in kept[-1]:
            gradient.zero_()
        captured.replay()
        torch.cuda.synchronize()
        for got, right in zip(kept[-1], want, strict=True):
            torch.testing.assert_close(got, right)


def test_launches_of_a_chain_are_seen_in_order():
    x = torch.randn(64, 64, device="cuda")
    found = profile.timeline(lambda: (x.exp() + 1.0).sum())
    assert len(found) == 3
    assert all(time_us > 0 for _, _, time_us in found)
    copy = profile.timeline(lambda: x.clone())
    assert len(copy) == 1


def test_a_flush_makes_a_small_copy_cold():
    device = torch.device("cuda", torch.cuda.current_device())
    stream = timing.CudaStream(device)
    x = torch.randn(stream.l2_bytes // 32, device=device)  # an eighth of the L2
    torch.cuda.synchronize()
    graph = timing.capture([x.clone], torch.cuda.graph_pool_handle())

    class Warm(timing.CudaStream):
        def flush(self):
            super().flush()  # keeps the device busy while Python queues the rest
            graph.replay()

    cold = timing.time_windows({"copy": graph.replay}, stream, seconds=0.1)["copy"]
    warm = timing.time_windows({"copy": graph.replay}, Warm(device), seconds=0.1)["copy"]
    assert timing.quantile(warm, 0.5) < timing.quantile(cold, 0.5)


@pytest.mark.proves("kernels.lab.measuring.timing")
def test_what_a_call_makes_once_and_keeps_is_no_part_of_the_graph():
    kept: dict[int, torch.Tensor] = {}
    captured = []

    def maker(number):
        def call():
            if number not in kept:
                captured.append(torch.cuda.is_current_stream_capturing())
                kept[number] = torch.ones(8, device="cuda")
            return kept[number] + 1

        return lambda: call

    pool = torch.cuda.graph_pool_handle()
    timing.make_and_capture([maker(number) for number in range(3)], pool).replay()
    assert captured == [False] * 3
