"""The attention stepper: its logic against NumPy and the kernel, its page in a browser."""

import itertools
import json
import re
import subprocess

import numpy as np
import pytest
import torch
import traitlets
import triton
from triton.backends.compiler import GPUTarget

from kernels.lab import attention_stepper, traffic
from kernels.lab.drawing.explorers import AttentionStepper
from kernels.lab.drawing.explorers.stepper_text import as_text, met
from kernels.lab.drawing.explorers.stepper_text import shown as shown_in_text
from kernels.launch import interpreting, recording
from kernels.ops.attention.attention import reference
from kernels.ops.attention.configurations import Tiling
from kernels.ops.attention.moves import forward_moves
from kernels.ops.attention.simple import attention_simple
from kernels.registry import Case
from tests.lab.test_explorers import CHROMIUM, NODE, PAGE, needs_node

TRAITS = "q k v blocks causal tile block_m block_n step".split()
EXAMPLE = attention_stepper()
QKV = EXAMPLE.q, EXAMPLE.k, EXAMPLE.v
RAGGED = tuple(np.random.default_rng(7).normal(0, 2, (3, 13, 2)).tolist())
CHOICES = [
    (qkv, causal, block_m, block_n)
    for qkv in (QKV, RAGGED)
    for causal in (False, True)
    for block_m, block_n in ((4, 4), (2, 8), (8, 2))
]
every_choice = pytest.mark.parametrize(("qkv", "causal", "block_m", "block_n"), CHOICES)


def chosen(qkv=QKV, causal=False, block_m=4, block_n=4, tile=0):
    names = {"causal": causal, "block_m": block_m, "block_n": block_n, "tile": tile}
    return dict(zip("qkv", qkv, strict=True)) | names


def run_js(script, *values):
    """Run `script`, which may use the widget's functions and `values`; return its `result`."""
    source = f"{AttentionStepper._esm}\nconst values = {json.dumps(values)};\n{script}\n"
    source += "console.log(JSON.stringify(result, (_, x) => x === -Infinity ? '-inf' : x));"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tiles_of(qkv, block_m):
    return range(-(-len(qkv[0]) // block_m))


def walked(qkv, causal, block_m, block_n):
    """The steps of every tile of queries."""
    choices = [chosen(qkv, causal, block_m, block_n, tile) for tile in tiles_of(qkv, block_m)]
    return run_js("const result = values.map(walk);", *choices)


def rows_of(qkv, tile, block_m):
    return range(tile * block_m, min((tile + 1) * block_m, len(qkv[0])))


def numbers(found):
    return np.array(found, dtype=np.float64)  # "-inf" too


def simple(qkv, causal, block_m, block_n, dtype=torch.float16):
    """Launch the kernel of the page in these tiles, one head, and return what it writes."""
    q, k, v = (torch.tensor(one, dtype=dtype) for one in qkv)
    out = torch.empty_like(q)
    length, dims = q.shape
    attention_simple[(-(-length // block_m), 1)](
        *(q, k, v, out, None, length, dims**-0.5),
        CAUSAL=causal,
        D=dims,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
    )
    return out


@needs_node
@every_choice
def test_every_state_is_numpys(qkv, causal, block_m, block_n):
    arrays = [np.array(one) for one in qkv]
    for tile, steps in enumerate(walked(qkv, causal, block_m, block_n)):
        rows = rows_of(qkv, tile, block_m)
        own = list(met(*arrays, rows, causal, block_n))
        kinds = ["scores", "maximum", "sum", "output"]
        assert [step["kind"] for step in steps] == ["begin", *kinds * len(own), "end"]
        for at, expected in enumerate(own):
            made, largest, total, output = steps[1 + 4 * at : 5 + 4 * at]
            np.testing.assert_allclose(numbers(made["scores"]), expected.scores, atol=1e-12)
            for name in ("weights", "correction", "m"):
                np.testing.assert_allclose(numbers(largest[name]), getattr(expected, name), 1e-12)
            np.testing.assert_allclose(total["s"], expected.s, 1e-12)
            np.testing.assert_allclose(output["acc"], expected.acc, 1e-12, 1e-12)
            assert largest["before"]["m"] == made["m"]
            assert total["before"]["s"] == largest["s"] == made["s"]
            assert output["before"]["acc"] == total["acc"] == made["acc"]


@needs_node
@every_choice
def test_the_last_step_is_attention_and_what_the_kernel_writes(qkv, causal, block_m, block_n):
    ends = [steps[-1] for steps in walked(qkv, causal, block_m, block_n)]
    out = torch.tensor([row for end in ends for row in end["acc"]])
    lse = torch.tensor([one for end in ends for one in end["lse"]])
    q, k, v = (torch.tensor(one)[None, None] for one in qkv)
    exact, exact_lse = reference(q, k, v, causal=causal, return_lse=True)
    torch.testing.assert_close(out.double(), exact[0, 0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse.double(), exact_lse[0, 0], rtol=1e-6, atol=1e-6)
    written = simple(qkv, causal, block_m, block_n, dtype=torch.float32)
    torch.testing.assert_close(out, written, rtol=1e-5, atol=1e-5)


@needs_node
@every_choice
def test_the_bytes_are_the_ledgers_and_the_formulas(qkv, causal, block_m, block_n):
    ledger = traffic.count(simple, qkv, causal, block_m, block_n)
    ends = [steps[-1] for steps in walked(qkv, causal, block_m, block_n)]
    for name in "qkv":
        assert sum(end["read"][name] for end in ends) == ledger.tensor(name).read_requested
    written = sum(end["written"] for end in ends)
    assert written == ledger.tensor("o").write_requested
    head = run_js("const result = headOf(values[0]);", chosen(qkv, causal, block_m, block_n))
    length, dims = np.shape(qkv[0])
    options = (("causal", True),) if causal else ()
    case = Case((1, 1, length, dims), torch.float16, options)
    by_formula = forward_moves(case, Tiling(block_m, block_n, num_warps=4, num_stages=1))
    assert head["read"] + written == by_formula.requested == ledger.bytes_requested
    assert head["least"] + written == by_formula.unique == ledger.bytes_unique
    assert head["tiles"] == ledger.steps[0].programs


@needs_node
@pytest.mark.parametrize("causal", [False, True])
def test_each_step_has_read_what_the_kernel_had_by_then(causal):
    with interpreting(trace=True) as launches:
        simple(RAGGED, causal, 4, 4)
    (launch,) = launches
    for tile, steps in enumerate(walked(RAGGED, causal, 4, 4)):
        so_far = dict.fromkeys("qkv", 0)
        by_access = []
        for access in launch.trace:
            if access.program == tile and access.argument[0] in so_far:
                so_far[access.argument[0]] += len(access.offsets) * 2
                by_access.append(dict(so_far))
        reading = [step["read"] for step in steps if step["kind"] in ("begin", "scores", "output")]
        assert reading == by_access
        for before, step in itertools.pairwise(steps):
            if step["kind"] in ("maximum", "sum", "end"):
                assert step["read"] == before["read"]


@pytest.mark.parametrize("capability", [80, 90])
def test_the_compiler_puts_things_where_the_page_says(capability):
    """q, k and v get shared memory; m, the sum and acc go round the loop in registers."""
    q = torch.zeros(1, 1, 256, 64, dtype=torch.float16)
    with recording() as launches:
        attention_simple[(4, 1)](
            *(q, q, q, q, None, 256, 0.125), CAUSAL=False, D=64, BLOCK_M=64, BLOCK_N=64
        )
    (launch,) = launches
    told = launch.specialize(capability)
    target = GPUTarget("cuda", capability, 32)
    ttgir = triton.compile(told.source, target=target, options=told.options).asm["ttgir"]
    assert ttgir.count(" ttg.local_alloc") == 3
    (carried,) = re.findall(r"scf\.for .*?-> \((.*)\) +: i32", ttgir)
    assert carried.count("tensor<64xf32") == 2
    assert carried.count("tensor<64x64xf32") == 1


@needs_node
def test_what_is_held_is_told_with_its_bytes():
    script = "const [choice] = values, result = walk(choice).map((step) => held(choice, step));"
    found = run_js(script, chosen(RAGGED, block_n=8, tile=1))
    state = [["m", 16], ["l", 16], ["acc", 32]]
    assert found[0] == {"registers": state, "shared": [["q", 16]]}
    assert found[1] == {"registers": [["S", 128], *state], "shared": [["q", 16], ["k", 32]]}
    with_correction = [["P", 128], ["c", 16], *state]
    assert found[2] == found[3] == {"registers": with_correction, "shared": [["q", 16], ["k", 32]]}
    assert found[4]["registers"] == [["P", 128], *state]
    assert found[4]["shared"] == [["q", 16], ["k", 32], ["v", 32]]
    assert found[-1] == {"registers": state, "shared": []}


@needs_node
def test_a_step_is_said_in_sentences():
    script = "const [choice, some] = values, steps = walk(choice);"
    script += "const result = some.map((number) => words(choice, steps, number).join(' '));"
    said = run_js(script, chosen(causal=True, tile=1), list(range(1, 11)))
    assert said[0] == (
        "The tile of queries 4 to 7 is read, 32 bytes. No key has been seen: m is −∞, l and acc "
        "are 0."
    )
    assert said[1] == (
        "Tile 1 of 2, keys 0 to 3: k is read, 32 bytes, and 16 scores are made, S = q · kᵀ / √d."
    )
    assert said[2] == (
        "Tile 1 of 2, keys 0 to 3: m becomes the largest score of each row, 1.50 for query 4. "
        "P = e^(S − m). Nothing was summed before, so the correction c = e^(−∞) = 0 clears nothing."
    )
    assert said[5].endswith("6 of them are −∞: the key comes after the query.")
    assert said[6] == (
        "Tile 2 of 2, keys 4 to 7: m grows in 2 of 4 rows, most for query 6, from 1.00 to 2.50. "
        "What it has summed shrinks by the correction c = e^(1.00 − 2.50) = 0.22. P = e^(S − m)."
    )
    assert said[7].endswith("For query 6, 2.97 · 0.22 + 1.08 = 1.75.")
    assert said[8].endswith("The first number of query 6: 4.34 · 0.22 + (−2.08) = −1.11.")
    assert said[9] == (
        "All keys are seen: O = acc / l is written, 32 bytes. L = m + log l: for query 4, 1.50 + "
        "0.83 = 2.33. 2 tiles of keys were skipped: none of these queries sees them."
    )
    still = [[0.0]] * 6
    (none_grows,) = run_js(script, chosen((still, still, still), block_m=2), [7])
    assert "no score is above its row’s m. Every correction c is e^0 = 1" in none_grows


@needs_node
def test_keys_step_and_jump_by_tiles():
    presses = [
        (1, "ArrowRight", False, 2),
        (2, "ArrowUp", False, 3),
        (1, "ArrowLeft", False, 1),
        (18, "ArrowRight", False, 18),
        (1, "PageUp", False, 2),
        (3, "PageUp", False, 6),
        (3, "ArrowRight", True, 6),
        (16, "PageUp", False, 18),
        (18, "PageUp", False, 18),
        (18, "PageDown", False, 14),
        (7, "ArrowLeft", True, 6),
        (6, "ArrowDown", True, 2),
        (2, "PageDown", False, 1),
        (9, "Home", False, 1),
        (9, "End", False, 18),
        (9, "a", False, None),
    ]
    script = "const [choice, presses] = values, steps = walk(choice);"
    script += "const result = presses.map(([at, key, shift]) => stepBy(steps, at, key, shift));"
    found = run_js(script, chosen(), [press[:3] for press in presses])
    assert found == [press[3] for press in presses]


@needs_node
def test_numbers_are_written_as_in_the_text():
    given = [0.0, -0.001, 1.5, -2.25, 99.99, 99.996, -123.456, 12345.678, 1e-9]
    assert run_js("const result = values.map(shown);", *given) == [shown_in_text(x) for x in given]
    assert run_js("const result = [shown(-Infinity)];") == [shown_in_text(-np.inf)] == ["−∞"]


@needs_node
@pytest.mark.parametrize("width", [244, 304])
@every_choice
def test_the_map_stays_inside_its_box(qkv, causal, block_m, block_n, width):
    script = """
    const [width, ...choices] = values, result = choices.flatMap((choice) => {
      const steps = walk(choice);
      return steps.map((_, at) => stepperChart(choice, steps, at + 1, width, "hatch"));
    });"""
    choices = [chosen(qkv, causal, block_m, block_n, tile) for tile in tiles_of(qkv, block_m)]
    for picture in run_js(script, width, *choices):
        assert picture["width"] <= width
        assert picture["height"] < 330
        for tag, box, _ in picture["shapes"]:
            if tag == "rect":
                assert 0 <= box["x"] < box["x"] + box["width"] <= picture["width"] + 1e-6
                assert 0 <= box["y"] < box["y"] + box["height"] <= picture["height"]


@needs_node
def test_the_map_shows_what_is_made_skipped_and_now():
    script = "const [choice, at, kinds] = values;"
    script += "const all = stepperChart(choice, walk(choice), at, 304, 'h');"
    script += (
        "const result = kinds.map((one) => all.shapes.filter(([, a]) => a.class === one).length);"
    )
    kinds = ["skipped", "now", "row"]
    assert run_js(script, chosen(causal=True, tile=1), 7, kinds) == [2, 1, 0]
    assert run_js(script, chosen(causal=True, tile=1), 6, kinds) == [2, 2, 0]  # and k, being read
    assert run_js(script, chosen(tile=1), 1, kinds) == [0, 1, 1]
    assert run_js(script, chosen(tile=1), 18, kinds) == [0, 1, 1]


def test_the_text_tells_the_same_steps():
    stepper = attention_stepper(causal=True, tile=1)
    text = stepper.text()
    assert text == as_text(*QKV, causal=True, tile=1, block_m=4, block_n=4)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 84
    assert lines[0] == "Attention of queries 4 to 7 over 16 keys, causal, in tiles of 4 × 4."
    assert "Keys 4 to 7: k and v are read, 32 bytes each, 160 so far." in lines
    (row,) = [line for line in lines if line.startswith("    6 |") and "  2.50 |  0.22 |" in line]
    assert row.split("|")[4].strip() == "1.75"
    assert "Tiles of keys skipped, which none of these queries sees: 2." in lines
    assert lines[-4].split("|")[2].strip() == "2.33"
    assert "skipped" not in attention_stepper(tile=1).text()


def test_where_no_widget_shows_the_text_does():
    stepper = attention_stepper(tile=2)
    data, _ = stepper._repr_mimebundle_()
    assert data["text/plain"] == stepper.text()
    assert "application/vnd.jupyter.widget-view+json" in data


def test_a_step_counts_as_the_page_counts():
    for qkv, causal, block_m, block_n in CHOICES:
        for tile in tiles_of(qkv, block_m):
            own = AttentionStepper(*qkv, causal=causal, block_m=block_m, block_n=block_n, tile=tile)
            rows = rows_of(qkv, tile, block_m)
            arrays = [np.array(one) for one in qkv]
            assert own.steps() == 2 + 4 * len(list(met(*arrays, rows, causal, block_n)))


def test_what_it_does_not_take_is_named():
    with pytest.raises(traitlets.TraitError, match="block_m"):
        attention_stepper(block_m=3)
    with pytest.raises(
        traitlets.TraitError, match="tile is 4; it takes a whole number from 0 to 3"
    ):
        attention_stepper(tile=4)
    with pytest.raises(traitlets.TraitError, match="step is 11; it takes a whole .* 1 to 10"):
        attention_stepper(causal=True, tile=1, step=11)
    with pytest.raises(ValueError, match=r"q has the shape \(33, 4\); it takes \(length, d\)"):
        attention_stepper(*[np.zeros((33, 4))] * 3)
    with pytest.raises(ValueError, match=r"v has the shape \(4, 4\) and q \(8, 4\)"):
        attention_stepper(np.zeros((8, 4)), np.zeros((8, 4)), np.zeros((4, 4)))
    with pytest.raises(ValueError, match="k has numbers that are not finite"):
        attention_stepper(np.zeros((8, 4)), np.full((8, 4), np.inf), np.zeros((8, 4)))
    with pytest.raises(ValueError, match="v is missing"):
        attention_stepper(np.zeros((8, 4)), np.zeros((8, 4)))


def test_a_change_begins_anew():
    stepper = attention_stepper(tile=3, step=9)
    stepper.causal = True
    assert (stepper.tile, stepper.step) == (3, 1)
    stepper.step = 5
    stepper.block_m = 8
    assert (stepper.tile, stepper.step) == (0, 1)


def test_the_module_asks_no_other_file_or_host():
    assert not re.search(r"\bimport\b[\s({\"']|fetch\(|XMLHttp", AttentionStepper._esm)
    assert not re.search(r"@import|url\(", AttentionStepper._css)
    assert set(re.findall(r"https?://[^\"/]+", AttentionStepper._esm)) == {"http://www.w3.org"}


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not on this machine")
def test_the_page_answers(tmp_path):
    actions = """
    const say = () => seen.push(at(".text").textContent);
    const range = at("input[type=range]"), [tile, blockM, blockN] = root.querySelectorAll("select");
    const press = (key, shiftKey = false, on = range) => on.dispatchEvent(
      new KeyboardEvent("keydown", { key, shiftKey, bubbles: true, cancelable: true }));
    say();
    at('button[aria-label="Next tile of keys"]').click(); say();
    press("ArrowRight"); say();
    press("ArrowRight", true); say();
    press("ArrowLeft", false, tile); say();  // a list's own key
    act(range, "18", "input"); say();
    act(tile, "1", "change");
    at("input[type=checkbox]").click();
    press("End"); say();
    act(blockM, "8", "change"); act(blockN, "8", "change"); press("End"); press("ArrowLeft"); say();
    seen.push(at(".fk-stepper").scrollWidth <= at(".fk-stepper").clientWidth);
    seen.push([...root.querySelectorAll("input, select")]
      .every((one) => one.labels.length || one.getAttribute("aria-label")));
    seen.push(range.getAttribute("aria-valuetext"));
    seen.push([...root.querySelectorAll("td.changed")].length);
    seen.push([...root.querySelectorAll("caption")].map((one) => one.textContent));
    seen.push([...root.querySelectorAll("li")].map((one) => one.textContent));
    """
    state = json.dumps({name: getattr(EXAMPLE, name) for name in TRAITS})
    load = f"const blob = new Blob([{json.dumps(AttentionStepper._esm)}], "
    load += "{ type: 'text/javascript' });\n"
    load += "const module = await import(URL.createObjectURL(blob));"
    page = PAGE.format(css=AttentionStepper._css, state=state, esm_as_module=load, actions=actions)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    command.append((tmp_path / "page.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr
    told = json.loads(body.group(1))
    first, tile, step, jump, same, last, causal, eight, *rest = told
    assert first.startswith("The tile of queries 0 to 3 is read")
    assert tile.startswith("Tile 1 of 4, keys 0 to 3: k is read")
    assert "m becomes the largest score" in step
    assert jump.startswith("Tile 2 of 4, keys 4 to 7: k is read")
    assert same == jump
    assert last.startswith("All keys are seen")
    assert causal.endswith("2 tiles of keys were skipped: none of these queries sees them.")
    assert eight.startswith("Tile 1 of 1, keys 0 to 7: v is read, 64 bytes")
    fits, labelled, value, changed, captions, places = rest
    assert fits
    assert labelled
    assert value == "step 5 of 6"
    assert changed == 8 * 4 - QKV[2][0].count(0)  # query 0 sees one key: its 0 of v stays 0
    assert captions == ["S = q · kᵀ / √d", "P = e^(S − m)", "State of each query"]
    assert places == [
        "Registers: P 256, m 32, l 32, acc 128: 448 bytes.",
        "Shared memory: q 64, k 64, v 64: 192 bytes.",
        "Never in memory: S and P, 512 bytes each if they were.",
    ]
