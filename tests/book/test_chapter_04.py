"""Chapter 04's kernels are the package's, its predictions are counted, its words fit the data."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import kernels
from book.tools import build
from kernels.cuda import cuda
from kernels.lab.counting.op_ledger import count_op
from kernels.lab.drawing import warps
from kernels.lab.measuring.shown import recorded
from kernels.lab.records.data import recordings
from kernels.ops.norms import layernorm_cuda as in_cuda
from kernels.paths import ROOT
from kernels.registry import DTYPES, get
from tests.book.test_chapter_02 import cells

CHAPTER = "04_unfused_cuda_kernels.ipynb"
CHAINS = ("cuda_1", "cuda_2", "unfused_cuda")
SHAPE, MANY, TINY = (16384, 8192), (65536, 1024), (512, 1024)
BF16 = torch.bfloat16
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


def sources():
    """The CUDA C++ that stands on the page, by the name it has there."""
    found = {}
    for cell in cells("code", CHAPTER):
        found |= dict(re.findall(r'^(\w+_source) = """\\\n(.*?)"""', cell, re.S | re.M))
    return found


def functions(source):
    """The kernels and device functions of a source by name, without comments and line breaks."""
    bare = re.sub(r"//[^\n]*", "", source)
    head = r"(?:template <[^\n]*>\s*)?__(?:global|device)__ [\w ]+?(\w+)\([^{]*\{.*?\n\}"
    return {match[1]: " ".join(match[0].split()) for match in re.finditer(head, bare, re.DOTALL)}


def page_function(name):
    """A function that a code cell of the page defines."""
    (cell,) = (cell for cell in cells("code", CHAPTER) if f"def {name}(" in cell)
    (text,) = re.findall(rf"^def {name}\(.*?(?=^\S|\Z)", cell, re.S | re.M)
    space = {}
    exec(text, space)
    return space[name]


def card(shape, dtype=BF16):
    (found,) = recorded("layernorm", shape, dtype, gpu="h100-sxm")
    return found


def took_us(shape, variant, dtype=BF16):
    """The time of each launch of a chain on the recorded card."""
    return [took for _, _, took in card(shape, dtype).timeline(variant)]


def test_the_kernels_on_the_page_are_the_packages():
    package = functions(Path(in_cuda.__file__).with_name("layernorm.cu").read_text())
    page = sources()
    taught = ("by_threads", "rest", "tree", "columns", "by_tree", "shuffle")
    shown = functions("".join(page[f"{name}_source"] for name in taught))
    page_made = page["by_tree_source"].replace("_by_tree", "").replace("tree_sum", "block_sum")
    shown |= functions(page_made)
    assert len(shown) == 13
    for name, text in shown.items():
        assert text == package[name], name


@needs_compiler
@pytest.mark.parametrize("variant", CHAINS)
@pytest.mark.parametrize(("rows", "cols"), [(64, 1000), (33, 257)])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_the_prediction_on_the_page_is_what_is_counted(variant, rows, cols, dtype):
    predicted = page_function("chain_bytes")(rows, cols, dtype.itemsize)
    ledger = count_op(get("layernorm"), variant, (rows, cols), dtype)
    counted = [(step.read_unique, step.write_unique) for step in ledger]
    assert counted == list(predicted.values())


def test_the_folded_answer_is_the_prediction():
    (text,) = (text for text in cells("markdown", CHAPTER) if "The count, launch by launch" in text)
    rows = re.findall(r"^\| \**`?(\w+)`?\** \| \$(.+?)\$ \| \$(.+?)\$ \| \**(\d+)", text, re.M)
    sizes = {"R": 777, "N": 100_003}

    def value(formula):
        return eval(re.sub(r"(?<=[\dRN])(?=[RN])", "*", formula), sizes)

    wanted = page_function("chain_bytes")(sizes["R"], sizes["N"])
    wanted["all"] = tuple(map(sum, zip(*wanted.values(), strict=True)))
    assert [name for name, *_ in rows] == list(wanted)
    for name, read, written, each in rows:
        assert (value(read), value(written)) == wanted[name]
        assert round(sum(wanted[name]) / (sizes["R"] * sizes["N"])) == int(each)


@needs_compiler
def test_a_thread_a_row_takes_a_sector_a_lane_and_a_block_a_row_two():
    op, sectors = get("layernorm"), {}
    inputs = op.inputs((64, 256), BF16, "cpu", seed=1)
    for variant in CHAINS:
        with kernels.launch.interpreting(trace=True) as launches:
            op.variant(variant).fn(**inputs)
        first, second, third, _ = (launch.arena for launch in launches)
        load = next(request for request in first.trace if request.argument == "x")
        sectors[variant] = warps.sectors_of(load).size
        of_x = sum(
            32 * line.sectors for c in (first, second) for line in c.lines if line.argument == "x"
        )
        assert of_x == 2 * (32 if variant == "cuda_1" else 2) * 64 * 256
        assert all(line.efficiency == 1 for line in third.lines if line.argument == "x")
    assert sectors == {"cuda_1": 32, "cuda_2": 2, "unfused_cuda": 2}


@needs_compiler
def test_a_barrier_in_a_branch_is_refused_as_the_page_says():
    source = "__global__ void some(float* y) { if (threadIdx.x < 100) __syncthreads(); y[0] = 1; }"
    with pytest.raises(kernels.KernelError, match="__syncthreads"):
        cuda(source).some[1, 256](torch.zeros(1))


def test_dram_moved_what_the_page_predicts_and_the_same_for_all_chains():
    predicted = sum(map(sum, page_function("chain_bytes")(*SHAPE).values()))
    for row in card(SHAPE).graph(*CHAINS):
        moved = row.bytes_dram_read + row.bytes_dram_write
        assert moved == pytest.approx(predicted, rel=0.05)
        assert row.bytes_unique == predicted
    sectors = {row.variant: row.bytes_sectors for row in card(SHAPE).graph(*CHAINS)}
    assert sectors["cuda_2"] == sectors["unfused_cuda"]
    numbers = SHAPE[0] * SHAPE[1]  # 80 and 20 bytes of sectors each, as the page adds them up
    assert sectors["cuda_1"] / numbers == pytest.approx(80, rel=0.01)
    assert sectors["cuda_2"] / numbers == pytest.approx(20, rel=0.01)
    tiny = card(TINY).row("unfused_cuda")
    moved = tiny.bytes_dram_read + tiny.bytes_dram_write
    assert moved == pytest.approx(2 * TINY[0] * TINY[1], rel=0.05)


def test_the_order_of_the_versions_is_as_the_page_says():
    by_shape = {}
    for shape in get("layernorm").shapes:
        one, two = (card(shape).row(name).time_us_p50 for name in CHAINS[:2])
        by_shape[shape] = one / two
    assert 1.4 < by_shape[SHAPE] < 1.7
    assert max(by_shape, key=by_shape.get) == TINY
    assert min(by_shape, key=by_shape.get) == MANY
    times = {name: card(SHAPE).row(name).time_us_p50 for name in (*CHAINS, "eager", "torch")}
    assert times["unfused_cuda"] == pytest.approx(times["cuda_2"], rel=0.01)
    assert times["torch"] < times["cuda_2"] < times["cuda_1"] < times["eager"]


def test_the_sums_have_less_than_half_the_copys_rate_and_the_rest_more():
    copy = card(SHAPE).row("copy")
    moved = page_function("chain_bytes")(*SHAPE).values()
    for variant in CHAINS:
        shares = [
            sum(both) / took / (copy.bytes_ideal / copy.time_us_p50)
            for both, took in zip(moved, took_us(SHAPE, variant), strict=True)
        ]
        assert max(shares[:2]) < 0.5 < min(shares[2:])


def test_twice_the_bytes_of_a_sum_take_little_more_time():
    for variant in CHAINS:
        for shape in (SHAPE, MANY):
            narrow, wide = (took_us(shape, variant, d)[0] for d in (BF16, torch.float32))
            assert 0.95 < wide / narrow < 1.2, (variant, shape)


def test_many_rows_are_bound_by_lookups_and_few_by_one_threads_walk():
    machine = card(SHAPE).provenance["card"]
    a_us = machine["multiprocessors"] * int(machine["clocks_mhz"]["max.sm"])
    walks = {shape: took_us(shape, "cuda_1")[0] for shape in get("layernorm").shapes}
    lookups = {(r, n): r * n / (took * a_us) for (r, n), took in walks.items()}
    assert {shape for shape, rate in lookups.items() if rate > 0.9} == {SHAPE, MANY}
    assert max(lookups.values()) < 1.02
    columns_ns = [1e3 * took / n for (r, n), took in walks.items() if 2048 <= r <= 8192]
    assert np.ptp(columns_ns) < 0.15 * min(columns_ns)
    assert 1e3 * walks[TINY] / TINY[1] < min(columns_ns)


def test_the_gain_of_shuffles_is_so_much_a_row():
    def gain(shape):
        return sum(took_us(shape, "cuda_2")[:2]) - sum(took_us(shape, "unfused_cuda")[:2])

    assert gain(SHAPE) / SHAPE[0] * MANY[0] == pytest.approx(gain(MANY), abs=5)
    assert gain(SHAPE) < 0.02 * sum(took_us(SHAPE, "cuda_2")[:2])
    assert gain(MANY) > 0.05 * sum(took_us(MANY, "cuda_2")[:2])


def test_what_is_said_of_unfused_kernels_fits_the_data():
    wanted = {"op": "bias_gelu_dropout_residual", "shape": "16384x8192", "dtype": "bf16"}
    pointwise = next(r for r in recordings("pointwise") if r.gpu == "h100-sxm")
    chain, fused = (
        pointwise.one(variant=name, timing="graph", **wanted)
        for name in ("unfused_cuda", "fused_cuda")
    )
    assert chain.bytes_unique / fused.bytes_unique == pytest.approx(3, rel=0.01)
    assert chain.time_us_p50 / fused.time_us_p50 > 4
    ceilings = next(r for r in recordings("ceilings") if r.gpu == "h100-sxm")
    launch = {row.timing: row.time_us_p50 for row in ceilings.select(op="launch")}
    assert launch["graph"] < 5 < 10 < launch["host"]
    assert card(SHAPE).row("copy").time_us_p50 < max(took_us(SHAPE, "unfused_cuda")) < 1000


@needs_compiler
def test_the_notebook_runs_and_shows_what_its_text_says():
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {
        cell.id: "".join(
            output.get("text", "") + output.get("data", {}).get("text/markdown", "")
            for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert "no barrier between them" in told["race"]
    in_sectors = re.findall(r"\| (\w+) \|.* ([\d.]+) \|$", told["traffic-numbers"], re.M)
    assert [(name, round(float(each))) for name, each in in_sectors] == [
        ("cuda_1", 80),
        ("cuda_2", 20),
        ("unfused_cuda", 20),
    ]
    assert "all three right" in told["check"]
    # Five shuffles in a warp, three for its eight warps, as the page has it of `block_sum`.
    assert told["triton-ptx"].splitlines() == [
        "shuffles with the offsets 16 8 4 2 1 4 2 1",
        "barriers: 2",
        "shared memory: 32 bytes",
        "loads of x: ld.global.v4.b32",
    ]
    banks = re.findall(r"(\d+) requests of shared memory, (\d+) turns", told["banks"])
    (far_asked, far_turns), (near_asked, near_turns) = (map(int, pair) for pair in banks)
    assert far_asked == near_asked == far_turns
    assert near_turns == pytest.approx(3 * far_turns, rel=0.05)
    counted = {
        name: [int(number.replace(",", "")) for number in numbers.split(" | ")]
        for name, numbers in re.findall(r"\| (\w*cuda\w*) \| ([\d,| ]+) \|", told["count"])
    }
    (_, _, walk, _), (_, _, wide, tree), (_, _, same, shuffles) = map(counted.get, CHAINS)
    assert 0.25 < shuffles / tree < 0.4
    # As the page predicts them: the sums read x twice; then a sector for each single number.
    rows, cols = 64, 256
    assert walk == pytest.approx(2 * 32 * rows * cols, rel=0.01)
    assert wide == same == 2 * 2 * rows * cols + 32 * rows * (8 + 2)
