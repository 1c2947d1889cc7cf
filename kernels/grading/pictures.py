"""Small maps of a tensor, as SVG with words: where an output is wrong, how often x is read."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

_MOST_ROWS, _MOST_COLS = 16, 64
_CELL, _WIDTH = 10, 640
_RAMP = ("#f0e442", "#e69f00", "#d55e00")  # Okabe–Ito, light to dark

Array = np.ndarray[Any, Any]


def as_rows(values: Array, shape: tuple[int, ...]) -> Array:
    """A flat array as a matrix: the last axis across, all others down."""
    return values.reshape(-1, shape[-1] if shape else 1)


def _shrunk(grid: Array) -> Array:
    """The largest value of every block, so that no wrong element vanishes from the map."""
    for axis, most in ((0, _MOST_ROWS), (1, _MOST_COLS)):
        block = -(-grid.shape[axis] // most)
        starts = np.arange(0, grid.shape[axis], block)
        grid = np.maximum.reduceat(grid, starts, axis=axis)
    return grid


def where(wrong: Array, axes: int = 2) -> str:
    """Which rows and columns a mask touches, in words; of a tensor with one axis, which elements.

    `wrong` is a matrix, as `as_rows` makes it, and `axes` is how many its tensor has.
    """
    rows, cols = (np.flatnonzero(wrong.any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return "nowhere"

    def told(name: str, places: Array, size: int) -> str:
        first, last = int(places[0]), int(places[-1])
        if places.size == size:
            return f"all {size} {name}s" if size > 1 else f"the one {name}"
        if first == last:
            return f"{name} {first} of {size}"
        between = "" if last - first + 1 == places.size else f" ({places.size} of them)"
        return f"{name}s {first} to {last}{between} of {size}"

    if axes < 2:
        return told("element", cols, wrong.shape[1])
    return f"{told('row', rows, wrong.shape[0])}, {told('column', cols, wrong.shape[1])}"


def heat_map(title: str, grid: Array, words: str) -> str:
    """An SVG of a matrix: empty cells are 0, darker is more. `words` is its text equivalent."""
    small = _shrunk(np.asarray(grid, dtype=np.float64))
    small = np.where(np.isfinite(small), small, np.inf)
    finite = small[np.isfinite(small)]
    most = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    rows, cols = small.shape
    # A narrow matrix keeps square cells; a wide one is drawn to the width of a cell's output.
    cell = min(_CELL * 2, max(_WIDTH // cols, 4))
    marks = []
    for r in range(rows):
        for c in range(cols):
            value = float(small[r, c])
            share = 1.0 if not np.isfinite(value) else value / most
            tone = 0 if share < 1 / 3 else 1 if share < 2 / 3 else 2
            fill = _RAMP[tone] if value > 0 else "none"
            marks.append(
                f'<rect x="{c * cell}" y="{r * _CELL}" width="{cell}" height="{_CELL}" '
                f'fill="{fill}" stroke="#999999" stroke-width="0.5"/>'
            )
    width, height = cols * cell, rows * _CELL
    label = html.escape(f"{title}: {words}", quote=True)
    # A page's own colour of captions may be too pale for the ground of an output.
    caption = f'<figcaption style="color:inherit">{label}</figcaption>'
    return (
        f"<figure>{caption}"
        f'<svg role="img" aria-label="{label}" viewBox="-1 -1 {width + 2} {height + 2}" '
        f'width="{width + 2}" style="max-width:100%">{"".join(marks)}</svg></figure>'
    )
