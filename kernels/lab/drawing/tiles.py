"""Pictures of a tiled product from its trace: what one program touches, and who comes when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kernels.lab.drawing.style import (
    BLUE,
    CYCLE,
    ORANGE,
    WIDTH,
    WRITE_HATCH,
    ink_on,
    new_figure,
    page,
    themed,
)
from kernels.launch import Access

Tile = tuple[int, int]
_NUMBERED = 12  # tiles across, up to which each has room for its number
_STRIP = 0.5  # a tile's side that the marks beside the map take


def stored_tiles(trace: Iterable[Access], argument: str, n_cols: int, block: Tile) -> list[Tile]:
    """Return each program's tile, (block of rows, block of columns), by where it stores.

    `argument` is a matrix of contiguous rows of `n_cols`; `block` is a tile's rows and columns.
    ValueError if a program stores in several tiles, or none does.
    """
    found: dict[int, set[Tile]] = {}
    for access in trace:
        if (access.argument, access.kind) == (argument, "store") and access.offsets.size:
            rows, cols = np.divmod(access.offsets, n_cols)
            tiles = zip(rows // block[0], cols // block[1], strict=True)
            found.setdefault(access.program, set()).update((int(m), int(n)) for m, n in tiles)
    several = [program for program, tiles in found.items() if len(tiles) != 1]
    if several or not found:
        raise ValueError(
            f"{argument!r}: program {several[0]} stores in {len(found[several[0]])} tiles"
            if several
            else f"no program stores in {argument!r}"
        )
    return [found[program].pop() for program in sorted(found)]


@themed
def program_tiles(
    trace: Iterable[Access], program: int, shape: tuple[int, int, int], title: str
) -> Figure:
    """Draw what one program of y = x · weightᵀ touches: x at the left, weightᵀ on top, then y.

    The trace's arguments are `x_ptr`, `weight_ptr` and `y_ptr`, matrices of contiguous rows;
    `shape` is (M, K, N). A box is one load or store, with the number of its step along K.
    """
    m, k, n = shape
    inches = (WIDTH - 0.9) / (k + n)
    figure = new_figure(inches * (k + m) + 1.3)
    grid = figure.subplots(2, 2, width_ratios=[k, n], height_ratios=[k, m])
    grid[0, 0].axis("off")
    panels = {
        "x_ptr": (grid[1, 0], (m, k), f"x, {m}×{k}", False),
        "weight_ptr": (grid[0, 1], (k, n), f"weight, {n}×{k}, on its side", True),
        "y_ptr": (grid[1, 1], (m, n), f"y, {m}×{n}", False),
    }
    steps = dict.fromkeys(panels, 0)
    for name, (axes, (down, across), label, _) in panels.items():
        _empty(axes, down, across, label if name != "weight_ptr" else "")
    grid[0, 1].set_title(panels["weight_ptr"][2], weight="normal")
    for access in trace:
        if access.program != program or access.argument not in panels or not access.offsets.size:
            continue
        axes, (down, across), _, turned = panels[access.argument]
        rows, cols = np.divmod(access.offsets, down if turned else across)
        if turned:
            rows, cols = cols, rows
        stores = access.kind == "store"
        color = ORANGE if stores else CYCLE[steps[access.argument] % len(CYCLE)]
        number = "" if stores else str(steps[access.argument])
        steps[access.argument] += 1
        top, left = int(rows.min()), int(cols.min())
        _box(axes, (top, left), (int(rows.max()) + 1, int(cols.max()) + 1), color, number, stores)
    figure.suptitle(title, weight="bold", x=0.01, ha="left", fontsize="large")
    return figure


def _empty(axes: Axes, down: int, across: int, label: str) -> None:
    axes.set(xlim=(0, across), ylim=(down, 0), xticks=[], yticks=[])
    axes.set_aspect("equal")
    axes.set_xlabel(label)
    for spine in axes.spines.values():
        spine.set(visible=True, color=page().muted)


def _box(axes: Axes, first: Tile, last: Tile, color: str, number: str, stores: bool) -> None:
    (top, left), (bottom, right) = first, last
    axes.add_patch(
        Rectangle(
            (left, top),
            right - left,
            bottom - top,
            facecolor=(color, 0.3) if stores else color,
            edgecolor=color if stores else page().paper,
            hatch=WRITE_HATCH if stores else "",
            gid="store" if stores else "load",
        )
    )
    middle = ((left + right) / 2, (top + bottom) / 2)
    axes.text(*middle, number, ha="center", va="center", weight="bold", color=ink_on(color))


@themed
def tile_orders(orders: Mapping[str, Sequence[Tile]], tiles: Tile, wave: int, title: str) -> Figure:
    """Draw the order in which programs take the tiles of an output, a panel an order.

    `orders` has the tile of program 0, 1, … as (block of rows, block of columns); `tiles` says how
    many there are down and across. The first `wave` programs are filled and numbered, and the
    blocks of rows and of columns that they share are marked at the left and on top.
    """
    if not orders:
        raise ValueError("orders is empty; tile_orders takes at least one")
    down, across = tiles
    inches = (WIDTH / len(orders) - 0.25) / (across + 2 * _STRIP)
    figure = new_figure(inches * (down + 2 * _STRIP) + 1.0)
    panels = figure.subplots(1, len(orders), squeeze=False)[0]
    for axes, (name, order) in zip(panels, orders.items(), strict=True):
        first = order[:wave]
        rows, cols = {m for m, _ in first}, {n for _, n in first}
        for number, (m, n) in enumerate(order):
            color = BLUE if number < wave else page().paper
            axes.add_patch(
                Rectangle((n, m), 1, 1, facecolor=color, edgecolor=page().grid, gid="tile")
            )
            if number < wave and max(down, across) <= _NUMBERED:
                text = axes.text(
                    n + 0.5, m + 0.5, str(number), ha="center", va="center", color=ink_on(color)
                )
                text.set_in_layout(False)  # to measure each takes a layout long
        for m in rows:
            _mark(axes, (-2 * _STRIP, m + 0.1), (1.3 * _STRIP, 0.8))
        for n in cols:
            _mark(axes, (n + 0.1, -2 * _STRIP), (0.8, 1.3 * _STRIP))
        axes.set(xlim=(-2 * _STRIP, across), ylim=(down, -2 * _STRIP), xticks=[], yticks=[])
        axes.set_aspect("equal")
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(name, weight="normal")
        axes.set_xlabel(f"{len(rows)} blocks of rows,\n{len(cols)} of columns")
    figure.suptitle(title, weight="bold", x=0.01, ha="left", fontsize="large")
    return figure


def _mark(axes: Axes, corner: tuple[float, float], size: tuple[float, float]) -> None:
    axes.add_patch(Rectangle(corner, *size, facecolor=ORANGE, edgecolor="none", gid="mark"))
