"""The backward and tuples of outputs: called, checked, counted, selected and measured."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import fake_tensor

from kernels import passes, registry
from kernels.lab import selection
from kernels.lab.counting import aten, by_programs, op_ledger, traffic
from kernels.lab.measuring import bench, cell_bench, correctness, shown, timing, tune
from kernels.lab.profiling import profile, profile_child
from kernels.lab.records.data import read_suite, write_suite
from kernels.lab.selection import Cell
from kernels.registry import Case, Variant
from tests.lab import backward_ops as ops
from tests.lab.backward_ops import OP
from tests.lab.test_bench import a_gpu  # noqa: F401
from tests.lab.test_data import a_row

SHAPE = (50, 12)
SIZE = 50 * 12 * 4


def inputs_of(shape=SHAPE, dtype=torch.float32):
    return OP.inputs(shape, dtype, "cpu", 3)


def backward(variant="fused", inputs=None, seed=5):
    return passes.bind(OP, OP.variant(variant), inputs or inputs_of(), "bwd", seed)


def test_a_backward_runs_again_and_again_from_one_forward():
    calls = []

    def counted(**inputs):
        calls.append(inputs["x"].requires_grad)
        return ops.eager(**inputs)

    inputs = inputs_of()
    with torch.no_grad():
        call = passes.bind(OP, Variant("a", counted, ops.BOTH), inputs, "bwd", seed=5)
        first, again = call(), call()
    assert calls == [True]
    assert not inputs["x"].requires_grad
    dy, dh = passes.upstream(call.outputs, seed=5)
    want = (dy * inputs["scale"] + dh, (dy * inputs["x"]).sum(0), (dy + dh).sum(0))
    for one, other, right in zip(first, again, want, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, right)


def test_gradients_of_outputs_are_random_apart_and_the_same_for_the_same_seed():
    x = inputs_of()["x"]
    dy, dh = passes.upstream((x, x.bfloat16()), seed=3)
    assert dh.dtype == torch.bfloat16
    assert not torch.equal(dy.bfloat16(), dh)
    assert torch.equal(passes.upstream(x, seed=3)[0], dy)
    assert not torch.equal(passes.upstream(x, seed=4)[0], dy)
    assert not torch.equal(dy, x)  # which was made with the seed 3 too


def test_a_pass_that_a_variant_lacks_is_one_sentence():
    for pass_, variant in (("bwd", "torch"), ("train", "torch"), ("nope", "fused")):
        with pytest.raises(ValueError, match=f"{variant!r} of 'scaling' has no pass {pass_!r}"):
            passes.bind(OP, OP.variant(variant), inputs_of(), pass_)
    still = Variant("still", lambda x, scale, bias: x.detach() + 1, ops.BOTH)
    with pytest.raises(ValueError, match="no output of 'scaling' depends"):
        passes.bind(OP, still, inputs_of(), "bwd")


def test_a_compiled_graph_runs_back_twice(monkeypatch):
    import torch._functorch.config as config

    monkeypatch.setattr(config, "donated_buffer", True)
    # The sine's input is saved for the way back: a buffer that the graph could lend.
    compiled = torch.compile(
        lambda x, scale, bias: ops.eager((x @ x.T).sin() @ x, scale, bias)[0], backend="aot_eager"
    )
    call = passes.bind(OP, Variant("c", compiled, ops.BOTH), inputs_of(), "bwd")
    assert not config.donated_buffer
    assert all(torch.equal(a, b) for a, b in zip(call(), call(), strict=True))


@pytest.mark.parametrize("chunk", [10**9, 40])
def test_several_outputs_are_all_checked(monkeypatch, chunk):
    monkeypatch.setattr(correctness, "CHUNK_ELEMENTS", chunk)
    inputs = inputs_of()
    y, h = OP.variant("fused").fn(**inputs)
    assert 0 < correctness.relative_error(OP, SHAPE, inputs, (y, h)) < 1e-6
    assert correctness.relative_error(OP, SHAPE, inputs, (y, 2 * h)) == pytest.approx(1, rel=1e-3)
    with pytest.raises(ValueError, match="there are 1 outputs, the reference has 2"):
        correctness.relative_error(OP, SHAPE, inputs, y)
    h[49, 11] = math.nan
    with pytest.raises(correctness.NotFiniteError, match="output 2 holds NaN"):
        correctness.relative_error(OP, SHAPE, inputs, (y, h))


@pytest.mark.parametrize("chunk", [10**9, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_checked_against_the_reference_by_rows(monkeypatch, chunk, dtype):
    monkeypatch.setattr(correctness, "CHUNK_ELEMENTS", chunk)
    inputs = inputs_of(dtype=dtype)
    call = backward(inputs=inputs)
    above = passes.upstream(call.outputs, 5)
    good = call()
    errors = correctness.gradient_errors(OP, SHAPE, inputs, above, good)
    assert list(errors) == ["x", "scale", "bias"]
    assert all(error < 2 * torch.finfo(dtype).eps for error in errors.values())
    for number, name in enumerate(errors):
        bad = [2 * one if i == number else one for i, one in enumerate(good)]
        told = correctness.gradient_errors(OP, SHAPE, inputs, above, bad)
        assert told.pop(name) == pytest.approx(1, rel=0.05)
        assert all(error == errors[other] for other, error in told.items())
    spoilt = [good[0], good[1], good[2] * math.nan]
    with pytest.raises(correctness.NotFiniteError, match="gradient of 'bias' holds NaN"):
        correctness.gradient_errors(OP, SHAPE, inputs, above, spoilt)
    with pytest.raises(ValueError, match="the gradient of 'scale' has shape"):
        correctness.gradient_errors(OP, SHAPE, inputs, above, (good[0], good[1][:4], good[2]))


def test_the_bytes_of_a_backward_in_pytorch_leave_its_forward_out():
    ledger = aten.count_backward(OP, ops.eager, inputs_of())
    told = {(s.name, tuple(t.tensor for t in s.tensors)): s for s in ledger}
    assert ledger.method == "aten"
    assert ledger.aten_ops == len(told)
    assert ledger.tensor("dy1").read_unique >= SIZE
    assert ledger.tensor("dy2").read_unique >= SIZE
    assert ledger.tensor("x").read_unique == SIZE  # once, for the gradient of scale
    assert ledger.tensor("scale").read_unique == 12 * 4
    assert "bias" not in ledger.tensors
    adds = [step for step in ledger if step.name == "add"]
    assert sorted(step.bytes_unique for step in adds) == [3 * 12 * 4, 3 * SIZE]


def backward_steps(fn, *names, shape=(64, 128), dtype=torch.bfloat16):
    op = ops.going_back_to(*names)
    inputs = OP.inputs(shape, dtype, "cpu", 0)
    return [step.name for step in aten.count_backward(op, fn, inputs)]


def test_a_backward_is_counted_as_a_gpu_would_run_it():
    def dropped(x, scale, bias):
        return F.dropout(x, 0.25)

    def normed(x, scale, bias):
        return F.layer_norm(x, (128,), scale, bias)

    def rms(x, scale, bias):
        return F.rms_norm(x, (128,), scale, 1e-5)

    def indexed(x, scale, bias):
        return x[3:5]

    assert backward_steps(dropped, "x") == ["native_dropout_backward"]
    assert backward_steps(normed, "x", "scale", "bias") == ["native_layer_norm_backward"]
    assert backward_steps(rms, "x", "scale") == ["_fused_rms_norm_backward"]
    assert backward_steps(indexed, "x") == ["slice_backward"]
    forward = aten.count(rms, **OP.inputs((64, 128), torch.bfloat16, "cpu", 0))
    assert [step.name for step in forward] == ["_fused_rms_norm"]
    assert forward.write_unique == 64 * 128 * 2 + 64 * 4
    inputs = OP.inputs((64, 128), torch.bfloat16, "cpu", 0)
    back = aten.count_backward(ops.going_back_to("x", "scale"), rms, inputs)
    assert back.read_unique == 2 * 64 * 128 * 2 + 64 * 4 + 128 * 2
    assert back.write_unique == 64 * 128 * 2 + 128 * 2


def test_what_is_counted_needs_no_context_of_a_gpu(monkeypatch):
    """As in a process with little memory, or forked from one that uses the GPU."""

    def refused(*args, **kwargs):
        raise RuntimeError(f"CUDA initialization: out of memory, for {args} {kwargs}")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: "cuda")
    monkeypatch.setattr(torch, "empty", refused)
    fake_tensor.init_gpu_context.cache_clear()
    with fake_tensor.FakeTensorMode(), pytest.raises(RuntimeError, match="out of memory"):
        torch.zeros(3, device="cuda")
    assert aten.count(ops.eager, **inputs_of()).aten_ops == 3
    assert aten.count_backward(OP, ops.eager, inputs_of()).aten_ops > 3
    with fake_tensor.FakeTensorMode(), pytest.raises(RuntimeError, match="out of memory"):
        torch.zeros(3, device="cuda")  # PyTorch's own function is back


@pytest.fixture
def registered(monkeypatch):
    selection.load_ops()
    monkeypatch.setattr(registry, "_OPS", {})
    op_ledger.forget()
    yield registry.register(OP)
    op_ledger.forget()


def numbers(ledger):
    return [
        (s.name, s.grid, t.tensor, t.read_unique, t.read_requested, t.write_unique)
        for s in ledger
        for t in s.tensors
    ]


@pytest.mark.parametrize("rows", [1, 40, 44, 120, 200, 405])
def test_programs_that_share_the_rows_are_counted_from_a_few(registered, rows):
    """Even shares, uneven ones, and fewer rows than programs: as if every program were run."""
    inputs = OP.inputs((rows, 20), torch.bfloat16, "cpu", 0)
    whole = traffic.count(backward("fused", inputs))
    ledger = op_ledger.count_op(OP, "fused", (rows, 20), torch.bfloat16, "bwd")
    assert numbers(ledger) == numbers(whole)
    assert [step.name for step in ledger] == ["back_shared", "add_parts"]


def test_a_large_backward_is_counted_without_running_it(registered):
    ledger = op_ledger.count_op(OP, "fused", (40 * 100_000, 64), torch.bfloat16, "bwd")
    assert ledger.method == "linear"
    size = 40 * 100_000 * 64 * 2
    step = ledger.steps[0]
    assert step.programs == 40
    for name in ("dy", "dh", "x"):
        assert step.tensor(name).read_unique == size
    assert step.tensor("dx").write_unique == size
    assert step.tensor("parts").write_unique == 40 * 2 * 64 * 4
    forward = op_ledger.count_op(OP, "fused", (40 * 100_000, 64), torch.bfloat16)
    assert [s.name for s in forward] == ["scale_rows"]


def test_programs_that_tell_nothing_of_others_are_all_run_if_they_are_few(monkeypatch):
    inputs = inputs_of((41, 12))  # 21 programs, the last of one row
    ledger = by_programs.count(lambda rows: backward("fused", inputs), 41)
    assert numbers(ledger) == numbers(traffic.count(backward("fused", inputs)))
    monkeypatch.setattr(by_programs, "_MOST_PROGRAMS", 20)
    with pytest.raises(ValueError, match="don't share .* evenly"):
        by_programs.count(lambda rows: backward("fused", inputs), 41)


def test_passes_have_cells_of_their_own(registered):
    def places(**asked):
        found = selection.select("pointwise", **asked)
        return [(c.pass_, c.case.shape, registry.dtype_name(c.case.dtype)) for c in found]

    backward_ = ("bwd", (16, 4), "fp32")
    assert places()[-1] == backward_
    assert len(places()) == 5
    assert places(pass_="bwd") == [backward_]
    assert [p for p, *_ in places(pass_="fwd")] == ["fwd"] * 4
    assert places(pass_="bwd", shapes=["16x4"]) == [backward_]
    assert places(pass_="bwd", shapes=["3x5"]) == [("bwd", (3, 5), "fp32")]
    assert places(pass_="bwd", dtypes=["bf16"]) == [("bwd", (16, 4), "bf16")]
    (cell,) = selection.select("pointwise", pass_="bwd")
    assert [v.name for v in cell.variants] == ["eager", "fused"]
    assert cell.name == "scaling 16x4 fp32 bwd"
    assert places(pass_="train") == [("train", *place) for _, *place in places(pass_="fwd")]
    assert places(pass_="train", dtypes=["fp32"], shapes=["8x4"]) == [("train", (8, 4), "fp32")]
    with pytest.raises(selection.RefusalError, match="pass 'sideways' is unknown"):
        places(pass_="sideways")
    with pytest.raises(selection.RefusalError, match="nothing is left"):
        places(variants="torch", pass_="bwd")
    assert bench.Options("pointwise", pass_="bwd").partial


def test_a_copy_in_a_backward_copies_the_backwards_bytes():
    shape = (1600, 4)
    cell = Cell(OP, Case(shape, torch.float32), "bwd", ())
    (copied,) = cell_bench.copy_sets(cell, torch.device("cpu"), 0, 1)
    ideal = OP.cost(shape, torch.float32, "bwd").bytes_ideal
    assert 0 <= 2 * copied["x"].nbytes - ideal < 2 * cell_bench.COPY_UNIT
    assert ideal > OP.cost(shape, torch.float32).bytes_ideal + 2 * cell_bench.COPY_UNIT
    call = cell_bench.bind(cell, cell_bench.COPIES[0], copied)
    assert torch.equal(call(), copied["x"])


def test_a_whole_run_of_both_passes(a_gpu, monkeypatch, tmp_path, capsys):  # noqa: F811
    selection.load_ops()
    wrong = ops.with_variant("wrong", ops.wrong, name="scaling_with_faults")
    monkeypatch.setattr(registry, "_OPS", {OP.name: OP, wrong.name: wrong})
    monkeypatch.setattr(profile, "find_ncu", lambda: None)
    monkeypatch.setattr(timing, "MIN_SAMPLES", 2)  # every call is interpreted
    monkeypatch.setattr(timing, "MAX_CALLS", 2)
    options = bench.Options(
        "pointwise", "eager,fused,wrong,copy", ("2x4",), ("fp32",), out=tmp_path
    )
    options = replace(options, seconds=0.01)
    assert bench.run(options) == 1
    rows, record = read_suite(tmp_path / "a-card" / "pointwise.csv")
    mine = {(r.variant, r.pass_, r.shape) for r in rows if r.op == "scaling"}
    assert {variant for variant, pass_, _ in mine if pass_ == "bwd"} == {"copy", "eager", "fused"}
    assert {shape for _, pass_, shape in mine if pass_ == "bwd"} == {"2x4"}
    back = {r.variant: r for r in rows if r.op == "scaling" and r.pass_ == "bwd"}
    assert back["fused"].bytes_ideal == 4 * 2 * 4 * 4
    assert 0 < back["fused"].error < 1e-6
    assert back["copy"].error is None
    assert back["fused"].count_method in ("full", "linear")
    assert back["eager"].count_method == "aten"
    assert "scaling:fused:2x4:fp32:bwd" in record["timelines"]
    assert "scaling:fused:2x4:fp32" in record["timelines"]
    assert set(record["speed_ups"]["scaling 2x4 fp32 bwd"]["fused"]) == {"copy", "eager"}
    told = capsys.readouterr().err
    (problem,) = [line for line in told.splitlines() if "PROBLEM" in line]
    assert "scaling_with_faults 2x4 fp32 bwd wrong gradient of bias" in problem


def test_configurations_of_a_backward_are_timed(a_gpu, monkeypatch, capsys):  # noqa: F811
    op = replace(OP, backward=replace(OP.backward, candidates=lambda case: {"one": ops.eager}))
    monkeypatch.setattr(registry, "_OPS", {OP.name: op})
    assert tune.run("scaling", ["16x4"], ["fp32"], 0.01, "bwd") == 0
    assert "scaling 16x4 fp32 bwd: " in capsys.readouterr().out
    with pytest.raises(selection.RefusalError, match="one configuration of the pass 'fwd'"):
        tune.run("scaling", [], [], 0.01)


def test_recorded_rows_of_one_pass(tmp_path):
    rows = [a_row(), a_row(pass_="bwd", launches=2)]
    timelines = {
        "layernorm:fused:64x1000:fp32": [["f", 0, 1]],
        "layernorm:fused:64x1000:fp32:bwd": [["b", 0, 2]],
    }
    told = {"card": {"name": "A"}, "date": "2026-11-28", "timelines": timelines}
    write_suite(tmp_path / "a-card" / "norms.csv", rows, told)
    key = ("layernorm", (64, 1000), torch.float32)
    (forward,) = shown.recorded(*key, data_dir=tmp_path)
    (back,) = shown.recorded(*key, data_dir=tmp_path, pass_="bwd")
    assert (forward.row("fused").launches, back.row("fused").launches) == (1, 2)
    assert back.timeline("fused") == [("b", 0, 2)]
    chosen = profile.matching_rows(rows, ["*:fp32:bwd"])
    assert [row.pass_ for row in chosen] == ["bwd"]


def test_the_profiled_program_does_the_forward_before_the_window(monkeypatch, tmp_path):
    seen = []

    def forward(x, scale, bias):
        seen.append("forward")
        return ops.eager(x, scale, bias)

    def profiled(call, marker, flush):
        seen.append("window")
        assert len(call()) == 3

    op = ops.with_variant("told", forward)
    selection.load_ops()
    monkeypatch.setattr(registry, "_OPS", {op.name: op})
    monkeypatch.setattr(profile_child, "profiled", profiled)
    monkeypatch.setattr(profile_child, "this_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    props = SimpleNamespace(L2_cache_size=1 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: props)
    cell = {
        "op": op.name,
        "variant": "told",
        "pass": "bwd",
        "shape": "4x8",
        "dtype": "fp32",
        "options": "",
    }
    spec = {"cells": [cell], "flush": False, "seconds": 60, "done": str(tmp_path / "done.json")}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert profile_child.main(str(tmp_path / "spec.json")) == 0
    (done,) = json.loads((tmp_path / "done.json").read_text())
    assert (done["name"], done["error"]) == ("scaling 4x8 fp32 bwd told", "")
    assert seen == ["forward", "window"]


@pytest.mark.parametrize(("rows_each", "stands"), [(250, True), (249, True), (256, False)])
def test_programs_that_share_rows_and_columns_stand_for_more_rows(rows_each, stands):
    """66 chunks of rows in 4 strips: the last chunk may have fewer rows, and none may be empty."""

    def launch(rows, rows_each):
        arguments = {"n_rows": rows, "rows_each": rows_each, "n_strips": 4}
        return SimpleNamespace(name="strips", grid=(264, 1, 1), arguments=arguments)

    counts = (264, 528, 792)
    few = [launch(rows, rows // 66) for rows in counts]
    assert by_programs.stands_for(few, counts, launch(16384, rows_each), 16384) is stands
