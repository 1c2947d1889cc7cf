"""A picture of memory over a training step: what is alive behind each operator, in bands."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernels.lab.counting.kept import TrainingStep
from kernels.lab.drawing.style import CYCLE, FONT_SIZE, new_figure, page, themed

_HATCHES = ("", "//", "..", "xx", "\\\\", "||", "--")
_PANEL = 1.75  # inches

Bands = Mapping[str, Collection[str]]


def in_bands(step: TrainingStep, bands: Bands, rest: str) -> list[dict[str, int]]:
    """For each moment of a step the bytes of each band, by its name; `rest` has what no band has.

    bands: names of tensors by the band's name. ValueError for a tensor of two bands.
    """
    names = [name for band in bands.values() for name in band]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)} stand in two bands; a tensor takes one")
    band_of = {name: band for band, tensors in bands.items() for name in tensors}
    found = []
    for moment in step.moments:
        of = dict.fromkeys([*bands, rest], 0)
        for name, size in moment.alive.items():
            of[band_of.get(name, rest)] += size
        found.append(of)
    return found


@themed
def over_a_step(
    steps: Mapping[str, TrainingStep], bands: Bands, rest: str, unit: float, unit_name: str
) -> Figure:
    """Draw what is alive over each step, a panel a step, an operator a bar, one scale for all.

    unit: bytes that the vertical axis counts as one, called `unit_name`. A triangle marks the peak.
    """
    figure = new_figure(_PANEL * len(steps) + 1.1)
    grid = figure.subplots(len(steps), 1, squeeze=False, sharey=True)[:, 0]
    for axes, (name, step) in zip(grid, steps.items(), strict=True):
        _panel(axes, step, in_bands(step, bands, rest), unit)
        axes.set_title(name, loc="left", fontsize=FONT_SIZE)
    most = max(step.peak.bytes for step in steps.values()) / unit
    grid[0].set_ylim(0, 1.28 * most)
    grid[-1].set_xlabel("operators, in their order")
    figure.supylabel(unit_name, fontsize=FONT_SIZE)
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor=page().paper, label=band)
        for band, color, hatch in zip([*bands, rest], CYCLE, _HATCHES, strict=False)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _panel(axes: Axes, step: TrainingStep, moments: list[dict[str, int]], unit: float) -> None:
    places = range(1, len(moments) + 1)
    below = [0.0] * len(moments)
    for band, color, hatch in zip(moments[0], CYCLE, _HATCHES, strict=False):
        heights = [of[band] / unit for of in moments]
        bars = axes.bar(places, heights, width=1.0, bottom=below, facecolor=color, linewidth=0)
        for bar in bars:
            bar.set(edgecolor=page().paper, hatch=hatch)
        below = [low + high for low, high in zip(below, heights, strict=True)]
    first = next(n for n, moment in enumerate(step.moments, 1) if moment.back)
    axes.axvline(first - 0.5, color=page().ink, linestyle="--", linewidth=1)
    top = step.moments.index(step.peak)
    axes.plot(top + 1, below[top], marker="v", color=page().ink, clip_on=False)
    axes.annotate(
        f"{below[top]:.1f}",
        (top + 1, below[top]),
        (7, 4),
        textcoords="offset points",
        color=page().ink,
    )
    for place, told, side in (
        (first - 0.8, "forward", "right"),
        (len(places), "backward", "right"),
    ):
        axes.text(
            place, 0.97, told, transform=axes.get_xaxis_transform(), ha=side, va="top",
            color=page().muted, fontsize=FONT_SIZE,
        )  # fmt: skip
    axes.set_xlim(0.4, len(places) + 0.6)
