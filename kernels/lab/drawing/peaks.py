"""A picture of what a kernel waits for: how much of each of the card's peaks it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernels.lab.drawing.style import BLUE, GREEN, ORANGE, ink_on, new_figure, page, themed

# What Nsight Compute tells of a kernel, as a profiled cell holds it, and how it is drawn.
_LOOKS = {
    "dram_pct": ("DRAM", "bandwidth of DRAM", BLUE),
    "issue_pct": ("issue", "issue slots for instructions", ORANGE),
    "occupancy_pct": ("warps", "places for warps (occupancy)", GREEN),
}
PEAKS = tuple(_LOOKS)


@themed
def peak_shares(
    shares: Mapping[str, Mapping[str, float | None]],
    title: str,
    peaks: Sequence[str] = PEAKS,
) -> Figure:
    """Draw a group of bars a kernel: the share of each peak that it used, in percent.

    `shares` are profiled kernels by the name to show, with the keys of PEAKS; what was not
    measured has no bar. ValueError for a peak that isn't known, and if there is nothing to draw.
    """
    if unknown := [peak for peak in peaks if peak not in _LOOKS]:
        raise ValueError(f"peak {unknown[0]!r} is unknown; it takes one of: {', '.join(PEAKS)}")
    if not shares:
        raise ValueError("shares is empty; peak_shares takes at least one kernel")
    figure = new_figure(len(shares) * (0.3 * len(peaks) + 0.16) + 1.5)
    axes = figure.subplots()
    places, y = [], 0.0
    for told in shares.values():
        places.append(y + (len(peaks) - 1) / 2)
        for peak in peaks:
            value, (short, _, color) = told.get(peak), _LOOKS[peak]
            if value is not None:
                axes.barh(y, value, height=0.86, color=color, gid=f"share:{peak}")
                inside = value > 25
                axes.annotate(
                    f"{short} {value:.0f} %",
                    (value, y),
                    xytext=(-6 if inside else 6, 0),
                    textcoords="offset points",
                    ha="right" if inside else "left",
                    va="center",
                    color=ink_on(color) if inside else page().ink,
                )
            y += 1
        y += 0.55
    axes.set(xlim=(0, 100), ylim=(y - 0.9, -0.7), xlabel="share of the card's peak, %")
    axes.set_yticks(places, list(shares))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_title(title)
    handles = [Patch(facecolor=_LOOKS[peak][2], label=_LOOKS[peak][1]) for peak in peaks]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, handlelength=1.6)
    return figure
