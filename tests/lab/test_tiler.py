"""The tiler: its logic under Node against the ledger of the kernel, its page in a browser."""

import json
import re
import subprocess

import pytest
import torch
import traitlets

from kernels.lab import traffic
from kernels.lab.drawing.explorers import TilerExplorer
from kernels.lab.drawing.explorers.tiler import VALUES, tiler_cards
from kernels.launch import interpreting
from kernels.ops.products.configurations import Tiling
from kernels.ops.products.forward import forward
from tests.lab.test_explorers import CHROMIUM, NODE, PAGE, needs_node

CARD = {
    "key": "a-card",
    "name": "Card A",
    "label": "made up",
    "bandwidth": 1e12,
    "peak": 100e12,
    "plain": False,
    "sms": 5,
    "shared": 100_000,
    "registers": 65536,
}
GIVEN = ("cards", "values")
BASE = {
    "m": 4096,
    "k": 4096,
    "n": 4096,
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "group": 1,
    "stages": 3,
}


def run_js(expression, *values):
    script = f"{TilerExplorer._esm}\nconst values = {json.dumps(values)};\n"
    script += f"console.log(JSON.stringify({expression}));"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def reckoned(card=CARD, **choice):
    """What the page reckons, and says, of some choices."""
    expression = "values.map(([c, d]) => ({ ...reckon(c, d), said: words(c, d, reckon(c, d)) }))[0]"
    return run_js(expression, (BASE | choice, card))


def launched(m, k, n, block_m, block_n, group):
    """The kernel's own launch: its ledger, and the accesses of each program."""
    inputs = (torch.randn(m, k).half(), torch.randn(n, k).half(), None)
    tiling = Tiling(block_m, block_n, 16, num_warps=4, num_stages=1, group=group)
    ledger = traffic.count(forward, *inputs, tiling)
    with interpreting(trace=True) as launches:
        forward(*inputs, tiling)
    (launch,) = launches
    return ledger, launch.trace


def rows_touched(trace, argument, k, programs):
    found = set()
    for access in trace:
        if access.argument == argument and access.program in programs:
            found |= {int(place) // k for place in access.offsets}
    return found


@needs_node
@pytest.mark.parametrize(
    ("sizes", "blocks", "group"),
    [
        ((64, 32, 96), (16, 16), 1),
        ((64, 32, 96), (16, 16), 2),
        ((70, 17, 33), (16, 32), 4),  # ragged, and a last group of one row
        ((16, 16, 100), (16, 16), 8),
        ((100, 16, 16), (32, 16), 1),
    ],
)
def test_the_page_counts_what_the_ledger_of_the_kernel_counts(sizes, blocks, group):
    m, k, n = sizes
    ledger, trace = launched(*sizes, *blocks, group)
    found = reckoned(m=m, k=k, n=n, block_m=blocks[0], block_n=blocks[1], group=group)
    assert found["askedX"] == ledger.tensor("x").read_requested
    assert found["askedWeight"] == ledger.tensor("weight").read_requested
    assert found["mustMove"] == ledger.bytes_unique
    programs = ledger.steps[0].programs
    assert found["programs"] == programs
    waves = [range(first, first + CARD["sms"]) for first in range(0, programs, CARD["sms"])]
    assert found["waves"] == len(waves)
    touched = [
        [rows_touched(trace, name, k, wave) for name in ("x_ptr", "weight_ptr")] for wave in waves
    ]
    assert found["distinct"]["rows"] == sum(len(x) + len(weight) for x, weight in touched)
    x, weight = touched[0]
    first = found["distinct"]["first"]
    assert first["rows"] == len(x) + len(weight)
    assert first["m"] == len({row // blocks[0] for row in x})
    assert first["n"] == len({row // blocks[1] for row in weight})


@needs_node
def test_times_and_bounds_follow_from_the_formulas():
    found = reckoned(m=1024, k=1024, n=1024)
    # 64 tiles on 5 multiprocessors: 13 waves, of which the last has 4.
    assert (found["programs"], found["waves"]) == (64, 13)
    assert found["used"] == pytest.approx(64 / 65)
    assert found["computeUs"] == pytest.approx(2 * 1024**3 / 100e12 * 1e6 * 65 / 64)
    assert found["memoryUs"] == pytest.approx((found["fromDram"] + 2 * 1024**2) / 1e12 * 1e6)
    assert found["intensity"] == pytest.approx(64)
    assert found["shared"] == 3 * (128 + 128) * 64 * 2
    assert found["registers"] == 0.25
    assert found["bound"] == ("compute" if found["computeUs"] > found["memoryUs"] else "memory")
    one = reckoned(m=1, block_m=16)
    assert one["bound"] == "memory"
    assert one["used"] < 1 / 16


@needs_node
def test_the_sentences_say_what_the_figures_and_the_map_show():
    found = reckoned(m=512, k=1024, n=512, group=2)
    assert found["said"][0] == (
        "512×1024×512 in tiles of 128×128: 16 programs ask for 8.39 MB, 64.0 FLOP for each byte."
    )
    assert found["said"][1].startswith(
        "On Card A they run in 4 waves, in groups of 2 rows. The first, of 5 tiles, touches 2 "
        "blocks of rows of x and 3 of the weight: 1.31 MB. All waves together touch "
    )
    assert "binds: at least" in found["said"][2]
    wide = reckoned(block_m=256, block_n=256, stages=1, block_k=16)
    assert wide["said"][2] == (
        "It does not fit: 65536 sums are all the registers of a multiprocessor."
    )
    deep = reckoned(stages=6)
    assert deep["said"][2] == (
        "It does not fit: 197 kB of shared memory, and a program has 100 kB at most."
    )
    assert reckoned(CARD | {"plain": True})["said"][-1].startswith("Here tl.dot uses no tensor")


@needs_node
def test_the_map_stays_inside_its_box():
    choices = [
        {"m": 1, "block_m": 16, "n": 16384, "block_n": 16},
        {"m": 16384, "block_m": 16, "n": 1, "block_n": 16},
        {"group": 8},
    ]
    cards = tiler_cards()
    states = [(BASE | choice, card) for choice in choices for card in (cards[0], cards[1])]
    expression = "values.map(([c, d]) => tilerChart(reckon(c, d), 320))"
    for chart in run_js(expression, *states):
        assert chart["shapes"]
        for _, box in chart["shapes"]:
            assert 0 <= box["x"] <= box["x"] + box["width"] <= 320.001
            assert 0 <= box["y"] <= box["y"] + box["height"] <= chart["height"] <= 310
            assert box["width"] > 0
            assert box["height"] > 0


def test_the_cards_have_what_the_tiler_asks_for():
    cards = {card["key"]: card for card in tiler_cards()}
    assert cards["h100-sxm-maker"]["sms"] == 132
    assert cards["h100-sxm-maker"]["shared"] == 227 * 1024
    assert cards["t4-maker"]["plain"]
    assert cards["t4-maker"]["peak"] < 10e12
    assert all(card["peak"] > 0 and card["bandwidth"] > 0 for card in cards.values())


def test_the_module_asks_no_other_file_or_host():
    assert not re.search(r"\bimport\b[\s({\"']|fetch\(|XMLHttp", TilerExplorer._esm)
    assert not re.search(r"@import|url\(", TilerExplorer._css)
    assert set(re.findall(r"https?://[^\"/]+", TilerExplorer._esm)) == {"http://www.w3.org"}


def test_a_value_that_is_not_offered_is_refused():
    with pytest.raises(traitlets.TraitError, match="block_m"):
        TilerExplorer(block_m=48)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not on this machine")
def test_the_page_answers(tmp_path):
    actions = """
    const say = () => seen.push(at(".text").textContent);
    say();
    const sliders = root.querySelectorAll("input");
    act(sliders[6], "3", "input"); say();
    act(sliders[4], "4", "input"); say();
    act(root.querySelector("select"), "t4-maker", "change"); say();
    seen.push(root.scrollWidth <= 340);
    seen.push([...root.querySelectorAll("input, select")].every((c) => c.labels.length));
    seen.push(sliders[6].getAttribute("aria-valuetext"));
    seen.push(root.querySelectorAll("svg rect").length);
    """
    widget = TilerExplorer()
    state = json.dumps({name: getattr(widget, name) for name in (*VALUES, "card", *GIVEN)})
    load = f"const blob = new Blob([{json.dumps(TilerExplorer._esm)}], "
    load += "{ type: 'text/javascript' });\n"
    load += "const module = await import(URL.createObjectURL(blob));"
    page = PAGE.format(css=TilerExplorer._css, state=state, esm_as_module=load, actions=actions)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    command.append((tmp_path / "page.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr
    first, grouped, wider, other, fits, labelled, value, boxes = json.loads(body.group(1))
    assert first.startswith("4096×4096×4096 in tiles of 128×128: 1024 programs")
    assert "row by row" in first
    assert "in groups of 8 rows" in grouped
    assert "tiles of 128×256" in wider
    assert "On Tesla T4" in other
    assert "no tensor cores" in other
    assert fits
    assert labelled
    assert value == "8"
    assert boxes == 1 + 40 + 8 + 5  # all of y, a wave of a T4, and what it shares
