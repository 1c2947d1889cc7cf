"""One style for every figure: a fixed colour and marker per variant, a light and a dark page.

Colours are Okabe and Ito's, told apart by most colour-blind readers; a marker, a hatch or a label
always says the same again. A draw function carries `@themed` and takes its paper and ink from the
page that `theme` chose; `pictures.show` puts a picture for each page into the notebook.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator

P = ParamSpec("P")

WIDTH = 5.6  # inches
FONT_SIZE = 10.5  # points

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
    "fused_hopper": (GREEN, "*"),
    "copy": (_INK, "H"),
    "yours": (_INK, "*"),
    "tutorial": (VERMILLION, ">"),
    "liger": (SKY, "<"),
    "helion": (BLUE, "h"),
    "sdpa_flash": (BLUE, "d"),
    "sdpa_cudnn": (SKY, "8"),
    "one_kernel": (BLUE, "P"),
    "two_kernels": (SKY, "P"),
    "one_kernel_folded": (GREEN, "P"),
    "one_kernel_folding": (YELLOW, "P"),
    "compile_graphs": (PURPLE, "*"),
    "eager_fastpath": (VERMILLION, "P"),
    "fused_graphs": (GREEN, "D"),
    "fused_checkpointed": (BLUE, "o"),
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
EITHER = Theme(paper="#fffffe", ink="#222831", muted="#5a6471", grid="#dde1e5")
_CURRENT: ContextVar[Theme] = ContextVar("theme", default=THEMES["light"])


@contextmanager
def drawing_for(colors: Theme) -> Iterator[None]:
    """Draw in these colours inside the block."""
    token = _CURRENT.set(colors)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def theme(name: str) -> AbstractContextManager[None]:
    """Draw for the `light` or the `dark` page inside the block."""
    if name not in THEMES:
        raise ValueError(f"theme {name!r} is unknown; it takes one of: {', '.join(THEMES)}")
    return drawing_for(THEMES[name])


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


def book_settings() -> AbstractContextManager[None]:
    """Set matplotlib up as the book has it, in the colours of the page, inside the block."""
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
        with book_settings():
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


def power_of_ten(value: float) -> str:
    """Return `0.01`, `100`, `10 k`, `1 M`, or `1e-7` below a thousandth: no small exponent."""
    if abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    factor, letter = scale(value)
    return f"{value / factor:g} {letter}".strip()


def label_powers(axes: Axes) -> None:
    """Label two logarithmic axes by `power_of_ten`, and 2 and 5 too where there are few powers."""
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        axis.set_major_locator(LogLocator(subs=(1,) if high / low > 100 else (1, 2, 5)))
        axis.set_major_formatter(lambda value, _: power_of_ten(value))
        axis.set_minor_formatter(lambda _value, _: "")


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
