"""The tiler: choose sizes, a tile and an order; see what is asked for, shared, and what binds.

Python hands over choices and cards and no logic: `tiler_logic.js` reckons, `tiler.js` shows. So the
explorer answers in a built page, in Jupyter and in Colab alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from kernels.lab.cards.makers import CARDS
from kernels.lab.drawing.explorers.roofline import known_cards

SIZES = (1, 16, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 8192, 12288, 16384)
VALUES: Mapping[str, tuple[int, ...]] = {
    "m": SIZES,
    "k": SIZES,
    "n": SIZES,
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (16, 32, 64, 128, 256),
    "block_k": (16, 32, 64, 128),
    "group": (1, 2, 4, 8, 16, 32, 64),
    "stages": (1, 2, 3, 4, 5, 6),
}
_TENSOR_CORES = 80  # the first capability where `tl.dot` uses them


def tiler_cards() -> list[dict[str, Any]]:
    """Return the cards that the tiler offers, measured ceilings first.

    Beside bytes/s and FLOP/s of a product of 16-bit numbers each has its multiprocessors, a
    program's shared memory in bytes and a multiprocessor's registers. `plain` says that Triton's
    products use no tensor cores there, so that the peak is that of fp32. A card whose maker does
    not tell all of this is left out.
    """
    found = []
    for told in known_cards():
        card = CARDS.get(told["slug"])
        plain = card is not None and card.capability < _TENSOR_CORES
        peaks = told["peaks"]
        peak = peaks.get("fp32") if plain else peaks.get("bf16") or peaks.get("fp16")
        if card is None or card.sms is None or peak is None:
            continue
        found.append(
            {
                "key": told["key"],
                "name": told["name"],
                "label": told["label"],
                "bandwidth": told["bandwidth"],
                "peak": peak,
                "plain": plain,
                "sms": card.sms,
                "shared": card.limits.shared_bytes_per_block,
                "registers": card.limits.registers_per_sm,
            }
        )
    return found


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _choice(name: str, default: int) -> Any:
    return traitlets.Enum(list(VALUES[name]), default).tag(sync=True)


class TilerExplorer(anywidget.AnyWidget):
    """A tiled product as a page that answers: `TilerExplorer(m=8192, k=4096, n=12288)`.

    y (m, n) = x (m, k) · weight (n, k)ᵀ in 16-bit numbers, a program a tile of `block_m` ×
    `block_n`, in steps of `block_k`, `stages` of them in shared memory; `group` rows of tiles go
    together. Each takes a value of `VALUES`; `card` is a key of `tiler_cards`. TraitError names
    what it does not take.
    """

    _esm = _text("tiler_logic.js") + "\n" + _text("tiler.js")
    _css = _text("roofline.css") + "\n" + _text("tiler.css")

    m = _choice("m", 4096)
    k = _choice("k", 4096)
    n = _choice("n", 4096)
    block_m = _choice("block_m", 128)
    block_n = _choice("block_n", 128)
    block_k = _choice("block_k", 64)
    group = _choice("group", 1)
    stages = _choice("stages", 3)
    card = traitlets.Unicode().tag(sync=True)
    cards = traitlets.List(traitlets.Dict(), read_only=True).tag(sync=True)
    values = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(self, cards: Sequence[Mapping[str, Any]] | None = None, **choices: Any) -> None:
        cards = tiler_cards() if cards is None else cards
        choices.setdefault("card", str(cards[0]["key"]) if cards else "")
        super().__init__(**choices)
        self.set_trait("cards", [dict(card) for card in cards])
        self.set_trait("values", {name: list(values) for name, values in VALUES.items()})
