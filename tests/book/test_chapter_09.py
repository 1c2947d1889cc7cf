"""What chapter 09 says of generated code is in the record, in the data and in the counts."""

import ast
import json
import re

import pytest
import torch
import torch.nn.functional as F

from book.tools import build
from kernels.lab import traffic
from kernels.lab.counting.instructions import instructions
from kernels.lab.measuring.shown import recorded
from kernels.lab.profiling import generated
from kernels.lab.profiling.generated_kernels import kernel, launch_lines, made
from kernels.launch import compile_launch, recording
from kernels.paths import ROOT

CHAPTER = "09_what_compilers_fuse.ipynb"
N = 4096
BLOCKS = {"XBLOCK": 8, "R0_BLOCK": 2048, "num_warps": 16}
DRAM = ("dram_read", "dram_write")
ROW = {"XBLOCK": 1, "R0_BLOCK": 4096, "num_warps": 16}  # the whole row in a block


@pytest.fixture(scope="module")
def record():
    (found,) = (one for one in generated.generated() if one.gpu == "h200")
    return found


@pytest.fixture(scope="module")
def page():
    return json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def told():
    """What the page's cells print and show, by their names."""
    found = {}
    for cell in build.executed(ROOT / "book" / CHAPTER, ROOT).cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            found[cell.id] = found.get(cell.id, "") + text
    return found


def table(text):
    """A Markdown table's rows below its head: cells by the first one."""
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in rows[2:]}


def tensors(rows=8):
    torch.manual_seed(0)
    x, other = torch.randn(2, rows, N).to(torch.bfloat16)
    weight, bias = torch.randn(2, N).to(torch.bfloat16)
    return x, other, weight, bias


def exact_norm(x, weight, bias):
    return F.layer_norm(x.double(), (N,), weight.double(), bias.double())


def off(y, true):
    return ((y.double() - true).norm() / true.norm()).item()


# ------------------------------------------------------------------ generated kernels, run here


@pytest.mark.parametrize("blocks", [BLOCKS, ROW, BLOCKS | {"R0_BLOCK": 512}])
def test_the_generated_norm_and_softmax_are_right_and_ask_twice(record, blocks):
    x, _, weight, bias = tensors()
    grid = (len(x) // blocks["XBLOCK"],)
    for name, inputs, true in (
        ("layernorm", (x, weight, bias), exact_norm(x, weight, bias)),
        ("softmax", (x,), torch.softmax(x.double(), -1)),
    ):
        y = torch.empty_like(x)
        launch = kernel(record, name)[grid]
        (step,) = traffic.count(launch, *inputs, y, N, N, **blocks)
        assert off(y, true) < 1.05 * off(true.bfloat16(), true)
        assert step.tensor("in_ptr0").times_read == 2
        small = (len(inputs) - 1) * 2 * N
        assert step.bytes_unique == 2 * x.nbytes + small


@pytest.mark.parametrize("capability", [75, 80, 90])
def test_no_generated_kernel_spills_and_a_row_is_not_in_shared_memory(record, capability):
    x, other, weight, bias = tensors(rows=1)
    u, y, seed = torch.empty(x.shape), torch.empty_like(x), torch.tensor([7])
    for name, args in {
        "layernorm": (x, weight, bias, y, N, N),
        "softmax": (x, y, N, N),
        "chain": (x, seed, weight, bias, other, u, y, 0, N, N),
    }.items():
        for blocks in (ROW, ROW | {"R0_BLOCK": 2048}):
            with recording() as launches:
                kernel(record, name)[(1,)](*args, **blocks)
            found = compile_launch(next(iter(launches)), capability)
            assert found.stack_bytes == 0
            assert found.shared_bytes < 1024 < x.nbytes


def chain_of(record):
    (text,) = record.kernels("chain").values()
    return generated.plain(text)


def test_the_generated_chain_sends_its_random_numbers_through_memory(record, page):
    (source,) = ("".join(c["source"]) for c in page["cells"] if c["id"] == "mend")
    names = {}
    exec(source.partition("\n\n\nmended =")[0], names)  # the function of the page
    x, other, weight, bias = tensors()
    results, counts, text = [], [], chain_of(record)
    for one in (text, names["without_the_buffer"](text)):
        function = made(kernel(record, "chain").__name__, one)
        u, y, seed = torch.zeros(x.shape), torch.empty_like(x), torch.tensor([7])
        given = (x, seed, weight, bias, other, u, y, 0, N, N)
        (step,) = traffic.count(function[(1,)], *given, **BLOCKS)
        results.append((u, y))
        counts.append(step)
    (u, y), (untouched, same) = results
    h = F.gelu(exact_norm(x, weight, bias), approximate="tanh")
    assert off(y, other.double() + h * (u > 0.1) / 0.9) < 2e-3
    assert (u > 0.1).double().mean().item() == pytest.approx(0.9, abs=5 * (0.09 / u.numel()) ** 0.5)
    assert torch.equal(same, y)
    assert untouched.count_nonzero() == 0
    small = 2 * weight.nbytes + 8
    assert counts[0].bytes_unique == 3 * x.nbytes + 2 * u.nbytes + small
    assert counts[1].bytes_unique == 3 * x.nbytes + small


def test_the_chains_seed_is_made_by_a_launch_of_its_own_and_loaded(record):
    (code,) = record.functions["chain"]["code"]
    seed, launch = launch_lines(code)
    assert seed.startswith("aten.randint")
    assert len(record.functions["chain"]["compiled_kernels"]) == 2
    buffer = re.search(r"out=(\w+)", seed)[1]
    assert f", {buffer}," in launch
    assert "tl.load(in_ptr1 + load_seed_offset)" in chain_of(record)


def test_the_softmax_needs_more_slots_than_a_copy_takes_and_the_norm_fewer(record):
    x, _, weight, bias = tensors(rows=1)
    for name, inputs, over in (("layernorm", (x, weight, bias), False), ("softmax", (x,), True)):
        (card,) = recorded(name, (4096, N), torch.bfloat16, gpu="h100-sxm")
        machine = card.provenance["card"]
        slots_per_us = machine["multiprocessors"] * 4 * int(machine["clocks_mhz"]["max.sm"])
        with recording() as launches:
            kernel(record, name)[(1,)](*inputs, torch.empty_like(x), N, N, **ROW)
        (launch,) = launches
        line = instructions(launch, 90, routines=False)
        executed = line.total() * 32 * compile_launch(launch, 90).num_warps / N
        need_us = 4096 * N / 32 * executed / slots_per_us
        copy_us = card.row("copy").time_us_p50
        assert (need_us > 1.2 * copy_us) == over
        assert card.row("compile").time_us_p50 > need_us


# ------------------------------------------------------------------ what the page says of the data


def test_dram_reads_once_what_the_generated_kernels_ask_for_twice():
    for name in ("layernorm", "softmax"):
        for shape in ((4096, 4096), (16384, 8192)):
            (card,) = recorded(name, shape, torch.bfloat16, gpu="h100-sxm")
            row, copy = card.row("compile"), card.row("copy")
            assert row.bytes_dram_read == pytest.approx(shape[0] * shape[1] * 2, rel=0.02)
            ratio = row.time_us_p50 / copy.time_us_p50
            assert (ratio > 1.5) == (name == "softmax")


def test_the_chains_random_numbers_are_written_to_dram_and_read_from_a_cache():
    for shape, all_written in (((4096, 4096), False), ((16384, 8192), True)):
        (card,) = recorded("layernorm_gelu_dropout_residual", shape, torch.bfloat16, gpu="h200")
        *_, kernel = card.kernels("compile")
        read, written = (kernel[way] / (2 * shape[0] * shape[1]) for way in DRAM)
        assert read == pytest.approx(2, rel=0.02)  # x and the residual
        assert (2.85 < written < 3) == all_written  # y, and four bytes a random number
        assert read + written > 1.35 * 3
        assert all_written is (read + written > 1.6 * 3)


def test_the_record_and_the_times_are_of_the_same_versions(record):
    (card,) = recorded("layernorm", (4096, N), torch.bfloat16, gpu="h100-sxm")
    for name in ("torch", "triton"):
        assert record.provenance["versions"][name] == card.provenance["versions"][name]


def test_a_third_shape_is_free_but_where_rows_decide_the_cut(record):
    seconds = {name: one["call_seconds"] for name, one in record.functions.items()}
    for name, took in seconds.items():
        first, second, third = (took[str(rows)] for rows in generated.ROWS)
        assert first > 0.1
        assert second > 0.1
        assert (third < 0.01) == (name != "two_sums")


def test_what_is_not_cast_to_fp32_is_no_bf16(record):
    for name in record.functions:
        for text in record.kernels(name).values():
            of = dict(re.findall(r"'(\w+)': '\*(\w+)'", text))
            for line in generated.plain(text).splitlines():
                if loaded := re.search(r"tl\.load\((\w+)", line):
                    assert ("to(tl.float32)" in line) == (of[loaded[1]] == "bf16"), line


def test_helions_norm_is_the_packages(page):
    texts = ("".join(c["source"]) for c in page["cells"] if c["cell_type"] == "markdown")
    (shown,) = (
        block
        for text in texts
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "hl.tile" in block
    )
    module = ast.parse((ROOT / "kernels/ops/norms/helion_norms.py").read_text(encoding="utf-8"))
    (own,) = (node for node in module.body if getattr(node, "name", "") == "_layer_norm")
    assert ast.unparse(ast.parse(shown)) == ast.unparse(own)


def test_notice_tells_whose_the_generated_text_is():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert "generated.json" in notice
    assert "TorchInductor" in notice


# ------------------------------------------------------------------ the page, executed


def test_the_page_counts_what_the_record_and_the_ledgers_say(told, record):
    rows = table(told["table"])
    assert list(rows) == list(generated.FUNCTIONS)
    for name, (operators, before, graphs, launches, after, asked) in rows.items():
        one = record.functions[name]
        assert int(graphs) == one["graphs"] == len(one["code"])
        lines = [line for code in one["code"] for line in launch_lines(code)]
        assert int(launches) == len(one["compiled_kernels"]) == len(lines)
        assert float(asked) >= float(after)
        if name == "branch":
            assert (operators, before) == ("–", "–")
        else:
            assert float(before) >= float(after) - 0.05  # no more than by operators
    after = {name: float(row[4]) for name, row in rows.items()}
    assert after["chain"] == pytest.approx(7, abs=0.1)
    assert after["chain"] > 2 * after["swiglu"] == 6
    assert after["branch"] == after["selected"] + 2
    assert 3 < after["two_sums"] < 3.2
    assert rows["linear_gelu"][1] == rows["linear_gelu"][4] == "3.5"


def test_the_page_shows_what_it_speaks_of(told):
    norm, rounded = re.findall(r"error (\S+), of rounding once (\S+)", told["run-count"])[0]
    assert float(norm) == pytest.approx(float(rounded), rel=0.05)
    assert "in_ptr0  read 1.000 passes, asked for 2 times" in told["run-count"]
    assert "4096: x asked for 2 times, 4 loads a thread" in told["run-row"]
    assert "4096, alike: x asked for 2 times, 3 loads a thread" in told["run-row"]
    assert {row[1] for row in table(told["cards"]).values()} == {"0"}  # spilled
    assert re.search(r"3\.0\d passes, and the same bits", told["mend"])
    slots = {
        name: [float(re.match(r"[\d.]+", cell)[0]) for cell in row]
        for name, row in table(told["chain-slots"]).items()
    }
    passes, each, bytes_us, slots_us = zip(*slots.values(), strict=True)
    assert passes[0] > 2 * passes[2]
    assert 3.2 < each[0] / each[2] < 4  # "more than three times"
    assert slots_us[1] > 1.5 * bytes_us[1]  # mended, the limit is the other roof
    assert slots_us[2] < bytes_us[2]
    assert "branch: Data-dependent branching" in told["fullgraph"]
    assert "selected: one graph" in told["fullgraph"]
    counts = re.findall(r"(\d+) rows: (\d) compilations", told["shapes"])
    assert counts == [("64", "1"), ("32", "2"), ("16", "2"), ("48", "2"), ("1", "3")]
    breaks = re.findall(r"^(\w+) +(\d)", told["breaks"], re.MULTILINE)
    assert breaks == [("swiglu", "1"), ("printed", "2"), ("branch", "2"), ("selected", "1")]


def test_the_claims_are_judged_with_numbers(told):
    judged = table(told["claims"])
    assert len(judged) == 5
    assert all(re.search(r"\d", found) for found, _ in judged.values())
    (faster,) = (found for claim, (found, _) in judged.items() if "3–5" in claim)
    for times in re.findall(r"([\d.]+) times PyTorch's operators", faster):
        assert 1 < float(times) < 3
