"""The attention stepper: one tile of queries walks over the keys, tile by tile (chapter 12).

Python hands over q, k, v and choices and no logic: `stepper_logic.js` computes, `stepper.js` shows.
So the stepper answers in a built page, in Jupyter and in Colab alike. `text` tells the same numbers
where no widget is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from kernels.lab.drawing.explorers.stepper_text import as_text

BLOCKS = (2, 4, 8)
LONGEST, WIDEST = 32, 4  # what a telephone has room for


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _example() -> list[np.ndarray[Any, Any]]:
    """q, k, v (16, 4) of small whole numbers: scores are halves, which a reader can check."""
    rng = np.random.default_rng(12)
    return [rng.integers(-2, 3, (16, 4)) for _ in range(3)]


def _lists(name: str, given: Any, shape: tuple[int, ...] | None) -> list[list[float]]:
    found = np.asarray(given, dtype=np.float64)
    if found.ndim != 2 or not 1 <= len(found) <= LONGEST or not 1 <= found.shape[1] <= WIDEST:
        raise ValueError(
            f"{name} has the shape {found.shape}; it takes (length, d), the length 1 to {LONGEST}, "
            f"d 1 to {WIDEST}"
        )
    if shape is not None and found.shape != shape:
        raise ValueError(f"{name} has the shape {found.shape} and q {shape}; they take one shape")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has numbers that are not finite")
    rows: list[list[float]] = found.tolist()
    return rows


class AttentionStepper(anywidget.AnyWidget):
    """Attention's loop as a page that answers; made by `attention_stepper`, which see.

    `tile` counts tiles of queries from 0, `step` the steps of one from 1; `block_m` and `block_n`
    take a value of `BLOCKS`. Another tile, size or mask begins at step 1. TraitError names what it
    does not take.
    """

    _esm = _text("stepper_logic.js") + "\n" + _text("stepper.js")
    _css = _text("roofline.css") + "\n" + _text("stepper.css")

    q = traitlets.List(traitlets.List(traitlets.Float()), read_only=True).tag(sync=True)
    k = traitlets.List(traitlets.List(traitlets.Float()), read_only=True).tag(sync=True)
    v = traitlets.List(traitlets.List(traitlets.Float()), read_only=True).tag(sync=True)
    blocks = traitlets.List(list(BLOCKS), read_only=True).tag(sync=True)
    causal = traitlets.Bool().tag(sync=True)
    tile = traitlets.Int(0).tag(sync=True)
    block_m = traitlets.Enum(list(BLOCKS), 4).tag(sync=True)
    block_n = traitlets.Enum(list(BLOCKS), 4).tag(sync=True)
    step = traitlets.Int(1).tag(sync=True)

    def __init__(self, q: Any, k: Any, v: Any, **choices: Any) -> None:
        super().__init__()
        first = _lists("q", q, None)
        shape = len(first), len(first[0])
        self.set_trait("q", first)
        self.set_trait("k", _lists("k", k, shape))
        self.set_trait("v", _lists("v", v, shape))
        for name in ("causal", "block_m", "block_n", "tile", "step"):  # a step is one of its tile's
            if name in choices:
                setattr(self, name, choices[name])

    def steps(self) -> int:
        """Return how many steps the chosen tile of queries takes."""
        length = len(self.q)
        stop = min((self.tile + 1) * self.block_m, length) if self.causal else length
        return 2 + 4 * -(-stop // self.block_n)  # a load, four a tile of keys, a store

    def text(self) -> str:
        """Return all steps of the chosen tile of queries as plain text, to read or to print."""
        return as_text(
            *(self.q, self.k, self.v),
            causal=self.causal,
            tile=self.tile,
            block_m=self.block_m,
            block_n=self.block_n,
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
        """Return the widget, and beside it the text, which is what shows where no widget does."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is not None:
            bundle[0]["text/plain"] = self.text()
        return bundle

    @traitlets.validate("tile")
    def _check_tile(self, proposal: Mapping[str, Any]) -> int:
        tiles = -(-len(self.q) // self.block_m)
        return self._inside("tile", proposal["value"], 0, tiles - 1)

    @traitlets.validate("step")
    def _check_step(self, proposal: Mapping[str, Any]) -> int:
        return self._inside("step", proposal["value"], 1, self.steps())

    @staticmethod
    def _inside(name: str, value: int, least: int, most: int) -> int:
        if not least <= value <= most:
            raise traitlets.TraitError(
                f"{name} is {value}; it takes a whole number from {least} to {most}"
            )
        return value

    @traitlets.observe("causal", "tile", "block_n")
    def _begin(self, _: object) -> None:
        self.step = 1

    @traitlets.observe("block_m")
    def _begin_tiles(self, _: object) -> None:
        self.tile, self.step = 0, 1


def attention_stepper(
    q: Any = None,
    k: Any = None,
    v: Any = None,
    *,
    causal: bool = False,
    tile: int = 0,
    block_m: int = 4,
    block_n: int = 4,
    step: int = 1,
) -> AttentionStepper:
    """Return a page that walks one tile of queries over the keys, as the kernel of chapter 12 does.

    q, k and v are one head, (length, d) of numbers that a table has room for, the length at most
    32 and d at most 4; without any an example of 16 queries and keys is taken. `block_m` queries
    are a tile and `block_n` keys, 2, 4 or 8 of them; `tile` is the tile of queries, from 0, and
    `step` its step, from 1. It shows the scores as they are made, the state m, l, acc and its
    correction c, what registers and shared memory hold, and the bytes asked for, of numbers of 2
    bytes. All can be changed in the page. ValueError or TraitError names what it does not take.
    """
    given = [q, k, v]
    if all(one is None for one in given):
        given = list(_example())
    missing = [name for name, one in zip("qkv", given, strict=True) if one is None]
    if missing:
        raise ValueError(f"{missing[0]} is missing; it takes q, k and v together, or none of them")
    return AttentionStepper(
        *given, causal=causal, tile=tile, block_m=block_m, block_n=block_n, step=step
    )
