"""The roofline explorer: its formulas against the operations' own costs, its logic under Node."""

import functools
import json
import math
import operator
import re
import shutil
import subprocess

import pytest
import torch
import traitlets

import kernels.ops  # noqa: F401  (fills the registry)
from kernels import registry
from kernels.lab.cards.makers import CARDS
from kernels.lab.cards.roofline import ceilings_of
from kernels.lab.drawing import style
from kernels.lab.drawing.explorers import RooflineExplorer
from kernels.lab.drawing.explorers.formulas import FORMULAS
from kernels.lab.drawing.explorers.roofline import (
    known_cards,
    maker_cards,
    marker_path,
    measured_cards,
    recorded_groups,
)
from kernels.lab.measuring.ceilings import ceiling_ops
from kernels.lab.records.data import recordings, write_suite
from tests.lab.test_data import a_row

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_node = pytest.mark.skipif(NODE is None, reason="Node is not on this machine")

CARD = {
    "key": "a-card-measured",
    "slug": "a-card",
    "name": "Card A",
    "label": "measured",
    "bandwidth": 1e12,
    "peaks": {"fp32": 10e12, "fp16": 100e12},
    "l2_bytes": 1_000_000,
    "launch_us": 2.0,
    "sources": [{"text": "a test", "url": ""}],
}
GROUP = {
    "slug": "a-card",
    "card": "Card A",
    "date": "2026-11-28",
    "op": "layernorm",
    "shape": "4096x4096",
    "dtype": "fp16",
    "rows": [
        {"variant": "fused", "time_us": 70.0, "flops": 117456896, "bytes": 6e7, "bytes_of": "DRAM"},
        {"variant": "copy", "time_us": 69.0, "flops": 0, "bytes": None, "bytes_of": ""},
    ],
}


def a_state(**changes):
    widget = RooflineExplorer(cards=[CARD], groups=[GROUP], dtype="fp16")
    names = "card op dtype sizes cards groups operations itemsizes looks largest_size".split()
    return {name: getattr(widget, name) for name in names} | changes


def run_js(script, *values):
    """Run `script`, which may use the widget's functions and `values`, and return its `result`."""
    source = f"{RooflineExplorer._esm}\nconst values = {json.dumps(values)};\n{script}\n"
    source += "console.log(JSON.stringify(result));"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def predicted(**changes):
    return run_js("const result = predict(values[0]);", a_state(**changes))


def known_ops():
    """Every operation that has both a formula and a `cost`, in the registry or a ceiling."""
    found = {op.name: op for op in [*ceiling_ops(), *registry.ops()]}
    return [(formula, found[formula.key]) for formula in FORMULAS if formula.key in found]


def total(terms, sizes):
    products = ([sizes.get(part, part) for part in term] for term in terms)
    return sum(functools.reduce(operator.mul, product) for product in products)


def test_there_are_costs_to_compare_with():
    assert {"copy", "layernorm", "matmul"} <= {formula.key for formula, _ in known_ops()}


@pytest.mark.parametrize(
    ("formula", "op"), [pytest.param(*pair, id=pair[0].key) for pair in known_ops()]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_formula_is_the_cost_of_its_operation(formula, op, dtype):
    shape = (37, 1000, 3)[: len(formula.sizes)]
    sizes = dict(zip(formula.sizes, shape, strict=True))
    cost = op.cost(shape, dtype, "fwd")
    assert total(formula.read, sizes) * dtype.itemsize == cost.read_bytes
    assert total(formula.write, sizes) * dtype.itemsize == cost.write_bytes
    assert total(formula.flops, sizes) == cost.flops


def test_a_formula_uses_its_own_sizes_and_has_a_source():
    for formula in FORMULAS:
        terms = [*formula.read, *formula.write, *formula.flops]
        assert {name for _, *names in terms for name in names} == set(formula.sizes)
        assert formula.url.startswith("https://")
        assert formula.counted.endswith(".")


@needs_node
def test_the_page_adds_the_formulas_up_as_python_does():
    for formula, op in known_ops():
        sizes = {"rows": 37, "cols": 1001, "m": 37, "k": 1001, "n": 5}
        found = predicted(op=formula.key, sizes=sizes)
        cost = op.cost(tuple(sizes[name] for name in formula.sizes), torch.float16, "fwd")
        assert (found["read"], found["write"]) == (cost.read_bytes, cost.write_bytes)
        assert found["flops"] == cost.flops
        assert found["intensity"] == pytest.approx(cost.intensity)


@needs_node
def test_left_of_the_ridge_memory_bounds_and_right_of_it_arithmetic():
    norm = predicted()
    # It computes in fp32, so the fp32 ceiling makes its ridge: 10 TFLOP/s over 1 TB/s.
    assert (norm["bound"], norm["ridge"]) == ("memory", 10)
    assert norm["timeUs"] == pytest.approx((2 * 4096 + 2) * 4096 * 2 / 1e12 * 1e6)
    product = predicted(op="matmul")
    assert (product["bound"], product["ridge"]) == ("compute", 100)
    assert product["timeUs"] == pytest.approx(2 * 4096**3 / 100e12 * 1e6)


@needs_node
def test_the_sentences_say_all_that_the_chart_says():
    found = predicted()
    assert found["summary"] == [
        "LayerNorm, 4096×4096 fp16 on Card A: it must move 67.1 MB (33.6 MB read, 33.6 MB "
        "written) and do 117 MFLOP, 1.75 FLOP/byte.",
        "That is left of the ridge at 10.0 FLOP/byte, where 1.00 TB/s of memory meet 10.0 TFLOP/s "
        "of fp32 arithmetic: memory-bound, at least 67.1 µs, at most 1.75 TFLOP/s.",
    ]
    assert found["recordedTitle"] == (
        "Recorded on one Card A on 2026-11-28. Where DRAM moved fewer bytes than the ideal ones, "
        "a part stayed in the cache."
    )
    assert found["recorded"] == [
        "70.0 µs, 1.04 times the bound; DRAM moved 60.0 MB: 1.96 FLOP/byte at 1.68 TFLOP/s.",
        "69.0 µs, 1.03 times the bound; no point, since it does no arithmetic.",
    ]
    small = " ".join(predicted(sizes={**a_state()["sizes"], "rows": 1})["summary"])
    assert "A launch that computes nothing takes longer here: 2.00 µs." in small
    assert "fits into the L2 cache of 1.00 MB" in small


@needs_node
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"card": "rtx-3060"}, "The card “rtx-3060” is unknown: no ceilings of it are at hand"),
        ({"card": "", "cards": []}, "No card is known"),
        ({"op": "matmul", "dtype": "bf16"}, "No bf16 peak of this card is at hand"),
    ],
)
def test_what_is_not_known_is_said_and_not_drawn(changes, sentence):
    script = "const p = predict(values[0]); const result = [p, chart(p, values[0].looks, 640)];"
    found, shapes = run_js(script, a_state(**changes))
    assert sentence in found["summary"][1]
    assert (found["timeUs"], found["bound"], shapes["shapes"]) == (None, None, [])
    assert found["bytes"] > 0


def drawn(width=640, **changes):
    script = "const result = chart(predict(values[0]), values[0].looks, values[1]).shapes;"
    return run_js(script, a_state(**changes), width)


@needs_node
def test_a_point_is_drawn_for_a_measured_row_only():
    def of_class(shapes, name):
        return [s for s in shapes if name in s[1].get("class", "").split()]

    recorded = drawn()
    assert [s[2] for s in of_class(recorded, "point")] == ["fused, 70.0 µs"]
    assert "var(--fk-paper)" not in of_class(recorded, "point")[0][1]["style"]
    for changes in (
        {"op": "gelu"},
        {"dtype": "fp32"},
        {"sizes": {**a_state()["sizes"], "rows": 5}},
    ):
        shapes = drawn(**changes)
        assert not of_class(shapes, "point")
        (line,) = of_class(shapes, "chosen")
        assert line[1]["x1"] == line[1]["x2"]
    assert not of_class(drawn(op="copy"), "chosen")  # no arithmetic, no place on a log axis


@needs_node
@pytest.mark.parametrize("width", [300, 640])
def test_the_chart_stays_inside_its_box(width):
    huge = dict.fromkeys(a_state()["sizes"], 1 << 20)
    for changes in ({}, {"op": "matmul", "sizes": huge}):
        shapes = drawn(width, **changes)
        for _, attributes, _ in shapes:
            for name in ("x", "x1", "x2"):
                assert 0 <= attributes.get(name, 0) <= width
        assert drawn(width, **changes) == shapes


@needs_node
def test_numbers_are_written_as_in_the_figures():
    values = [0, 1, 12.34, 999, 999.4, 1234, 67.125e6, 3.0e12, 268435456]
    found = run_js('const result = values[0].map((v) => quantity(v, "B"));', values)
    assert found == [style.quantity(value, "B") for value in values]
    times = [1.0, 22.41, 184.2, 9999.0, 12345.6]
    found = run_js("const result = values[0].map(duration);", times)
    assert found == [style.duration(time) for time in times]


@needs_node
def test_a_field_takes_whole_numbers_from_1_to_the_largest():
    texts = [
        "4096",
        " 12 ",
        "1e3",
        "1048576",
        "",
        " ",
        "0",
        "-4",
        "1.5",
        "many",
        "1048577",
        "1e400",
    ]
    found = run_js("const result = values[0].map((t) => parseSize(t, 1048576));", texts)
    assert found == [4096, 12, 1000, 1048576, *[None] * 8]


def test_the_module_asks_no_other_file_or_host():
    assert not re.search(r"\bimport\b[\s({\"']|fetch\(|XMLHttp", RooflineExplorer._esm)
    assert not re.search(r"@import|url\(", RooflineExplorer._css)
    hosts = set(re.findall(r"https?://[^\"/]+", RooflineExplorer._esm))
    assert hosts == {"http://www.w3.org"}  # the name of SVG, not an address


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"sizes": {"rows": 0}}, "sizes['rows'] is 0; it takes a whole number from 1 to 1048576"),
        ({"sizes": {"rows": 2.5}}, "sizes['rows'] is 2.5"),
        ({"sizes": {"depth": 2}}, "sizes has 'depth'; it takes: rows, cols, m, k, n"),
        ({"op": "conv"}, "'conv'"),
        ({"dtype": "fp64"}, "'fp64'"),
    ],
)
def test_a_wrong_choice_is_refused(choices, sentence):
    with pytest.raises(traitlets.TraitError, match=re.escape(sentence)):
        RooflineExplorer(cards=[CARD], groups=[], **choices)


def test_two_explorers_have_the_same_state():
    first, second = (RooflineExplorer().get_state() for _ in range(2))
    for name in ("layout", "tooltip"):
        first.pop(name), second.pop(name)
    assert first == second
    json.dumps(first, allow_nan=False)


def test_measured_cards_are_the_recorded_ceilings():
    cards = {card["slug"]: card for card in measured_cards()}
    for recording in recordings("ceilings"):
        for dtype, peak in cards[recording.gpu]["peaks"].items():
            ceilings = ceilings_of(recording, dtype)
            assert peak == ceilings.compute_flops_per_s
            assert cards[recording.gpu]["bandwidth"] == ceilings.bandwidth_bytes_per_s


def test_every_card_of_the_makers_is_offered_with_its_documents():
    cards = {card["slug"]: card for card in maker_cards()}
    assert set(cards) == set(CARDS)
    assert "bf16" not in cards["t4"]["peaks"]
    for slug, card in cards.items():
        assert card["bandwidth"] == CARDS[slug].bandwidth_bytes_per_s
        assert card["peaks"] == {name: CARDS[slug].peak(name) for name in card["peaks"]}
        assert all(source["url"].startswith("https://") for source in card["sources"])
    keys = [card["key"] for card in known_cards()]
    assert len(set(keys)) == len(keys)


@needs_node
def test_a_short_name_chooses_measured_ceilings_before_the_makers():
    makers = [card for card in maker_cards() if card["slug"] in ("h100-sxm", "t4")]
    measured = {**CARD, "slug": "h100-sxm", "key": "h100-sxm-measured"}
    state = {"cards": [measured, *makers]}
    assert predicted(**state, card="h100-sxm")["card"]["label"] == "measured"
    assert predicted(**state, card="h100-sxm-maker")["card"]["label"] == "maker's dense figures"
    assert predicted(**state, card="t4")["card"]["name"] == "Tesla T4"


def test_groups_hold_device_times_and_the_bytes_that_place_them(tmp_path):
    rows = [
        a_row(),
        a_row(variant="torch", bytes_dram_read=300_000, bytes_dram_write=200_000),
        a_row(variant="compile", bytes_unique=None),
        a_row(variant="eager", timing="host"),
        a_row(op="unheard_of"),
    ]
    told = {"card": {"name": "Card A"}, "date": "2026-11-28T01:02:03Z"}
    write_suite(tmp_path / "a-card" / "norms.csv", rows, told)
    (group,) = recorded_groups(tmp_path)
    assert (group["slug"], group["card"], group["date"]) == ("a-card", "Card A", "2026-11-28")
    assert [(r["variant"], r["bytes"], r["bytes_of"]) for r in group["rows"]] == [
        ("fused", 520_000, "unique"),
        ("torch", 500_000, "DRAM"),
        ("compile", None, ""),
    ]


@pytest.mark.parametrize("name", [*style.VARIANTS, "cuda_3", "somebody_elses"])
def test_a_marker_becomes_a_path_one_unit_large(name):
    path = marker_path(style.look(name).marker)
    assert re.fullmatch(r"M[-\d. MLQCZ]+", path)
    numbers = [abs(float(number)) for number in re.findall(r"-?\d+\.\d+", path)]
    assert math.isclose(max(numbers), 0.5)


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>explorer</title>
<style>{css}</style><body><div id="out" style="width:340px"></div><script type="module">
const state = {state}, handlers = {{}}, seen = [];
addEventListener("error", (event) => seen.push(event.message));
const model = {{
  get: (key) => state[key], save_changes() {{}}, off() {{}},
  on(event, f) {{ (handlers[event] ??= []).push(f); }},
  set(key, value) {{ state[key] = value; handlers[`change:${{key}}`]?.forEach((f) => f()); }},
}};
{esm_as_module}
const root = document.getElementById("out");
module.default.render({{ model, el: root }});
const at = (selector) => root.querySelector(selector);
const act = (control, value, ...events) => {{
  control.value = value;
  for (const event of events) control.dispatchEvent(new Event(event, {{ bubbles: true }}));
}};
const tell = () => seen.push([at(".text").textContent, at(".error").textContent]);
{actions}
document.body.textContent = JSON.stringify(seen);
</script></body></html>"""


def in_browser(tmp_path, actions):
    """Show the explorer, run `actions` in the page, and return what they have seen."""
    state = json.dumps(a_state())
    esm = json.dumps(RooflineExplorer._esm)
    load = f"const blob = new Blob([{esm}], {{ type: 'text/javascript' }});\n"
    load += "const module = await import(URL.createObjectURL(blob));"
    page = PAGE.format(css=RooflineExplorer._css, state=state, esm_as_module=load, actions=actions)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command = [CHROMIUM, *flags, "--virtual-time-budget=3000", "--dump-dom"]
    command.append((tmp_path / "page.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr
    return json.loads(body.group(1).replace("&lt;", "<").replace("&amp;", "&"))


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not on this machine")
def test_the_page_answers_and_keeps_the_last_good_size(tmp_path):
    actions = """
    const rows = at(".size input[type=number]"), slider = at(".size input[type=range]");
    act(rows, "1000", "input", "change"); tell();
    act(rows, "", "input"); tell();
    act(rows, "-3", "input", "change"); tell();
    seen.push(rows.value);
    act(slider, "5", "input"); tell();
    seen.push(rows.value, slider.getAttribute("aria-valuetext"));
    act(root.querySelectorAll("select")[1], "matmul", "change"); tell();
    seen.push([...root.querySelectorAll(".size")].map((box) => box.hidden));
    seen.push(root.scrollWidth <= 340);
    seen.push([...root.querySelectorAll("input, select")].every(
      (c) => c.labels.length || c.getAttribute("aria-label")));
    """
    typed, half, wrong, kept, slid, field, spoken, product, hidden, fits, labelled = in_browser(
        tmp_path, actions
    )
    assert typed[0].startswith("LayerNorm, 1000×4096 fp16 on Card A: it must move 16.4 MB")
    assert half == typed  # half-written: nothing said yet
    assert wrong == [typed[0], "Rows takes a whole number from 1 to 1048576; 1000 is kept."]
    assert kept == "1000"
    assert slid[0].startswith("LayerNorm, 32×4096 fp16")
    assert (slid[1], field, spoken) == ("", "32", "32")
    assert product[0].startswith("Matrix product, 4096×4096×4096 fp16")
    assert hidden == [True, True, False, False, False]
    assert fits
    assert labelled
