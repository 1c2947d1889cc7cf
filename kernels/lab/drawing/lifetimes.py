"""Pictures of a data flow: memory over the launches of a layer, and arcs from writer to reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Patch, Rectangle

from kernels.lab.counting.flow import Carried, Flow
from kernels.lab.counting.ledger import Ledger
from kernels.lab.drawing.strips import _LINE, short_name
from kernels.lab.drawing.style import (
    CYCLE,
    ink_on,
    new_figure,
    page,
    quantity,
    scale,
    spread,
    themed,
)

HELD = "xxxx"  # memory that is taken and that nobody reads any more


def offsets(carried: Sequence[Carried]) -> list[int]:
    """Where each tensor lies in one piece of memory, in bytes: the first gap that it fits into.

    In the order of their writers, as an allocator is asked for them.
    """
    found: list[int] = []
    for number, one in enumerate(carried):
        beside = sorted(
            (place, place + other.size)
            for place, other in zip(found, carried[:number], strict=True)
            if other.writer <= one.until and one.writer <= other.until
        )
        place = 0
        for start, end in beside:
            if start - place >= one.size:
                break
            place = max(place, end)
        found.append(place)
    return found


@themed
def lifetimes(flow: Flow, title: str) -> Figure:
    """Draw memory over launches: a box a tensor, as high as its bytes, as long as it is held.

    A notch marks the launches that read it. Crossed is what is still held and no longer read. The
    dashed line is the most bytes at once. Names of the launches stand below.
    """
    steps = flow.ledger.steps
    places = offsets(flow.carried)
    top = max(place + one.size for place, one in zip(places, flow.carried, strict=True))
    factor, letter = scale(top)
    listed = _LINE * (len(steps) + 1)
    figure = new_figure(3.3 + listed)
    axes, text = figure.subplots(2, 1, height_ratios=[3.0, listed])
    for number, (one, place) in enumerate(zip(flow.carried, places, strict=True)):
        _lifetime(axes, one, place / factor, one.size / factor, CYCLE[number % len(CYCLE)])
    axes.axhline(flow.peak / factor, color=page().ink, linestyle="--", linewidth=1.2)
    most = f"at most {quantity(flow.peak, 'B')} at once"
    axes.annotate(
        *(most, (0.52, flow.peak / factor)),
        xytext=(0, 4),
        textcoords="offset points",
    )
    axes.set(xlim=(0.5, len(steps) + 0.5), ylim=(0, 1.14 * top / factor))
    axes.set_xticks(range(1, len(steps) + 1))
    axes.set_xlabel("launch")
    axes.set_ylabel(f"memory, {letter}B (decimal)")
    axes.set_title(title)
    text.set(xlim=(0, 1), ylim=(len(steps) + 0.2, -0.5))
    text.axis("off")
    for number, step in enumerate(steps, 1):
        text.text(0.03, number - 1, str(number), ha="center", va="center", weight="bold")
        text.text(0.075, number - 1, short_name(step.name), va="center")
        now = f"{quantity(flow.bytes_alive(number), 'B')} taken"
        text.text(1, number - 1, now, va="center", ha="right")
    if any(one.until > one.needed_until for one in flow.carried if one.readers):
        muted = page().muted
        told = Patch(facecolor="none", edgecolor=muted, hatch=HELD, label="held, no longer read")
        figure.legend(handles=[told], loc="outside lower left")
    return figure


def _lifetime(axes: Axes, one: Carried, bottom: float, height: float, color: str) -> None:
    left, needed = one.writer - 0.5, one.needed_until + 0.5
    if not one.readers:
        needed = one.until + 0.5
    look: dict[str, Any] = {"facecolor": color, "edgecolor": page().paper, "linewidth": 1}
    axes.add_patch(Rectangle((left, bottom), needed - left, height, gid="needed", **look))
    if one.until + 0.5 > needed:
        held: dict[str, Any] = {
            "facecolor": "none",
            "edgecolor": color,
            "hatch": HELD,
            "linewidth": 1,
        }
        axes.add_patch(
            Rectangle((needed, bottom), one.until + 0.5 - needed, height, gid="held", **held)
        )
    for reader in one.readers:
        axes.plot([reader], [bottom], marker="^", markersize=5, color=ink_on(color), clip_on=False)
    axes.text(
        (left + needed) / 2,
        bottom + height / 2,
        one.name,
        ha="center",
        va="center",
        color=ink_on(color),
    )


@themed
def arcs(ledger: Ledger, title: str, without: frozenset[str] = frozenset()) -> Figure:
    """Draw who writes what for whom: a line a launch or operator, an arc a tensor and a reader.

    An arc leads down from the step that writes a tensor to one that reads it, as thick as it is
    large. Arcs from above the first line are given tensors. `without` names what is left out.
    """
    steps = ledger.steps
    written: dict[str, int] = {}
    found: list[tuple[str, int, int, int]] = []  # name, bytes, from, to
    for number, step in enumerate(steps, 1):
        for tensor in step.tensors:
            if tensor.tensor not in without and tensor.read_unique:
                start = written.get(tensor.tensor, 0)
                found.append((tensor.tensor, tensor.read_unique, start, number))
        for tensor in step.tensors:
            if tensor.write_unique:
                written[tensor.tensor] = number
    if not found:
        raise ValueError("no step reads a tensor; arcs takes a ledger in which one does")
    most = max(size for _, size, _, _ in found)
    longest = max(end - start for _, _, start, end in found)
    names = list(dict.fromkeys(name for name, *_ in found))
    figure = new_figure(0.34 * (len(steps) + 1) + 0.7)
    axes = figure.subplots()
    axes.set(xlim=(-4.0, 6.4), ylim=(len(steps) + 0.5, -0.5), title=title)
    axes.axis("off")
    for number, step in enumerate(steps, 1):
        axes.text(-0.25, number, short_name(step.name.strip("_"), 22), ha="right", va="center")
        axes.plot([0], [number], marker="s", markersize=7, color=page().ink)
    if any(start == 0 for _, _, start, _ in found):
        axes.text(-0.25, 0, "given", ha="right", va="center", style="italic")
        axes.plot([0], [0], marker="o", markersize=6, color=page().muted)
    reach: dict[
        str, tuple[float, float, int]
    ] = {}  # of each tensor its longest arc, where its name stands
    for name, size, start, end in found:
        color = CYCLE[names.index(name) % len(CYCLE)]
        wide = 0.6 + 1.6 * (end - start - 1) / max(1, longest - 1)
        thick = 1 + 4 * size / most
        middle = (start + end) / 2
        axes.add_patch(
            Arc(
                (0, middle),
                2 * wide,
                end - start,
                theta1=-90,
                theta2=90,
                color=color,
                linewidth=thick,
                gid="arc",
            )
        )
        if name not in reach or wide > reach[name][0]:
            reach[name] = wide, middle, size
    order = list(reach)
    places = spread([reach[name][1] for name in order], 0.52, -0.3, len(steps) + 0.4)
    for name, y in zip(order, places, strict=True):
        wide, middle, size = reach[name]
        label = f"{short_name(name, 18)}, {quantity(size, 'B')}"
        color = CYCLE[names.index(name) % len(CYCLE)]
        axes.plot([wide + 0.05, 2.6], [middle, y], color=page().muted, linewidth=0.7, zorder=0)
        axes.plot([2.6], [y], marker="s", markersize=6, color=color)
        axes.text(2.75, y, label, va="center")
    return figure
