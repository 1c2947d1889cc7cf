"""The replay's logic under Node against the ledger, and its page in a browser."""

import json
import re
import subprocess

import pytest

from kernels.lab import replay
from kernels.lab.counting import traffic
from kernels.lab.drawing.explorers.replay.catalogue import CATALOGUE
from kernels.lab.drawing.explorers.replay.widget import Replay
from tests.lab.test_explorers import CHROMIUM, NODE, PAGE, needs_node
from tests.lab.test_replay import every_one, needs_compiler

WIDTHS = (270, 640)


def run_js(script, *values):
    """Run `script`, which may use the widget's functions and `values`, and return its `result`."""
    source = f"{Replay._esm}\nconst values = {json.dumps(values)};\n{script}\n"
    source += "console.log(JSON.stringify(result));"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def said(key, *steps):
    """The sentences of these steps."""
    script = "const [told, steps] = values;"
    script += "const result = steps.map((step) => sentence(told, played(told, step)));"
    return run_js(script, CATALOGUE[key].record(), steps)


@needs_node
@every_one
def test_the_page_adds_up_what_the_ledger_counts(key):
    told = CATALOGUE[key].record()
    script = """
    const found = played(values[0], values[0].requests.length);
    const result = [found.unique, found.asked];"""
    tensors = [tensor for step in traffic.count(CATALOGUE[key].call) for tensor in step.tensors]
    assert run_js(script, told) == [
        [sum(getattr(tensor, f"{side}_{what}") for tensor in tensors) for side in ("read", "write")]
        for what in ("unique", "requested")
    ]


@needs_node
def test_a_request_is_said_in_a_sentence():
    assert said("layer_norm_loops", 1, 5, 12, 72) == [
        "Program 0 of 6, line 10: loads x[0, 0:32], 128 bytes, for the first time.",
        "Program 0 of 6, line 22: loads x[0, 0:32], 128 bytes, for the third time.",
        "Program 0 of 6, line 25: stores y[0, 32:64], 128 bytes, for the first time.",
        "Program 5 of 6, line 25: stores y[5, 32:64], 128 bytes, for the first time.",
    ]
    assert said("product", 2, 57, 60) == [
        "Program (0, 0) of 3 × 4, line 10: loads b[0:16, 0:16], 1,024 bytes, for the first time.",
        "Program (2, 3) of 3 × 4, line 10: loads b[0:16, 48:64], 1,024 bytes, for the third time.",
        "Program (2, 3) of 3 × 4, line 12: stores c[32:48, 48:64], 1,024 bytes, "
        "for the first time.",
    ]
    assert said("add_row_atomically", 10)[0] == (
        "Program 1 of 8, line 11: adds atomically to dweight[0:48], 192 bytes, for the second time."
    )
    assert said("add_row_atomically", 40)[0].endswith("192 bytes, for the 8th time.")


@needs_node
@needs_compiler
def test_a_warp_is_named_and_shared_elements_are_told():
    assert said("transpose_cuda", 2, 3, 17) == [
        "Block (0, 0) of 1 × 4, warp 0, line 5: stores y[0:32, 0], 128 bytes, for the first time.",
        "Block (0, 0) of 1 × 4, warp 1, line 5: loads x[1, 0:32], 128 bytes, for the first time.",
        "Block (0, 1) of 1 × 4, warp 0, line 5: loads x[8, 0:32], 128 bytes, for the first time.",
    ]
    told = CATALOGUE["layer_norm_chain"].record()
    second = [index for index, request in enumerate(told["requests"], 1) if request[0] == 1]
    sentences = said("layer_norm_chain", *second)
    assert all(one.startswith("Launch 2, row_variance<float>: block ") for one in sentences)
    assert any("loads mean[0], 128 bytes, 4 of them distinct, for the" in one for one in sentences)


@needs_node
def test_elements_that_lie_unevenly_are_counted():
    flat = {"name": "x", "rank": 1, "width": 64}
    grid = {"name": "x", "rank": 2, "width": 10}
    script = "const result = values.map(([tensor, elements]) => where(tensor, elements));"
    assert run_js(
        script,
        [flat, [7]],
        [flat, [0, 2, 4]],
        [flat, [0, 1, 5]],
        [grid, [3]],
        [grid, [1, 2, 11, 12]],
        [grid, [0, 20, 40]],
        [grid, [8, 9, 10, 11]],
    ) == [
        "x[7]",
        "x[0:5:2]",
        "3 elements of x",
        "x[0, 3]",
        "x[0:2, 1:3]",
        "x[0:5:2, 0]",
        "4 elements of x",
    ]


@needs_node
def test_a_place_that_comes_again_unevenly_is_told_from_first_to_last():
    told = CATALOGUE["copy"].record()
    told["places"] = [[0, 2, 1], [1, 2, 1]]
    told["requests"] = [[0, 0, -1, 0, 0, 3, 8, 0], [0, 0, -1, 0, 0, 3, 8, 1]]
    script = "const found = played(values[0], 2);"
    script += "const result = [sentence(values[0], found), soFar(values[0], found)];"
    sentence, tensors = run_js(script, told)
    assert sentence.endswith("loads x[1:3], 8 bytes, for the first to second time.")
    assert tensors == [{"name": "x", "text": "200 elements: 3 read, each 1 to 2 times."}]


@needs_node
def test_keys_step_by_requests_and_by_programs():
    told = CATALOGUE["layer_norm_loops"].record()  # 12 requests a program
    presses = [
        (1, "ArrowRight", False, 2),
        (1, "ArrowUp", False, 2),
        (1, "ArrowLeft", False, 1),
        (72, "ArrowRight", False, 72),
        (5, "ArrowRight", True, 13),
        (5, "PageUp", False, 13),
        (15, "ArrowLeft", True, 13),
        (13, "PageDown", False, 1),
        (13, "ArrowDown", False, 12),
        (70, "PageUp", False, 72),
        (30, "Home", False, 1),
        (30, "End", False, 72),
        (30, "a", False, None),
        (30, "Tab", True, None),
    ]
    script = "const [told, presses] = values;"
    script += "const result = presses.map(([step, key, shift]) => stepBy(told, step, key, shift));"
    found = run_js(script, told, [press[:3] for press in presses])
    assert found == [press[3] for press in presses]


@needs_node
@every_one
@pytest.mark.parametrize("width", WIDTHS)
def test_the_picture_stays_inside_its_box(key, width):
    told = CATALOGUE[key].record()
    script = """
    const [told, width] = values, result = [];
    for (const step of beginnings(told).concat(told.requests.length)) {
      result.push(replayChart(told, played(told, step), width, "hatch"));
    }"""
    for picture in run_js(script, told, width):
        assert picture["height"] < (800 if width < 480 else 580)
        for tag, attributes, _ in picture["shapes"]:
            if tag == "line":
                assert 0 <= attributes["x1"] <= width
                assert 0 < attributes["y2"] <= picture["height"]
                continue
            assert attributes["x"] >= 0
            assert attributes["x"] + attributes.get("width", 0) <= width + 1e-6
            assert 0 < attributes["y"] + attributes.get("height", 0) <= picture["height"]
            if tag == "rect":
                least = 1 if attributes["class"] == "now" else 0  # a bar may have just begun
                assert min(attributes["width"], attributes["height"]) > least


@needs_node
def test_reads_writes_and_the_request_are_drawn_apart():
    told = CATALOGUE["add_row_atomically"].record()
    script = "const [told, step] = values;"
    script += "const result = replayChart(told, played(told, step), 640, 'hatch').shapes;"
    last = run_js(script, told, 40)[6:]  # past the legend
    kinds = [attributes.get("class") for _, attributes, _ in last]
    assert kinds.count("now") == 1
    (frame,) = (attributes for _, attributes, _ in last if attributes.get("class") == "now")
    box = {name: frame[name] for name in ("x", "y", "width", "height")}
    same = [a for _, a, _ in last if {name: a.get(name) for name in box} == box]
    assert {a["class"] for a in same} == {"tensor", "read", "write", "now"}
    assert all(a["style"] == "fill:url(#hatch)" for a in same if a["class"] == "write")
    assert [text for _, a, text in last if a.get("class") == "times"][-1] == "8×"


@needs_node
def test_a_number_stands_on_one_side_of_the_frame():
    told = CATALOGUE["product"].record()
    script = "const result = replayChart(values[0], played(values[0], 27), 640, 'hatch').shapes;"
    shapes = run_js(script, told)[6:]
    (frame,) = (a for _, a, _ in shapes if a.get("class") == "now")
    edges = frame["x"], frame["x"] + frame["width"]
    top, bottom = frame["y"], frame["y"] + frame["height"]
    numbers = [(a["x"], a["y"]) for _, a, _ in shapes if a.get("class") == "times"]
    assert any(edges[0] < x < edges[1] and top < y < bottom for x, y in numbers)
    assert not any(abs(x - edge) < 8 and top < y < bottom for x, y in numbers for edge in edges)


@needs_node
def test_the_bars_grow_past_the_ideal_as_the_bytes_do():
    told = CATALOGUE["layer_norm_loops"].record()
    script = "const result = replayChart(values[0], played(values[0], 72), 640, 'hatch').shapes;"
    shapes = run_js(script, told)[-7:]
    kinds = [attributes.get("class", text) for _, attributes, text in shapes]
    assert kinds == ["read", "write", "asked for", "read", "write", "ideal", "ideal"]
    distinct, asked = shapes[1][1], shapes[4][1]
    left = shapes[0][1]["x"]
    ends = [one["x"] + one["width"] - left for one in (distinct, asked)]
    ledger = traffic.count(CATALOGUE["layer_norm_loops"].call)
    assert ends[1] / ends[0] == pytest.approx(ledger.bytes_requested / ledger.bytes_unique)
    assert shapes[5][1]["x1"] - left == pytest.approx(ends[0])  # it asks for no other bytes


@needs_node
def test_blocks_cover_each_count_once():
    counts = [0, 1, 1, 2, 0, 1, 1, 3, 1, 1, 1]
    found = run_js("const result = blocks(Uint16Array.from(values[0]), 4);", counts)
    painted = [0] * 12
    for block in found:
        for row in range(block["row"], block["row"] + block["rows"]):
            for col in range(block["col"], block["col"] + block["cols"]):
                painted[4 * row + col] += block["count"]
    assert painted[:11] == counts
    assert len(found) == 4  # the two ones above each other are one


def test_the_module_asks_no_other_file_or_host():
    assert not re.search(r"\bimport\b[\s({\"']|fetch\(|XMLHttp", Replay._esm)
    assert not re.search(r"@import|url\(", Replay._css)
    assert set(re.findall(r"https?://[^\"/]+", Replay._esm)) == {"http://www.w3.org"}


def in_browser(tmp_path, page, actions, *flags):
    """Show a replay, run `actions` in the page, and return what they have seen."""
    state = {name: getattr(page, name) for name in ("recordings", "kernel", "step")}
    load = f"const blob = new Blob([{json.dumps(Replay._esm)}], {{ type: 'text/javascript' }});\n"
    load += "const module = await import(URL.createObjectURL(blob));"
    text = PAGE.format(
        css=Replay._css, state=json.dumps(state), esm_as_module=load, actions=actions
    )
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", *flags]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=40000"]
    command.append((tmp_path / "page.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr
    return json.loads(body.group(1).replace("&lt;", "<").replace("&amp;", "&"))


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not on this machine")
HELPERS = """
    const spoken = () => at(".text").textContent;
    const press = (key, shiftKey = false, on = at("input")) => on.dispatchEvent(
      new KeyboardEvent("keydown", { key, shiftKey, bubbles: true, cancelable: true }));
    const button = (label) => at(`button[aria-label="${label}"]`);
"""


@needs_browser
def test_the_page_answers_to_keys_and_mouse(tmp_path):
    actions = f"""{HELPERS}
    press("ArrowRight"); seen.push(spoken());
    press("PageUp"); seen.push(spoken());
    button("Next request").click(); seen.push(spoken());
    button("Previous program").click(); seen.push(spoken());
    press("End"); seen.push(spoken(), at("input").getAttribute("aria-valuetext"));
    act(at("input"), "3", "input"); seen.push(spoken());
    seen.push(at("[aria-current]").textContent, root.querySelectorAll("[aria-current]").length);
    act(at("select"), "layer_norm_row", "change"); seen.push(spoken());
    seen.push([...root.querySelectorAll("optgroup")].map((group) => group.label));
    press("ArrowRight", false, at("pre")); seen.push(spoken());
    seen.push(root.scrollWidth <= 340);
    seen.push([...root.querySelectorAll("input, select, button, pre")].every(
      (c) => c.labels?.length || c.getAttribute("aria-label")));
    """
    page = replay("copy", "layer_norm_row")
    second, program, next_, back, end, told, slid, line, lines, other, groups, *rest = in_browser(
        tmp_path, page, actions
    )
    assert second == "Program 0 of 4, line 5: stores y[0:64], 256 bytes, for the first time."
    assert program == "Program 1 of 4, line 4: loads x[64:128], 256 bytes, for the first time."
    assert next_.startswith("Program 1 of 4, line 5: stores y[64:128]")
    assert back == program
    assert end == "Program 3 of 4, line 5: stores y[192:200], 32 bytes, for the first time."
    assert told == "request 8 of 8"
    assert slid == program
    assert (line.split(), lines) == (["4", *"x = tl.load(x_ptr + i, mask=i < n)".split()], 1)
    assert other.startswith("Program 0 of 6, line 9: loads x[0, 0:64]")
    assert groups == ["03 First kernels", "06 Fused norms in Triton"]
    unmoved, fits, labelled = rest
    assert unmoved == other  # the source scrolls by these keys
    assert fits
    assert labelled


@needs_browser
@pytest.mark.parametrize(("flags", "slower"), [((), 1), (("--force-prefers-reduced-motion",), 2.5)])
def test_the_page_plays_until_it_is_stopped_or_at_its_end(tmp_path, flags, slower):
    actions = f"""{HELPERS}
    const wait = (ms) => new Promise((done) => setTimeout(done, ms));
    const live = () => at(".text").getAttribute("aria-live");
    press(" "); seen.push(button("Pause").textContent, live());
    await wait(650 * {slower}); seen.push(state.step);
    press(" "); seen.push(button("Play").textContent, live());
    await wait(2000 * {slower}); seen.push(state.step);
    press("End"); button("Play").click(); seen.push(state.step);
    await wait(600 * 9 * {slower}); seen.push(state.step, !!button("Play"));
    button("Play").click(); act(at("input"), "4", "input");
    await wait(2000 * {slower}); seen.push(state.step);
    """
    found = in_browser(tmp_path, replay("copy"), actions, *flags)
    assert found == ["Pause", "off", 2, "Play", "polite", 2, 1, 8, True, 4]


@needs_browser
def test_the_picture_shrinks_whole_where_a_page_gets_narrow(tmp_path):
    # So it is on paper, which nobody draws anew for.
    actions = """
    const picture = at("svg"), before = picture.getBoundingClientRect();
    at(".fk-explorer").style.maxWidth = "240px";
    const after = picture.getBoundingClientRect();
    seen.push(before.width, after.width, before.height / before.width, after.height / after.width);
    seen.push(picture.getScreenCTM().a * before.width);
    """
    before, after, shape, same_shape, whole = in_browser(tmp_path, replay("copy"), actions)
    assert after < 240 < before
    assert same_shape == pytest.approx(shape, rel=1e-3)
    assert whole == pytest.approx(after, rel=1e-3)


@needs_browser
def test_one_recording_is_named_and_not_chosen(tmp_path):
    actions = 'seen.push(at("label").hidden, at(".look").textContent);'
    hidden, look = in_browser(tmp_path, replay("copy"), actions)
    assert hidden
    assert look.startswith("Copy, Triton Each program has")
