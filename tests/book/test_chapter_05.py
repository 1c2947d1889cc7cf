"""The kernels that chapter 05 shows are the package's, and what it says of the data is in them."""

import json
import re
import shutil

import pytest
import torch

from book.tools import build
from kernels.cuda import cuda
from kernels.lab.records.data import recordings
from kernels.launch import interpreting
from kernels.ops.norms import layernorm
from kernels.paths import ROOT

CHAPTER = "05_fusing_by_hand_in_cuda.ipynb"
TEXTS = ("block_sum", "pack", "moments")
LARGE, WIDE, NARROW = (16384, 8192), (8192, 16384), (65536, 1024)


@pytest.fixture(scope="module")
def page():
    """The texts in CUDA C++ that the page's cells hold, by their names there."""
    if shutil.which("g++") is None:
        pytest.skip("CUDA C++ on a CPU is compiled by g++, which isn't installed")
    notebook = json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))
    texts = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if source.startswith(tuple(f"{name} = " for name in TEXTS)) or '_kernel = """' in source:
            exec(source, texts)  # nothing but texts is made in these cells
    return texts


def asked_of(counts):
    return {one.name: (one.read_requested, one.write_requested) for one in counts.arguments}


def of_variant(op, name, inputs):
    """A variant's output, and its one launch on the emulator."""
    with interpreting() as launches:
        y = op.variant(name).fn(**inputs)
    (launch,) = launches
    return y, launch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("name", "base", "variant"),
    [
        ("loops", "block_sum", "cuda_3"),
        ("packs", "with_packs", "cuda_4"),
        ("held", "with_packs", "fused_cuda"),
    ],
)
def test_a_kernel_of_the_ladder_is_the_packages(page, name, base, variant, dtype):
    inputs = layernorm.OP.inputs((3, 1000), dtype, "cpu", seed=0)
    expected, launch = of_variant(layernorm.OP, variant, inputs)
    kind, *numbers = launch.name.partition("<")[2].rstrip(">").split(", ")
    instance = f"layer_norm_{name}<{kind}" + (f", {numbers[1]}>" if name == "held" else ">")
    kernel, y = cuda(page[base] + page[f"{name}_kernel"])[instance], torch.empty_like(inputs["x"])
    counts = kernel[launch.grid, launch.block](*inputs.values(), y, 1000, 1e-5)
    assert torch.equal(y, expected)
    assert asked_of(counts) == asked_of(launch.arena)


@pytest.mark.parametrize("n_cols", [1, 31, 1000])
def test_the_kernel_of_merging_states_is_right_and_asks_twice(page, n_cols):
    inputs = layernorm.OP.inputs((2, n_cols), torch.float32, "cpu", seed=1)
    y = torch.empty_like(inputs["x"])
    kernel = cuda(page["moments"] + page["wide_kernel"])["layer_norm_wide<float>"]
    counts = kernel[2, 64](*inputs.values(), y, n_cols, 1e-5)
    allowed = layernorm.OP.tolerance(torch.float32, (2, n_cols)).relative_norm
    true = layernorm.reference(**inputs)
    # Each of the merges that a thread makes one after the other may round.
    assert (y.double() - true).norm() <= (allowed + n_cols / 64 * 2.0**-24) * true.norm()
    assert asked_of(counts)["x"][0] == 2 * 2 * n_cols * 4


# ------------------------------------------------------------------ what the page says of the data


class Card:
    """The recorded H100: times and profiled kernels of one operation."""

    def __init__(self, suite, op):
        self.recording = next(r for r in recordings(suite) if r.gpu == "h100-sxm")
        self.op = op

    def time_us(self, variant, shape, dtype="bf16"):
        wanted = {"op": self.op, "variant": variant, "dtype": dtype, "timing": "graph"}
        wanted["pass_"] = "fwd"
        return self.recording.one(**wanted, shape=f"{shape[0]}x{shape[1]}").time_us_p50

    def kernels(self, variant, shape, dtype="bf16"):
        key = (self.op, variant, f"{shape[0]}x{shape[1]}", dtype)
        for cell in self.recording.provenance["profile"]["cells"]:
            if cell["pass_"] != "fwd":
                continue
            if (cell["op"], cell["variant"], cell["shape"], cell["dtype"]) == key:
                return cell["kernels"]
        raise LookupError(key)

    def kernel(self, variant, shape, dtype="bf16"):
        (kernel,) = self.kernels(variant, shape, dtype)
        return kernel

    def reads_of_x(self, variant, shape, dtype="bf16"):
        size = shape[0] * shape[1] * (4 if dtype == "fp32" else 2)
        return self.kernel(variant, shape, dtype)["dram_read"] / size


@pytest.fixture(scope="module")
def norms():
    return Card("norms", "layernorm")


def test_fusing_alone_saves_more_than_half_and_less_than_three_quarters(norms):
    whole = norms.time_us("unfused_cuda", LARGE)
    assert whole / 4 < norms.time_us("cuda_3", LARGE) < whole / 2
    assert norms.time_us("cuda_4", LARGE) < 0.75 * norms.time_us("cuda_3", LARGE)
    assert norms.time_us("fused_cuda", LARGE) < 1.05 * norms.time_us("copy", LARGE)


def test_the_re_reads_of_cuda_3_stay_in_a_cache_and_some_of_cuda_4s_do_not(norms):
    assert norms.reads_of_x("cuda_3", LARGE) < 1.05
    assert 1.05 < norms.reads_of_x("cuda_4", LARGE) < 1.5
    assert norms.reads_of_x("fused_cuda", LARGE) < 1.05


def test_cuda_3_reaches_no_limit_but_the_places_for_warps(norms):
    slow, good = norms.kernel("cuda_3", LARGE), norms.kernel("fused_cuda", LARGE)
    assert slow["dram_pct"] < 50
    assert slow["issue_pct"] < 60
    assert slow["occupancy_pct"] > 90
    assert good["dram_pct"] > 80
    assert good["occupancy_pct"] < 55


def test_a_load_of_twice_the_bytes_takes_less_than_half_as_long_again(norms):
    narrow, wide = norms.kernel("cuda_3", WIDE), norms.kernel("cuda_3", WIDE, "fp32")
    moved = [kernel["dram_read"] + kernel["dram_write"] for kernel in (narrow, wide)]
    assert moved[1] > 2 * moved[0]
    assert wide["duration_us"] < 1.5 * narrow["duration_us"]


def test_the_three_predictions_of_re_reads_come_out(norms):
    assert norms.reads_of_x("cuda_4", NARROW) < 1.05
    gain = norms.time_us("cuda_4", NARROW) / norms.time_us("fused_cuda", NARROW)
    assert 1 < gain < 1.1
    assert norms.reads_of_x("cuda_4", WIDE, "fp32") == pytest.approx(3, rel=0.05)
    factor = norms.time_us("cuda_4", WIDE, "fp32") / norms.time_us("fused_cuda", WIDE, "fp32")
    assert factor == pytest.approx(2, rel=0.05)
    assert norms.time_us("cuda_4", LARGE) < norms.time_us("torch", LARGE)
    assert norms.time_us("cuda_4", WIDE) > norms.time_us("torch", WIDE)


def test_a_re_read_is_free_up_to_a_quarter_of_the_l2_and_mostly_lost_past_half(norms):
    machine, sides = norms.recording.provenance["card"], set()
    shapes = [(shape, "bf16") for shape in layernorm.OP.shapes if shape[0] * shape[1] >= 2**23]
    for (rows, cols), dtype in [*shapes, (WIDE, "fp32")]:
        row_bytes = cols * (4 if dtype == "fp32" else 2)
        for variant, threads, asked in [("cuda_4", min(cols // 8, 256), 3), ("torch", 128, 2)]:
            held = norms.kernel(variant, (rows, cols), dtype)["occupancy_pct"] / 100
            blocks = 2048 / threads * held * machine["multiprocessors"]
            share = min(rows, blocks) * row_bytes / machine["l2_bytes"]
            again = (norms.reads_of_x(variant, (rows, cols), dtype) - 1) / (asked - 1)
            if share < 0.25:
                sides.add("free")
                assert again < 0.05
            elif share > 0.5:
                sides.add("lost")
                assert again > 0.7
    assert sides == {"free", "lost"}


def test_half_of_the_warps_are_faster_at_every_width(norms):
    for shape in layernorm.OP.shapes[1:]:
        few, many = (norms.kernel(name, shape) for name in ("fused_cuda", "cuda_4"))
        assert few["occupancy_pct"] < 0.7 * many["occupancy_pct"]
        assert norms.time_us("fused_cuda", shape) < norms.time_us("cuda_4", shape)


def test_the_notebook_runs_and_its_counts_are_as_told(page):
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    assert "32,768 bytes, 98,304 asked for, in 1,536 requests" in told["loops-run"]
    assert "32,768 bytes, 98,304 asked for, in 192 requests" in told["packs-run"]
    assert "32,768 bytes, 32,768 asked for, in 64 requests" in told["held-run"]
    # As the page adds them up: reads of x, weight and bias a row, y.
    for name, counts in (
        ("cuda_3", "1 | 4.00 | 12.00"),
        ("cuda_4", "1 | 4.00 | 12.00"),
        ("fused_cuda", "1 | 4.00 | 8.00"),
    ):
        assert re.search(rf"\| {name} \|.*\| {re.escape(counts)} \|", told["measured-rows"])
    # What the profiled run's rate leaves time for, where the timed runs took longer.
    assert "1.12 times `x`" in told["dram-told"]
    assert "1.5 reads of `x`" in told["dram-told"]
    assert "asked for 2 times" in told["wide-run"]
