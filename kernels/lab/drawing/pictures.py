"""Pictures of a figure for a light and a dark page, and the HTML that shows the one that fits."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import astuple

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from PIL import Image

from kernels.lab.drawing.style import (
    EITHER,
    FONT_SIZE,
    THEMES,
    Theme,
    book_settings,
    drawing_for,
    page,
    theme,
)

_PAGE_PX = 600
_LEAST_TEXT_PX = 10.0  # on a phone a figure scrolls sideways before its letters get smaller
_LARGEST_SVG = 64_000  # bytes; a larger picture becomes a PNG
_PNG_DPI = 220  # two pixels for each one of the page


def render(draw: Callable[[], Figure], page_name: str = "light") -> tuple[str, bytes]:
    """Draw for a page and return (MIME type, bytes): SVG, or PNG where the SVG is large.

    The same drawing gives the same bytes.
    """
    return _pictures(draw, [page_name])[0][page_name]


def _smallest_text(figure: Figure) -> float:
    """Return the size of the smallest text that shows, in points; the book's own without any."""
    texts = (text for text in figure.findobj(Text) if text.get_text().strip())
    return min(
        (float(text.get_fontsize()) for text in texts if text.get_visible()), default=FONT_SIZE
    )


def _pictures(
    draw: Callable[[], Figure], names: Iterable[str]
) -> tuple[dict[str, tuple[str, bytes]], float]:
    """What `render` returns for each page, from one drawing if it has no pixels.

    Beside it the least width in pixels at which all of the text can be read.
    """
    with drawing_for(EITHER), book_settings():
        figure = draw()
        points = 72 * figure.get_figwidth()
        least_px = _LEAST_TEXT_PX * points / _smallest_text(figure)
        either = None if figure.findobj(AxesImage) else _svg(figure)
    pictures = {}
    for name in names:
        with theme(name), book_settings():
            svg = _svg(draw()) if either is None else _recolored(either, page())
            small = len(svg) <= _LARGEST_SVG
            mime = "image/svg+xml" if small else "image/png"
            pictures[name] = mime, svg.encode() if small else _png(draw())
    return pictures, least_px


def _recolored(svg: str, colors: Theme) -> str:
    instead = dict(zip(astuple(EITHER), astuple(colors), strict=True))
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
    ".fk-figure{margin:0 0 1em}.fk-figure>div{overflow-x:auto}"
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
    pictures, least_px = _pictures(draw, THEMES)
    width = f"min-width:{math.ceil(least_px)}px;max-width:{_PAGE_PX}px"
    for name, (mime, data) in pictures.items():
        images.append(
            f'<img class="fk-{name} only-{name}" style="{width}" '
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
