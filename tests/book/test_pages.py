"""The built pages in a real browser: widths, themes, maths, search, widgets, accessibility."""

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from book.tools.build import build_html, execute_all, toc_files
from kernels.lab.drawing.explorers.replay.catalogue import CATALOGUE
from kernels.paths import ROOT
from tests.book.browsing import Browser

# The widgets' own script checks its states against a schema that its checker finds loose.
NOT_OURS = "warning: strict mode: "
WIDTHS = [390, 768, 1280]
PAGES = [*toc_files(ROOT), "search", "genindex"]


def assert_sound(report: dict[str, Any]) -> None:
    """Check what holds for every page: alone, silent, whole and readable by all."""
    assert report["shown_theme"] == report["theme"]
    assert report["foreign"] == [], "asks another host"
    assert report["failed"] == [], "asks for what isn't there"
    assert [line for line in report["console"] if not line.startswith(NOT_OURS)] == []
    assert report["raw_maths"] == []
    assert report["maths"] >= report["math_elements"]  # a widget's labels have theirs beside it
    assert {width: told for width, told in report["overflow"].items() if told} == {}
    assert {width: told for width, told in report["unreadable"].items() if told} == {}
    assert {width: told for width, told in report["axe"].items() if told} == {}
    assert report["lost_on_paper"] == []


def test_every_built_page_is_looked_at(html: Path) -> None:
    built = {path.relative_to(html).with_suffix("").as_posix() for path in html.rglob("*.html")}
    assert {name for name in built if not name.startswith("_static/")} == {*PAGES, "index"}
    assert f"url={toc_files(ROOT)[0]}.html" in (html / "index.html").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_in_both_themes_from_the_file_system_and_over_http(
    browse: Browser, html: Path, served: str, name: str
) -> None:
    looks = {"widths": WIDTHS, "axe": [390, 1280]}
    light = {"url": (html / f"{name}.html").as_uri(), "theme": "light", **looks}
    dark = {"url": f"{served}/{name}.html", "theme": "dark", **looks}
    for asked, report in zip((light, dark), browse.together(light, dark), strict=True):
        assert (report["url"], report["theme"]) == (asked["url"], asked["theme"])
        assert_sound(report)


SEARCH = [
    ("wait", "#search-results li a", ""),
    ("read", "#search-results", "innerText"),
]


@pytest.mark.parametrize("over_http", [False, True])
def test_search_finds_the_chapter(
    browse: Browser, html: Path, served: str, over_http: bool
) -> None:
    root = served if over_http else html.as_uri()
    url = f"{root}/search.html?q=welford"
    report = browse(url=url, theme="light", widths=[390], actions=SEARCH)
    assert_sound(report)
    assert "02 LayerNorm by hand" in report["values"][0]


WIDGETS = """
import anywidget, ipywidgets, traitlets
from IPython.display import display

class Counter(anywidget.AnyWidget):
    _esm = '''
    export default {
      render({ model, el }) {
        const button = document.createElement("button");
        const show = () => { button.textContent = `pressed ${model.get("value")} times`; };
        button.className = "counter";
        button.onclick = () => { model.set("value", model.get("value") + 1); show(); };
        show();
        el.append(button);
      },
    };
    '''
    value = traitlets.Int(0).tag(sync=True)

first = ipywidgets.IntSlider(value=3, max=9, description="Rows \\(x_i\\)")
second = ipywidgets.IntText(description="Again")
ipywidgets.jslink((first, "value"), (second, "value"))
display(first, second, ipywidgets.Button(description="A sign", icon="check"), Counter())
"""
STEPPER = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from kernels.lab import attention_stepper
attention_stepper(causal=True, tile=1)
"""
FUSION = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from kernels.lab import fusion
fusion("encoder_pre", closed="book", card="h100-sxm")
"""


@pytest.fixture(scope="module")
def widgets_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a book of widgets, a stepper's page and one of joints; return the first."""
    root = tmp_path_factory.mktemp("widgets")
    shutil.copytree(ROOT / "book/_static", root / "book/_static")
    (root / "kernels").mkdir()
    for name in ("_config.yml", "requirements.txt"):
        shutil.copy2(ROOT / name, root / name)
    chapters = [{"file": "book/stepper"}, {"file": "book/fusion"}]
    toc = {"format": "jb-book", "root": "book/widgets", "chapters": chapters}
    (root / "_toc.yml").write_text(yaml.safe_dump(toc))
    cells = [new_markdown_cell("# Widgets\n\n$$x^2$$"), new_code_cell(WIDGETS)]
    nbformat.write(new_notebook(cells=cells), root / "book/widgets.ipynb")
    cells = [new_markdown_cell("# A stepper"), new_code_cell(STEPPER)]
    nbformat.write(new_notebook(cells=cells), root / "book/stepper.ipynb")
    cells = [new_markdown_cell("# Joints"), new_code_cell(FUSION)]
    nbformat.write(new_notebook(cells=cells), root / "book/fusion.ipynb")
    assert execute_all(root, root / "_build") == 0
    assert build_html(root) == 0
    return root / "_build/html/book/widgets.html"


def test_widgets_answer_without_a_kernel_or_a_network(browse: Browser, widgets_page: Path) -> None:
    actions = [
        ("wait", ".counter", ""),
        ("click", ".counter", ""),
        ("press", ".counter", "Enter"),
        ("read", ".counter", "textContent"),
        ("press", ".noUi-handle", "ArrowRight"),
        ("read", ".widget-text input", "value"),
        ("count", ".widget-label mjx-container", ""),
    ]
    report = browse(url=widgets_page.as_uri(), theme="light", widths=WIDTHS, actions=actions)
    counted, linked, maths_in_labels = report["values"]
    assert counted == "pressed 2 times"
    assert linked == "4"
    assert maths_in_labels == 1
    assert_sound(report)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_attention_stepper_answers_to_keys_and_mouse(
    browse: Browser, widgets_page: Path, theme: str
) -> None:
    spoken, step = ".fk-stepper .text", '.fk-stepper input[aria-label="Step"]'
    actions = [
        ("wait", f"{spoken}:not(:empty)", ""),
        ("press", step, "ArrowRight"),
        ("press", step, "ArrowRight"),
        ("read", spoken, "textContent"),
        ("click", '.fk-stepper button[aria-label="Next tile of keys"]', ""),
        ("read", spoken, "textContent"),
        ("press", step, "End"),
        ("read", spoken, "textContent"),
        ("click", ".fk-stepper input[type=checkbox]", ""),
        ("press", ".fk-stepper select >> nth=1", "End"),
        ("read", ".fk-stepper dl", "textContent"),
    ]
    report = browse(
        url=widgets_page.with_name("stepper.html").as_uri(),
        theme=theme,
        widths=WIDTHS,
        axe=WIDTHS,
        actions=actions,
    )
    weights, second, last, figures = report["values"]
    assert "m becomes the largest score of each row, 1.50 for query 4" in weights
    assert second.startswith("Tile 2 of 2, keys 4 to 7: k is read, 32 bytes")
    assert last.startswith("All keys are seen: O = acc / l is written")
    assert "1 of 18" in figures
    assert "All 2 tiles read" in figures
    assert_sound(report)
    assert report["axe"].keys() == {str(width) for width in WIDTHS}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_fusion_explorer_answers_to_keys_and_mouse(
    browse: Browser, widgets_page: Path, theme: str
) -> None:
    spoken, joint = ".fk-fusion .text", ".fk-fusion .joint button"
    actions = [
        ("wait", f"{spoken}:not(:empty)", ""),
        ("read", ".fk-fusion dl", "textContent"),
        ("press", joint, "Enter"),
        ("read", spoken, "textContent"),
        ("press", joint, " "),  # the same joint: it has kept the focus
        ("read", spoken, "textContent"),
        ("click", ".fk-fusion .joint.closed button >> nth=0", ""),  # scores and softmax
        ("read", spoken, "textContent"),
        ("press", ".fk-fusion select", "End"),
        ("press", ".fk-fusion select", "ArrowUp"),  # behind a choice of one's own: all of training
        ("read", spoken, "textContent"),
        ("count", ".fk-fusion .step.first", ""),
        ("count", ".fk-fusion .joint.barred button:disabled", ""),
    ]
    report = browse(
        url=widgets_page.with_name("fusion.html").as_uri(),
        theme=theme,
        widths=WIDTHS,
        axe=WIDTHS,
        actions=actions,
    )
    figures, closed, opened, apart, training, launches, barred = report["values"]
    assert figures.startswith("Launches712 with all openBytes moved898 MB")
    assert closed.startswith("LayerNorm 1 and QKV are one launch now: 67.1 MB and ")
    assert opened.startswith("LayerNorm 1 and QKV are two launches now: 67.1 MB and ")
    assert apart.startswith("scores and softmax are two launches now: 537 MB and ")
    assert training.startswith("Encoder layer, pre-LN, training")
    assert launches == 7
    assert barred == launches - 1
    assert_sound(report)
    assert report["axe"].keys() == {str(width) for width in WIDTHS}


def test_the_roofline_explorer_answers_to_keys_and_mouse(browse: Browser, html: Path) -> None:
    rows = '.fk-explorer input[aria-label="Rows, power of two"]'
    field = ".fk-explorer .size input[type=number]"
    spoken = ".fk-explorer .text"
    actions = [
        ("wait", ".fk-explorer dl", ""),
        ("read", spoken, "textContent"),
        ("press", rows, "ArrowRight"),  # twice the rows
        ("read", spoken, "textContent"),
        ("press", ".fk-explorer label:nth-of-type(1) select >> nth=0", "End"),  # the last card
        ("read", spoken, "textContent"),
        ("fill", field, "0"),
        ("press", field, "Tab"),
        ("read", ".fk-explorer", "textContent"),
        ("click", rows, ""),  # its middle: another power of two
        ("read", spoken, "textContent"),
    ]
    chapter = html / "book/01_memory_and_the_roofline.html"
    report = browse(url=chapter.as_uri(), theme="light", widths=[1280], actions=actions)
    first, doubled, other_card, complaint, clicked = report["values"]
    assert "LayerNorm, 4096×4096 bf16 on NVIDIA H100" in first
    assert "it must move 67.1 MB" in first
    assert "LayerNorm, 8192×4096 bf16" in doubled
    assert "134 MB" in doubled
    assert "8192×4096" in other_card
    assert "H100 80GB HBM3" not in other_card.split(":")[0]
    assert "Rows takes a whole number from 1 to" in complaint
    assert "8192×4096" not in clicked
    assert_sound(report)


def test_the_tiler_answers_to_keys(browse: Browser, html: Path) -> None:
    spoken = ".fk-tiler .text"
    group = ".fk-tiler label:has-text('in a group') input"
    actions = [
        ("wait", ".fk-tiler dl", ""),
        ("read", spoken, "textContent"),
        ("press", group, "ArrowRight"),
        ("press", group, "ArrowRight"),
        ("read", spoken, "textContent"),
        ("press", ".fk-tiler label:has-text('Rows of x, M') input", "Home"),
        ("read", spoken, "textContent"),
        ("count", ".fk-tiler svg .first", ""),
    ]
    chapter = (html / "book/10_tiled_products.html").as_uri()
    report = browse(url=chapter, theme="dark", widths=[390, 1280], actions=actions)
    first, grouped, one_row, tiles = report["values"]
    assert "8192×4096×12288 in tiles of 128×256" in first
    assert "touches 3 blocks of rows of x and 48 of the weight" in first
    assert "in groups of 4 rows" in grouped
    assert "touches 4 blocks of rows of x and 33 of the weight" in grouped
    assert one_row.startswith("1×4096×12288")
    assert tiles == 48
    assert_sound(report)


def test_the_replay_answers_to_keys_and_mouse(browse: Browser, html: Path) -> None:
    requests = '.fk-replay input[aria-label="Request"]'
    spoken = ".fk-replay .text"
    actions = [
        ("wait", f"{spoken}:not(:empty)", ""),
        ("count", ".fk-replay", ""),
        ("count", ".fk-replay >> nth=0 >> option", ""),
        ("read", spoken, "textContent"),
        ("press", requests, "ArrowRight"),
        ("read", spoken, "textContent"),
        ("press", requests, "Shift+ArrowRight"),
        ("read", spoken, "textContent"),
        ("press", requests, "End"),
        ("read", spoken, "textContent"),
        ("press", requests, "Home"),
        ("press", requests, " "),
        ("wait", '.fk-replay button[aria-label="Pause"]', ""),
        ("click", '.fk-replay button[aria-label="Next program"]', ""),
        ("wait", '.fk-replay button[aria-label="Play"]', ""),
        ("read", spoken, "textContent"),
        ("press", ".fk-replay select", "End"),
        ("read", spoken, "textContent"),
        ("read", ".fk-replay [aria-current]", "textContent"),
    ]
    page = (html / "book/replay.html").as_uri()
    report = browse(url=page, theme="light", widths=[390, 1440], actions=actions)
    replays, kernels, first, second, program, last, clicked, other, line = report["values"]
    assert replays == 2
    assert kernels == len(CATALOGUE)
    assert first == "Program 0 of 4, line 4: loads x[0:64], 256 bytes, for the first time."
    assert second.startswith("Program 0 of 4, line 5: stores y[0:64]")
    assert program.startswith("Program 1 of 4, line 4: loads x[64:128]")
    assert last.startswith("Program 3 of 4, line 5: stores y[192:200], 32 bytes")
    assert clicked == program
    assert other.startswith("Program 0 of 4, line 6: loads q[0:16, 0:16]")
    assert "q = tl.load(" in line
    assert_sound(report)


FAULTY = r"""<!doctype html><html lang="en"><title>Faults</title>
<style>aside { display: none } @media (min-width: 600px) { aside { display: block } }
.pale { color: #999; background: #aaa } .grey { color: #bbb; background: #fff }</style>
<aside><a href="#there"><b></b></a></aside><main id="there">
<h1>Faults</h1><article class="bd-article"><p class="pale">pale, and \(x\) in between</p>
<pre><b>well</b> <b>well</b> <i class="grey">,</i>
<i class="grey">grey</i> <i class="grey">grey</i></pre>
<pre style="background: #333"><b>dark</b> <b>dark</b></pre>
<div style="width: 700px">wide</div><img alt="" src="https://example.invalid/x.png"></article>
<script>console.error("loud")</script></main></html>"""


def test_the_faults_of_a_page_are_told(browse: Browser, tmp_path: Path) -> None:
    (tmp_path / "faulty.html").write_text(FAULTY)
    url = (tmp_path / "faulty.html").as_uri()
    report = browse(url=url, theme="light", widths=[390, 768], axe=[390, 768])
    assert report["foreign"] == ["https://example.invalid/x.png"]
    assert "error: loud" in report["console"]
    assert report["raw_maths"] == [r"pale, and \(x\) in between"]
    assert report["overflow"]["390"]
    assert report["overflow"]["768"] == []
    told = {w: [(f["id"], f["html"]) for f in faults] for w, faults in report["axe"].items()}
    assert told == {
        "390": [
            ("color-contrast", r'<p class="pale">pale, and \(x\) in between</p>'),
            # The first of two that look the same; that on another ground looks different.
            ("color-contrast", '<i class="grey">grey</i>'),
            ("color-contrast", "<b>dark</b>"),
        ],
        "768": [("link-name", '<a href="#there"><b></b></a>')],
    }


def test_a_page_that_fails_is_told_and_the_next_is_opened(browse: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(FAULTY)
    url = (tmp_path / "page.html").as_uri()
    with pytest.raises(AssertionError, match="no action dance"):
        browse(url=url, theme="light", widths=[390], actions=[("dance", "h1", "")])
    assert browse(url=url, theme="light", widths=[390])["url"] == url


HARD_TO_READ = """<!doctype html><html lang="en" data-theme="dark"><title>Hard to read</title>
<style>body { margin: 0; width: 300px; background: #222; color: #fff } figure { margin: 0 }
figcaption { color: #777; font-weight: 300 } td { overflow-wrap: anywhere }
table { border-spacing: 0 } div, pre { overflow: auto } div td { width: 600px; padding: 0 }</style>
<main class="bd-article"><figure><svg viewBox="0 0 400 40" width="300"><text y="20"
font-size="12">small</text></svg><figcaption>pale</figcaption></figure>
<div class="half"><figure><img alt="Half" width="200" style="margin-left: -90px" src="data:,">
</figure></div><table style="width: 40px"><tr><td>layer_norm</td></tr></table>
<div class="pst-scrollable-table-container"><table style="width: 600px"><tr><td>far</td></tr>
</table></div><details><summary>Code</summary><pre>LINE</pre></details></main></html>"""


def test_what_is_hard_to_read_is_told(browse: Browser, tmp_path: Path) -> None:
    (tmp_path / "hard.html").write_text(HARD_TO_READ.replace("LINE", 100 * "x"))
    url = (tmp_path / "hard.html").as_uri()
    report = browse(url=url, theme="dark", widths=[390, 1280])
    phone, laptop = report["unreadable"]["390"], report["unreadable"]["1280"]
    assert [told.split(":")[0] for told in phone] == [
        "9.0 px",
        "layer_norm",
        "600 px in 300",
        "half cuts Half",
        "contrast 3.6, weight 300",
    ]
    assert [told.split(" in ")[1][:6] for told in laptop] == ["300: x"]
    lost = report["lost_on_paper"]
    assert "closed: Code" in lost
    assert "dark paper" in lost
    assert any(told.startswith("div.pst-scrollable-table-container is cut") for told in lost)
