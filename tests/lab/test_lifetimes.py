"""The explorer of lifetimes: what it sums held to the data flow, its page in a browser."""

import json
import re
import subprocess

import pytest
import torch
import traitlets

from kernels.lab import lifetimes_explorer
from kernels.lab.counting.flow import flow
from kernels.lab.drawing.explorers import LifetimesExplorer
from kernels.lab.drawing.explorers.lifetimes import told
from kernels.launch import assume_capability
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from tests.lab.test_explorers import CHROMIUM, NODE, PAGE, needs_node

TRAITS = ("flows", "chosen", "launch")
NAMES = {"pre-LN": True, "post-LN": False}


@pytest.fixture(scope="module")
def flows():
    x, found = torch.empty(8, 512, 1024, dtype=torch.bfloat16, device="meta"), {}
    for name, first in NAMES.items():
        layer = FusedEncoderLayer(
            *(1024, 16, 4096),
            activation="gelu",
            batch_first=True,
            norm_first=first,
            device="meta",
            dtype=torch.bfloat16,
        )
        with assume_capability(80):
            found[name] = flow(layer, x)
    return found


def run_js(script, *values):
    source = f"{LifetimesExplorer._esm}\nconst values = {json.dumps(values)};\n{script}\n"
    source += "console.log(JSON.stringify(result));"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
def test_the_page_sums_what_the_flow_sums(flows):
    script = "const result = values.map((f) => ({ peak: peak(f),"
    script += " alive: f.launches.map((_, at) => alive(f, at + 1)) }));"
    pages = run_js(script, *(told(name, one) for name, one in flows.items()))
    for page, one in zip(pages, flows.values(), strict=True):
        numbers = range(1, len(one.ledger.steps) + 1)
        assert [now["taken"] for now in page["alive"]] == [one.bytes_alive(n) for n in numbers]
        assert [now["wanted"] for now in page["alive"]] == [one.bytes_needed(n) for n in numbers]
        for number, now in zip(numbers, page["alive"], strict=True):
            assert [c["name"] for c in now["held"]] == [c.name for c in one.alive(number)]
        assert page["peak"]["most"] == one.peak
        assert page["peak"]["at"] == [n for n in numbers if one.bytes_alive(n) == one.peak]


@needs_node
def test_the_sentences_say_what_a_launch_does(flows):
    script = "const result = values.map((f) => f.launches.map((_, at) =>"
    script += " words(f, at + 1).join(' ')));"
    pre, post = run_js(script, *(told(name, one) for name, one in flows.items()))
    kernel = flows["pre-LN"].ledger.steps[3].name
    assert pre[3] == (
        f"Launch 4 of 7, {kernel}: reads o (8.39 MB) and x (8.39 MB); writes h (8.39 MB). "
        "Memory taken: 16.8 MB, by o and h (at most 50.3 MB, in launches 6 and 7). "
        "Behind it o can go."
    )
    assert "the most of all launches" in pre[5]
    assert "Of these nobody reads" not in " ".join(pre)
    assert "Of these nobody reads h and a any more: 16.8 MB would do." in post[6]


@needs_node
@pytest.mark.parametrize("width", [300, 640])
def test_the_picture_stays_inside_its_box(flows, width):
    script = "const result = values.flatMap((f) => f.launches.map((_, at) =>"
    script += f" lifetimesChart(f, at + 1, {width}, 'x')));"
    for chart in run_js(script, *(told(name, one) for name, one in flows.items())):
        boxes = [shape for tag, shape, _ in chart["shapes"] if tag == "rect"]
        assert len(boxes) >= 8
        for box in boxes:
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width
            assert 0 <= box["y"] <= box["y"] + box["height"] <= chart["height"]
        names = [told for tag, shape, told in chart["shapes"] if shape.get("class") == "name"]
        assert "qkv" in names
        assert "a" in names


@needs_node
def test_keys_lead_inside_the_launches(flows):
    keys = ["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End", "Tab"]
    script = "const [f, keys] = values; const result = "
    script += "[1, 4, 7].map((at) => keys.map((key) => stepBy(f, at, key)));"
    first, middle, last = run_js(script, told("", flows["pre-LN"]), keys)
    assert first == [2, 1, 2, 1, 1, 7, None]
    assert middle == [5, 3, 5, 3, 1, 7, None]
    assert last == [7, 6, 7, 6, 1, 7, None]


def test_without_a_page_the_text_tells_every_launch(flows):
    widget = lifetimes_explorer(flows)
    text = widget._repr_mimebundle_()[0]["text/plain"]
    assert text.startswith("pre-LN: at most 50.3 MB at once\n  1 norm_row")
    assert "post-LN: at most 58.7 MB at once" in text
    assert len(text.splitlines()) == 2 + 7 + 7
    assert "16.8 MB  o, h" in text


def test_a_wrong_choice_is_told_in_a_sentence(flows):
    with pytest.raises(ValueError, match="flows is empty"):
        lifetimes_explorer({})
    with pytest.raises(traitlets.TraitError, match="launch is 8; it takes .* from 1 to 7"):
        lifetimes_explorer(flows, launch=8)
    with pytest.raises(traitlets.TraitError, match="chosen is 2; it takes .* from 0 to 1"):
        lifetimes_explorer(flows, chosen=2)
    widget = lifetimes_explorer(flows, launch=5)
    widget.chosen = 1
    assert widget.launch == 1


def test_the_module_asks_no_other_file_or_host():
    assert not re.search(r"\bimport\b[\s({\"']|fetch\(|XMLHttp", LifetimesExplorer._esm)
    assert not re.search(r"@import|url\(", LifetimesExplorer._css)
    assert set(re.findall(r"https?://[^\"/]+", LifetimesExplorer._esm)) == {"http://www.w3.org"}


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not on this machine")
def test_the_page_answers(flows, tmp_path):
    actions = """
    const say = () => seen.push(at(".text").textContent);
    const press = (key) => at("input").dispatchEvent(
      new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    say();
    press("ArrowRight"); press("ArrowRight"); press("ArrowRight"); say();
    act(at("input"), "6", "input"); say();
    at('button[aria-label="Next launch"]').click(); say();
    act(at("select"), "1", "change"); say();
    press("End"); say();
    seen.push(root.scrollWidth <= 340);
    seen.push([...root.querySelectorAll("input, select")].every(
      (c) => c.labels.length || c.getAttribute("aria-label")));
    seen.push(at("input").getAttribute("aria-valuetext"));
    seen.push(root.querySelectorAll("svg .held").length);
    root.style.width = "600px";
    const wide = () => Number(at("svg").getAttribute("width")) > 400;
    for (let frame = 0; frame < 100 && !wide(); frame += 1)  // it is drawn anew in some frame
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 10)));
    seen.push(wide());
    """
    widget = lifetimes_explorer(flows)
    state = json.dumps({name: getattr(widget, name) for name in TRAITS})
    load = f"const blob = new Blob([{json.dumps(LifetimesExplorer._esm)}], "
    load += "{ type: 'text/javascript' });\n"
    load += "const module = await import(URL.createObjectURL(blob));"
    page = PAGE.format(css=LifetimesExplorer._css, state=state, esm_as_module=load, actions=actions)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    command.append((tmp_path / "page.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr
    first, fourth, sixth, seventh, other, last, *rest = json.loads(body.group(1))
    assert first.startswith("Launch 1 of 7, norm_row: reads x (8.39 MB); writes LN(x) (8.39 MB).")
    assert fourth.startswith("Launch 4 of 7")
    assert sixth.startswith("Launch 6 of 7")
    assert seventh.startswith("Launch 7 of 7")
    assert other.startswith("Launch 1 of 7, linear_tile: reads x")
    assert "nobody reads h and a any more" in last
    assert rest == [True, True, "launch 7 of 7", 3, True]
