"""A picture of what a block loads from one tensor: which elements each warp asks for, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from kernels.cuda.emulator.results import WarpAccess
from kernels.hardware import WARP_THREADS
from kernels.lab.drawing.style import CYCLE, FONT_SIZE, new_figure, page, themed
from kernels.launch import Access

_ROUND = 0.085  # inches that a round takes, where a panel has many
_LEAST, _MOST = 0.3, 4.0  # inches of a panel


def requests(
    trace: Iterable[Access], argument: str, item_bytes: int, kind: str = "load", program: int = 0
) -> list[tuple[int, int, int, int]]:
    """Return one block's requests for an argument: (round, warp, first element, count).

    Rounds count the requests of each warp: its first is in round 0, its second in round 1. An
    element has `item_bytes`. Neighbouring elements are one entry; a request for elements that
    don't lie side by side has several. ValueError for a trace of a kernel in Triton: it has no
    warps.
    """
    asked: dict[int, int] = {}
    found = []
    for access in trace:
        if not isinstance(access, WarpAccess):
            raise ValueError("the trace has no warps; take one of a kernel in CUDA C++")
        if (access.argument, access.kind, access.program) != (argument, kind, program):
            continue
        warp = int(access.threads[0]) // WARP_THREADS
        number = asked.get(warp, 0)
        asked[warp] = number + 1
        wide = access.itemsize // item_bytes  # elements that a lane takes at once
        places = np.unique(access.offsets)  # several lanes may ask for the same
        for part in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            found.append((number, warp, wide * int(part[0]), wide * int(part.size)))
    return found


@themed
def rounds(
    traces: Mapping[str, Iterable[Access]],
    argument: str,
    size: int,
    item_bytes: int,
    title: str,
    program: int = 0,
) -> Figure:
    """Draw what one block loads of a tensor: a panel a kernel, a line a round, a colour a warp.

    `traces` are emulated launches by the panel's name; the first `size` elements of `item_bytes`
    each are shown. All panels have one scale, so that a taller one has more rounds.
    """
    panels = {
        name: requests(trace, argument, item_bytes, program=program)
        for name, trace in traces.items()
    }
    for name, found in panels.items():
        if not found:
            raise ValueError(f"block {program} of {name!r} loads nothing of {argument!r}")
    counts = [max(entry[0] for entry in found) + 1 for found in panels.values()]
    each = min(_ROUND, _MOST / max(counts)) if max(counts) > 1 else _LEAST
    heights = [max(_LEAST, each * count) for count in counts]
    figure = new_figure(sum(heights) + 0.62 * len(panels) + 0.7)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, found), count in zip(grid, panels.items(), counts, strict=True):
        _panel(axes, found, count)
        asked = sum(entry[3] for entry in found) / len({e for f in found for e in _elements(f)})
        times = f"{asked:.2f}".rstrip("0").rstrip(".")
        plural = "round" if count == 1 else "rounds"
        axes.set_title(f"{name}: {count} {plural}, each element {times}×", weight="normal")
        axes.set(xlim=(0, size), ylim=(count, 0))
    grid[-1].set_xlabel(f"element of {argument}")
    warps = sorted({entry[1] for found in panels.values() for entry in found})
    figure.legend(
        handles=[Patch(facecolor=CYCLE[w % len(CYCLE)], label=f"warp {w}") for w in warps],
        loc="outside lower left",
        ncols=4,
        handlelength=1.2,
    )
    figure.suptitle(title, weight="bold", x=0.01, ha="left", fontsize=FONT_SIZE + 1)
    return figure


def _elements(entry: tuple[int, int, int, int]) -> range:
    return range(entry[2], entry[2] + entry[3])


def _panel(axes: Axes, found: list[tuple[int, int, int, int]], count: int) -> None:
    for warp in dict.fromkeys(entry[1] for entry in found):
        # One path for all of a warp's boxes: a picture of hundreds stays small.
        boxes = [
            Path.unit_rectangle().transformed(Affine2D().scale(many, 1).translate(first, number))
            for number, own, first, many in found
            if own == warp
        ]
        axes.add_patch(
            PathPatch(
                Path.make_compound_path(*boxes),
                facecolor=CYCLE[warp % len(CYCLE)],
                edgecolor=page().paper,
                linewidth=0.5,
                gid=f"warp:{warp}",
            )
        )
    axes.set_ylabel("round" if count > 4 else "")
    axes.set_yticks([0.5] if count <= 4 else [0.5, count - 0.5])
    axes.set_yticklabels(["1"] if count <= 4 else ["1", str(count)])
    axes.tick_params(axis="y", length=0)
