"""One style for every figure: a fixed colour and marker per variant, a light and a dark page.

Colours are Okabe and Ito's, told apart by most colour-blind readers; a marker, a hatch or a label
always says the same again. A draw function carries `@themed` and takes its paper and ink from the
page that `theme` chose; `show` puts a picture for each page into the notebook.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from functools import wraps
from typing import Any, ParamSpec

import matplotlib.style
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

P = ParamSpec("P")

WIDTH = 5.6  # inches: a column's width on a page, and still legible at 390 px on a phone
FONT_SIZE = 10.5  # points
_PAGE_PX = 600
_LARGEST_SVG = 64_000  # bytes; a larger picture becomes a PNG
_PNG_DPI = 220  # two pixels for each one of the page

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW)
WRITE_HATCH = "////"
BOTH_HATCH = "|"  # bytes read and written that are not told apart

_INK = "ink"  # Okabe and Ito's black, which turns white on the dark page
_LOOKS: dict[str, tuple[str, str]] = {
    "eager": (VERMILLION, "X"),
    "torch": (ORANGE, "s"),
    "compile": (PURPLE, "D"),
    "compile_max_autotune": (PURPLE, "d"),
    "unfused_cuda": (SKY, "^"),
    "fused_cuda": (BLUE, "v"),
    "fused_simple": (YELLOW, "p"),
    "fused": (GREEN, "o"),
    "copy": (_INK, "H"),
    "yours": (_INK, "*"),
    "tutorial": (VERMILLION, ">"),
    "liger": (SKY, "<"),
    "helion": (BLUE, "h"),
    "sdpa_flash": (BLUE, "d"),
    "sdpa_cudnn": (SKY, "8"),
    "one_kernel": (BLUE, "P"),
    "compile_graphs": (PURPLE, "*"),
    "eager_fastpath": (VERMILLION, "P"),
}
VARIANTS = tuple(_LOOKS)


@dataclass(frozen=True)
class Theme:
    """The colours of a page: its paper, its ink, and two weaker inks."""

    paper: str
    ink: str
    muted: str
    grid: str


@dataclass(frozen=True)
class Look:
    """How a variant is drawn: a colour and a marker of matplotlib."""

    color: str
    marker: str


THEMES = {
    "light": Theme(paper="#ffffff", ink="#222832", muted="#5a6472", grid="#dde1e6"),
    "dark": Theme(paper="#121212", ink="#e8e8e8", muted="#a4acb6", grid="#34393f"),
}
# Stands for either page: four colours that nothing else has, so each can be exchanged for a page's.
_EITHER = Theme(paper="#fffffe", ink="#222831", muted="#5a6471", grid="#dde1e5")
_CURRENT: ContextVar[Theme] = ContextVar("theme", default=THEMES["light"])


@contextmanager
def _drawing_for(colors: Theme) -> Iterator[None]:
    token = _CURRENT.set(colors)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def theme(name: str) -> AbstractContextManager[None]:
    """Draw for the `light` or the `dark` page inside the block."""
    if name not in THEMES:
        raise ValueError(f"theme {name!r} is unknown; it takes one of: {', '.join(THEMES)}")
    return _drawing_for(THEMES[name])


def page() -> Theme:
    """Return the colours of the page that is drawn for.

    Give them to artists as they are: a picture for one page is made into the other's by exchanging
    them. Pixels (`imshow`) may hold mixtures of them.
    """
    return _CURRENT.get()


def look(variant: str) -> Look:
    """Return a variant's colour and marker, the same through the whole book.

    `cuda_3` is a blue 3; a name that the book does not know is grey, with its first letter.
    """
    rung = re.fullmatch(r"cuda_(\d+)", variant)
    if rung:
        return Look(BLUE, f"${rung.group(1)}$")
    letter = next((char for char in variant if char.isalnum()), "?")
    color, marker = _LOOKS.get(variant, (GREY, f"${letter}$"))
    return Look(page().ink if color == _INK else color, marker)


def ink_on(color: str) -> str:
    """Return black or white, whichever reads better on `color`; a page's own for its colours."""
    if color in (page().ink, page().muted):
        return page().paper
    if color in (page().paper, page().grid):
        return page().ink
    red, green, blue = to_rgb(color)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.45 else "#ffffff"


def _context() -> AbstractContextManager[None]:
    colors = page()
    settings: dict[str, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": FONT_SIZE,
        "axes.titlesize": FONT_SIZE + 1,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.edgecolor": colors.muted,
        "axes.facecolor": colors.paper,
        "axes.labelcolor": colors.ink,
        "figure.facecolor": colors.paper,
        "savefig.facecolor": colors.paper,
        "text.color": colors.ink,
        "xtick.color": colors.muted,
        "ytick.color": colors.muted,
        "xtick.labelcolor": colors.ink,
        "ytick.labelcolor": colors.ink,
        "grid.color": colors.grid,
        "hatch.linewidth": 1.2,
        "legend.frameon": False,
        "svg.fonttype": "path",
        "svg.hashsalt": "fusing-kernels",
    }
    return matplotlib.style.context(["default", settings])


def themed(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make `draw` take the book's settings, whatever the reader's own are."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with _context():
            return draw(*args, **kwargs)

    return wrapper


def new_figure(height: float) -> Figure:
    """Return an empty figure of the book's width and `height` inches."""
    layout = ConstrainedLayoutEngine(h_pad=0.07, w_pad=0.06)  # inches
    return Figure(figsize=(WIDTH, height), layout=layout)


def digits(value: float) -> str:
    """Return a number with three significant digits, without an exponent."""
    for limit, places in ((0.0005, 0), (0.9995, 3), (9.995, 2), (99.95, 1)):
        if abs(value) < limit:
            return f"{value:.{places}f}"
    return f"{value:.0f}"


def scale(largest: float) -> tuple[float, str]:
    """Return the decimal prefix that suits `largest`, as its factor and its letter."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= factor:
            return factor, letter
    return 1.0, ""


def quantity(value: float, unit: str) -> str:
    """Return `268 MB` for (268435456, "B"): decimal prefixes, three significant digits."""
    factor, letter = scale(value)
    exact = factor == 1 and float(value).is_integer()
    return f"{f'{value:.0f}' if exact else digits(value / factor)} {letter}{unit}"


def duration(time_us: float) -> str:
    """Return `184 µs`, or `30.0 ms` from ten milliseconds on."""
    return f"{digits(time_us / 1e3)} ms" if time_us >= 1e4 else f"{digits(time_us)} µs"


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places on a line apart until neighbours are `gap` apart, inside [low, high].

    The order stays. Where they do not all fit, the gap shrinks.
    """
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (sum of first places wanted, size)
    for i in order:
        total, size = min(max(wanted[i], low), high), 1
        while blocks and blocks[-1][0] / blocks[-1][1] + gap * blocks[-1][1] > total / size:
            before, count = blocks.pop()
            total, size = before + total - gap * count * size, size + count
        blocks.append((total, size))
    places: list[float] = []
    for total, size in blocks:
        places += [total / size + gap * k for k in range(size)]
    places = [max(place, low + gap * k) for k, place in enumerate(places)]
    places = [min(p, high - gap * (len(places) - 1 - k)) for k, p in enumerate(places)]
    return [places[order.index(i)] for i in range(len(wanted))]


def render(draw: Callable[[], Figure], page_name: str = "light") -> tuple[str, bytes]:
    """Draw for a page and return (MIME type, bytes): SVG, or PNG where the SVG is large.

    The same drawing gives the same bytes.
    """
    return _pictures(draw, [page_name])[page_name]


def _pictures(draw: Callable[[], Figure], names: Iterable[str]) -> dict[str, tuple[str, bytes]]:
    """What `render` returns for each page, from one drawing if it has no pixels."""
    with _drawing_for(_EITHER), _context():
        figure = draw()
        either = None if figure.findobj(AxesImage) else _svg(figure)
    pictures = {}
    for name in names:
        with theme(name), _context():
            svg = _svg(draw()) if either is None else _recolored(either, page())
            small = len(svg) <= _LARGEST_SVG
            mime = "image/svg+xml" if small else "image/png"
            pictures[name] = mime, svg.encode() if small else _png(draw())
    return pictures


def _recolored(svg: str, colors: Theme) -> str:
    instead = dict(zip(astuple(_EITHER), astuple(colors), strict=True))
    return re.sub("|".join(instead), lambda match: instead[match[0]], svg)


def _svg(figure: Figure) -> str:
    file = io.BytesIO()
    _lay_out(figure, FigureCanvasSVG, FigureCanvasSVG.fixed_dpi)
    figure.savefig(file, format="svg", metadata={"Date": None})
    return _smaller(_with_hatches(file.getvalue().decode()))


def _png(figure: Figure) -> bytes:
    drawn, file = io.BytesIO(), io.BytesIO()
    _lay_out(figure, FigureCanvasAgg, _PNG_DPI)
    figure.savefig(drawn, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    flat = Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    flat.save(file, "PNG", optimize=True)
    return file.getvalue()


def _lay_out(figure: Figure, canvas: type[FigureCanvasBase], dpi: float) -> None:
    """Lay a figure out for good: with a layout engine, it is drawn twice when it is saved."""
    engine, before = figure.get_layout_engine(), figure.canvas
    if engine is not None:
        canvas(figure)  # letters have other widths on each
        figure.set_dpi(dpi)
        engine.execute(figure)
        figure.set_layout_engine(None)
        figure.set_canvas(before)


def _with_hatches(svg: str) -> str:
    """Return an SVG whose hatches show: matplotlib fades a face's hatch together with the face."""
    fading = r"(fill: url\(#(\w+)\)); fill-opacity: ([\d.]+)"
    for _, name, opacity in set(re.findall(fading, svg)):
        tile = rf'(<pattern id="{name}".*?<rect [^>]*fill="#\w+")'
        svg = re.sub(tile, rf'\1 fill-opacity="{opacity}"', svg, flags=re.DOTALL)
    return re.sub(fading, r"\1", svg)


def _smaller(svg: str) -> str:
    """Return an SVG without what no screen shows: comments, names, spaces, the last digits."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<!DOCTYPE[^>]*>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"(\d\d\.\d\d)\d+", r"\1", svg)
    svg = re.sub(r" ?\n(?=[A-Za-z] |z)", "", svg)  # between the commands of a path
    svg = re.sub(r"([MLQC:;]) |(?<=[\dz]) (?=\")", r"\1", svg)  # no text: letters are paths
    svg = re.sub(r'<g id="\w+">', "<g>", svg)  # nothing points at a group
    svg = re.sub(r'(?<=[#"])DejaVuSans-(?:(Bold)-)?', lambda match: "b" if match[1] else "d", svg)
    return re.sub(r"\s*\n\s*", " ", svg).replace("> <", "><")


# Which picture shows: the light one, unless the page says that it is dark (the book, Colab,
# JupyterLab, VS Code). The last rules take back the white box that the book's theme draws around
# every output on its dark page.
_DARK_PAGES = (
    'html[data-theme="dark"]',
    'html[theme="dark"]',
    'body[data-jp-theme-light="false"]',
    "body.vscode-dark",
)
_STYLE = (
    ".fk-figure{margin:0 0 1em}"
    ".fk-figure img{width:100%;height:auto;margin:0 auto}"
    ".fk-figure .fk-light{display:block}.fk-figure .fk-dark{display:none}"
    ".fk-figure figcaption{max-width:42em;margin:.4em auto 0;text-align:left}"
    + "".join(
        f"{dark} .fk-figure .fk-light{{display:none}}{dark} .fk-figure .fk-dark{{display:block}}"
        for dark in _DARK_PAGES
    )
    + 'html[data-theme="dark"] .bd-content div.cell_output .text_html:has(.fk-figure),'
    'html[data-theme="dark"] .bd-content div.cell_output .fk-figure img'
    "{background:none!important;padding:0!important;color:inherit!important}"
)


def figure_html(draw: Callable[[], Figure], caption: str, alt: str) -> str:
    """Return the HTML of a figure: a light and a dark picture, and its caption.

    `caption` says what to see, with `code` in backticks; `alt` says it to a reader who cannot see
    the picture. ValueError if either is empty.
    """
    for name, text in (("alt", alt), ("caption", caption)):
        if not text.strip():
            raise ValueError(f"{name} is empty; write one sentence that says what the figure shows")
    images = []
    for name, (mime, data) in _pictures(draw, THEMES).items():
        images.append(
            f'<img class="fk-{name} only-{name}" style="max-width:{_PAGE_PX}px" '
            f'alt="{html.escape(alt)}" src="data:{mime};base64,{base64.b64encode(data).decode()}">'
        )
    words = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(caption))
    # The pictures have a box of their own: the book's theme hides a caption beside a hidden one.
    return (
        f'<style>{_STYLE}</style><figure class="fk-figure"><div>{"".join(images)}</div>'
        f"<figcaption>{words}</figcaption></figure>"
    )


def show(draw: Callable[[], Figure], caption: str, alt: str) -> None:
    """Show a figure in a notebook, for light and dark pages, with caption and alternative text.

    `draw` takes nothing and returns the figure: `show(lambda: sweep(rows), "…", "…")`. Outside a
    notebook the alternative text is printed.
    """
    page_html = figure_html(draw, caption, alt)
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:
        print(alt)
        return
    if get_ipython() is None:
        print(alt)
    else:
        display({"text/html": page_html, "text/plain": alt}, raw=True)
