"""The figures of the book: traffic bars, sweeps, rooflines, timelines and pictures of a trace.

Every function returns a matplotlib `Figure` and draws nothing on the screen; `show` puts one into
a notebook, for light and dark pages. Bytes are decimal: 1 MB is 10⁶ bytes, 1 GB is 10⁹.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from kernels.lab.cards.roofline import Ceilings, IntensityLine, Point, ceilings_of, points_of
from kernels.lab.counting.ledger import Ledger
from kernels.lab.drawing.pictures import figure_html, show
from kernels.lab.drawing.roofline_figure import roofline, roofline_of_rows
from kernels.lab.drawing.strips import (
    TimedLaunch,
    Touch,
    operations_strip,
    runs_of_trace,
    short_name,
    timeline,
    trace_map,
)
from kernels.lab.drawing.style import (
    BOTH_HATCH,
    CYCLE,
    VARIANTS,
    WRITE_HATCH,
    Look,
    digits,
    ink_on,
    label_powers,
    look,
    new_figure,
    page,
    scale,
    spread,
    theme,
    themed,
)
from kernels.lab.records.data import Row

__all__ = [
    "VARIANTS",
    "Bar",
    "Ceilings",
    "IntensityLine",
    "Look",
    "Point",
    "TimedLaunch",
    "Touch",
    "ceilings_of",
    "curves",
    "figure_html",
    "look",
    "operations_strip",
    "points_of",
    "roofline",
    "roofline_of_rows",
    "runs_of_trace",
    "short_name",
    "show",
    "sweep",
    "theme",
    "timeline",
    "trace_map",
    "traffic_bars",
    "traffic_of_ledger",
    "traffic_of_rows",
]

LEDGERS = ("ideal", "unique", "requested", "DRAM")


@dataclass(frozen=True)
class Bar:
    """The bytes of one variant in one ledger.

    `read` and `written` where the ledger tells them apart, else `total`; all None: not measured.
    """

    variant: str
    ledger: str = "unique"
    read: int | None = None
    written: int | None = None
    total: int | None = None

    @property
    def bytes(self) -> int | None:
        """All bytes of the bar; None if it was not measured."""
        if self.read is None or self.written is None:
            return self.total
        return self.read + self.written


def traffic_of_rows(rows: Iterable[Row], ledgers: Sequence[str] = LEDGERS) -> list[Bar]:
    """Return the bars of measured rows, for `traffic_bars`: each row in each ledger."""
    bars = []
    for row in rows:
        for ledger in ledgers:
            if ledger == "DRAM":
                bars.append(Bar(row.variant, ledger, row.bytes_dram_read, row.bytes_dram_write))
            elif ledger in LEDGERS:
                total: int | None = getattr(row, f"bytes_{ledger}")
                bars.append(Bar(row.variant, ledger, total=total))
            else:
                raise ValueError(f"ledger {ledger!r} is unknown; known: {', '.join(LEDGERS)}")
    return bars


def traffic_of_ledger(
    variant: str, ledger: Ledger, ledgers: Sequence[str] = ("unique",)
) -> list[Bar]:
    """Return the bars of a counted ledger, for `traffic_bars`: `unique`, `requested` or both."""
    bars = []
    for name in ledgers:
        if name not in ("unique", "requested"):
            raise ValueError(f"ledger {name!r} is not counted; it takes 'unique' or 'requested'")
        moved = [tensor for step in ledger for tensor in step.tensors]
        read = sum(getattr(tensor, f"read_{name}") for tensor in moved)
        written = sum(getattr(tensor, f"write_{name}") for tensor in moved)
        bars.append(Bar(variant, name, read, written))
    return bars


def _bar(axes: Axes, y: float, bar: Bar, factor: float, unit: str, span: float) -> None:
    """Draw one bar at height `y`; `span` is the width of the axis in bytes."""
    color, total = look(bar.variant).color, bar.bytes
    if total is None:
        axes.annotate(
            "not measured",
            (0, y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            style="italic",
            color=page().muted,
            bbox={"facecolor": page().paper, "edgecolor": "none", "pad": 1},
        )
        return
    split = bar.read is not None and bar.written is not None
    parts = (
        [(bar.read or 0, ""), (bar.written or 0, WRITE_HATCH)] if split else [(total, BOTH_HATCH)]
    )
    left = 0.0
    for size, hatch in parts:
        if not size:
            continue
        axes.barh(
            y,
            size / factor,
            left=left / factor,
            height=0.72,
            color=(color, 0.35) if hatch == WRITE_HATCH else color,
            edgecolor=color if hatch == WRITE_HATCH else (page().ink, 0.5),
            hatch=hatch,
            linewidth=0.8,
        )
        if split and size > 0.13 * span:
            written = hatch == WRITE_HATCH
            axes.text(
                (left + size / 2) / factor,
                y,
                digits(size / factor),
                ha="center",
                va="center",
                color=page().ink if written else ink_on(color),
                # The line of the ideal bytes must not run through a number.
                bbox={
                    "facecolor": page().paper if written else color,
                    "edgecolor": "none",
                    "pad": 1.5,
                },
            )
        left += size
    axes.annotate(
        f"{digits(total / factor)} {unit}",
        (total / factor, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        weight="bold",
        bbox={"facecolor": page().paper, "edgecolor": "none", "pad": 1},
    )


@themed
def traffic_bars(bars: Sequence[Bar], title: str, ideal_bytes: int | None = None) -> Figure:
    """Draw bytes moved as bars: a bar a variant, or a group of ledgers a variant.

    Reads are solid, writes hatched; a ledger that does not tell them apart is dotted. A dashed
    line stands at `ideal_bytes`, if given.
    """
    if not bars:
        raise ValueError("bars is empty; traffic_bars takes at least one Bar")
    largest = max([bar.bytes or 0 for bar in bars] + [ideal_bytes or 0, 1])
    factor, letter = scale(largest)
    unit = f"{letter}B"
    span = 1.27 * largest
    groups = [(name, list(group)) for name, group in groupby(bars, key=lambda bar: bar.variant)]
    grouped = any(len(group) > 1 for _, group in groups)
    figure = new_figure(0.34 * (len(bars) + 0.9 * len(groups) * grouped) + 1.7)
    axes = figure.subplots()
    axes.set_xlim(0, span / factor)
    places, labels, y = [], [], 0.0
    for variant, group in groups:
        if grouped:
            box = {"facecolor": page().paper, "edgecolor": "none", "pad": 1}
            axes.text(0, y, f" {variant}", va="center", weight="bold", bbox=box)
            y += 0.9
        for bar in group:
            _bar(axes, y, bar, factor, unit, span)
            places.append(y)
            labels.append(bar.ledger if grouped else variant)
            y += 1
    axes.set_ylim(y - 0.4, -0.6)
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    ledgers = {bar.ledger for bar in bars}
    what = "bytes moved" if grouped or len(ledgers) > 1 else f"{bars[0].ledger} bytes"
    axes.set_xlabel(f"{what}, {unit} (decimal)")
    axes.set_title(title)
    if ideal_bytes is not None:
        axes.axvline(ideal_bytes / factor, color=page().ink, linestyle="--", linewidth=1.2)
    _bar_legend(
        figure, bars, f"{digits(ideal_bytes / factor)} {unit}" if ideal_bytes is not None else ""
    )
    return figure


def _bar_legend(figure: Figure, bars: Sequence[Bar], ideal: str) -> None:
    muted, measured = page().muted, [bar for bar in bars if bar.bytes is not None]
    handles: list[object] = []
    if any(bar.read is not None and bar.written is not None for bar in measured):
        handles.append(Patch(facecolor=muted, label="read"))
        handles.append(
            Patch(facecolor=(muted, 0.3), edgecolor=muted, hatch=WRITE_HATCH, label="written")
        )
    if any(bar.read is None or bar.written is None for bar in measured):
        label = "read and written together"
        handles.append(
            Patch(facecolor=muted, edgecolor=(page().ink, 0.5), hatch=BOTH_HATCH * 2, label=label)
        )
    if ideal:
        line = figure.axes[0].plot([], [], color=page().ink, linestyle="--")[0]
        line.set_label(f"ideal, {ideal}")
        handles.append(line)
    if handles:
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=2 if ideal and len(handles) > 3 else 3,
            handlelength=1.6,
            columnspacing=1.4,
        )


def _gbs(row: Row, time_us: float | None) -> float | None:
    if row.bytes_ideal is None or not time_us:
        return None
    return row.bytes_ideal / time_us / 1e3


@themed
def sweep(
    rows: Iterable[Row],
    title: str,
    x: str = "bytes_ideal",
    ceiling_gbs: float | None = None,
    ceiling_label: str = "copy",
) -> Figure:
    """Draw ideal bytes per second against size: a line a variant, its band p20 to p95.

    `x` names a column of bytes. GB/s count the ideal bytes, so that a variant that moves more is
    lower for it. Rows without a time or without `x` are left out. A dashed line is the ceiling.
    """
    rows = [row for row in rows if getattr(row, x) and _gbs(row, row.time_us_p50) is not None]
    if not rows:
        raise ValueError(f"no row has both a time and {x}; sweep takes at least one")
    figure = new_figure(3.7)
    axes = figure.subplots()
    sizes = [getattr(row, x) for row in rows]
    factor, letter = scale(max(sizes))
    top = max([_gbs(row, row.time_us_p20 or row.time_us_p50) or 0 for row in rows])
    top = 1.12 * max(top, ceiling_gbs or 0)
    ends = []
    for variant in dict.fromkeys(row.variant for row in rows):
        own = sorted((r for r in rows if r.variant == variant), key=lambda r: getattr(r, x))
        places = [getattr(row, x) / factor for row in own]
        middle = [_gbs(row, row.time_us_p50) or 0.0 for row in own]
        high = [_gbs(row, row.time_us_p20 or row.time_us_p50) or 0.0 for row in own]
        low = [_gbs(row, row.time_us_p95 or row.time_us_p50) or 0.0 for row in own]
        color, marker = look(variant).color, look(variant).marker
        axes.fill_between(places, low, high, color=color, alpha=0.25, linewidth=0)
        axes.plot(
            places,
            middle,
            color=color,
            marker=marker,
            markersize=8,
            markeredgecolor=page().ink,
            markeredgewidth=0.7,
            gid=f"variant:{variant}",
        )
        ends.append((variant, places[-1], middle[-1]))
    largest, smallest = max(sizes) / factor, min(sizes) / factor
    decades = max(largest / smallest, 4.0)
    axes.set_xscale("log")
    axes.set_xlim(smallest / decades**0.06, largest * decades**0.42)
    axes.set_ylim(0, top)
    column = largest * decades**0.07
    label_places = spread([end[2] for end in ends], 0.075 * top, 0.03 * top, 0.97 * top)
    for (variant, end_x, end_y), y in zip(ends, label_places, strict=True):
        axes.plot([end_x, column], [end_y, y], color=page().muted, linewidth=0.7, zorder=0)
        box = {"facecolor": page().paper, "edgecolor": "none", "pad": 1}
        axes.text(column, y, f" {variant}", va="center", bbox=box)
    if ceiling_gbs is not None:
        axes.axhline(ceiling_gbs, color=page().ink, linestyle="--", linewidth=1.2)
        label = f"{ceiling_label}: {digits(ceiling_gbs)} GB/s"
        axes.annotate(
            label,
            (0, ceiling_gbs),
            xycoords=axes.get_yaxis_transform(),
            xytext=(4, 3),
            textcoords="offset points",
        )
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 300 else (1,)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda _value, _: "")
    axes.grid(axis="y")
    axes.set_xlabel(f"{x.removeprefix('bytes_')} bytes, {letter}B (decimal, log scale)")
    axes.set_ylabel("ideal bytes per second, GB/s")
    axes.set_title(title)
    if any(row.time_us_p20 or row.time_us_p95 for row in rows):
        band = Patch(facecolor=(page().muted, 0.4), label="band: 20th to 95th percentile of time")
        figure.legend(handles=[band], loc="outside lower left")
    return figure


_CURVE_MARKERS = "osD^vP*"


@themed
def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    x_label: str,
    y_label: str,
) -> Figure:
    """Draw named curves (x, y) on logarithmic axes, each with its own colour and marker.

    A value of 0 has no logarithm and is left out. Labels carry the units.
    """
    if not series:
        raise ValueError("series is empty; curves takes at least one")
    figure = new_figure(3.6)
    axes = figure.subplots()
    for number, (name, (xs, ys)) in enumerate(series.items()):
        drawn = [(x, y) for x, y in zip(xs, ys, strict=True) if x > 0 and y > 0]
        axes.plot(
            [x for x, _ in drawn],
            [y for _, y in drawn],
            color=CYCLE[number % len(CYCLE)],
            marker=_CURVE_MARKERS[number % len(_CURVE_MARKERS)],
            label=name,
        )
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label, title=title)
    label_powers(axes)
    figure.legend(loc="outside lower center", ncols=2)
    return figure
