"""The sector explorer: its logic under Node against the emulator, its page in a browser."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import traitlets

from kernels.lab.drawing.explorers import SectorExplorer
from kernels.lab.drawing.explorers.sectors import LARGEST_OFFSET, LARGEST_STRIDE, WIDTHS
from tests.lab.test_explorers import CHROMIUM, NODE, PAGE, needs_node
from tests.lab.test_warps import touched

STATE = ("width", "stride", "offset", "widths", "largest_stride", "largest_offset")


def found(*choices):
    """What the page reckons for each (width, stride, offset)."""
    given = [dict(zip(STATE[:3], choice, strict=True)) for choice in choices]
    script = f"""{SectorExplorer._esm}
    const result = {json.dumps(given)}.map((c) => {{
        const f = request(c);
        return {{ ...f, lines: f.lines.length, words: words(c, f), shapes: sectorChart(f, 340) }};
    }});
    console.log(JSON.stringify(result));"""
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
def test_the_page_finds_the_sectors_that_the_emulator_counts():
    choices = [(4, 1, 0), (4, 1, 1), (4, 0, 5), (4, 8, 0), (2, 17, 3), (1, 1, 31), (8, 5, 2)]
    choices += [(16, 1, 1), (16, 3, 0)]
    for choice, told in zip(choices, found(*choices), strict=True):
        _, line = touched(*choice)
        assert (told["sectors"], told["wanted"]) == (line.sectors, line.bytes_distinct), choice
        assert (told["asked"], told["fetched"]) == (line.bytes_requested, 32 * line.sectors)
        assert told["share"] == pytest.approx(line.efficiency)


@needs_node
def test_every_choice_is_reckoned_and_stays_inside_its_box():
    choices = [
        (width, stride, offset)
        for width in WIDTHS
        for stride in (0, 1, 2, 7, 16, LARGEST_STRIDE)
        for offset in (0, 1, 8, LARGEST_OFFSET)
    ]
    for (width, stride, offset), told in zip(choices, found(*choices), strict=True):
        places = (offset + np.arange(32)[:, None] * stride) * width + np.arange(width)
        assert told["sectors"] == np.unique(places // 32).size
        assert told["lines"] == np.unique(places // 128).size
        assert told["fewest"] <= told["sectors"]
        for _, attributes, _ in told["shapes"]["shapes"]:
            assert 0 <= attributes.get("x", 0) + attributes.get("width", 0) <= 340
            bottom = attributes.get("y", 0) + attributes.get("height", 0)
            assert 0 < bottom <= told["shapes"]["height"] or "y2" in attributes


@needs_node
def test_the_sentences_say_what_the_picture_shows():
    packed, shifted, apart, one = found((4, 1, 0), (4, 1, 1), (2, 64, 0), (4, 0, 0))
    assert packed["words"] == [
        "32 lanes load 4 bytes each, side by side, from the start of a cache line on: 4 sectors of "
        "32 bytes, 128 bytes for 128 that are wanted.",
        "No arrangement of these bytes takes fewer.",
    ]
    assert shifted["words"][1] == (
        "Packed and aligned, the same bytes take 4: this is 1.25 times as many."
    )
    assert "128 bytes apart" in apart["words"][0]
    assert "16 times as many" in apart["words"][1]
    assert "all from one address" in one["words"][0]
    assert "1 sector of 32 bytes" in one["words"][0]


def test_the_module_asks_no_other_file_or_host():
    assert not re.search(r"\bimport\b[\s({\"']|fetch\(|XMLHttp", SectorExplorer._esm)
    assert not re.search(r"@import|url\(", SectorExplorer._css)
    assert set(re.findall(r"https?://[^\"/]+", SectorExplorer._esm)) == {"http://www.w3.org"}


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"width": 3}, "width"),
        ({"stride": 65}, "stride is 65; it takes a whole number from 0 to 64"),
        ({"stride": -1}, "stride is -1"),
        ({"offset": 32}, "offset is 32; it takes a whole number from 0 to 31"),
    ],
)
def test_a_wrong_choice_is_refused(choices, sentence):
    with pytest.raises(traitlets.TraitError, match=re.escape(sentence)):
        SectorExplorer(**choices)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not on this machine")
def test_the_page_answers(tmp_path):
    actions = """
    tell = () => seen.push([at(".text").textContent, at("dd strong").textContent]);
    tell();
    const [stride, offset] = root.querySelectorAll("input");
    act(stride, "8", "input"); tell();
    act(offset, "1", "input"); tell();
    act(root.querySelector("select"), "16", "change"); tell();
    seen.push(root.scrollWidth <= 340);
    seen.push([...root.querySelectorAll("input, select")].every((c) => c.labels.length));
    seen.push([...root.querySelectorAll("label b")].map((o) => o.textContent));
    """
    widget = SectorExplorer()
    state = json.dumps({name: getattr(widget, name) for name in STATE})
    load = f"const blob = new Blob([{json.dumps(SectorExplorer._esm)}], "
    load += "{ type: 'text/javascript' });\n"
    load += "const module = await import(URL.createObjectURL(blob));"
    page = PAGE.replace("const tell", "let tell").format(
        css=SectorExplorer._css, state=state, esm_as_module=load, actions=actions
    )
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    command.append((tmp_path / "page.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    body = re.search(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr
    packed, eight, moved, wide, fits, labelled, told = json.loads(body.group(1))
    assert packed[1] == "4"
    assert eight[1] == "32"
    assert moved[1] == "32"
    assert "4 bytes behind it" in moved[0]
    assert wide[0].startswith("32 lanes load 16 bytes each, 128 bytes apart, 16 bytes behind")
    assert fits
    assert labelled
    assert told == [" 8", " 1"]
