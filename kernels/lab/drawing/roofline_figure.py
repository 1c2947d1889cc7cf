"""The picture of a roofline: points and intensity lines under a card's two ceilings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kernels.lab.cards.roofline import (
    DRAM,
    UNIQUE,
    Ceilings,
    IntensityLine,
    Point,
    ceilings_of,
    points_of,
)
from kernels.lab.drawing.style import (
    digits,
    duration,
    label_powers,
    look,
    new_figure,
    page,
    quantity,
    scale,
    spread,
    themed,
)
from kernels.lab.records.data import Recording, Row

_LINE_STYLES = ("--", "-.", ":", (0, (6, 1.5)))


def roofline_of_rows(
    rows: Iterable[Row],
    ceilings: Recording,
    dtype: str,
    title: str = "",
    lines: Sequence[IntensityLine] = (),
    issued: Mapping[str, float] | None = None,
) -> Figure:
    """Draw measured rows under the ceilings recorded on a card.

    `dtype` is that of the arithmetic: a norm of bf16 tensors computes in fp32. Variants without
    bytes, FLOPs or a time are named under the figure. `issued` as in `roofline`.
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
        issued=issued,
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
    return left, right, bottom / 4, roof.compute_flops_per_s * 3


def _draw_roof(axes: Axes, roof: Ceilings, angle: float, crossed: Sequence[float]) -> None:
    """Draw both ceilings and the ridge; at `crossed` something lies on the slope."""
    left, right = axes.get_xlim()
    ink = page().ink
    axes.plot(
        [left, roof.ridge, right],
        [roof.bound(left), roof.compute_flops_per_s, roof.compute_flops_per_s],
        color=ink,
        linewidth=2,
        gid="roof",
    )
    # The slope's label stands in the widest part of the slope that no line crosses.
    end = max(0.6 * roof.ridge, 1.1 * left)  # short of the ridge, where the other label stands
    stops = [math.log10(x) for x in sorted([left, *crossed, end]) if left <= x <= end]
    _, start, stop = max((b - a, a, b) for a, b in itertools.pairwise(stops))
    middle = 10 ** ((start + stop) / 2)
    axes.annotate(
        f"{roof.bandwidth_label} {quantity(roof.bandwidth_bytes_per_s, 'B/s')}",
        (middle, roof.bound(middle)),
        xytext=(-5, 7),
        textcoords="offset points",
        rotation=angle,
        rotation_mode="anchor",
        ha="center",
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
    # Its label stands on the right, or on the left where a line runs close by on the right.
    close = any(roof.ridge < x < 8 * roof.ridge for x in crossed)
    axes.annotate(
        f"ridge\n{digits(roof.ridge)} FLOP/B",
        (roof.ridge, axes.get_ylim()[0]),
        xytext=(-18 if close else 4, 4),
        textcoords="offset points",
        ha="right" if close else "left",
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
            f" {point.variant} {duration(point.time_us)}",
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
    for number, (line, place) in enumerate(zip(lines, places, strict=True)):
        axes.plot(
            [line.intensity, line.intensity],
            [bottom, roof.bound(line.intensity)],
            color=page().ink,
            linestyle=_LINE_STYLES[number % len(_LINE_STYLES)],
            linewidth=1.5,
            gid=f"line:{line.label}",
        )
        axes.text(
            10**place,
            bottom * 1.2,
            line.label,
            rotation=90,
            ha="center",
            va="bottom",
            bbox={"facecolor": page().paper, "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )


def _issue_roofs(points: Sequence[Point], issued: Mapping[str, float]) -> dict[str, float]:
    """FLOP/s at which each variant's instructions would fill every issue slot, by its name."""
    if unknown := sorted(set(issued) - {point.variant for point in points}):
        raise ValueError(f"issued names {unknown[0]!r}, which has no point in the figure")
    if wrong := [name for name, share in issued.items() if not 0 < share <= 100]:
        raise ValueError(
            f"issued[{wrong[0]!r}] is {issued[wrong[0]]}; it takes percent, above 0 and up to 100"
        )
    used = {point.variant: point.flops_per_s for point in points if point.variant in issued}
    return {name: flops_per_s / issued[name] * 100 for name, flops_per_s in used.items()}


def _draw_issue_roofs(axes: Axes, points: Sequence[Point], roofs: Mapping[str, float]) -> None:
    """Draw a bar above each point, at what its instructions allow, and the way up to it."""
    for point in points:
        if point.variant not in roofs:
            continue
        color, height = look(point.variant).color, roofs[point.variant]
        axes.plot(
            [point.intensity / 1.5, point.intensity * 1.5],
            [height, height],
            color=color,
            linewidth=3,
            solid_capstyle="butt",
            gid=f"issue:{point.variant}",
        )
        axes.plot(
            [point.intensity] * 2,
            [point.flops_per_s, height],
            color=color,
            linestyle=":",
            linewidth=1.5,
        )


def _draw_legend(
    figure: Figure,
    points: Sequence[Point],
    lines: Sequence[IntensityLine],
    roof: Ceilings,
    unplaced: Sequence[str],
    issue_roofs: Mapping[str, float],
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
    for number, line in enumerate(lines):
        label = (
            f"{line.label}, no time: {digits(line.intensity)} FLOP/B, "
            f"at most {quantity(roof.bound(line.intensity), 'FLOP/s')}"
        )
        style = _LINE_STYLES[number % len(_LINE_STYLES)]
        handles.append(Line2D([], [], color=page().ink, linestyle=style, label=label))
    for name, height in issue_roofs.items():
        label = f"{name} with every issue slot used: {quantity(height, 'FLOP/s')}"
        handles.append(Line2D([], [], color=look(name).color, linewidth=3, label=label))
    if unplaced:
        label = f"not placed, bytes not measured: {', '.join(dict.fromkeys(unplaced))}"
        handles.append(Line2D([], [], linestyle="none", label=label))
    if handles:
        figure.legend(handles=handles, loc="outside lower left", handlelength=1.6)


def _tick(value: float, _position: float) -> str:
    factor, letter = scale(value)
    return f"{value / factor:g} {letter}".strip()


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
    issued: Mapping[str, float] | None = None,
) -> Figure:
    """Draw points and intensity lines under a card's two ceilings, log–log.

    A full marker counts the bytes that DRAM moved, a hollow one the unique bytes. A kernel with
    no time is a line, up to the most it could reach. `unplaced` names variants that were left out.
    `issued` gives the share of the issue slots, in percent, that a variant's kernel used: a bar
    above its point is a roof of its own, where its instructions would fill every slot. ValueError
    for a variant that has no point, and for a share that is none.
    """
    roof = Ceilings(
        card, bandwidth_bytes_per_s, bandwidth_label, compute_flops_per_s, compute_label
    )
    figure = new_figure(4.6)
    axes = figure.subplots()
    left, right, bottom, top = _limits(points, lines, roof)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    label_powers(axes)
    axes.set_xlabel("FLOP per byte")
    axes.set_ylabel("FLOP/s")
    axes.set_title(title or f"Roofline of {card}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_tick)
    axes.grid()
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)  # the slope's label is turned by what comes out
    box = axes.get_window_extent()
    per_x = box.width / math.log10(right / left)
    per_y = box.height / math.log10(top / bottom)
    line_height = 15 * figure.dpi / 72 / per_y  # decades that a line of text takes
    crossed = [line.intensity for line in lines]
    crossed += [p.intensity for p in points if p.flops_per_s > 0.75 * roof.bound(p.intensity)]
    _draw_roof(axes, roof, math.degrees(math.atan2(per_y, per_x)), crossed)
    issue_roofs = _issue_roofs(points, issued or {})
    _draw_issue_roofs(axes, points, issue_roofs)
    _draw_points(axes, points, roof, line_height)
    _draw_lines(axes, lines, roof, 15 * figure.dpi / 72 / per_x)
    _draw_legend(figure, points, lines, roof, unplaced, issue_roofs)
    return figure
