"""What a profiler told, read: launches, Nsight Compute's table, DRAM bytes on the right rows."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

from kernels.lab.profiling import ncu, profile, profile_child
from kernels.lab.profiling.ncu import (
    MARKER,
    CellProfile,
    ProfiledKernel,
    cells_from_kernels,
    parse_csv,
)
from kernels.lab.records.data import read_suite, write_suite
from kernels.lab.selection import RefusalError
from tests.lab.test_data import a_row

# What ncu prints for a cell of one kernel and a cell of two, a marker before each.
CAPTURED = """\
==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "cell_marker" - 0: 0%....50%....100% - 2 passes
==PROF== Profiling "vectorized_layer_norm_kernel" - 1: 0%....50%....100% - 3 passes
==PROF== Profiling "cell_marker" - 2: 0%....50%....100% - 2 passes
==PROF== Profiling "elementwise_kernel" - 3: 0%....50%....100% - 3 passes
==PROF== Profiling "reduce_kernel" - 4: 0%....50%....100% - 3 passes
a line of the program itself, "quoted"
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","dram__bytes_read.sum","dram__bytes_write.sum",\
"dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum",\
"sm__warps_active.avg.pct_of_peak_sustained_active",\
"sm__inst_issued.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","byte","byte","%","ns","%","%"
"0","4242","python3.12","127.0.0.1","cell_marker","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0",\
"1,024","0","0.01","1,632","1.56","31.5"
"1","4242","python3.12","127.0.0.1","vectorized_layer_norm_kernel","1","7","(32, 4, 1)",\
"(16384, 1, 1)","0","9.0","536,870,912","242,221,056","81.25","288,416","62.5","31.5"
"2","4242","python3.12","127.0.0.1","cell_marker","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0",\
"0","0","n/a","1,600","1.56","31.5"
"3","4242","python3.12","127.0.0.1","elementwise_kernel","1","7","(128, 1, 1)",\
"(32768, 1, 1)","0","9.0","33,554,432","40,000,000","70","20,000","80","31.5"
"4","4242","python3.12","127.0.0.1","reduce_kernel","1","7","(32, 16, 1)","(1024, 1, 1)","0",\
"9.0","67,108,864","8,192","75","25,000.5","90","31.5"
"""


def entry(variant: str, error: str = "") -> dict[str, str]:
    return {
        "op": "layernorm",
        "variant": variant,
        "pass": "fwd",
        "shape": "64x1000",
        "dtype": "fp32",
        "options": "",
        "error": error,
    }


def test_the_table_of_kernels_is_read():
    kernels = parse_csv(CAPTURED)
    assert [kernel.name for kernel in kernels] == [
        MARKER,
        "vectorized_layer_norm_kernel",
        MARKER,
        "elementwise_kernel",
        "reduce_kernel",
    ]
    assert kernels[1] == ProfiledKernel(
        "vectorized_layer_norm_kernel", 288.416, 536_870_912, 242_221_056, 81.25, 62.5, 31.5
    )
    assert kernels[2].dram_pct is None
    assert ncu.passes_in_log(CAPTURED) == 3
    assert ncu.passes_in_log("") is None


def test_other_units_are_turned_into_bytes_and_microseconds():
    text = CAPTURED.replace('"byte","byte","%","ns","%"', '"Mbyte","Kbyte","%","usecond","%"')
    text = text.replace("536,870,912", "536.87").replace("242,221,056", "2.5")
    kernel = parse_csv(text)[1]
    assert (kernel.dram_read, kernel.dram_write) == (536_870_000, 2_500)
    assert kernel.duration_us == pytest.approx(288_416)


def test_sectors_are_read_where_they_were_asked_for():
    load, store = ncu.METRICS["sectors"]
    text = CAPTURED.replace("dram__bytes_read.sum", load).replace("dram__bytes_write.sum", store)
    text = text.replace('"byte","byte"', '"sector","sector"')
    kernel = parse_csv(text, ncu.METRICS["sectors"])[1]
    assert (kernel.load_sectors, kernel.store_sectors) == (536_870_912, 242_221_056)
    assert (kernel.dram_read, kernel.dram_write) == (None, None)
    assert parse_csv(CAPTURED)[1].load_sectors is None
    with pytest.raises(ValueError, match=re.escape(f"no column {load!r}")):
        parse_csv(CAPTURED, ncu.METRICS["sectors"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no table"),
        ("==ERROR== ERR_NVGPUCTRPERM\n", "no table"),
        ('"ID","Kernel Name"\n"0","a"\n', "dram__bytes_read.sum"),
    ],
)
def test_output_without_numbers_is_refused(text, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_csv(text)


def test_kernels_between_two_markers_belong_to_a_cell():
    kernels = parse_csv(CAPTURED)
    single, chain = cells_from_kernels(kernels, [entry("torch"), entry("eager")], "chain")
    assert single.key == (("layernorm", "fwd", "64x1000", "fp32", ""), "torch")
    assert (single.dram_read, single.dram_write) == (536_870_912, 242_221_056)
    assert (chain.dram_read, chain.dram_write) == (100_663_296, 40_008_192)
    assert [kernel.name for kernel in chain.kernels] == ["elementwise_kernel", "reduce_kernel"]
    failed = cells_from_kernels(kernels, [entry("torch", "it broke"), entry("eager")], "chain")
    assert [cell.variant for cell in failed] == ["eager"]
    with pytest.raises(ValueError, match="2 markers were profiled for 1 cells"):
        cells_from_kernels(kernels, [entry("torch")], "single")


def test_dram_bytes_go_to_the_graph_row_alone():
    rows = [
        a_row(variant="torch"),
        a_row(variant="torch", timing="host"),
        a_row(variant="eager", launches=3),
        a_row(variant="fused"),
    ]
    cells = cells_from_kernels(parse_csv(CAPTURED), [entry("torch"), entry("eager")], "single")
    merged, told = profile.merge(rows, profile.Found(cells, {"tool": "ncu"}, ["a problem"]))
    assert [row.bytes_dram_read for row in merged] == [536_870_912, None, 100_663_296, None]
    assert merged[0].bytes_dram_write == 242_221_056
    assert told["problems"][0] == "a problem"
    assert "ncu saw 2 kernels, PyTorch's profiler 3" in told["problems"][1]
    kernel = told["cells"][0]["kernels"][0]
    assert kernel["duration_us"] == 288.416
    assert kernel["occupancy_pct"] == 62.5
    assert kernel["issue_pct"] == 31.5
    json.dumps(told, allow_nan=False)


def rows_of_a_suite():
    sizes = {"8x8": 100, "64x64": 9000}
    return [
        a_row(variant=variant, shape=shape, dtype=dtype, bytes_ideal=size, timing=timing)
        for dtype in ("fp16", "bf16")
        for shape, size in sizes.items()
        for timing in ("graph", "host")
        for variant in ("copy", "torch")
    ]


def test_by_default_all_of_bf16_and_the_largest_of_the_rest():
    chosen = [(row.dtype, row.shape) for row in profile.default_rows(rows_of_a_suite())]
    assert chosen == [("bf16", "8x8"), ("bf16", "64x64"), ("fp16", "64x64")]
    half = [row for row in rows_of_a_suite() if row.dtype == "fp16"]
    assert len(profile.default_rows(half)) == 2
    assert profile.default_rows([]) == []


def test_cells_are_chosen_by_pattern():
    rows = rows_of_a_suite()
    chosen = profile.matching_rows(rows, ["layernorm:torch:*:fp16", "*:torch:8x8:*"])
    assert [(r.shape, r.dtype) for r in chosen] == [
        ("8x8", "fp16"),
        ("64x64", "fp16"),
        ("8x8", "bf16"),
    ]
    with pytest.raises(RefusalError, match="op:variant:shape:dtype"):
        profile.matching_rows(rows, ["nope:*"])


def test_the_command_leaves_the_clocks_alone_and_tells_chains_from_kernels(tmp_path):
    single = profile.ncu_command("ncu", "single", tmp_path / "log", tmp_path / "spec")
    chain = profile.ncu_command("ncu", "chain", tmp_path / "log", tmp_path / "spec")
    sectors = profile.ncu_command("ncu", "sectors", tmp_path / "log", tmp_path / "spec", "a.child")
    assert sectors[-3:] == ["-m", "a.child", str(tmp_path / "spec")]
    assert sectors[sectors.index("--metrics") + 1].split(",") == [*ncu.METRICS["sectors"]]
    for command in (single, chain):
        assert command[command.index("--clock-control") + 1] == "none"
        assert command[-2:] == [profile.CHILD, str(tmp_path / "spec")]
    assert single[single.index("--cache-control") + 1] == "all"
    assert chain[chain.index("--cache-control") + 1] == "none"
    assert profile_child.cell_marker.__name__ == MARKER


def test_a_profile_without_the_tool_is_a_sentence(monkeypatch):
    monkeypatch.setattr(profile, "find_ncu", lambda: None)
    found = profile.run_rows([a_row()], 1.0, print)
    assert found.cells == []
    assert "not on this machine" in found.problems[0]


def test_a_tool_that_stands_in_for_ncu(monkeypatch, tmp_path):
    """The whole way with a script that writes what ncu and the profiled program would."""
    table = tmp_path / "captured.csv"
    table.write_text(CAPTURED)
    tool = tmp_path / "ncu"
    tool.write_text(
        "#!/usr/bin/env python3\n"
        "import json, shutil, sys\n"
        "if '--version' in sys.argv: print('Version 2025.3.1.0'); sys.exit()\n"
        "log = sys.argv[sys.argv.index('--log-file') + 1]\n"
        "spec = json.load(open(sys.argv[-1]))\n"
        f"shutil.copy({str(table)!r}, log)\n"
        "done = [cell | {'name': cell['variant'], 'error': ''} for cell in spec['cells']]\n"
        "json.dump(done, open(spec['done'], 'w'))\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(profile, "find_ncu", lambda: str(tool))
    rows = [a_row(variant="torch"), a_row(variant="fused")]
    found = profile.run_rows(rows, 5.0, print)
    assert found.problems == []
    assert [cell.key for cell in found.cells] == [(row.cell, row.variant) for row in rows]
    assert found.modes["single"]["cells_profiled"] == 2
    assert found.modes["single"]["cache_control"] == "all"
    one = profile.run_rows(rows[:1], 5.0, print)  # one cell, two markers
    assert one.cells == []
    assert "2 markers were profiled for 1 cells" in one.problems[0]


def test_a_card_without_a_pipe_is_profiled_without_it(monkeypatch, tmp_path):
    lacks = [ncu.PIPES["fmaheavy"], ncu.BUSY["tensor_op_gmma"]]  # the tool names the first alone
    table = tmp_path / "captured.csv"
    table.write_text(CAPTURED)
    tool = tmp_path / "ncu"
    tool.write_text(
        "#!/usr/bin/env python3\n"
        "import json, shutil, sys\n"
        "if '--version' in sys.argv: print('Version 2025.3.1.0'); sys.exit()\n"
        "asked = sys.argv[sys.argv.index('--metrics') + 1].split(',')\n"
        f"lacks = [one for one in {lacks!r} if one in asked]\n"
        "if lacks: print('==ERROR== Failed to find metric', lacks[0]); sys.exit(1)\n"
        f"assert {ncu.PIPES['fma']!r} in asked\n"
        f"shutil.copy({str(table)!r}, sys.argv[sys.argv.index('--log-file') + 1])\n"
        "spec = json.load(open(sys.argv[-1]))\n"
        "done = [cell | {'name': cell['variant'], 'error': ''} for cell in spec['cells']]\n"
        "json.dump(done, open(spec['done'], 'w'))\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(profile, "find_ncu", lambda: str(tool))
    found = profile.run_rows([a_row(variant="torch"), a_row(variant="fused")], 5.0, print)
    assert found.problems == []
    assert len(found.cells) == 2
    assert not set(lacks) & set(found.modes["single"]["metrics"])


def test_a_table_with_pipes():
    metrics = ncu.PIPES["fmaheavy"], ncu.BUSY["fmaheavy"], ncu.WAITS["barrier"]
    head, units, *rest = [line for line in CAPTURED.splitlines() if line.startswith('"')]
    wide = [head + ',"{}","{}","{}"'.format(*metrics), f'{units},"%","%",""']
    found = ncu.parse_csv("\n".join([*wide, *(f'{line},"61.25","97.5","0.75"' for line in rest)]))
    assert all(k.pipes_pct == {"fmaheavy": 61.25} for k in found)
    assert all(k.busy_pct == {"fmaheavy": 97.5} for k in found)
    assert all(k.waits == {"barrier": 0.75} for k in found)
    assert all(k.pipes_pct is k.busy_pct is k.waits is None for k in ncu.parse_csv(CAPTURED))


def test_a_cell_that_is_unknown_costs_that_cell_alone(monkeypatch, tmp_path, capsys):
    """One name that no operation has ended the whole profile."""
    cells = [
        {"op": "layernorm", "variant": name, "shape": "8x16", "dtype": "fp32", "options": ""}
        | {"pass": "fwd"}
        for name in ("copy", "eager")
    ]
    done = tmp_path / "done.json"
    spec = {"cells": cells, "flush": False, "seconds": 60.0, "done": str(done)}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    monkeypatch.setattr(profile_child, "this_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(profile_child, "profiled", lambda call, marker, flush: call())
    monkeypatch.setattr(profile_child, "cell_marker", {(1,): lambda marker: None})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=0)
    )
    assert profile_child.main(str(tmp_path / "spec.json")) == 0
    (one,) = json.loads(done.read_text())
    assert (one["variant"], one["error"]) == ("eager", "")
    assert "variant 'copy' of 'layernorm' is unknown" in capsys.readouterr().err


def test_cells_that_were_profiled_before_stay(monkeypatch, tmp_path):
    rows = [a_row(variant=name, launches=1) for name in ("copy", "torch", "fused")]
    write_suite(tmp_path / "a-card" / "norms.csv", rows, {"card": {"slug": "a-card"}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(profile.devices, "describe", lambda: {"slug": "a-card"})

    def of(row):
        names = (row.op, row.variant, row.pass_, row.shape, row.dtype)
        kernel = ProfiledKernel("k", dram_read=len(row.variant), dram_write=1)
        return CellProfile(*names, "single", [kernel])

    def run_rows(chosen, seconds, say, keep):
        assert "copy" not in {row.variant for row in chosen}
        return profile.Found([of(row) for row in chosen], {}, [])

    monkeypatch.setattr(profile, "run_rows", run_rows)
    for pattern in ("*:torch:*", "*:fused:*", "*"):
        assert profile.run("norms", [pattern], tmp_path, 1.0, print) == 0
        kept, record = read_suite(tmp_path / "a-card" / "norms.csv")
        found = sorted(cell["variant"] for cell in record["profile"]["cells"])
        assert found == (["torch"] if pattern == "*:torch:*" else ["fused", "torch"])
    assert {row.variant: row.bytes_dram_read for row in kept} == {
        "copy": None, "torch": 5, "fused": 5
    }  # fmt: skip


def test_a_tool_that_may_not_read_counters_says_so(monkeypatch, tmp_path):
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM: no permission' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(profile, "find_ncu", lambda: str(tool))
    found = profile.run_rows([a_row()], 5.0, print)
    assert any("ERR_NVGPUCTRPERM" in problem for problem in found.problems)


def event(name, start, end, device="DeviceType.CUDA", **more):
    span = SimpleNamespace(start=start, elapsed_us=lambda: end - start)
    return SimpleNamespace(name=name, device_type=device, time_range=span, **more)


def test_launches_are_kernels_in_order():
    events = [
        event("aten::add", 0, 9, device="DeviceType.CPU"),
        event("second", 7, 9),
        event("Memcpy DtoD (Device -> Device)", 5, 6),
        event("first", 1, 4),
        event("ProfilerStep*", 0, 9, is_user_annotation=True),
        event("Memset (Device)", 6, 7),
    ]
    kernels = profile.kernels_of(profile.device_events(events))
    assert kernels == [("first", 0.0, 3.0), ("second", 6.0, 2.0)]


def test_a_copy_is_its_own_launch():
    events = [event("Memset (Device)", 0, 1), event("Memcpy DtoD (Device -> Device)", 5, 6)]
    kernels = profile.kernels_of(profile.device_events(events))
    assert kernels == [("Memcpy DtoD (Device -> Device)", 5.0, 1.0)]


def test_dram_sums():
    cell = CellProfile("o", "v", "fwd", "1", "fp32", "chain", [ProfiledKernel("a", 1.0, 3, None)])
    assert (cell.dram_read, cell.dram_write) == (3, 0)


def test_the_profiled_program_tells_a_cell_for_each_marker(monkeypatch, tmp_path):
    """On a CPU, where the marker is interpreted and the profiler's window only noted."""
    window = []
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: window.append(name))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(profile_child, "this_device", lambda: torch.device("cpu"))
    props = SimpleNamespace(L2_cache_size=1 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: props)
    monkeypatch.setattr(profile_child, "FLUSH_BYTES", 1 << 10)
    cells = [entry(name) | {"shape": "4x8"} for name in ("eager", "torch")]
    spec = {"cells": cells, "flush": True, "seconds": 60, "done": str(tmp_path / "done.json")}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert profile_child.main(str(tmp_path / "spec.json")) == 0
    done = json.loads((tmp_path / "done.json").read_text())
    assert [(cell["variant"], cell["error"]) for cell in done] == [("eager", ""), ("torch", "")]
    assert done[0]["name"] == "layernorm 4x8 fp32 eager"
    assert window == ["start", "stop"] * 2
