"""The kernels that chapter 08 shows are the package's, and what it says of the data is in them."""

import json
import re
import shutil

import pytest
import torch

from book.tools import build
from kernels.cuda import cuda
from kernels.lab.counting.instructions import instructions
from kernels.lab.measuring.shown import recorded
from kernels.launch import interpreting, recording
from kernels.ops.chains import bias_gelu_dropout_residual as chain
from kernels.ops.chains import layernorm_gelu_dropout_residual as norm_chain
from kernels.paths import ROOT
from kernels.philox import scale, threshold

CHAPTER = "08_chains_and_random_numbers.ipynb"
TEXTS = ("pack", "gelu_dropout")
LARGE, SMALL = (16384, 8192), (2048, 4096)
N = LARGE[0] * LARGE[1]


def on_h100(shape=LARGE, dtype=torch.bfloat16):
    (card,) = recorded(chain.OP.name, shape, dtype, gpu="h100-sxm")
    return card


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


@pytest.mark.parametrize(
    ("name", "variant"), [("one_each", "cuda_1"), ("eight_each", "fused_cuda")]
)
def test_a_kernel_of_the_chain_is_the_packages(page, name, variant):
    inputs = chain.OP.inputs((3, 1000), torch.bfloat16, "cpu", seed=0, p=0.3)
    x, bias, residual, p, seed_offset = inputs.values()
    y, packed = torch.empty_like(x), name == "eight_each"
    source = page["gelu_dropout"] + page["pack"] * packed + page[f"{name}_kernel"]
    grid, sizes = ((3, 1), (1000,)) if packed else (-(-3000 // 128), (3000, 1000))
    launch = cuda(source)[f"{name}<__nv_bfloat16>"][grid, 128]
    counts = launch(x, bias, residual, seed_offset, y, *sizes, threshold(p), scale(p))
    with interpreting() as launches:
        expected = chain.OP.variant(variant).fn(**inputs)
    (launched,) = launches
    assert torch.equal(y, expected)
    asked = [
        {one.name: (one.read_requested, one.write_requested) for one in counted.arguments}
        for counted in (counts, launched.arena)
    ]
    assert asked[0] == asked[1]


def test_the_instructions_of_the_binary_are_those_that_were_executed():
    """Within a tenth, with no GPU: what chapter 08 predicts from."""
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA C++ for a card")
    card = on_h100()
    machine = card.provenance["card"]
    slots_per_us = machine["multiprocessors"] * 4 * int(machine["clocks_mhz"]["max.sm"])
    inputs = chain.OP.inputs((8, 8192), torch.bfloat16, "cpu", seed=0)
    for variant, elements in (("cuda_1", 1), ("fused_cuda", 8)):
        with recording() as launches:
            chain.OP.variant(variant).fn(**inputs)
        (launch,) = launches
        compiled = instructions(launch, 90, routines=False).total() / elements
        (kernel,) = card.kernels(variant)
        share = kernel["issue_pct"] / 100
        executed = share * slots_per_us * kernel["duration_us"] * 32 / N
        assert compiled == pytest.approx(executed, rel=0.1)


# ------------------------------------------------------------------ what the page says of the data


def times_us(card):
    return {row.variant: row.time_us_p50 for row in card.rows if row.timing == "graph"}


def test_one_launch_of_the_chain_is_held_back_by_instructions():
    card, took = on_h100(), times_us(on_h100())
    (slow,), (good,) = card.kernels("cuda_1"), card.kernels("fused_cuda")
    assert took["cuda_1"] > 3 * took["fused_cuda"]
    assert took["cuda_1"] > 0.9 * took["torch"]
    assert took["fused_cuda"] < 1.05 * took["copy"]
    assert slow["dram_pct"] < 30
    assert good["dram_pct"] > 80
    for kernel in (slow, good):
        assert 65 < kernel["issue_pct"] < 85


def test_the_time_of_cuda_1_does_not_follow_its_bytes():
    cards = (on_h100(), on_h100(dtype=torch.float32))
    narrow, wide = (card.kernels("cuda_1")[0] for card in cards)
    moved = [kernel["dram_read"] + kernel["dram_write"] for kernel in (narrow, wide)]
    assert moved[1] > 1.9 * moved[0]
    assert wide["duration_us"] < narrow["duration_us"]


def test_the_chains_times_belong_to_threads():
    cards = (on_h100(dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    narrow, wide = (
        {kernel["name"]: kernel["duration_us"] for kernel in card.kernels("unfused_cuda")}
        for card in cards
    )
    assert narrow["gelu"] == pytest.approx(narrow["add_residual"], rel=0.05)
    assert wide["add_bias"] == pytest.approx(narrow["add_bias"], rel=0.05)
    assert narrow["dropout"] > 1.3 * narrow["gelu"]


def test_in_triton_nothing_is_full_where_a_call_serves_one_element():
    (card,) = recorded("bias_gelu_dropout_residual", (16384, 8192), torch.bfloat16, gpu="h200")
    took = times_us(card)
    (simple,), (good,) = card.kernels("fused_simple"), card.kernels("fused")
    (by_hand,) = card.kernels("cuda_1")
    assert took["fused_simple"] > 2 * took["fused"]
    assert took["fused"] < 1.05 * took["copy"]
    assert good["dram_pct"] > 80
    assert max(simple["dram_pct"], simple["issue_pct"], *simple["pipes_pct"].values()) < 70
    for kernel in (simple, by_hand):
        assert max(kernel["pipes_pct"], key=kernel["pipes_pct"].get) == "fmaheavy"
    assert simple["pipes_pct"]["fmaheavy"] == pytest.approx(by_hand["pipes_pct"]["fmaheavy"], abs=2)
    # By clocks that pipe is the fullest of all, and what warps wait for.
    busiest = max(*simple["busy_pct"].values(), simple["dram_pct"], simple["issue_pct"])
    assert 75 < simple["busy_pct"]["fmaheavy"] == busiest < 95
    assert simple["busy_pct"]["fmaheavy"] > 1.4 * simple["pipes_pct"]["fmaheavy"]
    assert max(simple["waits"], key=simple["waits"].get) == "math_pipe_throttle"
    assert simple["waits"]["long_scoreboard"] < 0.5 * simple["waits"]["math_pipe_throttle"]
    for kernel in (good, by_hand):
        assert max(kernel["waits"], key=kernel["waits"].get) == "long_scoreboard"
    assert by_hand["waits"]["math_pipe_throttle"] > 2


def test_the_norm_in_front_runs_at_the_copys_rate_without_dropout():
    """As the page says: with dropout it stays behind, and going back most of all."""

    def share(pass_="fwd", options=()):
        (card,) = recorded(
            norm_chain.OP.name,
            *((16384, 8192), torch.bfloat16),
            gpu="h200",
            pass_=pass_,
            options=options,
        )
        took = times_us(card)
        assert took["fused"] < 0.5 * min(took["torch"], took["compile"]) or options
        return took["copy"] / took["fused"]

    with_it, without = (
        recorded(norm_chain.OP.name, LARGE, torch.bfloat16, gpu="h200", options=options)[0]
        for options in ((), (("p", 0),))
    )
    (draws,), (plain,) = with_it.kernels("fused"), without.kernels("fused")
    assert draws["issue_pct"] > plain["issue_pct"]
    assert max(draws["issue_pct"], draws["dram_pct"]) < 75 < 85 < plain["dram_pct"]
    assert draws["waits"]["long_scoreboard"] < plain["waits"]["long_scoreboard"]
    assert share(options=(("p", 0),)) > 0.97
    assert 0.97 > share() > 0.80 > share("bwd") > 0.6


def test_backwards_of_three_passes_fall_behind_by_their_arithmetic():
    shares = {}
    for op in (chain.OP.name, "layernorm_gelu", norm_chain.OP.name):
        (card,) = recorded(op, LARGE, torch.bfloat16, gpu="h200", pass_="bwd")
        took, moved = times_us(card), {}
        for name in ("torch", "compile", "fused"):
            launched = card.kernels(name)
            moved[name] = sum(k["dram_read"] + k["dram_write"] for k in launched) / (2 * N)
            shares[op, name] = took["copy"] / took[name]
        assert moved["fused"] == pytest.approx(3, rel=0.03)
        # The others by the bytes: what they move more explains most of what they take.
        for name in ("torch", "compile"):
            assert moved[name] > 1.4 * moved["fused"]
            at_a_copys_rate = moved[name] / 3 * took["copy"]
            assert at_a_copys_rate > 0.7 * took[name]
    names = (chain.OP.name, "layernorm_gelu", norm_chain.OP.name)
    fused = [shares[op, "fused"] for op in names]
    assert fused == sorted(fused, reverse=True)


def test_a_state_for_each_thread_costs_hundreds_of_times_the_chain():
    took = times_us(on_h100(SMALL))
    assert took["stateful_cuda"] > 100 * took["unfused_cuda"]
    assert took["stateful_cuda"] > 200 * took["cuda_1"]


def test_the_notebook_runs_and_its_counts_are_as_told(page):
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    # Three passes, and two a joint; the bias is a sixteenth of one.
    for line in ("9.06 passes", "5.06 passes", "3.06 passes"):
        assert line in told["cuts-run"]
    # What is kept for the backward is a pass and a half more than in the package's kernel.
    assert re.search(r"kept +4\.50 passes in one launch\nmade again +3\.00", told["joints-check"])
    # Seed, offset and bias beside the tensors.
    for name, counts in (("cuda_1", "1 | 6.00 | 24.00"), ("fused_cuda", "1 | 6.00 | 10.00")):
        assert re.search(rf"\| {name} \|.*\| {re.escape(counts)} \|", told["chain-measured"])
    assert "requests for x: 200 and 28" in told["eight-count"]  # 4 rows of 6.25 warps
    # A call of Philox is twenty wide products; without it and the remainder none of them is left.
    pieces = [line.split("|")[2:-1] for line in told["instructions-table"].splitlines()[2:]]
    whole, without_philox, _, without_remainder = [[int(cell) for cell in line] for line in pieces]
    assert 19 <= whole[2] - without_philox[2] <= 21
    assert whole[3] > without_remainder[3]  # the routine for remainders of 64 bits
    # A call an element takes more slots than the bytes take time, a call for eight fewer.
    slots = {
        line.split("|")[1].strip(): [int(us) for us in re.findall(r"(\d+) µs", line)][:2]
        for line in told["tile-table"].splitlines()[2:]
        if "µs" in line
    }
    for name, (need, bytes_us) in slots.items():
        if name in ("a call an element", "fused_simple"):
            assert need > 1.1 * bytes_us
        else:
            assert 0.4 < need / bytes_us < 0.75
    assert "torch    9.5 passes, 319 MB" in told["norm-count"]
    assert "fused    3.0 passes, 101 MB" in told["norm-count"]
    right, wrong = re.findall(r"error (\S+)", told["back-check"])
    assert float(right) < 1e-6
    assert float(wrong) > 0.3
    assert "16384×8192, by the formula: 3.016 passes" in told["back-bias"]
    assert re.search(r"by_number .*'seed': 7.*another mask: False", told["seed-run"])
    assert re.search(r"by_pointer(?!.*seed).*another mask: True", told["seed-run"])
    assert "4 + 3" in told["claims"]
    assert "2.33 times fewer" in told["claims"]
    assert "5 + 4.5" in told["claims"]


def test_wide_products_spare_what_the_page_says():
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    (cell,) = (one for one in notebook.cells if one.id == "wide-count")
    told = "".join(output.get("text", "") for output in cell.outputs)
    plain, wide = map(int, re.findall(r"(\d+) instructions", told))
    assert 2 <= (plain - wide) / 8 < 2.5  # "two instructions an element, and a little more"
    assert "IMAD.HI" not in told.splitlines()[1]
