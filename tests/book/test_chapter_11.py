"""The kernels that chapter 11 shows are the package's, and its counts are those of its formulas."""

import ast
import functools
import json
import math
import re
import shutil
import types

import pytest
import torch

from book.tools import build
from kernels.lab import CARDS, count_op, plots, traffic
from kernels.lab.measuring.shown import recorded
from kernels.lab.records.data import recordings, write_suite
from kernels.launch import compile_launch, recording
from kernels.ops.epilogues import linear_bias_gelu, linear_swiglu, qkv
from kernels.ops.epilogues.epilogue_kernels import epilogue_tile
from kernels.ops.prologues import folding, kernels, layernorm_linear
from kernels.paths import DATA_DIR, ROOT
from kernels.registry import get, shape_name
from tests.book.test_chapter_07 import loaded
from tests.lab.test_data import a_row

CHAPTER = "11_what_fuses_around_a_product.ipynb"
BF16 = torch.bfloat16
BLOCKS = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 16}
TILE = tuple(BLOCKS.values())
HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def cells():
    return json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))["cells"]


@pytest.fixture(scope="module")
def sources(cells):
    return {c["id"]: "".join(c["source"]) for c in cells if c["cell_type"] == "code"}


@pytest.fixture(scope="module")
def prose(cells):
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def only(source, *kinds):
    """The statements of a cell that are of some kinds, as text."""
    found = [one for one in ast.parse(source).body if isinstance(one, kinds)]
    return "\n\n\n".join(ast.unparse(one) for one in found)


@pytest.fixture(scope="module")
def page(sources, tmp_path_factory):
    """The page's kernels and functions, as a module."""
    whole = ("imports", "gelu", "gelu-kernel", "run", "swiglu-kernel", "norm-kernel")
    texts = [sources[kind] for kind in (*whole, "folded-kernel")]
    texts += [only(sources[kind], ast.FunctionDef) for kind in ("place", "fold")]
    text = "\n\n\n".join(texts) + "\n"
    return loaded(text, tmp_path_factory.mktemp("chapter"), "chapter_11_kernels")


NAMES = {"norm_weight_ptr": "gamma_ptr", "norm_bias_ptr": "beta_ptr", "sums_ptr": "c_ptr"}


def told(trace):
    """Who touches what, by the page's names, without the order in which one program does."""
    return sorted(
        (a.program, NAMES.get(a.argument, a.argument), a.kind, tuple(map(int, a.offsets)))
        for a in trace
    )


def by_package(given, n, *, gated=False, activation=None):
    """The trace of the package's tile, row by row, and its output."""
    x, weight = given["x"], given["weight"]
    (m, k), y = x.shape, torch.empty(len(x), n, dtype=x.dtype)
    grid = (-(-m // TILE[0]) * -(-n // TILE[1]),)
    args = (x, weight, given.get("bias"), None, y, None, m, n, k, k, k, 0, 1, 1, 1)
    how = {"ACTIVATION": activation, "GATED": gated, "HEAD_SIZE": None, "GROUP": 1}
    return traffic.trace(epilogue_tile[grid], *args, **how, **BLOCKS), y


# ------------------------------------------------------------------ the page's kernels


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(70, 40, 90), (16, 7, 17), (1, 33, 40)])
def test_bias_and_gelu_touch_and_give_what_the_packages_do(page, dtype, shape):
    given = linear_bias_gelu.OP.inputs(shape, dtype, "cpu", seed=3)
    n = shape[2]
    trace = traffic.trace(page.run, page.linear_gelu_tile, *given.values(), n=n, tile=TILE)
    wanted, y = by_package(given, n, activation="gelu_tanh")
    assert told(trace) == told(wanted)
    mine = page.run(page.linear_gelu_tile, *given.values(), n=n, tile=TILE)
    assert torch.allclose(mine.float(), y.float(), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(70, 40, 90), (16, 7, 17), (1, 33, 40)])
def test_a_gate_touches_and_gives_what_the_packages_does(page, dtype, shape):
    given = linear_swiglu.OP.inputs((*shape, 2), dtype, "cpu", seed=3)
    n = shape[2]
    trace = traffic.trace(page.run, page.linear_swiglu_tile, *given.values(), n=n, tile=TILE)
    wanted, y = by_package(given, n, gated=True, activation="silu")
    assert told(trace) == told(wanted)
    mine = page.run(page.linear_swiglu_tile, *given.values(), n=n, tile=TILE)
    assert torch.allclose(mine.float(), y.float(), rtol=torch.finfo(dtype).eps, atol=1e-6)


def by_norm(kernel, x, *tensors, n, **how):
    """The trace of one of the package's kernels before a product, row by row, and its output."""
    (m, k), y = x.shape, torch.empty(len(x), n, dtype=x.dtype)
    grid = (-(-m // TILE[0]) * -(-n // TILE[1]),)
    strides = (k, k) if kernel is kernels.norm_linear_tile else (k,)
    args = (x, *tensors, y, m, n, k, *strides, 1e-5)
    how |= {"CENTRED": True, "ACTIVATION": None, "GROUP": 1, **BLOCKS}
    return traffic.trace(kernel[grid], *args, **how), y


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("shape", [(70, 40, 90), (16, 7, 17), (1, 33, 40)])
def test_the_kernel_that_normalises_its_tile_is_the_packages(page, dtype, shape):
    given = layernorm_linear.OP.inputs(shape, dtype, "cpu", seed=3)
    how = {"n": shape[2], "tile": TILE, "eps": 1e-5}
    trace = traffic.trace(page.run, page.norm_linear_tile, *given.values(), **how)
    wanted, y = by_norm(kernels.norm_linear_tile, *given.values(), n=shape[2])
    assert told(trace) == told(wanted)
    mine = page.run(page.norm_linear_tile, *given.values(), **how)
    assert torch.allclose(mine, y, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(70, 40, 90), (16, 7, 17), (1, 33, 40)])
def test_the_folded_kernel_is_the_packages(page, dtype, shape):
    x, *parameters = layernorm_linear.OP.inputs(shape, dtype, "cpu", seed=3).values()
    folded, n = page.fold(*parameters), shape[2]
    how = {"n": n, "tile": TILE, "eps": 1e-5, "SHIFTED": True}
    trace = traffic.trace(page.run, page.folded_tile, x, *folded, **how)
    more = {"STAGES": 1, "APART": False}
    wanted, y = by_norm(kernels.folded_tile, x, *folded, n=n, **more)
    assert told(trace) == told(wanted)
    mine = page.run(page.folded_tile, x, *folded, **how)
    assert torch.allclose(mine.float(), y.float(), rtol=torch.finfo(dtype).eps, atol=2e-3)


def test_the_page_folds_as_the_package_does(page):
    for seed, shape in enumerate([(1, 40, 24), (1, 7, 3), (1, 300, 260)]):
        given = layernorm_linear.OP.inputs(shape, BF16, "cpu", seed=seed)
        parameters = [given[name] for name in ("norm_weight", "norm_bias", "weight", "bias")]
        mine, n = page.fold(*parameters), shape[2]
        theirs = folding.fold(*parameters, centred=True)
        assert torch.equal(mine[0], theirs.weight)
        assert torch.allclose(mine[1], theirs.sums[:n], atol=1e-6)
        assert torch.allclose(mine[2], theirs.bias[:n], atol=1e-5)
        loose = page.fold(*parameters, of_rounded=False)
        assert torch.equal(loose[0], mine[0])
        assert loose[1].abs().max() < 1e-5  # centred, before it is rounded


def test_the_equation_holds_in_float64():
    generator = torch.Generator().manual_seed(0)
    x, gamma, beta, w, b = (
        torch.randn(*size, generator=generator, dtype=torch.float64)
        for size in ((5, 12), (12,), (12,), (7, 12), (7,))
    )
    x = 3 * x + 50
    wanted = layernorm_linear.reference(x, gamma, beta, w, b, eps=1e-5)
    mean = x.mean(1, keepdim=True)
    r = (x.var(1, correction=0, keepdim=True) + 1e-5).rsqrt()
    folded = w * gamma
    for one in (folded, folded - folded.mean(1, keepdim=True)):
        assert torch.allclose(r * (x @ one.T - mean * one.sum(1)) + b + w @ beta, wanted)


@pytest.mark.parametrize("sizes", [(2, 6, 3, 8), (1, 5, 1, 16), (3, 1, 4, 8)])
def test_heads_lie_where_the_packages_epilogue_puts_them(page, sizes):
    batches, positions, heads, d = sizes
    given = qkv.OP.inputs((batches, positions, 24, 3, heads, d), torch.float32, "cpu", seed=2)
    y = qkv.OP.variant("fused_simple").fn(**given).flatten()
    product = given["x"].flatten(0, 1) @ given["weight"].flatten(0, 2).T + given["bias"].flatten()
    rows, cols = (torch.arange(size) for size in product.shape)
    places = page.place(rows[:, None], cols[None, :], *sizes)
    assert sorted(places.flatten().tolist()) == list(range(y.numel()))
    assert torch.allclose(y[places], product, atol=1e-5)


@pytest.mark.parametrize("capability", [75, 80, 90, 120])
def test_the_kernels_of_the_page_compile_without_spills(page, capability):
    dtype = torch.float16 if capability < 80 else BF16
    x, weight = (torch.empty(512, 512, dtype=dtype) for _ in range(2))
    row, wide = torch.empty(512, dtype=dtype), torch.empty(512)
    with recording() as launches:  # in the page's own tiles
        page.run(page.linear_gelu_tile, x, weight, row, n=512)
        page.run(page.linear_swiglu_tile, x, weight.view(2, 256, 512), n=256, tile=(32, 16, 32))
        page.run(page.norm_linear_tile, x, row, row, weight, row, n=512, eps=1e-5)
        page.run(page.folded_tile, x, weight, wide, wide, n=512, eps=1e-5, SHIFTED=True)
    built = [compile_launch(launch, capability) for launch in launches]
    assert len(built) == 4
    assert [one.stack_bytes for one in built] == [0] * 4


def changed(sources, cell, *pairs):
    """A cell's kernel and what it needs, as text, with some of its lines changed."""
    text = "\n\n\n".join(sources[one] for one in ("imports", "gelu", "run", cell)) + "\n"
    for old, new in pairs:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_hint_1_needs_the_bias_before_gelu(sources, tmp_path):
    epilogue = "    total = gelu(total)  # the epilogue\n"
    dot = "tl.dot(x, weight, total, input_precision="
    pairs = [(epilogue, ""), (f'{dot}"ieee")', f'gelu({dot}"ieee"))')]
    inside = loaded(changed(sources, "gelu-kernel", *pairs), tmp_path, "chapter_11_hint_1")
    for k, bias, right in ((16, 0.0, True), (16, 1.0, False), (17, 0.0, False)):
        given = linear_bias_gelu.OP.inputs((16, k, 16), torch.float32, "cpu", seed=0)
        given["bias"] = torch.full_like(given["bias"], bias)
        y = inside.run(inside.linear_gelu_tile, *given.values(), n=16, tile=(16, 16, 16))
        assert (inside.error(y, linear_bias_gelu.OP.reference(**given)) < 1e-5) is right


def test_hint_3_takes_an_interleaved_weight(sources, tmp_path):
    pairs = (
        ("inside = n * BLOCK_N + wide % BLOCK_N", "inside = n * BLOCK_N + wide // 2"),
        ("wide // BLOCK_N * N + inside", "2 * n * BLOCK_N + wide"),
        ("[BLOCK_M, 2, BLOCK_N]", "[BLOCK_M, BLOCK_N, 2]"),
        ("tl.permute(parts, [0, 2, 1])", "parts"),
    )
    new = loaded(changed(sources, "swiglu-kernel", *pairs), tmp_path, "chapter_11_hint_3")
    given = linear_swiglu.OP.inputs((20, 24, 21, 2), torch.float32, "cpu", seed=0)
    by_turns = given["weight"].transpose(0, 1).contiguous()  # row 2j the gate, 2j + 1 up
    y = new.run(new.linear_swiglu_tile, given["x"], by_turns, n=21, tile=(16, 16, 16))
    assert new.error(y, linear_swiglu.OP.reference(**given)) < 1e-5


# ------------------------------------------------------------------ what the prose says


def test_what_the_page_says_of_bytes(prose):
    m, k, n = 4096, 1024, 3072
    sizes = [size * 2 / 1e6 for size in (m * k, n * k + n, m * n)]  # with the bias
    assert "$8.4 + 6.3 + 25.2 = 39.9$ MB" in prose
    assert [round(size, 1) for size in sizes] == [8.4, 6.3, 25.2]
    assert round(sum(sizes), 1) == 39.9
    assert round(2 * sizes[2], 1) == 50.3
    assert round(sum(sizes) + 2 * sizes[2], 1) == 90.2
    # A tile of h against an L2 of 50 MiB.
    assert CARDS["h100-sxm"].l2_bytes == 50 * 2**20
    assert 50 * 2**20 / (1024 * 2) == 25_600
    assert "$50 \\cdot 2^{20} / 2048 = 25{,}600$ rows" in prose
    assert [round(r * c * 2 / 1e6) for r, c in ((16384, 1024), (8192, 4096))] == [34, 67]


def test_what_the_page_says_of_clocks(prose):
    card = CARDS["h100-sxm"]
    assert card.peak("bf16") / (card.sms * 1.83e9) == pytest.approx(4096, rel=1e-3)
    assert card.peak("fp32") / (card.sms * 1.98e9) == pytest.approx(2 * 128, rel=1e-2)
    clocks = {k: 2 * 128 * 256 * k / 4096 for k in (1024, 4096)}
    assert clocks == {1024: 16_384, 4096: 65_536}
    assert 2 * 128 * 256 / 16 == 4096
    assert (4096 / clocks[1024], 4096 / clocks[4096]) == (1 / 4, 1 / 16)
    left = {k: (1 + 460 / k) / (1 + 4096 / clocks[k]) for k in clocks}  # a GELU that nothing hides
    assert [round(each, 2) for each in left.values()] == [1.16, 1.05]
    assert "$1.45 / 1.25 = 1.16$ and $1.11 / 1.06 = 1.05$" in prose
    assert (9 / 128) / (2 / 4096) == 144
    assert "\\frac{144}{B_N}" in prose


def test_by_hand_is_right(prose):
    for row, mean, r, product in (((1, 3, 1, 3), 2, 1, 37), ((10, 14, 10, 14), 12, 0.5, 210)):
        assert sum(row) / 4 == mean
        assert math.isclose(r, (sum((x - mean) ** 2 for x in row) / 4) ** -0.5)
        assert sum(x * w for x, w in zip(row, (1, 2, 6, 8), strict=True)) == product
        assert r * (product - mean * 17) + 5 == 8
    assert "$x \\cdot w' = 10 + 28 + 60 + 112 = 210$" in prose


def test_a_normalised_tile_of_256_columns_takes_nearly_all_registers():
    x, weight = (torch.empty(512, 512, dtype=BF16) for _ in range(2))
    row = torch.empty(512, dtype=BF16)
    sizes = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP": 8}
    how = {"CENTRED": True, "ACTIVATION": None, "num_warps": 8, "num_stages": 3, **sizes}
    args = (x, row, row, weight, row, torch.empty_like(x), 512, 512, 512, 512, 512, 1e-5)
    with recording() as launches:
        kernels.norm_linear_tile[(8,)](*args, **how)
    (wide,) = (compile_launch(launch, 90) for launch in launches)
    assert 225 < wide.registers <= 255  # of the 255 that a thread may have


@pytest.mark.parametrize("mean", [10, 1000])
def test_centring_helps_where_rows_of_the_weights_have_a_mean(page, mean):
    given = layernorm_linear.OP.inputs((16, 512, 32), torch.float32, "cpu", seed=0)
    given["x"] += mean
    given["weight"] += 0.1
    x, *parameters = given.values()
    true = layernorm_linear.reference(x, *parameters)
    how, wrong = {"n": 32, "tile": TILE, "eps": 1e-5, "SHIFTED": True}, {}
    for centre in (False, True):
        folded = page.fold(*parameters, centre=centre)
        wrong[centre] = page.error(page.run(page.folded_tile, x, *folded, **how), true)
    assert wrong[True] < wrong[False] / 5


# ------------------------------------------------------------------ the page, run


@pytest.fixture(scope="module")
def found():
    """What the cells of the executed page tell, by their names."""
    found = {}
    for cell in build.executed(ROOT / "book" / CHAPTER, ROOT).cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            found[cell.id] = found.get(cell.id, "") + text
    return found


def table(text):
    """The lines of a Markdown table as lists of cells, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_the_notebook_runs_and_its_counts_are_as_told(found):
    errors = [e for c in ("gelu-count", "swiglu-count", "qkv-count", "norm-count", "folded-count")
              for e in re.findall(r"error (\S+)", found[c])]  # fmt: skip
    assert len(errors) == 7
    assert all(float(e) < 3e-3 for e in errors)
    assert re.search(r"torch +90\.2 MB\nfused_simple +39\.9 MB", found["gelu-count"])
    assert re.search(r"torch +197\.1 MB\nfused_simple +46\.1 MB\n6 M N s +151\.0", found[
        "swiglu-count"])  # fmt: skip
    assert re.search(r"torch +90\.2 MB\nfused_simple +39\.9 MB", found["qkv-count"])
    ridge = float(re.search(r"ridge of (\d+)", found["worth-table"])[1])
    for shape, behind, before in table(found["worth-table"]):
        _, k, n = map(int, shape.split("×"))
        assert float(behind) == pytest.approx(1 + 2 * ridge / k, abs=0.006)
        assert float(before) == pytest.approx(1 + 2 * ridge / n, abs=0.006)
    assert re.findall(r"asked for (\d+) times", found["norm-count"]) == ["6", "8"]
    assert re.findall(r"asked for (\S+) times", found["folded-count"]) == ["4.50", "5.83"]
    assert found["fold"].count("y 8.0 8.0") == 2
    ways = table(found["four-ways"])
    assert len(ways) == 12
    for first in range(0, 12, 4):  # a shape has four
        rows = ways[first : first + 4]
        ideal, touched, asked = (
            [float(row[at].split()[0].replace(",", "")) for row in rows] for at in (2, 3, 4)
        )
        assert touched[0] > 1.3 * ideal[0]
        assert touched[1:] == ideal[1:]
        assert max(asked) == asked[1] > 1.7 * asked[0]
        assert min(asked) == asked[3]
    decided = {row[0]: row[1:] for row in table(found["decide"])}
    assert decided["16×1024×3072"][0] == "bytes"
    assert all(float(gain) < 1.04 for gain in decided["16×1024×3072"][1:3])
    assert decided["4096×1024×3072"][0] == "FLOPs"
    assert float(decided["16×1024×3072"][3].split()[0]) < 1e-3  # "less than a thousandth"
    never = found["decide-not"]
    assert "At 8192×4096×12288" in never
    assert f"pays {144 / 128:.2f} times" in never
    assert f"is worth {float(decided['8192×4096×12288'][2]):.2f} at most" in never
    assert "moves 201 MB to save 134." in never  # N is the larger: it doesn't pay
    for row in ways[0::4]:  # "both kernels in Triton ask for more bytes than two kernels do"
        at = ways.index(row)
        asked = [float(one[4].split()[0].replace(",", "")) for one in ways[at : at + 3]]
        assert min(asked[1:]) > asked[0]
    assert [row[1].endswith("by formula") for row in ways] == [False, False, False, True] * 3


def test_rounding_is_as_the_page_says(found):
    rows = {name[:3]: list(map(float, cells)) for name, *cells in table(found["rounding-table"])}
    of_torch = rows["(a)"]
    for name in ("(b)", "(d)", "(f)"):
        pairs = zip(rows[name][:4], of_torch[:4], strict=True)
        assert all(mine < 1.5 * theirs for mine, theirs in pairs)
    unrounded = rows["(c)"]
    for at, mean in ((1, 10), (2, 100), (3, 1000)):  # "the mean times a thousandth or so"
        assert 0.5e-3 * mean < unrounded[at] < 2e-3 * mean
    assert unrounded[0] < 1.5 * of_torch[0]
    assert rows["(e)"][2] < 2 * of_torch[2]
    assert rows["(e)"][3] > 10 * of_torch[3]
    assert rows["(f)"][4] < of_torch[4]  # in fp32 nothing at a mean of 0
    assert 3 < rows["(f)"][5] / of_torch[5] < 30  # and a digit at 1000


# ------------------------------------------------------------------ cells that wait for records


class Shown:
    """`plots`, whose `show` draws the figure once and returns its caption."""

    def __getattr__(self, name):
        return getattr(plots, name)

    def show(self, draw, caption, alt):
        assert draw().axes
        assert alt
        return caption


WAITING = ("bias-recorded", "l2-recorded", "l2-norm", "measured", "paid", "winners", "roofline",
           "claims-judged")  # fmt: skip


@pytest.fixture
def shown(sources):
    """What the page's cells of measured times tell from a folder of records."""

    def run(data_dir):
        ours = {
            "recorded": functools.partial(recorded, data_dir=data_dir),
            "recordings": functools.partial(recordings, data_dir=data_dir),
        }
        names, found = {"old": True, "BF16": BF16, "LAYER": (4096, 1024, 3072)}, {}
        exec(sources["imports"], names)
        names |= ours | {"plots": Shown()}  # the imports brought the real ones
        names |= {"OP": layernorm_linear.OP, "HEADS": (8, 512, 1024, 3, 16, 64)}
        for cell in ("worth-table", "four-ways", "decide", *WAITING):
            *rest, last = ast.parse(sources[cell]).body
            exec(compile(ast.Module(rest, []), cell, "exec"), names)
            found[cell] = eval(compile(ast.Expression(last.value), cell, "eval"), names)
        return {cell: getattr(result, "data", result) for cell, result in found.items()}

    return run


def records(folder, times_us, gpu="h100-sxm"):
    """Records of the page's cases on a card, beside the ceilings of an H100."""
    unwanted = shutil.ignore_patterns("matmul.*")
    shutil.copytree(DATA_DIR / "h100-sxm", folder / "h100-sxm", ignore=unwanted)
    told = json.loads((folder / "h100-sxm/ceilings.json").read_text(encoding="utf-8"))
    told["card"] = told["card"] | {"l2_bytes": 50 * 2**20}
    if gpu != "h100-sxm":
        told["card"] = told["card"] | {"name": "another card", "slug": gpu}
    rows, timelines = [], {}
    for name in OPERATIONS if times_us else ():
        op = get(name)
        for case in op.cases_of("fwd"):
            if case.dtype != BF16:
                continue
            cost = op.cost(case.shape, BF16, "fwd")
            for variant, time_us in times_us.items():
                row = a_row(
                    op=name,
                    variant=variant,
                    pass_="fwd",
                    shape=shape_name(case.shape),
                    dtype="bf16",
                    time_us_p20=time_us,
                    time_us_p50=time_us,
                    time_us_p95=time_us,
                    flops=cost.flops,
                    bytes_ideal=cost.bytes_ideal,
                    bytes_unique=cost.bytes_ideal,
                    bytes_dram_read=DRAM_READ.get(variant, 100_000_000),
                    bytes_dram_write=cost.write_bytes,
                    error=0.002,
                )
                rows.append(row)
            if name == "linear":
                timelines[f"linear:eager:{shape_name(case.shape)}:bf16"] = [
                    ["product", 0.0, 30.0],
                    ["add", 31.0, 20.0],
                ]
                timelines[f"linear:torch:{shape_name(case.shape)}:bf16"] = [["both", 0.0, 40.0]]
            if name == "linear_bias_gelu":
                place = f"{shape_name(case.shape)}:bf16"
                timelines[f"{name}:torch:{place}"] = [["mm", 0.0, 40.0], ["gelu", 41.0, 20.0]]
                timelines[f"{name}:fused:{place}"] = [["fused", 0.0, 48.0]]
                timelines[f"{name}:fused_hopper:{place}"] = [["fused", 0.0, 50.0]]
    if rows:
        write_suite(folder / gpu / "matmul.csv", rows, told | {"timelines": timelines})
    return folder


OPERATIONS = ("linear", "layernorm_linear", "linear_bias_gelu", "linear_swiglu", "qkv")
TIMES = {"copy": 5.0, "eager": 70.0, "torch": 50.0, "two_kernels": 45.0, "one_kernel": 80.0}
TIMES |= {"one_kernel_folded": 42.0, "fused": 44.0, "fused_hopper": 40.0}
DRAM_READ = {"eager": 140_000_000, "two_kernels": 104_000_000}
COMMAND = "`python -m kernels.lab bench matmul`"
PROFILE = "`python -m kernels.lab profile matmul`"


def test_without_records_the_page_says_so(shown, tmp_path):
    found = shown(records(tmp_path, {}))
    for cell, command in (
        ("bias-recorded", f"{COMMAND} records them."),
        ("l2-recorded", f"{PROFILE} records it."),
        ("l2-norm", f"{PROFILE} records it."),
        ("paid", f"{COMMAND} records them."),
    ):
        assert found[cell].startswith("No card has recorded")
        assert found[cell].endswith(command)
    for name in OPERATIONS[1:]:
        assert f"| {name} | " in found["measured"]
    assert COMMAND in found["measured"]
    assert found["measured"].startswith("Not measured yet; what follows is a prediction, by the ")
    lines = dict(table(found["measured"]))
    assert list(lines) == list(OPERATIONS[1:])
    peak = plots.ceilings_of(recordings("ceilings", tmp_path)[0], "bf16")
    cost = layernorm_linear.OP.cost((8192, 4096, 12288), BF16, "fwd")
    told = f"8192×4096×12288: {cost.flops / peak.compute_flops_per_s * 1e6:,.1f} µs"
    assert told in lines["layernorm_linear"]
    assert found["winners"] == "None is recorded yet."
    assert "No card has recorded a point yet." in found["roofline"]
    assert "`torch`" not in found["claims-judged"]


def test_the_page_fills_itself_when_records_come(shown, tmp_path):
    found = shown(records(tmp_path, TIMES))
    peak = plots.ceilings_of(recordings("ceilings", tmp_path)[0], "bf16")
    for shape, alone, added, both, ratio, bound in table(found["bias-recorded"]):
        m, k, n = map(int, shape.split("×"))
        assert bound == f"{1 + 2 * peak.ridge / k:.2f}"
        assert (alone, both, ratio) == ("30.0 µs", "40.0 µs", "1.25")
        assert added == f"20.0 µs, {2 * m * n * 2 / 20e6:.2f} TB/s"
    assert len(table(found["bias-recorded"])) == 4
    # 40 in one against 30 and 20: above 1 + sR/K at K = 4096, below it at 1024.
    assert "time by +33.3% to +33.3%." in found["bias-recorded"]
    told = f"its ridge is {peak.ridge:.0f} FLOP/byte: the bound is for that. 2 of 4 ratios"
    assert told in found["bias-recorded"]
    assert "came back from DRAM" in found["l2-recorded"]
    for shape, size, *_, share in table(found["l2-recorded"]):
        m, _, n = map(int, shape.split("×"))
        assert size == f"{m * n * 2 / 1e6:.0f} MB, {m * n * 2 / (50 * 2**20):.1f} of the L2"
        assert share == f"{40e6 / (m * n * 2):.0%}"
    for shape, *_, share in table(found["l2-norm"]):
        m, k, _ = map(int, shape.split("×"))
        assert share == f"{4e6 / (m * k * 2):.0%}"
    tables = found["measured"].split("\n\n")
    heads = [one.splitlines()[0].split("|")[1].strip() for one in tables if one[0] == "|"]
    assert heads == [f"{name}, `torch` in 1 launches" for name in OPERATIONS[1:]]
    lines = {row[0]: row[1:] for row in table(tables[0])}
    assert lines["fused_hopper"] == ["40.0 µs, 1.25"] * 4
    assert lines["one_kernel"] == ["80.0 µs, 0.62"] * 4
    assert "eager" not in lines
    assert "compile" not in lines
    cost = layernorm_linear.OP.cost((8192, 4096, 12288), BF16, "fwd")
    assert lines["*predicted*"][2] == f"{cost.flops / peak.compute_flops_per_s * 1e6:,.1f} µs"
    few = layernorm_linear.OP.cost((16, 1024, 3072), BF16, "fwd")
    least = few.bytes_ideal / peak.bandwidth_bytes_per_s * 1e6
    assert lines["*predicted*"][3] == f"{least:,.1f} µs"
    assert "Not measured yet" not in found["measured"]
    winners = table(found["winners"])
    assert [row[0] for row in winners] == [
        "4096×1024×3072", "16384×1024×3072", "8192×4096×12288", "16×1024×3072"
    ]  # fmt: skip
    assert all(row[1] == "fused_hopper, 40.0 µs" for row in winners)
    assert all(row[2] == "one_kernel_folded, 1.05 times as long" for row in winners)
    assert all(row[3] == "2.0e-03, 2.0e-03" for row in winners)
    assert "The points are recorded." in found["roofline"]
    assert "the fastest way over `torch`: 1.25, 1.25" in found["claims-judged"]
    assert "1.4 is reached at 0 of 4 shapes" in found["claims-judged"]


def test_what_fusing_paid(shown, tmp_path):
    """A product in 40 µs with a GELU in 20; one kernel for both in 48, a slower one in 50."""
    found = shown(records(tmp_path, TIMES))
    rows = table(found["paid"])
    assert [row[0].partition(",")[0] for row in rows] == ["linear_bias_gelu"] * 4
    for _, *times, more, gain, bound in rows:
        assert times == ["40.0 µs", "20.0 µs", "48.0 µs"]
        assert (more, gain, bound) == ("+20%", "1.25", "1.00")  # these rows touch the ideal bytes
    assert "4 of 4 gains lie above the bound." in found["paid"]
    few = "With 16 rows, in graphs: fused_hopper 40.0 µs, one_kernel_folded 42.0 µs, "
    assert few in found["paid"]


def test_a_bound_of_the_page_is_that_of_its_formula(sources):
    """1 + sR/K behind a product and 1 + sR/N before it, from the bytes that a row has."""
    (found,) = (one for one in ast.parse(sources["paid"]).body
                if getattr(one, "name", "") == "bound_of")  # fmt: skip
    names = {}
    exec(compile(ast.Module([found], []), "paid", "exec"), names)
    peak = plots.ceilings_of(recordings("ceilings")[0], "bf16")
    shape = (4096, 1024, 3072)
    for name, side in (("linear_bias_gelu", 1), ("layernorm_linear", 2)):
        cost = get(name).cost(shape, BF16, "fwd")
        moved = count_op(get(name), "torch", shape, BF16).bytes_unique
        row = types.SimpleNamespace(
            flops=cost.flops, bytes_ideal=cost.bytes_ideal, bytes_unique=moved
        )
        wanted = 1 + 2 * peak.ridge / shape[side]
        assert names["bound_of"](row, peak) == pytest.approx(wanted, rel=0.01)


def test_a_card_whose_ceilings_are_not_recorded_has_no_prediction(shown, tmp_path):
    found = shown(records(tmp_path, TIMES, gpu="h200"))
    assert "another card" in found["bias-recorded"]
    assert "ratios lie above" not in found["bias-recorded"]
    assert all(row[-1] == "–" for row in table(found["bias-recorded"]))
    assert found["measured"].count("Its ceilings are not recorded") == 4
    assert "predicted*" not in found["measured"]
    assert "No card has recorded a point yet" in found["roofline"]
