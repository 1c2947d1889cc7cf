"""The roofline explorer: choose card, operation, size and dtype; see bytes, bound and time.

Python hands over data and no logic: formulas, ceilings, recorded rows and looks travel as synced
traits; `roofline_logic.js` reckons, `roofline.js` shows. So the explorer answers in a built page,
in Jupyter and in Colab alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import torch
import traitlets
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path as Outline

from kernels.lab.cards import devices
from kernels.lab.cards.makers import CARDS
from kernels.lab.cards.roofline import ceilings_of, points_of
from kernels.lab.drawing.explorers.formulas import FORMULAS
from kernels.lab.drawing.style import THEMES, look
from kernels.lab.records.data import Recording, Row, recordings
from kernels.paths import DATA_DIR
from kernels.registry import DTYPES, SUITES

LARGEST_SIZE = 1 << 20
DEFAULT_SIZES = {"rows": 4096, "cols": 4096, "m": 4096, "k": 4096, "n": 4096}

_COMMANDS = {
    Outline.MOVETO: "M",
    Outline.LINETO: "L",
    Outline.CURVE3: "Q",
    Outline.CURVE4: "C",
    Outline.CLOSEPOLY: "Z",
}


def measured_cards(data_dir: Path = DATA_DIR) -> list[dict[str, Any]]:
    """Return the cards whose ceilings were recorded: bytes/s, FLOP/s per dtype, launch in µs."""
    found = []
    for recording in recordings("ceilings", data_dir):
        peaks, bandwidth = {}, None
        for dtype in DTYPES:
            try:
                ceilings = ceilings_of(recording, dtype)
            except LookupError:  # a card without bf16 has no product in it
                continue
            peaks[dtype] = ceilings.compute_flops_per_s
            bandwidth = ceilings.bandwidth_bytes_per_s
        if bandwidth is None:
            continue
        told = recording.provenance
        launches = recording.select(op="launch", timing="graph")
        found.append(
            {
                "key": f"{recording.gpu}-measured",
                "slug": recording.gpu,
                "name": told["card"]["name"],
                "label": "measured",
                "bandwidth": bandwidth,
                "peaks": peaks,
                "l2_bytes": told["card"].get("l2_bytes"),
                "launch_us": launches[0].time_us_p50 if launches else None,
                "sources": [
                    {
                        "text": f"python -m kernels.lab bench ceilings, on {told['date'][:10]}",
                        "url": "",
                    }
                ],
            }
        )
    return found


def maker_cards() -> list[dict[str, Any]]:
    """Return the cards of `lab.cards` by their maker's dense figures, in the same form."""
    return [
        {
            "key": f"{card.slug}-maker",
            "slug": card.slug,
            "name": card.name,
            "label": "maker's dense figures",
            "bandwidth": card.bandwidth_bytes_per_s,
            "peaks": {
                dtype: peak for dtype in DTYPES if (peak := getattr(card.peaks, dtype)) is not None
            },
            "l2_bytes": card.l2_bytes,
            "launch_us": None,
            "sources": [
                {"text": document.title, "url": document.url}
                for document in dict.fromkeys((card.sources.memory, card.sources.peaks))
            ],
        }
        for card in CARDS.values()
    ]


def known_cards(data_dir: Path = DATA_DIR) -> list[dict[str, Any]]:
    """Return every card the explorer offers, measured ceilings first."""
    return [*measured_cards(data_dir), *maker_cards()]


def recorded_groups(data_dir: Path = DATA_DIR) -> list[dict[str, Any]]:
    """Return what cards measured of the explorer's operations: device times of forward passes.

    A group is one operation, shape and dtype on one card. A row has its time in µs, its FLOPs, and
    the bytes that place it (`bytes_of` says which), None where neither kind is known.
    """
    known = {formula.key for formula in FORMULAS}
    groups: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for recording in (found for suite in SUITES for found in recordings(suite, data_dir)):
        for row in recording.select(pass_="fwd", timing="graph"):
            if row.variant == "torch_tf32":  # its ceiling is not that of fp32
                continue
            if row.op in known and row.dtype in DTYPES and row.time_us_p50:
                key = (recording.gpu, row.op, row.shape, row.dtype)
                group = groups.setdefault(key, _group(recording, row))
                group["rows"].append(_as_point(row))
    return list(groups.values())


def _group(recording: Recording, row: Row) -> dict[str, Any]:
    return {
        "slug": recording.gpu,
        "card": recording.provenance["card"]["name"],
        "date": recording.provenance["date"][:10],
        "op": row.op,
        "shape": row.shape,
        "dtype": row.dtype,
        "rows": [],
    }


def _as_point(row: Row) -> dict[str, Any]:
    points, _ = points_of([row])
    return {
        "variant": row.variant,
        "time_us": row.time_us_p50,
        "flops": row.flops or 0,
        "bytes": points[0].bytes if points else None,
        "bytes_of": points[0].bytes_of if points else "",
    }


def marker_path(marker: str) -> str:
    """Return a matplotlib marker as the path of an SVG, one unit large, y downwards."""
    style = MarkerStyle(marker)
    outline = style.get_transform().transform_path(style.get_path())
    size = 2 * np.abs(outline.vertices).max()
    parts = []
    for vertices, code in outline.iter_segments():
        closes = code == Outline.CLOSEPOLY
        ends = np.empty((0, 2)) if closes else np.asarray(vertices).reshape(-1, 2) / size
        parts.append(_COMMANDS[code] + " ".join(f"{x:.3f} {-y:.3f}" for x, y in ends))
    return "".join(parts)


def _looks(groups: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the book's colour and marker of every recorded variant; ink follows the page."""
    found = {}
    for name in sorted({row["variant"] for group in groups for row in group["rows"]}):
        kind = look(name)
        ink = kind.color in {theme.ink for theme in THEMES.values()}
        found[name] = {
            "color": "var(--fk-ink)" if ink else kind.color,
            "path": marker_path(kind.marker),
        }
    return found


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class RooflineExplorer(anywidget.AnyWidget):
    """The roofline as a page that answers: `RooflineExplorer(op="gelu", dtype="fp16")`.

    `card` is a card's key or short name (`h100-sxm`), today's GPU if there is one; the page says
    so where its ceilings are unknown. `op` is one of `FORMULAS`, `dtype` one of fp16, bf16 and
    fp32. `sizes` has rows and cols, or m, k and n of a product, each from 1 to 2²⁰; those left out
    are 4096. `cards` are dicts as of `known_cards`; `groups` as of `recorded_groups`.
    TraitError names what it does not take.
    """

    _esm = _text("roofline_logic.js") + "\n" + _text("roofline.js")
    _css = _text("roofline.css")

    card = traitlets.Unicode().tag(sync=True)
    op = traitlets.Enum([formula.key for formula in FORMULAS], "layernorm").tag(sync=True)
    dtype = traitlets.Enum(list(DTYPES), "bf16").tag(sync=True)
    sizes = traitlets.Dict(default_value=DEFAULT_SIZES).tag(sync=True)
    cards = traitlets.List(traitlets.Dict(), read_only=True).tag(sync=True)
    groups = traitlets.List(traitlets.Dict(), read_only=True).tag(sync=True)
    operations = traitlets.List(traitlets.Dict(), read_only=True).tag(sync=True)
    itemsizes = traitlets.Dict(read_only=True).tag(sync=True)
    looks = traitlets.Dict(read_only=True).tag(sync=True)
    largest_size = traitlets.Int(LARGEST_SIZE, read_only=True).tag(sync=True)

    def __init__(
        self,
        cards: Sequence[Mapping[str, Any]] | None = None,
        groups: Sequence[Mapping[str, Any]] | None = None,
        **choices: Any,
    ) -> None:
        cards = known_cards() if cards is None else cards
        groups = recorded_groups() if groups is None else groups
        choices.setdefault("card", todays_card(cards))
        super().__init__(**choices)
        self.set_trait("cards", [dict(card) for card in cards])
        self.set_trait("groups", [dict(group) for group in groups])
        self.set_trait("operations", [asdict(formula) for formula in FORMULAS])
        self.set_trait("itemsizes", {name: dtype.itemsize for name, dtype in DTYPES.items()})
        self.set_trait("looks", _looks(groups))

    @traitlets.validate("sizes")
    def _check_sizes(self, proposal: Mapping[str, Any]) -> dict[str, int]:
        for name, size in proposal["value"].items():
            if name not in DEFAULT_SIZES:
                raise traitlets.TraitError(
                    f"sizes has {name!r}; it takes: {', '.join(DEFAULT_SIZES)}"
                )
            if type(size) is not int or not 1 <= size <= LARGEST_SIZE:
                raise traitlets.TraitError(
                    f"sizes[{name!r}] is {size!r}; it takes a whole number from 1 to {LARGEST_SIZE}"
                )
        return DEFAULT_SIZES | proposal["value"]


def todays_card(cards: Sequence[Mapping[str, Any]]) -> str:
    """Return this machine's card, known or not; without a GPU, the first of `cards`."""
    if torch.cuda.is_available():
        return devices.slug(torch.cuda.get_device_name())
    return str(cards[0]["key"]) if cards else ""
