"""The kernel that chapter 12 shows is the package's, and its counts are those of its formulas."""

import ast
import functools
import itertools
import json
import math
import re
import shutil

import pytest
import torch

from book.tools import build
from kernels.lab import CARDS, plots, traffic
from kernels.lab.measuring.shown import recorded
from kernels.lab.records.data import recordings, write_suite
from kernels.launch import KernelError, assume_capability, compile_launch, recording
from kernels.ops.attention import attention, moves, simple
from kernels.ops.attention.configurations import Tiling
from kernels.paths import DATA_DIR, ROOT
from tests.book.test_chapter_07 import loaded
from tests.book.test_chapter_10 import parts
from tests.lab.test_data import a_row

CHAPTER = "12_flash_attention.ipynb"
# Cells of which the functions are wanted, and not what follows them.
FUNCTIONS = ("asked", "causal-asked", "curves-model", "split-count")


@pytest.fixture(scope="module")
def sources():
    notebook = json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))
    return {
        cell["id"]: "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


def only(source, *kinds):
    """The statements of a cell that are of some kinds, as text."""
    found = [one for one in ast.parse(source).body if isinstance(one, kinds)]
    return "\n\n\n".join(ast.unparse(one) for one in found)


@pytest.fixture(scope="module")
def page(sources, tmp_path_factory):
    """The page's kernels and functions, as a module."""
    whole = ("imports", "steps", "log2e", "kernel", "piece-kernel", "merge-kernel")
    texts = [sources[kind] for kind in whole]
    texts += [only(sources[kind], ast.FunctionDef) for kind in ("state-merge", "online", "attend")]
    texts += [only(sources[kind], ast.FunctionDef) for kind in FUNCTIONS]
    texts.append(only(sources["curves-model"], ast.Assign))
    text = "\n\n\n".join(texts) + "\n"
    return loaded(text, tmp_path_factory.mktemp("chapter"), "chapter_12_kernels")


# ------------------------------------------------------------------ the page's kernel


def test_the_kernel_of_the_page_reads_as_the_packages(page):
    assert parts(page.attention_tile) == parts(simple.attention_simple)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 2, 37, 16), (1, 1, 64, 32), (1, 2, 1, 16)])
def test_the_kernel_of_the_page_is_the_packages(page, dtype, causal, shape):
    given = attention.inputs(shape, dtype, "cpu", seed=3)
    batch, heads, length, d = shape
    found, kept, traces = [], [], []
    for kernel in (page.attention_tile, simple.attention_simple):
        o, lse = torch.empty(shape, dtype=dtype), torch.empty(shape[:3])
        args = (given["q"], given["k"], given["v"], o, lse, length, d**-0.5, causal)
        grid = (-(-length // 32), batch * heads)
        sizes = {"D": d, "BLOCK_M": 32, "BLOCK_N": 16}
        traces.append(traffic.trace(kernel[grid], *args, **sizes))
        found.append(o)
        kept.append(lse)
    assert torch.equal(*found)
    assert torch.equal(*kept)
    _, true = attention.reference(**(given | {"causal": causal}), return_lse=True)
    assert torch.allclose(kept[0].double(), true, atol=1e-5)
    told = [[(a.program, a.argument, a.kind, tuple(a.offsets)) for a in t] for t in traces]
    assert told[0] == told[1]


@pytest.mark.parametrize("causal", [False, True])
def test_the_page_launches_the_binary_of_fused_simple(page, causal):
    x = torch.empty(1, 2, 1024, 128, dtype=torch.bfloat16)
    with assume_capability(80), recording() as launches:
        attention.fused_simple(x, x, x, causal)
        theirs = next(iter(launches)).arguments
        tile = theirs["BLOCK_M"], theirs["BLOCK_N"]
        page.attend(x, x, x, causal, tile, num_warps=8, num_stages=3)
    wanted, mine = (compile_launch(launch, 80) for launch in launches)
    named = ("registers", "stack_bytes", "shared_bytes", "matrix_instruction")
    assert [getattr(mine, n) for n in named] == [getattr(wanted, n) for n in named]


def test_three_steps_are_attention(page):
    given = attention.inputs((2, 2, 20, 16), torch.float64, "cpu", seed=1)
    q, k, v = (given[name] for name in "qkv")
    assert torch.allclose(page.three_steps(q, k, v), attention.reference(q, k, v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile", [(16, 16), (32, 16), (16, 32), (128, 64), (64, 128)])
@pytest.mark.parametrize("n", [1, 16, 37, 128, 1000])
def test_the_pages_formula_is_the_packages(page, causal, tile, n):
    tiling = Tiling(*tile, num_warps=4, num_stages=1)
    keys = moves.keys_asked_for(n, n, tiling, causal, None)
    mine = page.asked_causal(n, 64, tile) if causal else page.asked(n, 64, tile[0])
    assert mine == (2 * n + 2 * keys) * 64 * 2


def test_what_the_page_says_of_the_formula(page):
    n, d = 8192, 128
    assert page.asked(n, d, 128) == 272_629_760  # "273 MB, twice the table"
    assert round(page.asked(n, d, 128) / (n * n * 2), 1) == 2.0
    # B_M FLOPs a byte where N is large; half the keys, and a bit, where B_N divides B_M divides N.
    assert 4 * 2**40 * d / page.asked(2**20, d, 128) == pytest.approx(128, rel=1e-3)
    of_q_and_o = 4 * 2048 * d
    keys = page.asked_causal(2048, d, (128, 64)) - of_q_and_o
    assert keys / (page.asked(2048, d, 128) - of_q_and_o) == (1 + 128 / 2048) / 2
    # One product of a score in the time of one exponential.
    card = CARDS["h100-sxm"]
    a_clock = card.peak("bf16") / (card.sms * 1.83e9)
    assert a_clock == pytest.approx(4096, rel=1e-3)
    assert 4 * 64 / 4096 == 1 / 16


def test_the_model_of_dram_turns_where_the_page_says(page):
    first = page.L2 // (2 * 128 * 2)
    assert first == 102_400
    assert page.from_dram(first, 128, 128) == 4 * first * 128 * 2
    assert page.WAVE * 128 == 16_896
    more = first + 1
    assert page.from_dram(more, 128, 128) == (2 + 2 * math.ceil(more / 16_896)) * more * 128 * 2


# ------------------------------------------------------------------ states that merge


def test_the_states_of_the_page_merge_in_any_order(page):
    generator = torch.Generator().manual_seed(5)
    s = 20 * torch.randn(23, generator=generator, dtype=torch.float64)
    v = torch.randn(23, 4, generator=generator, dtype=torch.float64)
    cuts = [0, 1, 8, 9, 20, 23]
    pieces = [page.part(s[a:b], v[a:b]) for a, b in itertools.pairwise(cuts)]
    for order in itertools.permutations(range(len(pieces))):
        lse, o = functools.reduce(page.merged, [pieces[i] for i in order])
        assert torch.isclose(lse, torch.logsumexp(s, 0))
        assert torch.allclose(o, torch.softmax(s, 0) @ v)


@pytest.mark.parametrize("tile", [1, 3, 16, 40])
def test_the_online_softmax_keeps_its_state(page, tile):
    generator = torch.Generator().manual_seed(6)
    s, v = 5 * torch.randn(40, generator=generator), torch.randn(40, generator=generator)
    states = page.online(s, v, tile)
    for number, (m, total, acc, _) in enumerate(states):
        seen = s[: (number + 1) * tile]
        e = torch.exp(seen - seen.max())
        assert m == seen.max()
        assert torch.isclose(total, e.sum())
        assert torch.isclose(acc, e @ v[: len(seen)], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("keys", "piece"), [(1, 8), (64, 64), (97, 25), (70, 1), (33, 32)])
def test_pieces_of_keys_merge_to_attention(page, dtype, keys, piece):
    generator = torch.Generator().manual_seed(keys)
    q, k, v = (
        torch.randn(2, 2, rows, 16, generator=generator).to(dtype) for rows in (1, keys, keys)
    )
    true = attention.reference(q, k, v)
    o = page.attend_split(q, k, v, piece, block=16)
    assert (o.double() - true).norm() <= torch.finfo(dtype).eps / 2 * true.norm()
    ledger = traffic.count(page.attend_split, q, k, v, piece, block=16)
    pieces = -(-keys // piece)
    assert ledger.launches == 2
    assert ledger.bytes_unique == page.split_bytes(4, keys, 16, pieces)
    step = next(iter(ledger))
    assert step.programs == 4 * pieces
    assert step.tensor("k").read_requested == step.tensor("k").read_unique  # each key once


def test_large_scores_merge_too(page):
    q, k, v = (100 * torch.randn(1, 1, rows, 16).half() for rows in (1, 50, 50))
    true = attention.reference(q, k, v)
    o = page.attend_split(q, k, v, 9)
    assert (o.double() - true).norm() <= 2**-10 * true.norm()


@pytest.mark.parametrize("capability", [75, 80, 90, 120])
def test_the_kernels_of_pieces_compile_without_spills(page, capability):
    dtype = torch.float16 if capability < 80 else torch.bfloat16
    q, k = (torch.empty(1, 8, rows, 128, dtype=dtype) for rows in (1, 16384))
    with recording() as launches:
        page.attend_split(q, k, k, 1024)
    assert len(launches) == 2
    for launch in launches:
        assert compile_launch(launch, capability).stack_bytes == 0


def test_a_load_beyond_the_keys_is_found(page):
    """What the page's masks are there for: without a length, the ledger names the tensor."""
    x = torch.randn(1, 1, 20, 16).half()
    launch = page.attention_tile[(2, 1)]
    sizes = {"D": 16, "BLOCK_M": 16, "BLOCK_N": 16}
    args = (x, x, x, torch.empty_like(x), None, 32, 0.25, False)
    with pytest.raises(KernelError, match="'q_ptr'|'k_ptr'"):
        traffic.count(launch, *args, **sizes)


# ------------------------------------------------------------------ the page, executed


def column(table, number):
    return [line.split("|")[number].strip() for line in table.splitlines()[2:] if "|" in line]


def test_the_notebook_runs_and_its_counts_are_as_told():
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    n, heads, d = 8192, 64, 128
    table, ideal = 2 * n * n * heads, 4 * 2 * n * d * heads
    for name, passes in (("eager", 6), ("unfused", 4)):
        size = (passes * table + ideal) / 1e9
        times = round(size * 1e9 / ideal)
        assert re.search(rf"{name} +{size:.2f} GB, {times} times", told["table-count"])
    assert re.search(rf"fused_simple +{ideal / 1e9:.2f} GB, 1 times", told["table-count"])
    assert column(told["table-roof"], 2) == ["42", "63", "4,096"]
    least = {name: float(t.split()[0]) for name, t in zip(
        ("eager", "unfused", "fused"), column(told["table-roof"], 3), strict=True)}  # fmt: skip
    arithmetic = float(column(told["table-roof"], 4)[0].split()[0])
    assert least["fused"] < arithmetic < least["unfused"] < least["eager"]
    assert "merged: exp(L) = 10.00, o = 29.00" in told["state-merge"]
    assert "at once: exp(L) = 10.00, o = 29.00" in told["state-merge"]
    assert "L = 1002.303, o = 29.00" in told["state-large-run"]
    assert "L = inf" in told["state-large-run"]
    corrections = [float(c) for c in re.findall(r": c = (\S+),", told["online-run"])]
    assert corrections[0] == 0
    assert corrections[2] == 1
    assert all(0 < c < 1 for c in (corrections[1], corrections[3]))
    ends = re.findall(r"acc / l = (\S+)|at once: (\S+)", told["online-run"])
    assert ends[-1][1] == ends[-2][0]
    assert all(float(e) < 3e-3 for e in re.findall(r"error (\S+)", told["attend"]))
    assert len(re.findall(r"error", told["attend"])) == 6
    spilled = dict(zip(column(told["limits"], 1), column(told["limits"], 4), strict=True))
    assert spilled["64×64"] == spilled["128×64"] == "0 B"
    assert spilled["256×64"] != "0 B"
    for length in (512, 2048, 8192):
        share = (1 + 128 / length) / 2
        assert f"N = {length}: {share:.1%} of all keys" in told["causal-asked"]
    for name, key, passes in (("eager", "unique", 8), ("fused_simple", "requested", None)):
        pattern = rf"{name} +bytes_{key}: (\S+) GB, causal (\S+) GB"
        whole, causal = map(float, re.search(pattern, told["causal-eager"]).groups())
        if passes:  # two more, and a mask of a byte a pair, made, turned round and read
            assert causal == pytest.approx((passes * table + ideal + 4 * n * n) / 1e9, abs=0.02)
        else:
            assert whole / causal == pytest.approx(2, rel=0.05)
    errors = [float(e) for e in re.findall(r"(\d\S+e-\d+)", told["lse-merge"])]
    assert errors[0] < 4e-3
    assert errors[1] < 1e-5
    pieces = re.findall(r"pieces: (\d+), ([\d,]+) bytes", told["split-count"])
    assert [int(count) for count, _ in pieces] == [1, 4, 4]
    one, many = re.findall(r"(\d+) programs, (\S+) MB", told["split-count"])
    assert (one[0], many[0]) == ("8", "136")
    assert 0.0015 < float(many[1]) / float(one[1]) - 1 < 0.0025  # "a fifth of a percent"
    claims = told["claims-judged"]
    assert "134 MB, 8.6 GB" in claims
    assert "687 GB" in claims
    assert "273 MB a head, 2.0 tables" in claims
    assert "102,400 tokens" in claims
    assert "eager 13 and 25 times, unfused 9 and 17; at 8192: 97 and 193, 65 and 129" in claims


# ------------------------------------------------------------------ cells that wait for records


@pytest.fixture
def told(sources):
    """What the page's cells of measured times tell from a folder of records."""

    def run(data_dir):
        ours = {
            "recorded": functools.partial(recorded, data_dir=data_dir),
            "recordings": functools.partial(recordings, data_dir=data_dir),
        }
        names, found = {"old": True}, {}
        exec(sources["imports"], names)
        names |= ours  # the imports brought the real ones
        names["plots"] = Shown()
        for cell in FUNCTIONS[:3]:
            exec(only(sources[cell], ast.FunctionDef, ast.Assign), names)
        for cell in ("table-count", "table-roof", "table-measured", "roofline", "curves",
                     "curves-dram", "measured", "measured-read", "reached",
                     "claims-judged"):  # fmt: skip
            *rest, last = ast.parse(sources[cell]).body
            exec(compile(ast.Module(rest, []), cell, "exec"), names)
            if isinstance(last, ast.Expr):
                found[cell] = eval(compile(ast.Expression(last.value), cell, "eval"), names)
        return {cell: getattr(result, "data", result) for cell, result in found.items()}

    return run


class Shown:
    """`plots`, whose `show` draws the figure once and returns its caption."""

    def __getattr__(self, name):
        return getattr(plots, name)

    def show(self, draw, caption, alt):
        assert draw().axes
        return caption


def records(folder, times_us, gpu="h100-sxm"):
    """Records of the page's cases on a card, beside the ceilings of an H100."""
    ceilings = folder / "h100-sxm"
    unwanted = shutil.ignore_patterns("attention.*")
    shutil.copytree(DATA_DIR / "h100-sxm", ceilings, ignore=unwanted)
    provenance = json.loads((ceilings / "ceilings.json").read_text(encoding="utf-8"))
    if gpu != "h100-sxm":
        provenance["card"] = provenance["card"] | {"name": "another card", "slug": gpu}
    rows = []
    cases = attention.OP.cases_of("fwd") if times_us else ()
    for case, (variant, time_us) in itertools.product(cases, times_us.items()):
        cost = attention.cost(case)
        if variant == "eager" and case.shape[2] == 16384:  # as where memory doesn't suffice
            time_us = None
        row = a_row(
            op="attention",
            variant=variant,
            pass_="fwd",
            shape="x".join(map(str, case.shape)),
            dtype="bf16",
            options="causal" if case.options else "",
            time_us_p20=time_us,
            time_us_p50=time_us,
            time_us_p95=time_us,
            flops=cost.flops,
            bytes_ideal=cost.bytes_ideal,
            bytes_unique=None if variant == "sdpa_cudnn" else cost.bytes_ideal,
            bytes_requested=3 * cost.bytes_ideal,
            bytes_dram_read=cost.read_bytes,
            bytes_dram_write=cost.write_bytes,
        )
        rows.append(row)
    if rows:
        write_suite(folder / gpu / "attention.csv", rows, provenance)
    return folder


TIMES = {"eager": 900.0, "sdpa_flash": 300.0, "sdpa_cudnn": 200.0, "fused_simple": 320.0}
TIMES |= {"fused": 240.0, "fused_hopper": 150.0}


def test_without_records_the_page_says_so(told, tmp_path):
    found = told(records(tmp_path, {}))
    command = "`python -m kernels.lab profile attention` records it."
    none = "No card has recorded what DRAM moves here yet"
    assert found["table-measured"] == f"{none}: {command}"
    assert found["reached"] == "Nothing to say before a card has recorded times."
    assert "No card has recorded a point yet" in found["roofline"]
    assert "No card has recorded what DRAM moves here yet." in found["curves"]
    assert found["curves-dram"] == "No card has recorded what DRAM moves here yet."
    assert found["measured"] == "No card has recorded attention yet."
    assert found["measured-read"] == "Nothing to say before a card has recorded times."
    assert "`sdpa_flash`" not in found["claims-judged"]


def test_the_page_fills_itself_when_records_come(told, tmp_path):
    found = told(records(tmp_path, TIMES))
    lines = {line.split("|")[1].strip(): line for line in found["table-measured"].splitlines()[2:8]}
    assert set(lines) == set(TIMES)
    assert "| – | 0.20 GB | 0.07 GB |" in lines["sdpa_cudnn"]
    assert "The points are recorded." in found["roofline"]
    assert "Recorded on one" in found["curves"]
    rows = [line for line in found["curves-dram"].splitlines() if re.match(r"\| \d", line)]
    assert [line.split("|")[1].strip() for line in rows] == ["512", "2048", "8192", "16384"]
    part = 512 * 64 * 2 / 1e6
    each = [3 * part, 3 * part, part, part, 12 * part]
    assert rows[0] == f"| 512 | {' | '.join(f'{mb:,.3f} MB' for mb in each)} |"
    tables = re.findall(r"\| 16,384 tokens.*?(?=\n\n)", found["measured"], re.S)
    assert [re.search(r"d = (\d+)(, causal)?", one).groups() for one in tables] == [
        ("64", None), ("64", ", causal"), ("128", None), ("128", ", causal")
    ]  # fmt: skip
    for table in tables:
        lines = {line.split("|")[1].strip(): line for line in table.splitlines()[2:]}
        assert lines["fused_hopper"].count("150 (2.00)") == 4
        assert lines["eager"].count("900 (0.33)") == 3
        assert lines["eager"].endswith("| – |")
        assert "flex" not in lines
    peak = plots.ceilings_of(recordings("ceilings", tmp_path)[0], "bf16").compute_flops_per_s
    least = 4 * 16 * 16384**2 * 128 / peak * 1e6
    assert tables[2].splitlines()[2].endswith(f"| {least:,.0f} |")
    assert tables[3].splitlines()[2].endswith(f"| {least / 2:,.0f} |")
    assert found["measured"].count("Recorded on one") == 1
    lines = found["measured-read"].splitlines()
    best, plain = "1.33 to 1.33, ahead in", "0.94 to 0.94, ahead in"
    assert f"| fused_hopper | sdpa_cudnn | {best} 12 of 12 | {best} 8 of 8 |" in lines
    assert f"| fused_simple | sdpa_flash | {plain} 0 of 12 | {plain} 0 of 8 |" in lines
    assert "3.0 to 3.0 times as fast as `eager` | within 2 to 4" in found["claims-judged"]
    rows = [line.split("|")[1:-1] for line in found["reached"].splitlines()]
    shares = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if row}
    for variant, us in (("fused", 240e-6), ("fused_hopper", 150e-6)):
        by_depth = [f"{4 * 16 * 16384**2 * d / us / peak:.0%}" for d in (64, 128)]
        assert shares[variant] == [*by_depth, *["1.00"] * 4]
    most = 3 * plots.ceilings_of(recordings("ceilings", tmp_path)[0], "bf16").ridge / 64
    gains = f"N = 2048: 6.0, 8192: 6.0; at most {most:.1f} by its ceilings | 0 of 2 lie above"
    assert gains in found["claims-judged"]


def test_a_card_whose_ceilings_are_not_recorded_has_no_prediction(told, tmp_path):
    found = told(records(tmp_path, TIMES, gpu="h200"))
    assert "another card" in found["table-measured"]
    assert found["measured"].count("Its ceilings are not recorded") == 1
    assert "predicted*" not in found["measured"]
    assert "No card has recorded a point yet" in found["roofline"]
    assert "DRAM" in found["curves"]


@pytest.mark.parametrize("one", recordings("attention"), ids=lambda one: one.gpu)
def test_dram_gives_what_must_be_read_once_as_the_page_says(one):
    rows = [
        row
        for row in one.select(op="attention", pass_="fwd", timing="graph", variant="fused")
        if row.bytes_dram_read and row.shape.endswith("x64") and not row.options
    ]
    if not rows:
        pytest.skip(f"what DRAM moves of attention is not recorded on {one.gpu}")
    assert len(rows) == 4
    for row in rows:
        tensor = row.bytes_ideal / 4  # q, k, v and o
        assert row.bytes_dram_read == pytest.approx(3 * tensor, rel=1e-3)
        assert row.bytes_dram_write < tensor
