"""The bench: what it refuses, and a whole run on a stand-in for a GPU."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from kernels import registry
from kernels.lab import selection
from kernels.lab.cards import devices
from kernels.lab.cards.makers import CARDS
from kernels.lab.counting import in_processes, op_ledger, traffic
from kernels.lab.measuring import (
    bench,
    cell_bench,
    copying,
    correctness,
    memory_probes,
    timing,
    verdicts,
)
from kernels.lab.profiling import profile
from kernels.lab.profiling.ncu import CellProfile, ProfiledKernel
from kernels.lab.records import provenance
from kernels.lab.records.data import read_suite
from kernels.paths import DATA_DIR, ROOT
from kernels.registry import Backward, Cost, Op, Pass, Random, Tolerance, Variant, cases, named
from tests.lab.test_data import a_row
from tests.lab.test_timing import Tape


def lab(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "kernels.lab", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("bench nope", ["suite 'nope'", "ceilings, norms"]),
        ("bench norms --dtype int8", ["dtype 'int8'", "bf16"]),
        ("bench norms --shape 4096", ["shape '4096'", "512x1024"]),
    ],
)
def test_a_bad_request_is_one_sentence_and_exit_code_2(arguments, told):
    done = lab(*arguments.split())
    assert done.returncode == 2
    assert done.stdout == ""
    (sentence,) = done.stderr.strip().splitlines()
    assert all(part in sentence for part in told)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_bench_says_what_works_without_one():
    done = lab("bench", "norms")
    assert done.returncode == 2
    (sentence,) = done.stderr.strip().splitlines()
    assert "no GPU" in sentence
    assert "python -m kernels.lab count layernorm" in sentence


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"suite": "norms", "variants": "fused,nope"}, "variant 'nope'"),
        ({"suite": "norms", "shapes": ["4x"]}, "not understood"),
        ({"suite": "norms", "shapes": ["0x8"]}, "sizes above 0"),
        ({"suite": "ceilings", "variants": "copy"}, "nothing is left"),
    ],
)
def test_selections_that_are_refused(asked, told):
    with pytest.raises(selection.RefusalError, match=told):
        selection.select(**asked)


def test_a_suite_without_operations_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "ops", lambda suite=None: [])
    with pytest.raises(selection.RefusalError, match="'norms' has no operations yet"):
        selection.select("norms")


def test_a_selection():
    cells = selection.select("norms", "torch,fused", ["3x5", "3x5"], ["bfloat16", "fp32"], "fwd")
    assert {(c.op.name, c.case.shape, c.case.dtype) for c in cells} >= {
        ("layernorm", (3, 5), torch.bfloat16),
        ("layernorm", (3, 5), torch.float32),
    }
    layer_norms = [c for c in cells if c.op.name == "layernorm"]
    assert len(layer_norms) == 2
    assert [v.name for v in layer_norms[0].variants] == ["torch", "fused"]


def test_a_variant_stands_in_the_cells_it_names_and_in_any_that_is_asked_for():
    slow = "compile_max_autotune"
    selection.load_ops()
    op = registry.get("layernorm")

    def places(variants, shapes=()):
        cells = selection.select("norms", variants, shapes, pass_="fwd")
        return {c.case for c in cells if slow in [v.name for v in c.variants]}

    assert places("all") == set(op.variants[slow].cases)
    assert 0 < len(places("all")) < len(op.shapes) * len(op.dtypes)
    assert places("all", ["512x1024"]) == set()
    assert places(slow) == set(cases(op.shapes))
    assert places(f"fused,{slow}", ["3x5"]) == set(cases([(3, 5)]))


def test_the_faster_copy_is_the_baseline():
    run = SimpleNamespace(copies={})
    cell = selection.select("norms", shapes=["4x4"], dtypes=["fp32"])[0]
    slow, fast = (copy.name for copy in cell_bench.COPIES)
    samples = {
        "graph": {slow: [3.0, 3.0], fast: [2.0, 2.0], "fused": [2.5, 2.5]},
        "host": {slow: [9.0], fast: [10.0], "fused": [9.0]},
    }
    errors = {"fused": 0.0}
    cell_bench.Bench._keep_one_copy(run, cell, samples, errors)
    assert samples == {
        "graph": {"copy": [2.0, 2.0], "fused": [2.5, 2.5]},
        "host": {"copy": [10.0], "fused": [9.0]},
    }
    assert run.copies == {cell.name: {slow: 3.0, fast: 2.0}}


@pytest.mark.parametrize("size", [1, 3, 4, 4096 * 4, 4096 * 4 + 4, 40_001])
def test_the_copy_by_kernel_copies(size):
    x = torch.randint(0, 256, (size,), dtype=torch.uint8)
    assert torch.equal(copying.copy_by_kernel(x), x)


def test_the_ceilings():
    cells = selection.select("ceilings")
    assert [c.cost.bytes_ideal >> 20 for c in cells[:4]] == [
        128,
        512,
        2048,
        8192,
    ]
    names = [
        (c.op.name, v.name, registry.dtype_name(c.case.dtype)) for c in cells for v in c.variants
    ]
    assert names[:2] == [("copy", "torch", "fp32"), ("copy", "kernel", "fp32")]
    assert names[8:] == [
        ("matmul", "torch", "fp16"),
        ("matmul", "torch", "bf16"),
        ("matmul", "torch", "fp32"),
        ("matmul", "torch_tf32", "fp32"),
        ("launch", "torch", "fp32"),
        *[("chase", "kernel", "fp32")] * len(memory_probes.WORKING_SETS),
        *[("inflight", "kernel", "fp32")] * len(memory_probes.PROGRAMS),
    ]
    small = {"copy": (4, 8), "matmul": (8, 16, 4), "launch": (1,)}
    for cell in (cell for cell in cells if cell.op.name in small):
        shape = small[cell.op.name]
        inputs = cell.op.inputs(shape, torch.float32, "cpu", 3)
        out = cell.variants[0].fn(**inputs)
        assert correctness.relative_error(cell.op, shape, inputs, out) < 1e-5


def test_the_probes_of_memory(monkeypatch):
    monkeypatch.setattr(memory_probes, "HOPS", 70)
    monkeypatch.setattr(memory_probes, "BLOCKS_EACH", 3)
    chase, inflight = memory_probes.probes()
    for op, shape in ((chase, (33, 32)), (inflight, (5, 1024))):
        inputs = op.inputs(shape, torch.float32, "cpu", 3)
        out = op.variants["kernel"].fn(**inputs)
        assert correctness.relative_error(op, shape, inputs, out) == 0.0
    inputs = chase.inputs((33, 32), torch.float32, "cpu", 3)
    assert inputs["hops"] == 66
    ledger = traffic.count(chase.variants["kernel"].fn, **inputs)
    assert ledger.tensor("next").read_requested == chase.cost((33, 32), torch.float32).read_bytes
    assert ledger.tensor("next").read_unique == 33 * 4  # each line once a lap


def a_pair(copy_us: float, time_us: float, ideal: int, timing_: str = "graph"):
    copy = a_row(variant="copy", time_us_p50=copy_us, bytes_ideal=ideal, timing=timing_)
    return [copy, a_row(time_us_p50=time_us, bytes_ideal=ideal, timing=timing_)]


@pytest.mark.parametrize(
    ("time_us", "ideal", "timing_", "verdict"),
    [
        (10.0, 8 << 20, "graph", "kept"),
        (9.7, 8 << 20, "graph", "kept"),  # within what two medians differ
        (7.0, 8 << 20, "graph", "flagged"),
        (7.0, 4 * (50 << 20), "graph", "flagged"),
        (7.0, 4 * (50 << 20) + 1, "graph", "rejected"),
        (7.0, 4 * (50 << 20) + 1, "host", "kept"),
    ],
)
def test_a_row_faster_than_the_copy(time_us, ideal, timing_, verdict):
    rows = a_pair(10.0, time_us, ideal, timing_)
    kept, flagged, rejected = verdicts.judge(rows, 50 << 20)
    assert len(kept) == (1 if verdict == "rejected" else 2)
    assert len(flagged) == (verdict == "flagged")
    assert len(rejected) == (verdict == "rejected")
    for sentence in flagged + rejected:
        assert "layernorm fused 64x1000 fp32" in sentence


@pytest.mark.parametrize(("time_us", "believed"), [(276.6, True), (245.0, True), (244.0, False)])
def test_above_the_copy_the_memory_itself_is_the_bound(time_us, believed):
    """Three tensors read and two written on an H200: faster than a copy, below 4.8 TB/s."""
    rows = a_pair(291.5, time_us, 1120 << 20)
    kept, flagged, rejected = verdicts.judge(rows, 50 << 20, CARDS["h200"].bandwidth_bytes_per_s)
    assert (len(kept) == 2, len(flagged), len(rejected)) == (believed, believed, not believed)
    assert all("below the memory's 4.80 TB/s" in sentence for sentence in flagged)


@pytest.mark.parametrize("ideal", [0, 1, 8, 1023, 1024, 1025, 50339856 % 4096])
def test_what_the_copies_copy_is_divided_by_64_bytes(ideal):
    """A size with 16 bytes of a seed in it made the copy's kernel move 4 bytes at a time."""
    cell = SimpleNamespace(cost=SimpleNamespace(bytes_ideal=ideal))
    (held,) = cell_bench.copy_sets(cell, torch.device("cpu"), 0, 1)
    assert held["x"].numel() % 64 == 0
    assert 0 <= 2 * held["x"].numel() - ideal <= 2 * cell_bench.COPY_UNIT


def test_counts_in_processes_are_those_of_this_one(monkeypatch):
    monkeypatch.setattr(in_processes, "FEW", 2)
    monkeypatch.setattr(in_processes, "MOST_PROCESSES", 2)
    op = registry.get("layernorm")
    case = registry.Case((64, 1000), torch.float32)
    tasks = [("layernorm", name, case, "fwd") for name in ("fused", "eager", "compile")]
    found = in_processes.count_all(tasks)
    assert found == [in_processes.count(task) for task in tasks]
    assert found[0] == in_processes.Counted(
        *(getattr(op_ledger.count_case(op, "fused", case), name) for name in
          ("bytes_unique", "bytes_requested", "bytes_sectors", "method"))
    )  # fmt: skip
    assert "can't be counted" in found[2]


def test_an_error_is_measured_by_rows_and_sees_what_is_not_written(monkeypatch):
    op = registry.get("layernorm")
    inputs = op.inputs((7, 5), torch.float32, "cpu", 0)
    out = op.reference(**inputs).float()
    whole = correctness.relative_error(op, (7, 5), inputs, out)
    assert 0 < whole < 1e-6
    monkeypatch.setattr(correctness, "CHUNK_ELEMENTS", 10)
    assert correctness.relative_error(op, (7, 5), inputs, out) == pytest.approx(whole)
    assert correctness.relative_error(op, (7, 5), inputs, 2 * out) == pytest.approx(1, rel=1e-3)
    out[6, 4] = math.nan
    with pytest.raises(correctness.NotFiniteError, match="NaN"):
        correctness.relative_error(op, (7, 5), inputs, out)
    with pytest.raises(ValueError, match="the output has shape"):
        correctness.relative_error(op, (7, 5), inputs, out[:, :4])


def test_a_part_of_a_suite_has_a_place_of_its_own(tmp_path):
    options = bench.Options("norms")
    assert options.directory() == DATA_DIR
    assert options.directory(whole=False) != DATA_DIR
    part = bench.Options("norms", dtypes=("bf16",), run_id="mine")
    assert part.directory() == ROOT / "_build" / "bench" / "mine"
    assert bench.Options("norms", shapes=("4x4",), out=tmp_path).directory() == tmp_path


def _broken(x):
    raise RuntimeError("it broke\nwith a long story")


def _inputs(shape, dtype, device, seed):
    generator = torch.Generator(device).manual_seed(seed)
    return {"x": torch.randn(shape, generator=generator, device=device).to(dtype)}


@pytest.fixture
def doubling(monkeypatch) -> Op:
    """An operation that doubles, in a registry of its own: variants right, wrong, NaN, broken."""
    op = Op(
        name="doubling",
        suite="pointwise",
        inputs=_inputs,
        reference=lambda x: 2 * x.double(),
        dims="RN",
        tensors={"x": "RN"},
        outputs={"y": "RN"},
        independent="R",
        variants=named(
            Variant("eager", lambda x: x + x),
            Variant("torch", lambda x: 2 * x),
            Variant("wrong", lambda x: 2.5 * x),
            Variant("nan", lambda x: x * math.nan),
            Variant("broken", _broken),
            Variant("waiting", lambda x: x * 2, waits=True),
            Variant("absent", _broken, unavailable=lambda device: "it is not installed"),
        ),
        shapes=((8, 4), (16, 4)),
        dtypes=(torch.float32,),
        forward=Pass(
            cost=lambda case: Cost(math.prod(case.shape), *[4 * math.prod(case.shape)] * 2),
            tolerance=lambda case, name: Tolerance(1e-2, 1e-1),
        ),
    )
    selection.load_ops()
    monkeypatch.setattr(registry, "_OPS", {op.name: op})
    return op


@pytest.fixture
def a_gpu(monkeypatch):
    """Let the bench take the CPU for a GPU whose timeline is a tape."""

    class Stream(Tape):
        l2_bytes = 50 << 20

        def __init__(self, device):
            super().__init__()

        def mark(self):
            self.now += 3.0
            return super().mark()

    cuda = torch.cuda
    props = SimpleNamespace(total_memory=16 << 30, L2_cache_size=50 << 20)
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(cuda, "get_device_properties", lambda *_: props)
    monkeypatch.setattr(cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(cell_bench, "this_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(timing, "CudaStream", Stream)
    monkeypatch.setattr(
        timing,
        "make_and_capture",
        lambda makers, pool: (
            lambda calls: SimpleNamespace(replay=lambda: [call() for call in calls])
        )([make() for make in makers]),
    )
    monkeypatch.setattr(cell_bench, "COPIES", (Variant("copy by driver", copying.copy_by_driver),))
    seen = [("a_kernel", 0.0, 1.0), ("another", 2.0, 1.0)]
    monkeypatch.setattr(profile, "timeline", lambda fn: seen)
    monkeypatch.setattr(devices, "describe", lambda *_: {"name": "A card", "slug": "a-card"})


def test_a_whole_run(a_gpu, doubling, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(profile, "find_ncu", lambda: None)
    options = bench.Options("pointwise", out=tmp_path, seconds=0.01)
    assert bench.run(options) == 1
    rows, record = read_suite(tmp_path / "a-card" / "pointwise.csv")
    names = {"copy", "eager", "torch", "wrong"}
    shapes = {"8x4", "16x4"}
    assert {(r.variant, r.shape, r.timing) for r in rows} == {
        *((n, s, t) for n in names for s in shapes for t in ("graph", "host")),
        *(("waiting", s, "host") for s in shapes),
    }
    for row in rows:
        assert row.samples >= timing.MIN_SAMPLES
        assert row.launches == 2
        assert row.bytes_ideal == 8 * 4 * int(row.shape.split("x")[0])
        assert row.bytes_dram_read is None
    errors = {row.variant: row.error for row in rows}
    assert errors["copy"] is None
    assert errors["eager"] == 0.0
    assert errors["wrong"] == pytest.approx(0.25)
    out, problems = capsys.readouterr()
    assert "absent: it is not installed" in out
    assert "no graph doubling 8x4 fp32 waiting: a call of it waits for the GPU" in out
    assert "WRONG RESULT  doubling 8x4 fp32 wrong" in problems
    assert "doubling 8x4 fp32 nan: NotFiniteError" in problems
    assert "doubling 8x4 fp32 broken: RuntimeError: it broke\n" in problems
    assert record["card"]["slug"] == "a-card"
    assert record["calls_in_graph"] == {"doubling 8x4 fp32": 32, "doubling 16x4 fp32": 32}
    assert set(record) >= {"commit", "dirty", "command", "date", "versions", "method", "profile"}
    assert record["copies_us"].keys() == record["calls_in_graph"].keys()
    timeline = record["timelines"]["doubling:eager:8x4:fp32"]
    assert timeline == [["a_kernel", 0.0, 1.0], ["another", 2.0, 1.0]]
    assert "ncu" in record["profile"]["problems"][0]
    json.dumps(record, allow_nan=False)


def test_a_run_without_faults_ends_with_0_and_takes_what_the_profiler_found(
    a_gpu, doubling, tmp_path, monkeypatch
):
    def profiled(rows, seconds, say, keep):
        kernels = [ProfiledKernel("a", 1.0, 100, 10), ProfiledKernel("b", 1.0, 5, 1)]
        cells = [
            CellProfile(row.op, row.variant, row.pass_, row.shape, row.dtype, "chain", kernels)
            for row in rows
        ]
        return profile.Found(cells, {}, [])

    monkeypatch.setattr(profile, "run_rows", profiled)
    options = bench.Options("pointwise", "eager,torch", ("8x4",), out=tmp_path, seconds=0.01)
    assert bench.run(options) == 0
    rows, record = read_suite(tmp_path / "a-card" / "pointwise.csv")
    graph = [r for r in rows if r.timing == "graph" and r.variant != "copy"]
    assert [(r.bytes_dram_read, r.bytes_dram_write) for r in graph] == [(105, 11)] * 2
    assert all(r.bytes_dram_read is None for r in rows if r not in graph)
    assert len(record["profile"]["cells"]) == 2


def _dropping(x, p, slope=2.0):
    return torch.where(torch.rand(x.shape) >= p, slope * x / (1 - p), 0.0)


def test_a_backward_with_random_numbers_of_its_own_is_judged_without_chance(
    a_gpu, doubling, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(profile, "find_ncu", lambda: None)
    rule = {"cost": doubling.forward.cost, "tolerance": doubling.forward.tolerance}
    op = replace(
        doubling,
        inputs=lambda *given: {**_inputs(*given), "p": 0.5},
        reference=lambda x, p, first_row=0: 2 * x if p == 0 else 0 * x,
        variants=named(
            Variant("torch", _dropping, ("fwd", "bwd"), own_random=True),
            Variant("wrong", partial(_dropping, slope=3.0), ("fwd", "bwd"), own_random=True),
        ),
        backward=Backward(**rule, differentiates=("x",)),
        random=Random(lambda x, p: (2 * x.double() / (1 - p), 0 * x.double())),
    )
    monkeypatch.setattr(registry, "_OPS", {op.name: op})
    bench.run(bench.Options("pointwise", pass_="bwd", out=tmp_path, seconds=0.01))
    rows, _ = read_suite(tmp_path / "a-card" / "pointwise.csv")
    errors = {row.variant: row.error for row in rows}
    assert errors["torch"] == 0
    assert errors["wrong"] == pytest.approx(0.5)
    assert "WRONG RESULT  doubling 8x4 fp32 bwd wrong gradient of x" in capsys.readouterr().err


class Cut(BaseException):
    """What ends a process from outside."""


def _cut(*_):
    raise Cut


OF_A_CUT_RUN = ("pointwise", "eager,torch")


@pytest.mark.parametrize(("place", "known"), [("count_launches", None), ("run_rows", 2)])
def test_a_run_that_is_cut_behind_its_times_leaves_them(
    a_gpu, doubling, tmp_path, monkeypatch, place, known
):
    monkeypatch.setattr(cell_bench.Bench if place == "count_launches" else profile, place, _cut)
    with pytest.raises(Cut):
        bench.run(bench.Options(*OF_A_CUT_RUN, out=tmp_path, seconds=0.01))
    rows, record = read_suite(tmp_path / "a-card" / "pointwise.csv")
    assert {(r.variant, r.shape) for r in rows} == {
        (n, s) for n in ("copy", "eager", "torch") for s in ("8x4", "16x4")
    }
    assert all(row.time_us_p50 > 0 and row.launches == known for row in rows)
    assert (
        record["copies_us"].keys() == record["speed_ups"].keys() == record["calls_in_graph"].keys()
    )


def test_a_profile_that_is_cut_leaves_what_was_profiled(a_gpu, doubling, tmp_path, monkeypatch):
    def profiled(rows, seconds, say, keep):
        first, *_ = rows
        place = (first.op, first.variant, first.pass_, first.shape, first.dtype)
        kernels = [ProfiledKernel("k", 1.0, 7, 3)]
        keep(profile.Found([CellProfile(*place, "single", kernels)], {}, []))
        raise Cut

    monkeypatch.setattr(profile, "run_rows", profiled)
    with pytest.raises(Cut):
        bench.run(bench.Options(*OF_A_CUT_RUN, out=tmp_path, seconds=0.01))
    rows, record = read_suite(tmp_path / "a-card" / "pointwise.csv")
    assert [row.bytes_dram_read for row in rows if row.bytes_dram_read] == [7]
    assert len(record["profile"]["cells"]) == 1


def test_a_run_that_is_cut_between_cells_goes_on_there(a_gpu, doubling, tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "find_ncu", lambda: None)
    measure, measured = cell_bench.Bench.measure, []

    def once(self, cell):
        if measured:
            raise Cut
        measured.append(cell.name)
        return measure(self, cell)

    monkeypatch.setattr(cell_bench.Bench, "measure", once)
    options = bench.Options(*OF_A_CUT_RUN, out=tmp_path, seconds=0.01)
    with pytest.raises(Cut):
        bench.run(options)
    kept = options.kept("a-card")
    head, cell = (json.loads(line) for line in kept.read_text().splitlines())
    assert cell["cell"] == measured[0]
    kept.write_text(kept.read_text() + '{"cell": "cut off in the mid')

    def counted(self, cell):
        measured.append(cell.name)
        assert self.seed == head["seed"]
        return measure(self, cell)

    monkeypatch.setattr(cell_bench.Bench, "measure", counted)
    with pytest.raises(selection.RefusalError, match="measured with other seconds"):
        bench.run(replace(options, seconds=0.02, resume=True))
    bench.run(replace(options, resume=True))
    assert measured == ["doubling 8x4 fp32", "doubling 16x4 fp32"]
    rows, record = read_suite(tmp_path / "a-card" / "pointwise.csv")
    as_kept = [row["time_us_p50"] for row in cell["rows"]]
    assert [r.time_us_p50 for r in rows if r.shape == "8x4"] == pytest.approx(as_kept, rel=1e-5)
    assert record["copies_us"].keys() == set(measured)
    assert not kept.exists()
    with pytest.raises(selection.RefusalError, match="--resume finds no cells"):
        bench.run(replace(options, resume=True))


def test_a_run_that_is_cut_while_launches_are_counted_goes_on_there(
    a_gpu, doubling, tmp_path, monkeypatch
):
    monkeypatch.setattr(profile, "find_ncu", lambda: None)
    timeline, asked = profile.timeline, []

    def then_cut(fn):
        if len(asked) == 3:  # the first cell has three: the copy, eager, torch
            raise Cut
        asked.append(fn)
        return timeline(fn)

    monkeypatch.setattr(profile, "timeline", then_cut)
    options = bench.Options(*OF_A_CUT_RUN, out=tmp_path, seconds=0.01)
    with pytest.raises(Cut):
        bench.run(options)
    monkeypatch.setattr(profile, "timeline", lambda fn: asked.append(fn) or timeline(fn))
    bench.run(replace(options, resume=True))
    rows, record = read_suite(tmp_path / "a-card" / "pointwise.csv")
    assert len(asked) == 6
    assert all(row.launches is not None for row in rows)
    assert record["timelines"].keys() == {row.place for row in rows if row.timing == "graph"}


def test_a_device_that_died_leaves_the_recorded_file_alone(a_gpu, doubling, monkeypatch, capsys):
    monkeypatch.setattr(bench, "DATA_DIR", ROOT / "never")
    calls = []

    def synchronize(*_):
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    written = []
    monkeypatch.setattr(bench, "write_suite", lambda path, *_: written.append(path))
    assert bench.run(bench.Options("pointwise", seconds=0.01)) == 1
    assert "stopped answering" in capsys.readouterr().err
    assert not any("never" in str(path) for path in written)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"seconds": math.nan}, "--seconds nan"), ({"run_id": "../x"}, "--run-id '../x'")],
)
def test_options_that_are_refused(changes, sentence):
    with pytest.raises(selection.RefusalError, match=sentence):
        bench.run(bench.Options("norms", **changes))


def test_an_output_folder_that_cannot_be_made(a_gpu, tmp_path):
    (tmp_path / "a_file").write_text("")
    with pytest.raises(selection.RefusalError, match="--out .*a_file"):
        bench.run(bench.Options("norms", out=tmp_path / "a_file"))


def test_the_command_holds_no_path_of_the_machine(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "bench", "norms", "--out", str(ROOT / "_build" / "gpu")])
    assert provenance.command() == "python -m kernels.lab bench norms --out _build/gpu"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0", "CUDA out of memory."),
        ("x has 1.5 times e.g. too many\nand more", "x has 1.5 times e.g. too many"),
        ("", ""),
    ],
)
def test_an_error_is_told_by_its_first_sentence(text, told):
    assert cell_bench.first_line(ValueError(text)) == f"ValueError{': ' * bool(told)}{told}"


def test_what_holds_or_takes_most_is_left_out_where_all_do_not_fit(capsys):
    bench = object.__new__(cell_bench.Bench)
    bench.memory = 40 << 30
    cell = SimpleNamespace(name="the cell")
    variants = [SimpleNamespace(name=name) for name in ("eager", "torch", "fused")]
    held = {"eager": 9 << 30, "torch": 1 << 30, "fused": 0}
    peaks = {"eager": 0, "torch": 10 << 30, "fused": 0}  # 20 with what is held: a half
    assert bench.fitting(cell, variants, held, peaks) == variants
    peaks["torch"] += 1
    assert bench.fitting(cell, variants, held, peaks) == [variants[0], variants[2]]
    assert "left out the cell torch: it takes 10.0 GiB" in capsys.readouterr().out
    held["torch"] = 2 << 30  # 11 of the 10 GiB that a quarter is
    assert bench.fitting(cell, variants, held, peaks) == variants[1:]
    assert "left out the cell eager: it holds 9.0 GiB" in capsys.readouterr().out
