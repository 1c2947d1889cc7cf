"""The kernels that chapter 10 shows are the package's, and its counts are those of its formulas."""

import ast
import functools
import inspect
import itertools
import json
import math
import re
import shutil

import pytest
import torch

from book.tools import build
from kernels.cuda import cuda
from kernels.lab import traffic
from kernels.lab.cards.makers import CARDS
from kernels.lab.cards.roofline import ceilings_of
from kernels.lab.measuring.shown import recorded
from kernels.lab.records.data import recordings, write_suite
from kernels.launch import assume_capability, compile_launch, interpreting, recording
from kernels.ops.products import configurations, forward_kernels, linear
from kernels.paths import DATA_DIR, ROOT
from tests.book.test_chapter_07 import loaded
from tests.lab.test_data import a_row

CHAPTER = "10_tiled_products.ipynb"


@pytest.fixture(scope="module")
def sources():
    notebook = json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))
    return {
        cell["id"]: "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


@pytest.fixture(scope="module")
def page(sources, tmp_path_factory):
    """The page's kernels and the functions around them, as a module."""
    kinds = ("tile-at", "kernel", "tiled", "one-tile", "persistent", "function")
    parts = [sources["imports"], "BF16 = torch.bfloat16", *(sources[kind] for kind in kinds)]
    text = "\n\n\n".join(parts) + "\n"
    return loaded(text, tmp_path_factory.mktemp("chapter"), "chapter_10_kernels")


def parts(function):
    """A kernel's arguments and statements, without comments or layout."""
    tree = ast.parse(inspect.getsource(getattr(function, "fn", function))).body[0]
    return ast.dump(tree.args), [ast.dump(one) for one in tree.body]


def test_the_order_of_the_tiles_is_the_packages(page):
    assert parts(page.tile_at) == parts(forward_kernels.tile_at)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(70, 40, 90), (16, 7, 17), (1, 33, 130)])
def test_the_kernel_of_the_page_is_the_packages(page, dtype, shape):
    given = linear.inputs(shape, dtype, "cpu", seed=3)
    m, k, n = shape
    tiling = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP": 2}
    found, traces = [], []
    for kernel in (page.linear_tile, forward_kernels.linear_tile):
        for bias in (given["bias"], None):
            y = torch.empty(m, n, dtype=dtype)
            args = (given["x"], given["weight"], bias, y, m, n, k, k, k)
            grid = (-(-m // 32) * -(-n // 16),)
            traces.append(traffic.trace(kernel[grid], *args, **tiling))
            found.append(y)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])
    told = [[(a.program, a.argument, a.kind, tuple(a.offsets)) for a in t] for t in traces]
    assert told[0] == told[2]
    assert told[1] == told[3]


def test_the_page_launches_the_binary_of_fused_simple(page):
    """But for the order of tiles, which only the constant of a group tells apart."""
    x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    with assume_capability(80), recording() as launches:
        linear.OP.variant("fused_simple").fn(x, x)
        theirs = next(iter(launches)).arguments
        blocks = tuple(theirs[f"BLOCK_{side}"] for side in "MNK")
        page.tiled(x, x, None, blocks, theirs["GROUP"], num_warps=8, num_stages=3)
    mine, wanted = (compile_launch(launch, 80) for launch in reversed(list(launches)))
    named = ("registers", "stack_bytes", "shared_bytes", "matrix_instruction")
    assert [getattr(mine, n) for n in named] == [getattr(wanted, n) for n in named]


@pytest.mark.parametrize("name", ["one_each", "in_shared"])
@pytest.mark.parametrize("shape", [(24, 40, 72), (17, 5, 33)])
def test_the_kernels_in_cuda_are_right_and_ask_for_what_the_page_says(sources, name, shape):
    if shutil.which("g++") is None:
        pytest.skip("CUDA C++ on a CPU is compiled by g++, which isn't installed")
    held = {}
    exec(sources["one-kernel" if name == "one_each" else "shared-kernel"], held)
    kernel = cuda(held[f"{name}_source"])[f"{name}<__nv_bfloat16>"]
    m, k, n = shape
    given = linear.inputs(shape, torch.bfloat16, "cpu", seed=0)
    y = torch.empty(m, n, dtype=torch.bfloat16)
    side = 1 if name == "one_each" else 16
    tiles = (-(-n // side), -(-m // side))
    launch = kernel[(-(-n // 32), m), 32] if side == 1 else kernel[tiles, (16, 16)]
    ledger = traffic.count(launch, *given.values(), y, m, n, k)
    assert ledger.tensor("x").read_requested == m * k * tiles[0] * 2
    assert ledger.tensor("weight").read_requested == n * k * tiles[1] * 2
    packages = "cuda_1" if name == "one_each" else "cuda_2"
    with interpreting() as launches:
        assert torch.equal(y, linear.OP.variant(packages).fn(**given))
    theirs = traffic.ledger_of(launches)
    for mine, wanted in (("x", "x"), ("weight", "w"), ("bias", "b"), ("y", "y")):
        assert ledger.tensor(mine).requested == theirs.tensor(wanted).requested


def test_the_grid_that_stays_is_right_where_tiles_divide_nothing(page):
    for shape, programs in (((100, 72, 88), 3), ((16, 8, 8), 132), ((70, 128, 40), 1)):
        given = linear.inputs(shape, torch.bfloat16, "cpu", seed=1)
        y = page.persistent(given["x"], given["weight"], (32, 16, 16), programs, group=2)
        true = linear.reference(given["x"], given["weight"])
        error = (y.double() - true).norm() / true.norm()
        assert error < linear.OP.tolerance(torch.bfloat16, shape).relative_norm


def test_the_function_of_the_page_has_the_gradients_of_float64(page):
    given = [
        one.requires_grad_()
        for one in linear.inputs((33, 24, 40), torch.float32, "cpu", 5).values()
    ]
    exact = [one.detach().double().requires_grad_() for one in given]
    y = page.Linear.apply(*given)
    dy = torch.randn_like(y)
    found = torch.autograd.grad(y, given, dy)
    true = torch.autograd.grad(linear.reference(*exact), exact, dy.double())
    for got, wanted in zip(found, true, strict=True):
        assert (got.double() - wanted).norm() < 1e-6 * wanted.norm()


def column(table, number):
    return [line.split("|")[number].strip() for line in table.splitlines()[2:] if "|" in line]


def test_the_notebook_runs_and_its_counts_are_as_told():
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    # Half a FLOP a byte asked for; 1365 a byte that must move.
    assert "1,365.3" in told["one-roof"]
    assert "| 0.5 |" in told["one-roof"]
    assert re.search(r"128 × 256 +x +0\.537 GB, weight +1\.074 GB, +85\.33", told["asked"])
    assert all(float(e) < 3e-3 for e in re.findall(r"error (\S+)", told["count"]))
    # fp16: no worse than its output at first, then worse and worse, then beyond its end.
    sums = [[float(e) for e in line.split()[-2:]] for line in told["sum-run"].splitlines()]
    assert all(exact < 1e-6 for exact, _ in sums)
    assert sums[0][1] < 2**-11 < sums[1][1] < sums[2][1] < sums[3][1] == float("inf")
    masked, unmasked = re.findall(r"error (\S+)", told["tail"])
    assert float(masked) < 1e-6
    assert float(unmasked) > 0.3
    assert "'x_ptr'" in told["tail"]
    assert "index 640" in told["tail"]
    waves = {
        int(g): float(size) for g, size in re.findall(r"group of (\d+) +(\S+) GB", told["waves"])
    }
    assert min(waves, key=waves.get) == 16
    assert waves[8] < 1.3 * waves[16]
    assert waves[1] > 2 * waves[8]
    assert waves[64] > 1.5 * waves[8]
    levels = [float(size) for size in re.findall(r"(\S+) GB", told["dram"])][:4]
    assert levels == sorted(levels)
    assert levels[1:3] == [waves[8], waves[1]]
    spilled = dict(
        zip(
            zip(column(told["binaries-table"], 1), column(told["binaries-table"], 2), strict=True),
            column(told["binaries-table"], 6),
            strict=True,
        )
    )
    for (tile, card), bytes_ in spilled.items():
        wide = tile.startswith("256×256") or (tile.startswith("128×128") and card == "sm_75")
        assert (bytes_ != "0 B") == wide, (tile, card)
    lines = {line.split("|")[1].strip(): line for line in told["mma"].splitlines()[2:]}
    assert re.fullmatch(r"\| sm_75 \| none \| 0 \| 0 \| [1-9]\d* \| 0 \|", lines["sm_75"])
    assert re.fullmatch(
        r"\| sm_80 \| mma.sync \| [1-9]\d* \| 0 \| 0 \| [1-9]\d* \|", lines["sm_80"]
    )
    assert re.fullmatch(
        r"\| sm_90 \| wgmma.mma_async \| 0 \| [1-9]\d* \| 0 \| [1-9]\d* \|", lines["sm_90"]
    )
    t4 = CARDS["t4"].peaks
    assert f"a factor of {t4.fp16 / t4.fp32:.0f}." in told["t4"]
    assert re.search(r"UTMALDG [1-9]\d*\nLDGSTS 0\nHGMMA [1-9]", told["persistent-run"])
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in told["ptx"]
    assert re.search(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16", told["ptx"])
    assert column(told["back-table"], 6) == ["1536", "512", "96"]
    assert len(set(column(told["back-table"], 4))) == len(set(column(told["back-table"], 5))) == 1
    assert all(float(e) < 1e-6 for e in re.findall(r"error (\S+)", told["function-check"]))
    assert re.search(r"\(33.*right shape: False", told["function-check"])
    assert re.search(r"\(32.*right shape: True", told["function-check"])
    m, k, n = 256, 128, 192
    first, second = (
        int(size.replace(",", "")) for size in re.findall(r"([\d,]+) bytes", told["back-count"])
    )
    assert first == (m * n + n * k + m * k) * 2
    assert second == first + n * 2  # the bias's gradient, and no byte more read


# ------------------------------------------------------------------ cells that wait for records

SHAPES = ("4096x1024x3072", "16384x1024x3072", "8192x4096x12288", "4096x4096x4096")


@pytest.fixture
def told(sources):
    """What the page's cells of measured times tell from a folder of records."""

    def run(data_dir):
        ours = {
            "recorded": functools.partial(recorded, data_dir=data_dir),
            "recordings": functools.partial(recordings, data_dir=data_dir),
        }
        names, found = {"old": True}, {}
        texts = sources | {"one-count": sources["one-count"].split("m, k, n =")[0]}
        before = ("imports", "one-count", "one-roof", "asked", "waves")
        waiting = ("dram", "groups", "measured", "roofline", "nearness", "back-split")
        for cell in (*before, *waiting):
            *rest, last = ast.parse(texts[cell]).body
            exec(compile(ast.Module(rest, []), cell, "exec"), names)
            names |= ours  # the imports brought the real ones
            if isinstance(last, ast.Expr):
                found[cell] = eval(compile(ast.Expression(last.value), cell, "eval"), names)
            else:
                exec(compile(ast.Module([last], []), cell, "exec"), names)
        return {cell: getattr(result, "data", "") for cell, result in found.items()}

    return run


def records(folder, times_us, gpu="h100-sxm"):
    """Records of the page's products on a card, beside the ceilings of an H100."""
    ceilings = folder / "h100-sxm"
    shutil.copytree(DATA_DIR / "h100-sxm", ceilings, ignore=shutil.ignore_patterns("matmul.*"))
    provenance = json.loads((ceilings / "ceilings.json").read_text(encoding="utf-8"))
    if gpu != "h100-sxm":
        provenance["card"] = provenance["card"] | {"name": "another card", "slug": gpu}
    rows = []
    for shape in SHAPES if times_us else ():
        m, k, n = map(int, shape.split("x"))
        for (variant, time_us), (pass_, products) in itertools.product(
            ({"copy": 5.0} | times_us).items(), (("fwd", 1), ("bwd", 2))
        ):
            row = a_row(
                op="linear",
                variant=variant,
                pass_=pass_,
                shape=shape,
                dtype="bf16",
                time_us_p20=time_us,
                time_us_p50=time_us,
                time_us_p95=time_us,
                flops=0 if variant == "copy" else 2 * products * m * k * n,
                bytes_dram_read=None if variant == "copy" else 600_000_000,
                bytes_dram_write=None if variant == "copy" else 200_000_000,
            )
            rows.append(row)
    timelines = {
        row.place: [["product", 0.0, 30.0], ["void at::native::reduce_kernel<128>", 31.0, 5.0]]
        for row in rows
        if (row.variant, row.pass_) == ("torch", "bwd")
    }
    if rows:
        write_suite(folder / gpu / "matmul.csv", rows, provenance | {"timelines": timelines})
    return folder


def test_without_records_the_page_says_so(told, tmp_path):
    found = told(records(tmp_path, {}))
    assert "No card has recorded what DRAM reads yet" in found["dram"]
    assert "`python -m kernels.lab profile matmul` records it." in found["dram"]
    assert found["measured"] == "No card has recorded these products yet."
    assert found["nearness"].startswith("Nothing to say before a card has recorded")
    assert found["back-split"] == "No card has recorded timelines of the backward yet."
    assert found["groups"].count("| – |") == 2


def test_the_page_fills_itself_when_records_come(told, tmp_path):
    found = told(records(tmp_path, {"torch": 50.0, "fused": 40.0, "fused_hopper": 100.0}))
    dram_read = found["dram"].split("DRAM read |")[1]
    assert re.findall(r"\| (\w+) \| 0.60 GB \|", dram_read) == ["torch", "fused", "fused_hopper"]
    forward, backward = re.findall(r"\| (?:for|back)ward \|.*?(?=\n\n)", found["measured"], re.S)
    for table in (forward, backward):
        assert table.count("×1024×3072") == 2
        lines = {line.split("|")[1].strip(): line for line in table.splitlines()}
        assert lines["fused"].count("40 µs, 1.25") == 4
        assert lines["fused_hopper"].count("100 µs, 0.50") == 4
        assert "compile" not in lines
    peak = ceilings_of(recordings("ceilings", tmp_path)[0], "bf16").compute_flops_per_s
    least = 2 * 4096**3 / peak * 1e6
    assert forward.splitlines()[2].endswith(f"| {least:,.0f} µs |")
    assert backward.splitlines()[2].endswith(f"| {2 * least:,.0f} µs |")
    assert (
        "Between the first two lines: torch, fused, fused_hopper; above them: none."
        in (found["dram"])
    )
    by_us = [2 * math.prod(map(int, shape.split("x"))) / peak * 1e6 for shape in SHAPES]
    for name, us in (("fused", 40.0), ("fused_hopper", 100.0)):
        forward, backward = (
            f"{us / max(by_us) / n:.2f} to {us / min(by_us) / n:.2f}" for n in (1, 2)
        )
        assert f"| {name} | {forward} | {backward} |" in found["nearness"]
    assert found["back-split"].count("| torch | 30.0 µs | 5.0 µs | 35.0 µs |") == 4


def test_the_groups_of_the_page_are_those_that_are_launched(told, tmp_path):
    """And each has the tile that the model counts."""
    x, weight = (torch.empty(m, 4096, dtype=torch.bfloat16) for m in (8192, 12288))
    with assume_capability(90), recording() as launches:
        linear.OP.variant("fused").fn(x, weight)
    (launch,) = launches
    assert (launch.arguments["BLOCK_M"], launch.arguments["BLOCK_N"]) == (128, 256)
    assert (configurations.HOPPER_ROWS, configurations.HOPPER_COLS) == (128, 256)
    rows = column(told(records(tmp_path, {"torch": 50.0, "fused": 40.0}))["groups"], 2)
    assert rows == [str(launch.arguments["GROUP"]), str(configurations.HOPPER_GROUP)]


def test_a_card_whose_ceilings_are_not_recorded_has_no_prediction(told, tmp_path):
    found = told(records(tmp_path, {"torch": 50.0, "fused": 40.0}, gpu="h200"))
    assert "another card" in found["dram"]
    assert found["measured"].count("Its ceilings are not recorded") == 2
    assert "predicted*" not in found["measured"]
    assert "40 µs, 1.25" in found["measured"]
