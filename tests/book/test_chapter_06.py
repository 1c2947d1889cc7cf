"""The kernels that chapter 06 shows are the package's, and what it says of the data is in them."""

import ast
import importlib.util
import inspect
import json
import re

import pytest
import torch

from book.tools import build
from kernels.lab.counting import traffic
from kernels.lab.measuring.host_cost import host_costs
from kernels.lab.records.data import recordings
from kernels.launch import recording
from kernels.ops.norms import add_layernorm, configurations, layernorm, rmsnorm
from kernels.ops.norms.forward import forward
from kernels.ops.shared.blocks import Block
from kernels.ops.softmax import softmax
from kernels.paths import ROOT
from tests.lab.recorded_ratios import ratio

CHAPTER = "06_fused_norms_in_triton.ipynb"
SMALL, MIDDLE, LARGE = (512, 1024), (4096, 4096), (16384, 8192)
WIDE, TALL = (8192, 16384), (65536, 1024)


def sources():
    """The texts of the page's code cells, by id."""
    notebook = json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))
    return {
        cell["id"]: "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A module of the kernels that the page's cells hold; Triton wants their source in a file."""
    cells = [text for text in sources().values() if text.startswith("@triton.jit")]
    file = tmp_path_factory.mktemp("page") / "page_06.py"
    head = "import triton\nimport triton.language as tl\n\n"
    file.write_text(head + "\n\n".join(cells), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("page_06", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launched(kernel, inputs, block):
    """Run a kernel of the page, a program a row; return y and the ledger."""
    x, *others = inputs.values()
    y = torch.empty_like(x)
    rows, n_cols = x.shape
    ledger = traffic.count(
        lambda: kernel[(rows,)](x, *others, y, x.stride(0), n_cols, 1e-5, BLOCK_COLS=block)
    )
    return y, ledger


def asked_of(ledger):
    return [(t.tensor, t.read_requested, t.write_requested) for t in ledger.steps[0].tensors]


def plain(source):
    (function,) = ast.parse(source).body
    return ast.dump(function)


def test_the_row_in_one_block_is_the_packages_line_by_line():
    shown = sources()["row-kernel"]
    assert plain(shown) == plain(inspect.getsource(layernorm.layer_norm_row.fn))


DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])


@DTYPES
def test_the_loops_are_the_packages(page, dtype):
    inputs = layernorm.OP.inputs((3, 100), dtype, "cpu", seed=0)
    for block in (32, 128):
        y, ledger = launched(page.layer_norm_loops, inputs, block)
        expected, counted = launched(layernorm.layer_norm_loops, inputs, block)
        assert torch.equal(y, expected)
        assert asked_of(ledger) == asked_of(counted)


@DTYPES
def test_rms_norm_is_the_packages(page, dtype):
    inputs = rmsnorm.OP.inputs((3, 100), dtype, "cpu", seed=0)
    y, ledger = launched(page.rms_norm_row, inputs, 128)
    assert torch.equal(y, rmsnorm.rms_norm(**inputs))
    counted = traffic.count(rmsnorm.rms_norm, **inputs)
    assert sorted(asked_of(ledger)) == sorted(asked_of(counted))


@DTYPES
def test_the_norm_of_a_sum_is_the_packages(page, dtype):
    inputs = add_layernorm.OP.inputs((3, 100), dtype, "cpu", seed=0)
    h, y = torch.empty_like(inputs["x"]), torch.empty_like(inputs["x"])
    kernel = page.add_layer_norm_row[(3,)]
    ledger = traffic.count(lambda: kernel(*inputs.values(), h, y, 100, 1e-5, BLOCK_COLS=128))
    expected, expected_h = add_layernorm.add_layer_norm(**inputs)
    assert torch.equal(y, expected)
    assert torch.equal(h, expected_h)
    counted = traffic.count(add_layernorm.add_layer_norm, **inputs)
    assert sorted(asked_of(ledger)) == sorted(asked_of(counted))


@DTYPES
def test_the_tiles_are_the_packages(page, dtype):
    inputs = layernorm.OP.inputs((2, 100), dtype, "cpu", seed=0)
    y, ledger = launched(page.layer_norm_tiles, inputs, 32)
    x, weight, bias = inputs.values()
    way = {"centred": True, "configured": Block(32, 4)}
    assert torch.equal(y, forward(x, None, weight, bias, 1e-5, **way)[0])
    assert ledger.tensor("x").times_read == 2


@DTYPES
def test_the_softmax_is_right_and_asks_as_the_packages(page, dtype):
    inputs = softmax.OP.inputs((3, 100), dtype, "cpu", seed=0)
    y, ledger = launched(page.softmax_row, inputs, 128)
    true, allowed = softmax.reference(**inputs), softmax.OP.tolerance(dtype, (3, 100))
    assert (y.double() - true).norm() <= allowed.relative_norm * true.norm()
    assert sorted(asked_of(ledger)) == sorted(asked_of(traffic.count(softmax.softmax, **inputs)))


def test_what_the_page_reads_off_the_tuners_results_stands_beside_the_table():
    told = inspect.getsource(configurations)
    found = {}
    for shape, times in re.findall(r"(\d+×\d+): ((?:[\w ]+: [\d.]+,? ?)+)\(", told):
        pairs = re.findall(r"([\w ]+?): ([\d.]+)", times)
        found[shape] = {name.strip(): float(time_us) for name, time_us in pairs}
    assert len(found) == 7
    for shape in ("65536×1024", "16384×8192"):  # a bad number of warps
        times = found[shape].values()
        assert 1.25 < max(times) / min(times) < 1.4
    for shape in ("8192×16384", "4096×32768"):  # tiles against the row in one block
        (tiles,) = [time_us for name, time_us in found[shape].items() if "tiles" in name]
        rows = [time_us for name, time_us in found[shape].items() if "tiles" not in name]
        assert max(rows) < tiles < 1.06 * min(rows)


@pytest.mark.parametrize(
    ("dtype", "n_cols", "kernel"),
    [
        (torch.bfloat16, 32768, "norm_row"),
        (torch.bfloat16, 32784, "norm_tiles"),
        (torch.float32, 16384, "norm_row"),
        (torch.float32, 32768, "norm_tiles"),
    ],
)
def test_where_the_package_goes_over_to_tiles(dtype, n_cols, kernel):
    x, weight = torch.empty(2, n_cols, dtype=dtype), torch.empty(n_cols, dtype=dtype)
    with recording() as launches:
        layernorm.layer_norm(x, weight, weight)
    assert [launch.name for launch in launches] == [kernel]


# ------------------------------------------------------------------ what the page says of the data


@pytest.fixture(scope="module")
def suite():
    return next(r for r in recordings("norms") if r.gpu == "h100-sxm")


@pytest.fixture(scope="module")
def row(suite):
    def of(variant, shape, dtype="bf16", op="layernorm", timing="graph"):
        wanted = {"op": op, "variant": variant, "dtype": dtype, "timing": timing, "pass": "fwd"}
        return suite.one(**wanted, shape=f"{shape[0]}x{shape[1]}")

    return of


@pytest.fixture(scope="module")
def profiled(suite):
    def of(variant, shape, dtype="bf16", op="layernorm"):
        key = (op, variant, f"{shape[0]}x{shape[1]}", dtype, "fwd")
        for cell in suite.provenance["profile"]["cells"]:
            told = (cell["op"], cell["variant"], cell["shape"], cell["dtype"])
            if (*told, cell.get("pass_", "fwd")) == key:
                (kernel,) = cell["kernels"]
                return kernel
        raise LookupError(key)

    return of


def test_fused_keeps_up_with_the_copy_at_every_large_shape(row):
    for shape in (LARGE, WIDE, TALL):
        copy_us = row("copy", shape).time_us_p50
        for variant in ("fused", "compile"):
            assert row(variant, shape).time_us_p50 < 1.05 * copy_us
        assert row("torch", shape).time_us_p50 > 1.4 * copy_us


def test_torch_alone_reads_x_twice_at_wide_rows(row, profiled):
    for rows, cols in (LARGE, WIDE):
        x_bytes = rows * cols * 2
        for op in ("layernorm", "rmsnorm"):
            assert row("torch", (rows, cols), op=op).bytes_dram_read > 1.8 * x_bytes
        for variant in ("compile", "liger", "helion", "fused"):
            assert row(variant, (rows, cols)).bytes_dram_read < 1.05 * x_bytes
    assert profiled("torch", WIDE)["name"] == profiled("torch", WIDE, op="rmsnorm")["name"]
    assert row("torch", TALL).bytes_dram_read < 1.05 * TALL[0] * TALL[1] * 2
    assert profiled("torch", TALL)["issue_pct"] > 80


def test_three_loops_read_once_from_dram_and_lose_a_tenth_to_a_fifth(row):
    for rows, cols in (TALL, MIDDLE, LARGE, WIDE):
        loops = row("tutorial", (rows, cols))
        assert loops.bytes_dram_read < 1.03 * rows * cols * 2
        assert 1.08 < loops.time_us_p50 / row("fused", (rows, cols)).time_us_p50 < 1.23


def test_equal_bytes_take_equal_time_and_twice_the_bytes_twice(row):
    for shape in (LARGE, WIDE, TALL):
        norm = row("fused", shape).time_us_p50
        for op in ("rmsnorm", "softmax"):
            assert row("fused", shape, op=op).time_us_p50 == pytest.approx(norm, rel=0.05)
        both = row("fused", shape, op="add_layernorm").time_us_p50
        assert both == pytest.approx(2 * norm, rel=0.05)
    for shape in layernorm.OP.shapes[1:4]:
        norm = row("fused", shape).time_us_p50
        assert 1 < norm / row("fused", shape, op="softmax").time_us_p50 < 1.15


def test_a_residual_and_a_norm_of_torch_take_six_quarters_and_fused_one_copy(row):
    for shape in (LARGE, WIDE):
        copy_us = row("copy", shape, op="add_layernorm").time_us_p50
        assert row("torch", shape, op="add_layernorm").time_us_p50 / copy_us == pytest.approx(
            6 / 4, rel=0.05
        )
        assert row("fused", shape, op="add_layernorm").time_us_p50 < 1.03 * copy_us


def test_more_candidates_help_layer_norm_and_hurt_rms_norm_at_the_smaller_shape(row):
    def gain(op, shape):
        first, searched = (row(v, shape, op=op) for v in ("compile", "compile_max_autotune"))
        return first.time_us_p50 / searched.time_us_p50

    assert gain("layernorm", (4096, 4096)) > 1.05
    assert gain("rmsnorm", (4096, 4096)) < 0.8
    for op in ("layernorm", "rmsnorm"):
        assert abs(gain(op, LARGE) - 1) < 0.02
    for shape in ((4096, 4096), LARGE):
        searched = row("compile_max_autotune", shape, op="softmax").time_us_p50
        assert searched > 1.5 * row("copy", shape, op="softmax").time_us_p50


def test_softmax_of_others_waits_or_runs_out_of_issue_slots(row, profiled):
    torchs, compiled, ours = (
        profiled(variant, LARGE, op="softmax") for variant in ("torch", "compile", "fused")
    )
    for kernel in (torchs, compiled, ours):
        assert kernel["dram_read"] < 1.03 * LARGE[0] * LARGE[1] * 2
    assert max(torchs["dram_pct"], torchs["issue_pct"], torchs["occupancy_pct"]) < 200 / 3
    assert torchs["dram_pct"] < 100 / 3
    assert torchs["occupancy_pct"] / 100 * 64 / 32 == pytest.approx(1, abs=0.05)
    assert "Reg" in torchs["name"]
    assert "prepare_softmax_online" in compiled["name"]
    assert compiled["issue_pct"] > 80 > compiled["occupancy_pct"]
    assert ours["dram_pct"] > 85
    copy_us = row("copy", LARGE, op="softmax").time_us_p50
    assert 2.5 < row("torch", LARGE, op="softmax").time_us_p50 / copy_us < 3


def test_compile_loops_over_rows_of_4096_and_more(profiled):
    for shape in layernorm.OP.shapes:
        name = profiled("compile", shape)["name"]
        assert name.startswith("triton_red" if shape[1] >= 4096 else "triton_per")


def test_what_counts_is_bytes_of_rows_under_way_and_two_rows_do_better_than_one(profiled):
    def under_way(variant, shape, dtype="bf16", op="layernorm"):
        """Rows at a time on a multiprocessor, their KB, and the share of DRAM's bandwidth."""
        kernel = profiled(variant, shape, dtype, op)
        rows = kernel["occupancy_pct"] / 100 * 64 / 16
        size = 4 if dtype == "fp32" else 2
        return rows, rows * shape[1] * size / 1e3, kernel["dram_pct"]

    two, one = under_way("liger", LARGE), under_way("liger", WIDE)
    assert two[1] == pytest.approx(31, abs=2)
    assert one[1] == pytest.approx(31, abs=2)
    assert one[0] < 1.1 < 1.7 < two[0]
    assert one[2] + 5 < two[2] < 82
    assert under_way("fused", LARGE)[1] == pytest.approx(46, abs=2)
    assert under_way("fused", LARGE)[2] > 84
    enough = [under_way("fused", WIDE), under_way("liger", WIDE, op="rmsnorm")]
    enough += [under_way(variant, WIDE, "fp32") for variant in ("fused", "liger")]
    for _, kilobytes, dram in enough:
        assert kilobytes == pytest.approx(62, abs=4)
        assert dram > 84


def test_the_parts_of_a_call_are_as_the_page_tells_them():
    for told in host_costs():
        through, kept, own = told["parts_us"].values()
        assert through["look up"] < through["specialise"] < through["launch"]
        assert through["launch"] < 0.5 * through["whole"]
        rest = 2 * kept["whole"] - sum(kept.values())
        assert rest < 0.15 * kept["whole"]  # "almost no rest"
        assert kept["whole"] < own["whole"]


def test_a_call_costs_pytorchs_or_less_and_a_step_up_to_a_third_more():
    (h200,) = (one for one in recordings("norms") if one.gpu == "h200")
    steps = {}
    for name in ("layernorm", "rmsnorm", "softmax", "add_layernorm", "add_rmsnorm"):
        call = 1 / ratio(h200, name, "512x1024", "fused", "torch", timing="host")
        assert 0.45 < call < (0.55 if name.startswith("add") else 1.05)
        where = {"pass_": "train", "timing": "host"}
        steps[name] = 1 / ratio(h200, name, "512x1024", "fused", "torch", **where)
    assert min(steps.values()) == pytest.approx(6 / 7, abs=0.02)
    assert max(steps.values()) == pytest.approx(4 / 3, abs=0.03)
    spread = h200.provenance["speed_ups_host"]["rmsnorm 512x1024 bf16 train"]["fused"]["torch"]
    assert spread["low"] < 1 < spread["high"]


def test_an_h200_wants_more_bytes_under_way(row):
    (h200,) = (one for one in recordings("norms") if one.gpu == "h200")

    def behind(variant, shape, dtype="bf16", op="layernorm"):
        where = {"op": op, "shape": f"{shape[0]}x{shape[1]}", "dtype": dtype, "pass_": "fwd"}
        took, copied = (
            h200.one(variant=v, timing="graph", **where).time_us_p50 for v in (variant, "copy")
        )
        times = [row(v, shape, dtype, op).time_us_p50 for v in (variant, "copy")]
        return times[0] / times[1], took / copied

    for shape in (LARGE, WIDE):  # 31 KB
        before, now = behind("liger", shape)
        assert now > before + 0.25
    enough = [("fused", WIDE), ("liger", WIDE, "fp32"), ("fused", WIDE, "fp32")]
    for where in (*enough, ("liger", WIDE, "bf16", "rmsnorm")):  # about 60
        before, now = behind(*where)
        assert before < 1.02 < now < 1.2
    assert behind("fused", WIDE, "fp32")[1] > behind("fused", WIDE)[1] + 0.05
    assert behind("compile", WIDE)[1] < behind("fused", WIDE)[1]


def test_small_norms_are_fast_in_a_graph_and_slow_from_python(row):
    assert row("fused", SMALL).time_us_p50 <= row("torch", SMALL).time_us_p50
    for variant in ("compile", "liger", "helion", "fused"):
        slow = row(variant, SMALL, timing="host").time_us_p50
        assert slow > 1.3 * row("torch", SMALL, timing="host").time_us_p50
        assert slow > 3 * row(variant, SMALL).time_us_p50


def test_one_launch_pays_in_a_graph_and_from_python_only_against_eager(row):
    def both(variant):
        graph, host = (
            row(variant, SMALL, op="add_layernorm", timing=timing) for timing in ("graph", "host")
        )
        return graph.launches, graph.time_us_p50, host.time_us_p50

    eager, torchs, ours = (both(variant) for variant in ("eager", "torch", "fused"))
    assert [launches for launches, _, _ in (eager, torchs, ours)] == [12, 2, 1]
    assert 0.5 < ours[1] / torchs[1] < 0.6
    assert torchs[2] < ours[2] < 0.7 * eager[2]
    assert ours[2] > row("fused", SMALL, timing="host").time_us_p50  # more arguments


def test_the_notes_claims_come_out_as_the_page_says(row):
    def factor(op, shape, dtype, base):
        base_us, own_us = (row(v, shape, dtype, op).time_us_p50 for v in (base, "fused"))
        return base_us / own_us

    assert factor("rmsnorm", (4096, 8192), "fp16", "eager") > 10
    assert factor("rmsnorm", (4096, 8192), "fp16", "torch") == pytest.approx(1.5, rel=0.1)
    assert 1.2 < factor("layernorm", MIDDLE, "fp32", "torch") < 1.5


def test_the_notebook_runs_and_its_counts_are_as_told():
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    assert "x: 32,000 bytes, each asked for 3 times" in told["loops-run"]
    pack, far = list(range(40, 48)), list(range(1064, 1072))
    assert told["layout-read"].splitlines()[0] == str([pack, far])
    # Registers: what the text below the table reads off it.
    registers = [line.split("|")[1:-1] for line in told["registers-table"].splitlines()[2:]]
    table = {
        (int(n), dtype.strip(), int(warps)): (int(used), spilled.strip(" *"), fit.strip())
        for n, dtype, warps, _, used, spilled, fit in registers
    }
    assert table[16384, "bf16", 16] == (63, "0", "32 of 64")
    assert table[16384, "fp32", 16] == (94, "0", "16 of 64")
    assert table[8192, "bf16", 16][0] == 40
    assert table[16384, "bf16", 4][:2] == (255, "0")
    spilling = {key for key, (_, spilled, _) in table.items() if spilled != "0"}
    assert spilling == {
        (16384, "fp32", 4),
        (32768, "fp32", 32),
        (65536, "bf16", 32),
        (65536, "fp32", 32),
    }
    assert "| 16384 | 16 | 90 | 0 |" in told["registers-edge"]
    assert "| 32768 | 32 | 64 | 16 |" in told["registers-edge"]
    # Loads of x, weight and bias: 16 numbers a thread are 2 wide ones each, 32 one by one are 32,
    # and 40 in two blocks are 5 wide ones.
    assert "| 4096 | `layer_norm_row` | 6 | 6 |" in told["loads-count"]
    assert "| 5000 | `layer_norm_row` | 96 | 0 |" in told["loads-count"]
    assert "| 5000 | `norm_row` | 15 | 15 |" in told["loads-count"]
    assert "x asked for 2 times" in told["tiles-run"]
    assert "row, 16 warps" in told["tune"]
    assert "tiles of 8192, 8 warps" in told["tune"]
    assert "Block(256, 1)" in told["tune-table"]
    # The whole table is shown, a line a card.
    for capability in configurations.FORWARD:
        assert f"    {capability}: " in told["tune-table"], capability
    assert len(re.findall(r"\| 1\.00 \|", told["loops-measured"])) == 4
    assert told["peers-softmax-table"].count("| 1.00 |") == 3
    assert "at most 33 bytes a number" in told["claims"]
    assert "| 10.0 times, eager in fp32 |" in told["claims"]
