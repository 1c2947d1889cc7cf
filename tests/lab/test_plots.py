"""The figures: fixed looks, numbers read back from what was drawn, and the same bytes each time."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import pytest
from matplotlib.colors import same_color, to_hex
from matplotlib.figure import Figure

from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic
from kernels.lab.drawing import pictures, plots, style
from kernels.lab.records.data import Recording, Row

CORE = ("eager", "torch", "compile", "unfused_cuda", "fused_cuda", "fused_simple", "fused", "copy")
MB = 1_000_000


def row(variant: str = "fused", **columns: object) -> Row:
    whole: dict[str, object] = {
        "time_us_p20": 180.0,
        "time_us_p50": 184.0,
        "time_us_p95": 190.0,
        "bytes_ideal": 537 * MB,
        "bytes_unique": 540 * MB,
        "flops": 1_073_741_824,
    }
    return Row("layernorm", variant, "fwd", "16x8", "bf16", "graph", **{**whole, **columns})


def ceilings() -> Recording:
    def made(op: str, variant: str, dtype: str, shape: str, time: float, **columns: int) -> Row:
        return Row(op, variant, "fwd", shape, dtype, "graph", None, time, None, 9, **columns)

    rows = (
        made("copy", "torch", "fp32", "4096x4096", 50.0, bytes_ideal=134 * MB),
        made("copy", "torch", "fp32", "65536x4096", 1000.0, bytes_ideal=3000 * MB),
        made("matmul", "torch", "bf16", "8192x8192x8192", 1500.0, flops=2 * 8192**3),
        made("matmul", "torch", "fp32", "8192x8192x8192", 21000.0, flops=2 * 8192**3),
        made("matmul", "torch_tf32", "fp32", "8192x8192x8192", 3000.0, flops=2 * 8192**3),
    )
    return Recording("h100-sxm", "ceilings", rows, {})


def ledger() -> Ledger:
    first = Step("mean", "aten", (TensorTraffic("x", 8, 8), TensorTraffic("m", 0, 0, 4, 4)))
    second = Step("sub", "aten", (TensorTraffic("x", 8, 8), TensorTraffic("m", 4, 8)))
    return Ledger((first, second))


def accesses() -> dict[str, list[plots.Touch]]:
    loads = [plots.Touch(p, "load", p * 4, 4) for p in range(3) for _ in range(2)]
    return {"x": [*loads, plots.Touch(0, "store", 0, 6)]}


def drawn(figure: Figure, gid: str) -> tuple[list[float], list[float]]:
    (line,) = figure.findobj(lambda artist: artist.get_gid() == gid)
    return list(line.get_xdata()), list(line.get_ydata())


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))


DRAWINGS = {
    "traffic_bars": lambda: plots.traffic_bars(plots.traffic_of_rows([row()]), "t", 537 * MB),
    "sweep": lambda: plots.sweep([row(), row(bytes_ideal=80 * MB)], "t", ceiling_gbs=3000),
    "roofline": lambda: plots.roofline_of_rows([row()], ceilings(), "bf16"),
    "timeline": lambda: plots.timeline([("a", 3.0), ("b", 4.0)], "t"),
    "operations_strip": lambda: plots.operations_strip(ledger(), "t"),
    "trace_map": lambda: plots.trace_map(accesses(), {"x": 12}, "t"),
}


@pytest.mark.parametrize("page", ["light", "dark"])
def test_every_variant_has_a_look_of_its_own(page):
    with plots.theme(page):
        looks = {name: plots.look(name) for name in (*plots.VARIANTS, "cuda_1", "cuda_2", "other")}
        core = [looks[name].color for name in CORE]
        paper = style.page().paper
    assert len(set(looks.values())) == len(looks)
    assert len({looks[name].marker for name in CORE}) == len(CORE)
    assert not any(same_color(a, b) for a, b in itertools.combinations(core, 2))
    assert not any(same_color(look.color, paper) for look in looks.values())


def test_a_variant_looks_the_same_in_every_figure():
    sweep = plots.sweep([row("torch"), row("fused")], "t")
    measured = row("fused", bytes_dram_read=MB, bytes_dram_write=MB)
    roof = plots.roofline_of_rows([measured], ceilings(), "bf16")
    bars = plots.traffic_bars([plots.Bar("fused", "unique", 5, 5)], "t")
    color, marker = plots.look("fused").color, plots.look("fused").marker
    (line,) = sweep.findobj(lambda a: a.get_gid() == "variant:fused")
    (point,) = roof.findobj(lambda a: a.get_gid() == "point:fused")
    assert line.get_color() == point.get_markerfacecolor() == color
    assert line.get_marker() == point.get_marker() == marker
    assert to_hex(bars.axes[0].patches[0].get_facecolor()) == color.lower()


def test_ceilings_are_the_largest_copy_and_the_product_of_the_dtype():
    bf16 = plots.ceilings_of(ceilings(), "bf16")
    assert bf16.bandwidth_bytes_per_s == pytest.approx(3e12)
    assert bf16.compute_flops_per_s == pytest.approx(2 * 8192**3 / 1500e-6)
    assert bf16.ridge == pytest.approx(bf16.compute_flops_per_s / 3e12)
    tf32, fp32 = plots.ceilings_of(ceilings(), "tf32"), plots.ceilings_of(ceilings(), "fp32")
    assert tf32.compute_flops_per_s == pytest.approx(7 * fp32.compute_flops_per_s)
    with pytest.raises(LookupError, match="no timed matmul in fp16"):
        plots.ceilings_of(ceilings(), "fp16")


def test_a_point_stands_at_flops_per_byte_and_flops_per_second():
    measured = row("torch", bytes_dram_read=512 * MB, bytes_dram_write=268 * MB, time_us_p50=288.0)
    rows = [measured, row("fused"), row("compile", bytes_unique=None)]
    figure = plots.roofline_of_rows(rows, ceilings(), "bf16")
    flops = 1_073_741_824
    assert drawn(figure, "point:torch") == ([flops / (780 * MB)], [flops / 288e-6])
    assert drawn(figure, "point:fused")[0] == [flops / (540 * MB)]
    assert drawn(figure, "point:fused")[1] == pytest.approx([flops / 184e-6])
    said = words(figure)
    assert "bytes that DRAM moved, measured" in said
    assert "unique bytes, counted" in said
    assert "not placed, bytes not measured: compile" in said


def test_a_kernels_own_roof_is_where_its_instructions_fill_every_slot():
    measured = row("cuda_1", bytes_dram_read=MB, bytes_dram_write=MB)
    figure = plots.roofline_of_rows([measured], ceilings(), "bf16", issued={"cuda_1": 80.0})
    (height,) = drawn(figure, "point:cuda_1")[1]
    assert drawn(figure, "issue:cuda_1")[1] == pytest.approx([height / 0.8] * 2)
    assert "cuda_1 with every issue slot used" in words(figure)
    for issued, said in (({"fused": 50.0}, "'fused', which has no point"), ({"cuda_1": 0}, "is 0")):
        with pytest.raises(ValueError, match=said):
            plots.roofline_of_rows([measured], ceilings(), "bf16", issued=issued)


def test_a_kernel_without_a_time_is_a_line_up_to_its_bound():
    lines = [plots.IntensityLine("your kernel", 2.0)]
    figure = plots.roofline([], 3e12, 700e12, "h100-sxm", "copy", lines=lines)
    x, y = drawn(figure, "line:your kernel")
    assert x == [2.0, 2.0]
    assert y[1] == pytest.approx(6e12)
    assert not figure.findobj(lambda a: str(a.get_gid()).startswith("point:"))
    assert "at most 6.00 TFLOP/s" in words(figure)


def test_bars_draw_reads_and_writes_apart_and_in_megabytes():
    figure = plots.traffic_bars([plots.Bar("torch", "DRAM", 512 * MB, 268 * MB)], "t")
    read, written = figure.axes[0].patches
    assert (read.get_width(), written.get_width()) == pytest.approx((512, 268))
    assert written.get_x() == pytest.approx(512)
    assert written.get_hatch()
    assert not read.get_hatch()
    assert "780 MB" in words(figure)


def test_what_was_not_measured_is_said():
    empty = row(bytes_unique=None, bytes_ideal=None)
    bars = plots.traffic_of_rows([empty, row("torch")])
    figure = plots.traffic_bars(bars, "t")
    # Ideal, unique, requested and DRAM of the one, requested and DRAM of the other.
    assert words(figure).count("not measured") == 6
    assert "not measured" in words(plots.traffic_bars(plots.traffic_of_rows([empty]), "t"))
    half = plots.Bar("torch", "DRAM", read=5)
    assert half.bytes is None


def test_bars_of_a_ledger_sum_its_steps():
    bars = plots.traffic_of_ledger("eager", ledger(), ("unique", "requested"))
    assert bars == [plots.Bar("eager", "unique", 20, 4), plots.Bar("eager", "requested", 24, 4)]


def test_sweep_tolerates_empty_cells_and_starts_at_zero():
    rows = [
        row(time_us_p20=None, time_us_p95=None),
        row(bytes_ideal=80 * MB, time_us_p50=40.0),
        row("torch", time_us_p50=None),
    ]
    figure = plots.sweep(rows, "t", ceiling_gbs=3000)
    x, y = drawn(figure, "variant:fused")
    assert x == [80, 537]
    assert y == pytest.approx([80e6 / 40e-6 / 1e9, 537e6 / 184e-6 / 1e9])
    low, high = figure.axes[0].get_ylim()
    assert low == 0
    assert high > 3000
    assert "torch" not in words(figure)
    with pytest.raises(ValueError, match="no row has both"):
        plots.sweep([row(bytes_ideal=None)], "t")


def test_timeline_shows_gaps_and_says_when_it_knows_none():
    launches = [
        plots.TimedLaunch("a", 5.0, 10.0),
        plots.TimedLaunch("b", 18.0, 2.0),
        plots.TimedLaunch("a", 20, 1),
    ]
    figure = plots.timeline(launches, "t")
    boxes = figure.findobj(lambda a: a.get_gid() == "launch")
    (gap,) = figure.findobj(lambda a: a.get_gid() == "gap")
    assert [box.get_x() for box in boxes] == [0, 13, 15]
    assert (gap.get_x(), gap.get_width()) == (10, 3)
    assert "3.00 µs of 16.0 µs" in words(figure)
    assert "2 × a" in words(figure)
    pairs = plots.timeline([("a", 3.0), ("b", 4.0)], "t")
    assert [b.get_x() for b in pairs.findobj(lambda a: a.get_gid() == "launch")] == [0, 3]
    assert "gaps are left out" in words(pairs)


def test_strip_draws_a_cell_for_each_read_and_write():
    figure = plots.operations_strip(ledger(), "t")
    assert len(figure.findobj(lambda a: a.get_gid() == "read")) == 3
    assert len(figure.findobj(lambda a: a.get_gid() == "written")) == 1
    assert "all steps: 24" in words(figure)


def test_trace_map_says_how_often_elements_are_touched():
    said = words(plots.trace_map(accesses(), {"x": 12}, "t"))
    assert "each element is read 2×" in said
    assert "written 0 to 1×" in said
    with pytest.raises(ValueError, match="elements 10 to 13 lie outside a tensor of 12"):
        plots.trace_map({"x": [plots.Touch(0, "load", 10, 4)]}, {"x": 12}, "t")


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_units_and_the_same_bytes_each_time(name):
    figure = DRAWINGS[name]()
    labelled = [axes for axes in figure.axes if axes.get_xlabel()]
    assert labelled
    once = {page: pictures.render(DRAWINGS[name], page) for page in style.THEMES}
    assert once == {page: pictures.render(DRAWINGS[name], page) for page in style.THEMES}
    assert once["light"] != once["dark"]


@pytest.mark.parametrize("page", style.THEMES)
@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_made_for_both_pages_is_the_one_drawn_for_each(name, page):
    def without_keys(svg: str) -> str:  # of clips, hatches and markers: made of the colours
        return re.sub(r"\b[a-z][0-9a-f]{10}\b", "", svg)

    with plots.theme(page), style.book_settings():
        drawn = pictures._svg(DRAWINGS[name]())
    mime, made = pictures.render(DRAWINGS[name], page)
    assert mime == "image/svg+xml"
    assert without_keys(made.decode()) == without_keys(drawn)


def test_a_color_of_the_page_is_written_on_in_its_other_color():
    for page in style.THEMES:
        with plots.theme(page):
            colors = style.page()
            assert style.ink_on(colors.ink) == style.ink_on(colors.muted) == colors.paper
            assert style.ink_on(colors.paper) == style.ink_on(colors.grid) == colors.ink
    assert [style.ink_on(color) for color in (style.YELLOW, style.BLUE)] == ["#000000", "#ffffff"]


def test_a_hatch_is_darker_than_the_face_under_it():
    svg = pictures.render(DRAWINGS["operations_strip"])[1].decode()
    (name,) = set(re.findall(r"fill:url\(#(\w+)\)", svg))
    tile = re.search(rf'<pattern id="{name}".*?</pattern>', svg)[0]
    face = re.search(r'<rect [^>]*fill="(#\w+)" fill-opacity="([\d.]+)"', tile)
    assert float(face[2]) < 0.5
    assert f'style="fill:{face[1]};stroke:{face[1]};' in tile  # the lines, in full
    assert not re.search(r"url\(#\w+\);fill-opacity", svg)


def test_a_crowded_figure_becomes_a_png():
    def draw() -> Figure:
        figure = style.new_figure(2.0)
        figure.subplots().plot([i * 7919 % 1009 for i in range(30_000)])
        return figure

    mime, data = pictures.render(draw)
    assert mime == "image/png"
    assert data == pictures.render(draw)[1]


@pytest.mark.parametrize("name", [*DRAWINGS, "curves"])
def test_the_smallest_letters_keep_ten_pixels_on_a_phone(name):
    curve = {"a": ([1, 1e6], [1e-7, 5.0])}
    drawings = {**DRAWINGS, "curves": lambda: plots.curves(curve, "t", "x", "y")}
    page = plots.figure_html(drawings[name], "See.", "Seen.")
    svg = pictures.render(drawings[name])[1].decode()
    least_px = float(re.search(r"min-width:(\d+)px", page)[1])
    across = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    letters = re.findall(r"scale\((0\.\d+) -", svg)  # of outlines 100 units high
    assert len(letters) > 3
    assert min(float(size) * 100 for size in letters) * least_px / across > 9.99
    assert 'scale(0.7)"' not in svg  # an exponent


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-7, "1e-7"), (0.01, "0.01"), (1, "1"), (100, "100"), (1e4, "10 k"), (1e12, "1 T")],
)
def test_powers_of_ten_have_no_exponent_to_squint_at(value, text):
    assert style.power_of_ten(value) == text


@pytest.mark.parametrize(("caption", "alt", "named"), [("c", " ", "alt"), ("", "a", "caption")])
def test_a_figure_needs_caption_and_alternative_text(caption, alt, named):
    with pytest.raises(ValueError, match=f"{named} is empty; write one sentence"):
        plots.show(DRAWINGS["timeline"], caption, alt)


def test_html_holds_a_picture_for_each_page():
    page = plots.figure_html(DRAWINGS["timeline"], "See `x` & y.", 'Two boxes, "a" < "b".')
    assert (
        page.count("<img") == page.count('alt="Two boxes, &quot;a&quot; &lt; &quot;b&quot;."') == 2
    )
    assert 'class="fk-light only-light"' in page
    assert 'class="fk-dark only-dark"' in page
    # The theme hides a caption that is the sibling of a hidden picture.
    assert "</div><figcaption>See <code>x</code> &amp; y.</figcaption>" in page


def test_outside_a_notebook_the_alternative_text_is_printed(capsys):
    plots.show(DRAWINGS["timeline"], "A caption.", "Two boxes.")
    assert capsys.readouterr().out == "Two boxes.\n"


def test_spread_keeps_order_gap_and_limits():
    assert style.spread([1.0, 5.0], 1.0, 0, 10) == [1.0, 5.0]
    assert style.spread([5.0, 5.0, 5.0], 2.0, 0, 10) == [3.0, 5.0, 7.0]
    assert style.spread([9.9, 9.8], 1.0, 0, 10) == [10, 9]
    assert style.spread([0.0] * 5, 4.0, 0, 10) == [0, 2.5, 5, 7.5, 10]
    assert style.spread([], 1.0, 0, 1) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (8, "8 B"), (16384, "16.4 kB"), (536_870_912, "537 MB"), (2.72e12, "2.72 TB")],
)
def test_bytes_are_decimal(value, text):
    assert style.quantity(value, "B") == text


def test_figures_leave_the_global_state_alone():
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams.copy()\n"
        "from kernels.lab import plots\n"
        "plots.timeline([('a', 1.0)], 't')\n"
        "assert matplotlib.rcParams.copy() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_trace_becomes_runs():
    import torch

    from kernels.lab.counting import traffic
    from tests.launch import kernels_under_test as k

    x, y = torch.rand(300), torch.zeros(300)
    trace = traffic.trace(lambda: k.copy[(2,)](x, y, 300, BLOCK=256))
    assert plots.runs_of_trace(trace) == {
        "x": [plots.Touch(0, "load", 0, 256), plots.Touch(1, "load", 256, 44)],
        "y": [plots.Touch(0, "store", 0, 256), plots.Touch(1, "store", 256, 44)],
    }


def test_curves_leave_out_what_has_no_logarithm():
    figure = plots.curves({"a": ([1, 10, 100], [0, 1e-3, 1e-2])}, "t", "x", "y")
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [10, 100]
    with pytest.raises(ValueError, match="series is empty"):
        plots.curves({}, "t", "x", "y")
