"""The roofline: FLOP/s against FLOPs per byte, under the ceilings of a card.

Left of the ridge a kernel waits for memory, right of it for arithmetic. Ceilings are measured: a
large copy, and the largest matrix product of the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kernels.lab.data import Recording, Row
from kernels.lab.style import digits, look, new_figure, page, quantity, spread, themed

DRAM, UNIQUE = "DRAM", "unique"


@dataclass(frozen=True)
class Point:
    """One measured variant: its FLOPs, its time in µs, and its bytes.

    `bytes_of` says which bytes they are: `DRAM` (measured) or `unique` (counted).
    """

    variant: str
    flops: int
    bytes: int
    time_us: float
    bytes_of: str = UNIQUE

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        """FLOPs per second."""
        return self.flops / self.time_us * 1e6


@dataclass(frozen=True)
class IntensityLine:
    """A kernel with no time, as a line: its FLOPs per byte, and a name."""

    label: str
    intensity: float


@dataclass(frozen=True)
class Ceilings:
    """What a card was measured to do at most: bytes per second and FLOPs per second."""

    card: str
    bandwidth_bytes_per_s: float
    bandwidth_label: str
    compute_flops_per_s: float
    compute_label: str

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both ceilings meet."""
        return self.compute_flops_per_s / self.bandwidth_bytes_per_s

    def bound(self, intensity: float) -> float:
        """FLOPs per second that a kernel of this intensity can reach at most."""
        return min(self.compute_flops_per_s, intensity * self.bandwidth_bytes_per_s)


def ceilings_of(recording: Recording, dtype: str) -> Ceilings:
    """Return the ceilings in a recording of suite `ceilings`, the arithmetic's in `dtype`.

    They are the largest copy (op `copy`) and the largest product (op `matmul`), both variant
    `torch`, timing `graph`. LookupError with one sentence if either is missing.
    """

    def largest(op: str, size: str, **wanted: str) -> tuple[Row, float]:
        rows = recording.select(op=op, variant="torch", timing="graph", **wanted)
        rows = [row for row in rows if row.time_us_p50 and getattr(row, size)]
        if not rows:
            which = f"{op} in {dtype}" if wanted else op
            raise LookupError(f"{recording.gpu}/{recording.suite} has no timed {which} of torch")
        row = max(rows, key=lambda row: getattr(row, size))
        return row, getattr(row, size) / (row.time_us_p50 or math.inf) * 1e6

    _, bandwidth = largest("copy", "bytes_ideal")
    product, compute = largest("matmul", "flops", dtype=dtype)
    return Ceilings(recording.gpu, bandwidth, "copy", compute, f"{product.dtype} product")


def points_of(rows: Iterable[Row]) -> tuple[list[Point], list[str]]:
    """Return the rows as points, and the variants that cannot be placed.

    A point takes its DRAM bytes where they were measured, else the counted unique bytes. A row
    without either, or without FLOPs or a time, cannot be placed.
    """
    points, unplaced = [], []
    for row in rows:
        if row.bytes_dram_read is not None and row.bytes_dram_write is not None:
            moved, source = row.bytes_dram_read + row.bytes_dram_write, DRAM
        else:
            moved, source = row.bytes_unique or 0, UNIQUE
        if moved and row.flops and row.time_us_p50:
            points.append(Point(row.variant, row.flops, moved, row.time_us_p50, source))
        else:
            unplaced.append(row.variant)
    return points, unplaced


def roofline_of_rows(
    rows: Iterable[Row],
    ceilings: Recording,
    dtype: str,
    title: str = "",
    lines: Sequence[IntensityLine] = (),
) -> Figure:
    """Draw measured rows under the ceilings recorded on a card.

    `dtype` is that of the arithmetic: a norm of bf16 tensors computes in fp32. Variants without
    bytes, FLOPs or a time are named under the figure.
    """
    points, unplaced = points_of(rows)
    found = ceilings_of(ceilings, dtype)
    return roofline(
        points,
        found.bandwidth_bytes_per_s,
        found.compute_flops_per_s,
        found.card,
        found.bandwidth_label,
        lines=lines,
        compute_label=found.compute_label,
        title=title,
        unplaced=unplaced,
    )


def _limits(
    points: Sequence[Point], lines: Sequence[IntensityLine], roof: Ceilings
) -> tuple[float, float, float, float]:
    """Return the limits of x and y: every point, line and the ridge, with room for labels."""
    places = [p.intensity for p in points] + [line.intensity for line in lines]
    left = min([*places, roof.ridge]) / 4
    # The labels stand right of the last point and take 40 % of the width.
    room = max((p.intensity for p in points), default=left) / left
    right = max(roof.ridge * 6, max(places, default=0) * 4, left * room ** (1 / 0.6))
    bottom = min([p.flops_per_s for p in points] + [roof.bound(left)])
    return left, right, bottom / 3, roof.compute_flops_per_s * 4


def _draw_roof(axes: Axes, roof: Ceilings, angle: float, at: float) -> None:
    """Draw both ceilings and the ridge; `at` is where the slope's label begins."""
    left, right = axes.get_xlim()
    ink = page().ink
    axes.plot(
        [left, roof.ridge, right],
        [roof.bound(left), roof.compute_flops_per_s, roof.compute_flops_per_s],
        color=ink,
        linewidth=2,
        gid="roof",
    )
    axes.annotate(
        f"{roof.bandwidth_label} {quantity(roof.bandwidth_bytes_per_s, 'B/s')}",
        (at, roof.bound(at)),
        xytext=(-4, 5),
        textcoords="offset points",
        rotation=angle,
        rotation_mode="anchor",
    )
    axes.annotate(
        f"{roof.compute_label} {quantity(roof.compute_flops_per_s, 'FLOP/s')}".strip(),
        (right, roof.compute_flops_per_s),
        xytext=(0, 5),
        textcoords="offset points",
        ha="right",
    )
    axes.plot(
        [roof.ridge, roof.ridge],
        [axes.get_ylim()[0], roof.compute_flops_per_s],
        color=page().muted,
        linestyle=":",
        linewidth=1.2,
    )
    axes.annotate(
        f"ridge\n{digits(roof.ridge)} FLOP/B",
        (roof.ridge, axes.get_ylim()[0]),
        xytext=(4, 4),
        textcoords="offset points",
        color=page().muted,
    )


def _draw_points(axes: Axes, points: Sequence[Point], roof: Ceilings, gap: float) -> None:
    """Draw the points, and their labels in a column right of them, `gap` decades apart."""
    for point in points:
        kind = look(point.variant)
        axes.plot(
            [point.intensity],
            [point.flops_per_s],
            linestyle="none",
            marker=kind.marker,
            markersize=10,
            markerfacecolor=kind.color if point.bytes_of == DRAM else page().paper,
            markeredgecolor=page().ink if point.bytes_of == DRAM else kind.color,
            markeredgewidth=0.8 if point.bytes_of == DRAM else 2,
            zorder=3,
            gid=f"point:{point.variant}",
        )
    if not points:
        return
    left, right = axes.get_xlim()
    column = max(p.intensity for p in points) * (right / left) ** 0.05
    low, high = math.log10(axes.get_ylim()[0]), math.log10(roof.bound(column))
    wanted = [math.log10(point.flops_per_s) for point in points]
    heights = spread(wanted, gap, low + gap, high - gap * 0.8)
    for point, height in zip(points, heights, strict=True):
        axes.plot(
            [point.intensity, column],
            [point.flops_per_s, 10**height],
            color=page().muted,
            linewidth=0.7,
        )
        axes.text(
            column,
            10**height,
            f" {point.variant} {digits(point.time_us)} µs",
            va="center",
            bbox={"facecolor": page().paper, "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )


def _draw_lines(axes: Axes, lines: Sequence[IntensityLine], roof: Ceilings, gap: float) -> None:
    """Draw the kernels without a time; their labels stand at least `gap` decades apart."""
    bottom = axes.get_ylim()[0]
    places = spread(
        [math.log10(line.intensity) - 0.55 * gap for line in lines],
        gap,
        *(math.log10(limit) for limit in axes.get_xlim()),
    )
    for line, place in zip(lines, places, strict=True):
        axes.plot(
            [line.intensity, line.intensity],
            [bottom, roof.bound(line.intensity)],
            color=page().ink,
            linestyle="--",
            linewidth=1.5,
            gid=f"line:{line.label}",
        )
        axes.text(
            10**place,
            bottom * 1.2,
            f"{line.label}: {digits(line.intensity)} FLOP/B",
            rotation=90,
            ha="center",
            va="bottom",
            bbox={"facecolor": page().paper, "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )


def _draw_legend(
    figure: Figure, points: Sequence[Point], lines: Sequence[IntensityLine], unplaced: Sequence[str]
) -> None:
    muted, paper = page().muted, page().paper
    handles = []
    for source, face, text in (
        (DRAM, muted, "bytes that DRAM moved, measured"),
        (UNIQUE, paper, "unique bytes, counted"),
    ):
        if any(point.bytes_of == source for point in points):
            marker = Line2D([], [], linestyle="none", marker="o", markersize=9, label=text)
            marker.set(markerfacecolor=face, markeredgecolor=muted, markeredgewidth=2)
            handles.append(marker)
    if lines:
        label = "intensity only, no time"
        handles.append(Line2D([], [], color=page().ink, linestyle="--", label=label))
    if unplaced:
        label = f"not placed, bytes not measured: {', '.join(dict.fromkeys(unplaced))}"
        handles.append(Line2D([], [], linestyle="none", label=label))
    if handles:
        figure.legend(handles=handles, loc="outside lower left", handlelength=1.6)


def _tick(value: float, _position: int) -> str:
    return quantity(value, "").strip() if value >= 1 else f"{value:g}"


@themed
def roofline(
    points: Sequence[Point],
    bandwidth_bytes_per_s: float,
    compute_flops_per_s: float,
    card: str,
    bandwidth_label: str,
    lines: Sequence[IntensityLine] = (),
    compute_label: str = "",
    title: str = "",
    unplaced: Sequence[str] = (),
) -> Figure:
    """Draw points and intensity lines under a card's two ceilings, log–log.

    A full marker counts the bytes that DRAM moved, a hollow one the unique bytes. A kernel with
    no time is a line, up to the most it could reach. `unplaced` names variants that were left out.
    """
    roof = Ceilings(
        card, bandwidth_bytes_per_s, bandwidth_label, compute_flops_per_s, compute_label
    )
    figure = new_figure(4.6)
    axes = figure.subplots()
    left, right, bottom, top = _limits(points, lines, roof)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    axes.set_xlabel("FLOP per byte")
    axes.set_ylabel("FLOP/s")
    axes.set_title(title or f"Roofline of {card}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_tick)
    axes.grid()
    figure.draw_without_rendering()
    box = axes.get_window_extent()
    per_x = box.width / math.log10(right / left)
    per_y = box.height / math.log10(top / bottom)
    line_height = 15 * figure.dpi / 72 / per_y  # decades that a line of text takes
    start = 10 ** (math.log10(left) + 12 * figure.dpi / 72 / per_x)
    _draw_roof(axes, roof, math.degrees(math.atan2(per_y, per_x)), start)
    _draw_points(axes, points, roof, line_height)
    _draw_lines(axes, lines, roof, 15 * figure.dpi / 72 / per_x)
    _draw_legend(figure, points, lines, unplaced)
    return figure
