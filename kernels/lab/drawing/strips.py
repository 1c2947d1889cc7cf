"""Pictures of what happens in order: launches in time, operations by tensor, programs by byte."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from kernels.lab.counting.ledger import Ledger
from kernels.lab.drawing.style import (
    BLUE,
    CYCLE,
    FONT_SIZE,
    ORANGE,
    WIDTH,
    WRITE_HATCH,
    digits,
    ink_on,
    new_figure,
    page,
    scale,
    spread,
    themed,
)
from kernels.launch import Access

_LINE = 0.2  # inches a line of a list takes
_MOST_BINS = 512


@dataclass(frozen=True)
class TimedLaunch:
    """One launch of a kernel on the device; times in µs since the first."""

    name: str
    start_us: float
    duration_us: float
    stream: int = 0


@dataclass(frozen=True)
class Touch:
    """One load or store (`kind`) of a program: `count` elements from `start` on."""

    program: int
    kind: str
    start: int
    count: int


def short_name(name: str, most: int = 40) -> str:
    """Return a kernel's name without return type, namespaces and template arguments.

    What an elementwise or reducing kernel of PyTorch computes stands in brackets behind it.
    """
    bare = name.removeprefix("void ")
    head = re.split(r"[<(]", bare, maxsplit=1)[0].rsplit("::", 1)[-1]
    inside = r"CUDAFunctor_(\w+)|(\w+?)(?:_kernel_cuda|_kernel_impl|Functor|Ops?)\b"
    found = [a or b for a, b in re.findall(inside, bare[len(head) :])]
    short = next((f"{head} ({what})" for what in found if what.lower() not in head.lower()), head)
    return short if len(short) <= most else short[: most - 1] + "…"


def _with_list(lanes: float, lines: int) -> tuple[Figure, Axes, Axes]:
    """Return a figure with a picture of `lanes` inches above a list of `lines` lines."""
    listed = _LINE * lines
    figure = new_figure(lanes + listed + 1.0)
    picture, text = figure.subplots(2, 1, height_ratios=[lanes + 0.6, listed + 0.1])
    text.set(xlim=(0, 1), ylim=(lines - 0.3, -0.5))
    text.axis("off")
    return figure, picture, text


@themed
def timeline(launches: Sequence[TimedLaunch] | Sequence[tuple[str, float]], title: str) -> Figure:
    """Draw launches as boxes in time, a lane a stream, gaps between them hatched.

    Equal kernels have one number and colour, explained in the list below. Pairs of (name, µs)
    hold no gaps: they are laid end to end, and the figure says so.
    """
    if not launches:
        raise ValueError("launches is empty; timeline takes at least one")
    boxes: list[TimedLaunch] = []
    end_to_end = False
    for launch in launches:
        if isinstance(launch, TimedLaunch):
            boxes.append(launch)
        else:
            end_to_end = True
            start = boxes[-1].start_us + boxes[-1].duration_us if boxes else 0.0
            boxes.append(TimedLaunch(launch[0], start, launch[1]))
    begin = min(box.start_us for box in boxes)
    total = max(box.start_us + box.duration_us for box in boxes) - begin
    names = list(dict.fromkeys(box.name for box in boxes))
    streams = sorted({box.stream for box in boxes})
    figure, axes, text = _with_list(0.75 * len(streams), len(names) + 1)
    idle = 0.0
    for lane, stream in enumerate(streams):
        own = sorted((b for b in boxes if b.stream == stream), key=lambda box: box.start_us)
        until = own[0].start_us
        for box in own:
            gap = box.start_us - until
            if gap > 0:
                idle += gap
                _box(axes, until - begin, lane, gap, page().grid, "xxxx")
            until = max(until, box.start_us + box.duration_us)
            color = CYCLE[names.index(box.name) % len(CYCLE)]
            _box(axes, box.start_us - begin, lane, box.duration_us, color, "")
        _numbers(axes, own, [names.index(box.name) + 1 for box in own], lane, begin, total)
    axes.set(xlim=(0, total), ylim=(len(streams) - 0.6, -0.85))
    axes.set_yticks(range(len(streams)), [f"stream {stream}" for stream in streams])
    if len(streams) == 1:
        axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("time, µs")
    axes.set_title(title)
    for line, name in enumerate(names):
        own = [box for box in boxes if box.name == name]
        times = f"{len(own)} × " if len(own) > 1 else ""
        spent = sum(box.duration_us for box in own)
        label = f"{times}{short_name(name)}"
        _list_line(text, line, line + 1, label, f"{digits(spent)} µs")
    note = f"gaps, hatched: {digits(idle)} µs of {digits(total)} µs"
    if end_to_end:
        note = "laid end to end: gaps are left out"
    said = f"{len(boxes)} launches; {note}"
    text.text(0, len(names) + 0.2, said, va="center", color=page().muted)
    return figure


def _box(axes: Axes, start: float, lane: float, width: float, color: str, hatch: str) -> None:
    edge = page().muted if hatch else page().paper
    axes.add_patch(
        Rectangle(
            (start, lane - 0.3),
            width,
            0.6,
            facecolor=page().paper if hatch else color,
            edgecolor=edge,
            hatch=hatch,
            linewidth=0 if hatch else 0.8,
            gid="gap" if hatch else "launch",
        )
    )


def _numbers(
    axes: Axes,
    own: Sequence[TimedLaunch],
    numbers: Sequence[int],
    lane: int,
    begin: float,
    total: float,
) -> None:
    """Write each box's number above it, moved apart where boxes are narrow."""
    centres = [box.start_us - begin + box.duration_us / 2 for box in own]
    for x, place, number in zip(
        centres, spread(centres, 0.034 * total, 0.01 * total, 0.99 * total), numbers, strict=True
    ):
        axes.plot([x, place], [lane - 0.3, lane - 0.45], color=page().muted, linewidth=0.7)
        axes.text(place, lane - 0.47, str(number), ha="center", va="bottom", weight="bold")


def _list_line(axes: Axes, line: int, number: int, label: str, value: str) -> None:
    color = CYCLE[(number - 1) % len(CYCLE)]
    axes.text(
        0.03,
        line,
        str(number),
        ha="center",
        va="center",
        weight="bold",
        color=ink_on(color),
        bbox={"facecolor": color, "edgecolor": page().paper, "pad": 1.8},
    )
    axes.text(0.075, line, label, va="center")
    axes.text(1, line, value, va="center", ha="right")


def _cell(axes: Axes, column: int, top: float, text: str, written: bool) -> None:
    color = ORANGE if written else BLUE
    axes.add_patch(
        Rectangle(
            (column - 0.45, top),
            0.9,
            0.42,
            facecolor=(color, 0.3) if written else color,
            edgecolor=color,
            hatch=WRITE_HATCH if written else "",
            linewidth=1,
            gid="written" if written else "read",
        )
    )
    if text:
        box = {"facecolor": page().paper, "edgecolor": "none", "pad": 0.6}
        axes.text(
            column,
            top + 0.21,
            text,
            ha="center",
            va="center",
            color=page().ink if written else ink_on(color),
            bbox=box if written else None,
        )


@themed
def operations_strip(ledger: Ledger, title: str) -> Figure:
    """Draw which step moves which tensor: a row a tensor, a column a step.

    A solid cell is read, a hatched one below it written; the number in it is distinct bytes.
    """
    steps, tensors = ledger.steps, ledger.tensors
    if not steps:
        raise ValueError("the ledger has no steps; operations_strip takes at least one")
    cells = [n for s in steps for t in s.tensors for n in (t.read_unique, t.write_unique)]
    factor, letter = scale(max([*cells, 1]))
    unit = f"{letter}B"
    figure, axes, text = _with_list(0.5 * len(tensors) + 0.3, len(steps) + 1)
    roomy = (WIDTH - 1.0) / len(steps) > 0.42  # inches: a number fits a column
    for column, step in enumerate(steps, 1):
        for row, name in enumerate(tensors):
            moved = step.tensor(name)
            for size, top, written in (
                (moved.read_unique, row - 0.44, False),
                (moved.write_unique, row + 0.02, True),
            ):
                if size:
                    small = size < 0.1 * factor
                    label = "<0.1" if small else f"{digits(size / factor)}".removesuffix(".00")
                    _cell(axes, column, top, label if roomy else "", written)
        _list_line_plain(text, column, step.name, step.bytes_unique / factor, unit)
    whole = f"all steps: {digits(ledger.bytes_unique / factor)} {unit}"
    text.text(1, len(steps), whole, va="center", ha="right", weight="bold")
    axes.set(xlim=(0.5, len(steps) + 0.5), ylim=(len(tensors) - 0.5, -0.5))
    axes.set_yticks(range(len(tensors)), tensors)
    axes.set_xticks(range(1, len(steps) + 1))
    axes.set_xlabel("step")
    axes.set_ylabel("tensor")
    axes.set_title(title)
    axes.tick_params(length=0)
    for row in range(1, len(tensors)):
        axes.axhline(row - 0.5, color=page().grid, linewidth=1)
    handles = [
        Patch(facecolor=BLUE, label=f"read, {unit}"),
        Patch(
            facecolor=(ORANGE, 0.3), edgecolor=ORANGE, hatch=WRITE_HATCH, label=f"written, {unit}"
        ),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def _list_line_plain(axes: Axes, number: int, label: str, size: float, unit: str) -> None:
    axes.text(0.03, number - 1, str(number), ha="center", va="center", weight="bold")
    axes.text(0.075, number - 1, short_name(label), va="center")
    axes.text(1, number - 1, f"{digits(size)} {unit}", va="center", ha="right")


def runs_of_trace(trace: Iterable[Access]) -> dict[str, list[Touch]]:
    """Return a launch's trace as runs of consecutive elements, for `trace_map`, by tensor.

    `x_ptr` is told as `x`. An atomic is a load and a store.
    """
    runs: dict[str, list[Touch]] = {}
    for access in trace:
        told = runs.setdefault(access.argument.removesuffix("_ptr"), [])
        kinds = ("load", "store") if access.kind == "atomic" else (access.kind,)
        places = np.sort(access.offsets)
        for part in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            told += [Touch(access.program, kind, int(part[0]), part.size) for kind in kinds]
    return runs


def _touches(accesses: Iterable[Touch], size: int, bins: int) -> npt.NDArray[np.float64]:
    """Return how often each of `bins` equal parts of a tensor is touched, per element."""
    change = np.zeros(size + 1)
    for access in accesses:
        if access.start < 0 or access.start + access.count > size:
            last = access.start + access.count - 1
            raise ValueError(f"elements {access.start} to {last} lie outside a tensor of {size}")
        change[access.start] += 1
        change[access.start + access.count] -= 1
    edges = np.linspace(0, size, bins + 1).round().astype(int)
    below = np.concatenate([[0.0], np.cumsum(np.cumsum(change[:-1]))])
    touched: npt.NDArray[np.float64] = np.diff(below[edges]) / np.diff(edges)
    return touched


def _times(touched: npt.NDArray[np.float64], verb: str) -> str:
    low, high = float(touched.min()), float(touched.max())
    if abs(high - low) < 1e-9:
        return f"each element is {verb} {f'{low:.2f}'.removesuffix('.00')}×"
    return f"{verb} {f'{low:.2f}'.removesuffix('.00')} to {f'{high:.2f}'.removesuffix('.00')}×"


@themed
def trace_map(
    accesses: Mapping[str, Sequence[Touch]], sizes: Mapping[str, int], title: str
) -> Figure:
    """Draw which program touches which elements of each tensor, and how often all do together.

    A panel a tensor and kind: a row a program, elements from left to right, darker where the
    program comes again. The strip above it adds the programs up. `sizes` are in elements.
    """
    panels = [
        (name, kind, [access for access in own if access.kind == kind])
        for name, own in accesses.items()
        for kind in ("load", "store")
        if any(access.kind == kind for access in own)
    ]
    if not panels:
        raise ValueError("accesses holds no load and no store; trace_map takes at least one")
    programs = max(access.program for _, _, own in panels for access in own) + 1
    # Room for a label each, of four at most.
    tall = min(1.5, max(0.5, 0.13 * programs, 0.19 * min(programs, 4)))
    figure = new_figure(len(panels) * (tall + 0.85) + 0.5)
    grid = figure.subplots(
        2 * len(panels), 1, squeeze=False, height_ratios=[0.16, tall] * len(panels)
    )[:, 0]
    for index, (name, kind, own) in enumerate(panels):
        _panel(grid[2 * index], grid[2 * index + 1], own, kind, name, sizes[name], programs)
    figure.suptitle(title, weight="bold", x=0.01, ha="left", fontsize=FONT_SIZE + 1)
    return figure


def _panel(
    strip: Axes, axes: Axes, own: Sequence[Touch], kind: str, name: str, size: int, programs: int
) -> None:
    bins = min(size, _MOST_BINS)
    each = np.zeros((programs, bins))
    for program in range(programs):
        each[program] = _touches([a for a in own if a.program == program], size, bins)
    together = each.sum(axis=0)
    colors = np.array([to_rgb(CYCLE[p % len(CYCLE)]) for p in range(programs)])
    paper = np.array(to_rgb(page().paper))
    weight = np.where(each > 0, 0.3 + 0.7 * each / max(float(each.max()), 1.0), 0.0)[..., None]
    picture = paper + weight * (colors[:, None, :] - paper)
    extent = (0, size, programs - 0.5, -0.5)
    axes.imshow(picture, aspect="auto", interpolation="nearest", extent=extent)
    heat = LinearSegmentedColormap.from_list("touches", [page().paper, page().ink])
    strip.imshow(
        together[None, :],
        aspect="auto",
        interpolation="nearest",
        cmap=heat,
        vmin=0,
        vmax=max(float(together.max()), 1.0),
        extent=(0, size, 0, 1),
    )
    verb = "read" if kind == "load" else "written"
    strip.set_title(f"{name} {verb}: {_times(together, verb)}", weight="normal", pad=3)
    strip.set_yticks([0.5], ["all"])
    strip.set_xticks([])
    strip.tick_params(length=0)
    axes.set_ylabel("program")
    axes.set_xlabel(f"element of {name}")
    axes.set_yticks(range(0, programs, max(1, -(-programs // 4))))
    for panel in (strip, axes):
        for spine in panel.spines.values():
            spine.set(visible=True, color=page().grid)
