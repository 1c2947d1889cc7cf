"""Who waits for whom: copies into stages and the products that use them, by a model in unit times.

A producer asks for a stage's copy once the stage is empty; copies go on beside one another. A
consumer begins a step's products once its stage is full, one step after the other, and gives a
stage back once the products of its step have ended. Nothing here is measured: the times are the
caller's, and the picture shows what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from kernels.lab.drawing.style import BLUE, CYCLE, FONT_SIZE, ink_on, new_figure, page, themed


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


def _bar(axes: Axes, line: float, start: float, end: float, colour: str, label: str) -> None:
    box = Rectangle((start, line + 0.12), end - start, 0.76, facecolor=colour, linewidth=0.6)
    box.set_edgecolor(page().ink)
    axes.add_patch(box)
    if label:
        axes.text(
            (start + end) / 2, line + 0.5, label, ha="center", va="center", fontsize=FONT_SIZE - 2,
            color=ink_on(colour),
        )  # fmt: skip
