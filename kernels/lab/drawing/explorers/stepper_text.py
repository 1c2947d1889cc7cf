"""The stepper without a page: its states in NumPy, and all its steps as plain text.

For a front end that shows no widget, for paper, and for a reader who would rather read numbers than
press keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
ITEM = 2  # bytes of a number of q, k, v and o


@dataclass(frozen=True)
class Met:
    """What one tile of keys, `keys`, does to the state of a tile of queries.

    scores and weights: (queries, keys); correction and the state after it, m and s: (queries,);
    acc: (queries, d). All are float64.
    """

    keys: range
    scores: Numbers
    weights: Numbers
    correction: Numbers
    m: Numbers
    s: Numbers
    acc: Numbers


def met(
    q: Numbers, k: Numbers, v: Numbers, rows: range, causal: bool, block_n: int
) -> Iterator[Met]:
    """Yield the tiles of keys that queries `rows` meet, in order; q, k, v (length, d)."""
    length, dims = q.shape
    m, s, acc = np.full(len(rows), -np.inf), np.zeros(len(rows)), np.zeros((len(rows), dims))
    for first in range(0, rows.stop if causal else length, block_n):
        keys = range(first, min(first + block_n, length))
        scores = q[rows.start : rows.stop] @ k[first : keys.stop].T / np.sqrt(dims)
        if causal:
            scores = np.where(np.less.outer(rows, keys), -np.inf, scores)
        largest = np.maximum(m, scores.max(axis=1))
        correction = np.exp(m - largest)
        weights = np.exp(scores - largest[:, None])
        m, s = largest, s * correction + weights.sum(axis=1)
        acc = acc * correction[:, None] + weights @ v[first : keys.stop]
        yield Met(keys, scores, weights, correction, m, s, acc)


def shown(number: float) -> str:
    """A number with two decimals, or four digits where it is large."""
    if number == -np.inf:
        return "−∞"
    size = abs(number)
    text = f"{size:.2f}"
    if size >= 99.995:
        text = np.format_float_positional(float(f"{size:.4g}"), trim="-")
    return f"−{text}" if number < 0 and float(text) else text


def _table(names: Iterable[str], rows: range, columns: Iterable[Numbers]) -> list[str]:
    """A line of names, then one a query: each name stands over as many numbers as are its own."""
    blocks = [[[shown(x) for x in np.atleast_1d(line)] for line in block] for block in columns]
    wide = max(6, 1 + max(len(text) for block in blocks for line in block for text in line))
    heads = [f"{name:>{wide * len(block[0])}}" for name, block in zip(names, blocks, strict=True)]
    lines = [" |".join(["query", *heads])]
    for i, row in enumerate(rows):
        told = ["".join(f"{text:>{wide}}" for text in block[i]) for block in blocks]
        lines.append(" |".join([f"{row:5}", *told]))
    return lines


def as_text(q: Any, k: Any, v: Any, *, causal: bool, tile: int, block_m: int, block_n: int) -> str:
    """All steps of one tile of queries as text; arguments as of `attention_stepper`."""
    q, k, v = (np.asarray(one, dtype=np.float64) for one in (q, k, v))
    length, dims = q.shape
    rows, row = range(tile * block_m, min((tile + 1) * block_m, length)), dims * ITEM
    asked = len(rows) * row
    said = [
        f"Attention of queries {rows.start} to {rows.stop - 1} over {length} keys"
        f"{', causal' if causal else ''}, in tiles of {block_m} × {block_n}.",
        f"The tile of queries is read, {asked} bytes. m is −∞, l and acc are 0.",
    ]
    last = None
    for last in met(q, k, v, rows, causal, block_n):
        keys, read = last.keys, len(last.keys) * row
        asked += 2 * read
        said += [
            "",
            f"Keys {keys.start} to {keys.stop - 1}: k and v are read, {read} bytes each, "
            f"{asked} so far.",
            *_table(("S", "m", "c", "l", "acc"), rows, _columns(last)),
        ]
    assert last is not None  # a query sees at least the first key
    skipped = -(-length // block_n) - -(-last.keys.stop // block_n)
    said.append("")
    if skipped:
        said.append(f"Tiles of keys skipped, which none of these queries sees: {skipped}.")
    said += [
        f"O = acc / l is written, {len(rows) * row} bytes; L = m + log l.",
        *_table(("O", "L"), rows, (last.acc / last.s[:, None], last.m + np.log(last.s))),
    ]
    return "\n".join(said)


def _columns(one: Met) -> tuple[Numbers, ...]:
    return one.scores, one.m, one.correction, one.s, one.acc
