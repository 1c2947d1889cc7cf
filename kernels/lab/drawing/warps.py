"""Pictures of what a warp does: which lane touches what, which sectors that takes, who waits.

All but one are drawn from the trace of a launch in CUDA C++ on the emulator, `Counts.trace`: an
entry is one request of one warp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from kernels.cuda.emulator.results import SECTOR_BYTES, WarpAccess
from kernels.hardware import WARP_THREADS
from kernels.lab.drawing.style import (
    BLUE,
    CYCLE,
    FONT_SIZE,
    SKY,
    VERMILLION,
    ink_on,
    new_figure,
    page,
    themed,
)

LINE_BYTES = 128  # a cache line: four sectors
_IDLE_HATCH = "////"

Bytes = npt.NDArray[np.int64]


def bytes_of(request: WarpAccess) -> Bytes:
    """The bytes that the lanes of a request touch, (lanes, itemsize), from the argument's first."""
    first = request.offsets.astype(np.int64)[:, None] * request.itemsize
    return first + np.arange(request.itemsize)


def sectors_of(request: WarpAccess) -> Bytes:
    """The numbers of the 32-byte sectors that a request touches, sorted.

    They are counted from the argument's first byte, which must lie at a multiple of 32; a fresh
    tensor's does.
    """
    return np.unique(bytes_of(request) // SECTOR_BYTES)


@themed
def sector_map(requests: Mapping[str, WarpAccess], title: str) -> Figure:
    """Draw which bytes the lanes of a warp want and which sectors they must fetch for that.

    A panel a request, under its label. A row is a cache line of 128 bytes that is touched, named by
    its first byte; its four sectors stand apart. Wanted bytes are dark, in two shades for lanes in
    turn; bytes that come along in a sector are grey.
    """
    if not requests:
        raise ValueError("requests is empty; sector_map takes at least one request of a warp")
    lines = [np.unique(bytes_of(request) // LINE_BYTES) for request in requests.values()]
    rows = [len(touched) for touched in lines]
    side = [0.24 if count <= 8 else 0.12 for count in rows]
    heights = [s * count for s, count in zip(side, rows, strict=True)]
    figure = new_figure(sum(heights) + 0.62 * len(rows) + 0.85)
    panels = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (label, request), touched in zip(panels, requests.items(), lines, strict=True):
        _lines(axes, label, request, touched)
    panels[-1].set_xlabel("byte within the cache line of 128 bytes")
    figure.suptitle(title, weight="bold", x=0.01, ha="left", fontsize=FONT_SIZE + 1)
    handles = [
        Patch(facecolor=BLUE, label="wanted by a lane,"),
        Patch(facecolor=SKY, label="by the next"),
        Patch(facecolor=page().grid, label="fetched along with them"),
    ]
    figure.legend(
        handles=handles, loc="outside lower left", ncols=3, handlelength=1.2, columnspacing=1.2
    )
    return figure


def _lines(axes: Axes, label: str, request: WarpAccess, touched: Bytes) -> None:
    """Fill one panel of a sector map: the cache lines of one request."""
    sectors, wanted = sectors_of(request), bytes_of(request)
    picture = np.empty((len(touched), LINE_BYTES, 3))
    picture[:] = to_rgb(page().paper)
    for sector in sectors:
        row, start = np.searchsorted(touched, sector // 4), sector % 4 * SECTOR_BYTES
        picture[row, start : start + SECTOR_BYTES] = to_rgb(page().grid)
    for lane, own in enumerate(wanted):
        places = np.searchsorted(touched, own // LINE_BYTES), own % LINE_BYTES
        picture[places] = to_rgb(SKY if lane % 2 else BLUE)
    extent = (0, LINE_BYTES, len(touched) - 0.5, -0.5)
    axes.imshow(picture, aspect="auto", interpolation="nearest", extent=extent)
    for edge in range(SECTOR_BYTES, LINE_BYTES, SECTOR_BYTES):
        axes.axvline(edge, color=page().muted, linewidth=1)
    for row in range(1, len(touched)):
        axes.axhline(row - 0.5, color=page().paper, linewidth=0.8)
    few = range(0, len(touched), 1 if len(touched) <= 8 else 8)
    axes.set_yticks(few, [f"{touched[row] * LINE_BYTES:,}" for row in few])
    axes.set_xticks(range(0, LINE_BYTES + 1, SECTOR_BYTES))
    axes.tick_params(length=0)
    asked, fetched = np.unique(wanted).size, len(sectors) * SECTOR_BYTES
    axes.set_title(
        f"{label}: {len(sectors)} sector{'s'[: len(sectors) > 1]}, "
        f"{asked:,} of {fetched:,} bytes wanted",
        weight="normal",
    )
    for spine in axes.spines.values():
        spine.set(visible=True, color=page().grid)


def _told(places: Bytes) -> str:
    """Elements in few words: `64 … 95`, or `0, 256, … 7,936`."""
    if places.size == 1:
        return f"{places[0]:,}"
    if bool((np.diff(places) == 1).all()):
        return f"{places[0]:,} … {places[-1]:,}"
    return f"{places[0]:,}, {places[1]:,}, … {places[-1]:,}"


@themed
def warp_map(requests: Sequence[WarpAccess], title: str) -> Figure:
    """Draw the lanes of each request: a row a warp of a block, a colour a block.

    Hatched lanes took no part. On the right stand the elements that the lanes touched.
    """
    if not requests:
        raise ValueError("requests is empty; warp_map takes at least one request of a warp")
    figure = new_figure(0.3 * len(requests) + 1.0)
    axes = figure.subplots()
    labels = []
    for row, request in enumerate(requests):
        color = CYCLE[request.program % len(CYCLE)]
        active = set((request.threads % WARP_THREADS).tolist())
        for lane in range(WARP_THREADS):
            idle = lane not in active
            axes.add_patch(
                Rectangle(
                    (lane - 0.46, row - 0.38),
                    0.92,
                    0.76,
                    facecolor=page().paper if idle else color,
                    edgecolor=page().muted if idle else color,
                    hatch=_IDLE_HATCH if idle else "",
                    linewidth=0.4,
                    gid="idle" if idle else "active",
                )
            )
        labels.append(f"block {request.program}, warp {int(request.threads[0]) // WARP_THREADS}")
        axes.text(
            WARP_THREADS + 0.3, row, f"{request.argument}: {_told(request.offsets)}", va="center"
        )
    axes.set(xlim=(-0.6, WARP_THREADS + 14.5), ylim=(len(requests) - 0.45, -0.55))
    axes.set_yticks(range(len(requests)), labels)
    axes.set_xticks([0, 8, 16, 24, 31])
    axes.set_xlabel("lane", x=WARP_THREADS / 2 / (WARP_THREADS + 15))
    axes.tick_params(length=0)
    axes.set_title(title)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


@dataclass(frozen=True)
class Level:
    """One level of a reduction: thread `threads[i]` added the places `sources[:, i]` of an array.

    The sum went to place `results[i]`.
    """

    threads: Bytes
    sources: Bytes
    results: Bytes


def levels_of(trace: Sequence[WarpAccess], argument: str) -> list[Level]:
    """Return what a block of one warp added in each level, from the trace of its loads and stores.

    A level ends with a store that loads of `argument` came before; the first store, which fills the
    array, is none.
    """
    levels: list[Level] = []
    loads: list[WarpAccess] = []
    for request in trace:
        if request.argument != argument:
            continue
        if request.kind == "load":
            loads.append(request)
        elif loads:
            sources = np.array([load.offsets for load in loads])
            levels.append(Level(request.threads, sources, request.offsets))
            loads = []
    return levels


@themed
def tree_map(levels: Sequence[Level], n_threads: int, title: str) -> Figure:
    """Draw a reduction in shared memory: a row of boxes a level, a barrier before and behind each.

    A box is a place of the array; its number says how many of the first row's are in its sum.
    Hatched boxes belong to threads that only wait.
    """
    if not levels:
        raise ValueError("levels is empty; tree_map takes at least one level")
    figure = new_figure(0.66 * (len(levels) + 1) + 0.55)
    axes = figure.subplots()
    held = np.ones(n_threads, dtype=np.int64)
    for place in range(n_threads):
        _box(axes, place, 0, str(held[place]), BLUE)
    for level, one in enumerate(levels, 1):
        before = held.copy()
        held[one.results] = before[one.sources].sum(axis=0)
        for source in one.sources:
            for start, end in zip(source, one.results, strict=True):
                axes.plot([start, end], [level - 0.74, level - 0.26], color=page().ink, lw=0.9)
        axes.axhline(level - 0.67, color=VERMILLION, linestyle="--", linewidth=1.6)
        for place in range(n_threads):
            works = place in one.threads
            _box(axes, place, level, str(held[place]) if works else "", BLUE if works else "")
        count = len(one.threads)
        text = f"{count} thread{'s'[: count > 1]} add{'s'[: count == 1]}"
        axes.text(n_threads - 0.2, level, text, va="center")
    axes.text(n_threads - 0.2, 0, "all have stored", va="center")
    axes.axhline(len(levels) + 0.4, color=VERMILLION, linestyle="--", linewidth=1.6)
    handles = [
        Line2D([], [], color=VERMILLION, linestyle="--", linewidth=1.6, label="__syncthreads()"),
        Patch(facecolor=page().paper, edgecolor=page().muted, hatch=_IDLE_HATCH, label="waits"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2)
    axes.set(xlim=(-0.6, n_threads + 0.32 * n_threads), ylim=(len(levels) + 0.5, -0.4))
    axes.set_yticks([])
    axes.set_xticks([0, *range(3, n_threads, 4)])
    axes.tick_params(length=0)
    axes.set_xlabel("thread and place in shared memory", x=0.38)
    axes.set_title(title)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _box(axes: Axes, place: int, level: int, text: str, color: str) -> None:
    axes.add_patch(
        Rectangle(
            (place - 0.42, level - 0.26),
            0.84,
            0.52,
            facecolor=color or page().paper,
            edgecolor=color or page().muted,
            hatch="" if color else _IDLE_HATCH,
            linewidth=0.5,
            gid="adds" if color else "waits",
        )
    )
    if text:
        ink = ink_on(color) if color else page().ink
        axes.text(place, level, text, ha="center", va="center", color=ink, fontsize=FONT_SIZE - 1)


@themed
def exchange_map(held: Sequence[int], labels: Sequence[str], lane: int, title: str) -> Figure:
    """Draw which lanes' numbers one lane of a warp holds the sum of, a row a step.

    Bit i of `held[step]` says that lane i's number is in the sum; `lane` is the one that holds it.
    """
    if not held or len(held) != len(labels):
        raise ValueError(
            f"held has {len(held)} steps and labels {len(labels)}; exchange_map takes as many of "
            f"both, at least one"
        )
    figure = new_figure(0.3 * len(held) + 1.0)
    axes = figure.subplots()
    for row, mask in enumerate(held):
        for other in range(WARP_THREADS):
            inside = bool(mask >> other & 1)
            axes.add_patch(
                Rectangle(
                    (other - 0.46, row - 0.38),
                    0.92,
                    0.76,
                    facecolor=BLUE if inside else page().grid,
                    edgecolor=page().ink if other == lane else "none",
                    linewidth=1.4,
                    zorder=3 if other == lane else 2,
                    gid="inside" if inside else "outside",
                )
            )
        count = (mask & 0xFFFFFFFF).bit_count()
        axes.text(WARP_THREADS + 0.2, row, f"{count} number{'s'[: count > 1]}", va="center")
    axes.set(xlim=(-0.7, WARP_THREADS + 7), ylim=(len(held) - 0.4, -0.6))
    axes.set_yticks(range(len(held)), labels)
    axes.set_xticks([0, 8, 16, 24, 31])
    axes.set_xlabel("lane", x=WARP_THREADS / 2 / (WARP_THREADS + 7.7))
    axes.tick_params(length=0)
    axes.set_title(title)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure
