"""Who waits for whom, by a model in unit times: stages and products, groups that take turns.

`steps`: a producer asks for a stage's copy once the stage is empty; copies go on beside one
another. A consumer begins a step's products once its stage is full, one step after the other, and
gives a stage back once the products of its step have ended.

`turns`: groups of warps share the tensor cores, and each has a softmax between its two products.
They ask in turn, and a request is served whole before the next.

Nothing here is measured: the times are the caller's, and the pictures show what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from kernels.lab.drawing.style import (
    BLUE,
    CYCLE,
    FONT_SIZE,
    ORANGE,
    SKY,
    ink_on,
    new_figure,
    page,
    themed,
)


class Step(NamedTuple):
    """One step along K: when its copy begins and has come, when its products begin and end."""

    stage: int
    asked: float
    full: float
    begins: float
    ends: float


def steps(count: int, stages: int, copy: float, product: float) -> list[Step]:
    """Return what happens in `count` steps with so many `stages`, from time 0.

    `copy` is how long a copy takes from asking to the last byte, `product` how long the products of
    a step do. In the long run a step takes the larger of `product` and (copy + product) / stages.
    ValueError unless there is a stage, and times are above 0.
    """
    if stages < 1 or copy <= 0 or product <= 0:
        raise ValueError("it takes one stage or more, and times above 0")
    found: list[Step] = []
    for number in range(count):
        asked = found[number - stages].ends if number >= stages else 0.0
        full = asked + copy
        begins = max(full, found[-1].ends if found else 0.0)
        found.append(Step(number % stages, asked, full, begins, begins + product))
    return found


def busy(told: Sequence[Step]) -> float:
    """The share of the time, from the first product on, in which products run."""
    if not told:
        return 0.0
    working = sum(step.ends - step.begins for step in told)
    return working / (told[-1].ends - told[0].begins)


class Phase(NamedTuple):
    """What a group of warps does with a tile of keys: `scores`, `softmax` or `sums`, and when."""

    kind: str
    tile: int
    begins: float
    ends: float


def turns(
    tiles: int, groups: int, scores: float, softmax: float, sums: float, ahead: bool
) -> list[list[Phase]]:
    """Return what each group does with so many tiles of keys, from time 0.

    `scores` and `sums` are how long the two products of a tile take on the tensor cores, `softmax`
    what a group computes between them. Not `ahead`, a group does the three one after the other.
    Ahead, it asks for the scores of its next tile together with the sums of this one, and begins
    the next softmax once those scores are there. ValueError unless there is a tile and a group, and
    times are above 0.
    """
    if min(tiles, groups) < 1 or min(scores, softmax, sums) <= 0:
        raise ValueError("it takes one tile and one group or more, and times above 0")
    requests = [[("scores", 0)]]
    for tile in range(tiles - 1):
        after, following = ("sums", tile), ("scores", tile + 1)
        requests += [[following, after]] if ahead else [[after], [following]]
    requests.append([("sums", tiles - 1)])
    takes = {"scores": scores, "sums": sums}
    found: list[list[Phase]] = [[] for _ in range(groups)]
    ready, free = [0.0] * groups, 0.0
    for request in requests:
        for group, done in enumerate(found):
            free = max(free, ready[group])
            for kind, tile in request:
                done.append(Phase(kind, tile, free, free + takes[kind]))
                free += takes[kind]
                if kind == "scores":
                    ready[group] = free + softmax
                    done.append(Phase("softmax", tile, free, free + softmax))
            ready[group] = max(ready[group], free)
    return found


def products_share(told: Sequence[Sequence[Phase]]) -> float:
    """The share of the time, from the first product to the last, in which the tensor cores run."""
    products = [phase for group in told for phase in group if phase.kind != "softmax"]
    if not products:
        return 0.0
    working = sum(phase.ends - phase.begins for phase in products)
    last, first = max(one.ends for one in products), min(one.begins for one in products)
    return working / (last - first)


@themed
def waiting(rows: Mapping[str, Sequence[Step]], title: str) -> Figure:
    """Draw a panel for each of `rows`: its stages one below the other, and its products.

    A copy is a bar in its stage's line, from asking to its last byte, and the stage stays taken
    until the products that use it end. All panels have one scale of time.
    """
    heights = [max(step.stage for step in told) + 2 for told in rows.values()]
    figure = new_figure(0.24 * sum(heights) + 0.55 * len(rows) + 0.8)
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    last = max(told[-1].ends for told in rows.values())
    for axes, (name, told) in zip(grid, rows.items(), strict=True):
        _panel(axes, told)
        axes.set_title(f"{name}: products run {busy(told):.0%} of the time", weight="normal")
        axes.set_xlim(0, last)
    for axes in grid[:-1]:
        axes.tick_params(axis="x", labelbottom=False)
    grid[-1].set_xlabel("time, in products of one step")
    figure.legend(
        handles=[
            Patch(facecolor=CYCLE[1], label="a copy is under way"),
            Patch(facecolor=page().paper, edgecolor=page().ink, label="its stage is full"),
            Patch(facecolor=BLUE, label="products of a step"),
        ],
        loc="outside lower left",
        ncols=3,
        handlelength=1.2,
    )
    figure.suptitle(title, weight="bold", x=0.01, ha="left", fontsize=FONT_SIZE + 1)
    return figure


def _panel(axes: Axes, told: Sequence[Step]) -> None:
    lines = max(step.stage for step in told) + 1
    for number, step in enumerate(told, 1):
        _bar(axes, step.stage, step.full, step.ends, page().paper, "")
        _bar(axes, step.stage, step.asked, step.full, CYCLE[1], str(number))
        _bar(axes, lines, step.begins, step.ends, BLUE, str(number))
    axes.set_ylim(lines + 1, 0)
    axes.set_yticks([0.5 + line for line in range(lines + 1)])
    axes.set_yticklabels([*(f"stage {line}" for line in range(lines)), "products"])
    axes.tick_params(axis="y", length=0)


def _bar(
    axes: Axes,
    line: float,
    start: float,
    end: float,
    colour: str,
    label: str,
    within: tuple[float, float] = (0.12, 0.88),
) -> None:
    low, high = line + within[0], line + within[1]
    box = Rectangle((start, low), end - start, high - low, facecolor=colour, linewidth=0.6)
    box.set_edgecolor(page().ink)
    axes.add_patch(box)
    if label:
        axes.text(
            (start + end) / 2,
            (low + high) / 2,
            label,
            ha="center",
            va="center",
            fontsize=FONT_SIZE - 2,
            color=ink_on(colour),
        )


_KINDS = {
    "scores": (BLUE, "scores"),
    "softmax": (ORANGE, "softmax, on the group's own units"),
    "sums": (SKY, "sums"),
}


@themed
def taking_turns(rows: Mapping[str, Sequence[Sequence[Phase]]], title: str) -> Figure:
    """Draw a panel for each of `rows`: a line a group, and below them the tensor cores.

    A bar has the number of its tile of keys, in the last line that of its group. All panels have
    one scale of time.
    """
    heights = [len(told) + 1 for told in rows.values()]
    figure = new_figure(0.27 * sum(heights) + 0.6 * len(rows) + 1.0)
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    last = max(phase.ends for told in rows.values() for group in told for phase in group)
    for axes, (name, told) in zip(grid, rows.items(), strict=True):
        for number, group in enumerate(told):
            for phase in group:
                colour = _KINDS[phase.kind][0]
                at = number, phase.begins, phase.ends, colour
                # What runs beside a softmax of the group is lower, so that both are seen.
                low, high = (0.12, 0.5) if phase.kind != "softmax" else (0.5, 0.88)
                _bar(axes, *at, str(phase.tile), (low, high))
                if phase.kind != "softmax":
                    at = len(told), phase.begins, phase.ends, colour
                    _bar(axes, *at, str(number))
        axes.set_ylim(len(told) + 1, 0)
        axes.set_yticks([0.5 + line for line in range(len(told) + 1)])
        axes.set_yticklabels([*(f"group {line}" for line in range(len(told))), "tensor cores"])
        axes.tick_params(axis="y", length=0)
        share = f"tensor cores run {products_share(told):.0%} of the time"
        axes.set_title(f"{name}: {share}", weight="normal")
        axes.set_xlim(0, last)
    for axes in grid:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in grid[:-1]:
        axes.tick_params(axis="x", labelbottom=False)
    grid[-1].set_xlabel("time, in products")
    handles = [Patch(facecolor=colour, label=label) for colour, label in _KINDS.values()]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, handlelength=1.2)
    figure.suptitle(title, weight="bold", x=0.01, ha="left", fontsize=FONT_SIZE + 1)
    return figure
