"""The widget of the fusion explorer, and `fusion`, which makes one by name or of a reader's steps.

Python hands over chains and cards: `fusion_logic.js` adds up, `fusion.js` shows. So the explorer
answers in a built page, in Jupyter and in Colab alike. `text` tells the same where no widget is
shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from kernels.lab.drawing.explorers.fusion import model
from kernels.lab.drawing.explorers.fusion.chain import Chain, Preset
from kernels.lab.drawing.explorers.roofline import LARGEST_SIZE, known_cards
from kernels.lab.drawing.style import duration, quantity
from kernels.lab.records.data import recordings
from kernels.paths import DATA_DIR

_HERE = Path(__file__).parent


def fusion_cards(data_dir: Path = DATA_DIR) -> list[dict[str, Any]]:
    """Return the cards of `known_cards`, each with what a launch takes, in µs.

    `launch_us` is a launch that does next to nothing in a replayed graph, `host_us` the same from
    Python; `launch_of` names the card that they were recorded on, which is another one where this
    one's were not. ValueError if no card's are recorded.
    """
    recorded = {}
    for one in recordings("ceilings", data_dir):
        rows = {row.timing: row.time_us_p50 for row in one.select(op="launch")}
        if rows.keys() >= set(model.LAUNCHED):
            recorded[one.gpu] = {
                "launch_us": rows["graph"],
                "host_us": rows["host"],
                "launch_of": one.provenance["card"]["name"],
            }
    if not recorded:
        raise ValueError(
            f"no launch is recorded in {data_dir}; `python -m kernels.lab bench ceilings` does it"
        )
    first = next(iter(recorded.values()))
    names = ("key", "slug", "name", "label", "bandwidth", "peaks", "sources")
    return [
        {**{name: card[name] for name in names}, **recorded.get(card["slug"], first)}
        for card in known_cards(data_dir)
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


class FusionExplorer(anywidget.AnyWidget):
    """Joints between steps as a page that answers; made by `fusion`, which see.

    `chain` is the key of the one that is shown; `closed` has a bool a joint; `sizes` are whole
    numbers; `card` is a card's key or short name, `launched` "graph" or "host". Another chain
    begins with all joints open. TraitError names what is not taken.
    """

    _esm = _text(_HERE / "fusion_logic.js") + "\n" + _text(_HERE / "fusion.js")
    _css = _text(_HERE.parent / "roofline.css") + "\n" + _text(_HERE / "fusion.css")

    chains = traitlets.List(traitlets.Dict(), read_only=True).tag(sync=True)
    cards = traitlets.List(traitlets.Dict(), read_only=True).tag(sync=True)
    names = traitlets.List(traitlets.Unicode(), read_only=True).tag(sync=True)
    slides = traitlets.List(traitlets.Unicode(), read_only=True).tag(sync=True)
    dtype = traitlets.Unicode(read_only=True).tag(sync=True)
    chain = traitlets.Unicode().tag(sync=True)
    sizes = traitlets.Dict().tag(sync=True)
    closed = traitlets.List(traitlets.Bool()).tag(sync=True)
    card = traitlets.Unicode().tag(sync=True)
    launched = traitlets.Enum(list(model.LAUNCHED), "graph").tag(sync=True)

    def __init__(
        self,
        chains: Sequence[Chain],
        sizes: Mapping[str, int] | None = None,
        slides: Sequence[str] = (),
        dtype: str = "",
        cards: Sequence[Mapping[str, Any]] | None = None,
        **choices: Any,
    ) -> None:
        super().__init__()
        self._chains = {chain.key: chain for chain in chains}
        given = fusion_cards() if cards is None else [dict(card) for card in cards]
        self.set_trait("chains", [chain.as_data() for chain in chains])
        self.set_trait("cards", given)
        self.set_trait("names", list(sizes or {}))
        self.set_trait("slides", list(slides))
        self.set_trait("dtype", dtype)
        self.sizes = dict(sizes or {})
        self.chain = choices.pop("chain", chains[0].key)
        for name, value in choices.items():
            setattr(self, name, value)

    def plan(self) -> model.Plan:
        """The launches as the joints stand: bytes, memory, time in µs; as the page shows them."""
        found = [one for one in self.cards if self.card in (one["key"], one["slug"])]
        card = found[0] if found else None
        chain = self._chains[self.chain]
        return model.plan(chain, self.sizes, self.closed, card, self.launched)

    def text(self) -> str:
        """Return the launches as plain text, to read or to print."""
        plan = self.plan()
        lines = []
        for number, one in enumerate(plan.launches, 1):
            time = "" if one.time_us is None else f", {duration(one.time_us)}, {one.bound}-bound"
            lines.append(
                f"{number}. {', '.join(one.steps)}: {quantity(one.read, 'B')} read, "
                f"{quantity(one.write, 'B')} written, {quantity(one.alive, 'B')} alive{time}"
            )
        time = "" if plan.time_us is None else f", at least {duration(plan.time_us)}"
        head = f"{self._chains[self.chain].label}: launches {len(plan.launches)}"
        moved, alive = quantity(plan.bytes_moved, "B"), quantity(plan.memory_bytes, "B")
        return "\n".join([f"{head}, {moved} moved, {alive} alive at most{time}", *lines])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
        """Return the widget, and beside it the text, which is what shows where no widget does."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is not None:
            bundle[0]["text/plain"] = self.text()
        return bundle

    @traitlets.observe("chain")
    def _begin(self, _: object) -> None:
        joints = self._chains[self.chain].joints
        if len(self.closed) != joints:
            self.closed = [False] * joints

    @traitlets.validate("chain")
    def _check_chain(self, proposal: Mapping[str, Any]) -> str:
        if proposal["value"] not in self._chains:
            raise traitlets.TraitError(
                f"chain is {proposal['value']!r}; it takes: {', '.join(self._chains)}"
            )
        return str(proposal["value"])

    @traitlets.validate("closed")
    def _check_closed(self, proposal: Mapping[str, Any]) -> list[bool]:
        wrong = model.fault(self._chains[self.chain], proposal["value"]) if self.chain else None
        if wrong:
            raise traitlets.TraitError(wrong)
        return list(proposal["value"])

    @traitlets.validate("sizes")
    def _check_sizes(self, proposal: Mapping[str, Any]) -> dict[str, int]:
        for name, size in proposal["value"].items():
            if type(size) is not int or not 1 <= size <= LARGEST_SIZE:
                raise traitlets.TraitError(
                    f"sizes[{name!r}] is {size!r}; it takes a whole number from 1 to {LARGEST_SIZE}"
                )
        return dict(proposal["value"])


def preset(chains: Iterable[Chain], key: str) -> tuple[Chain, Preset]:
    """Find a choice to start from; ValueError names those that there are."""
    found = [(chain, one) for chain in chains for one in chain.presets]
    for chain, one in found:
        if one.key == key:
            return chain, one
    known = ", ".join(one.key for _, one in found)
    raise ValueError(f"closed is {key!r}; it takes one bool a joint, or one of: {known}")
