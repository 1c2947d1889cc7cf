"""The explorer of lifetimes: memory over the launches of a layer, with a cursor (chapter 14).

Python hands over the data flow of layers that ran; `lifetimes_logic.js` sums up, `lifetimes.js`
shows. So it answers in a built page, in Jupyter and in Colab alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from kernels.lab.counting.flow import Flow
from kernels.lab.drawing.lifetimes import offsets
from kernels.lab.drawing.style import quantity


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def told(label: str, flow: Flow) -> dict[str, Any]:
    """A data flow as the page takes it: launches, and tensors with their places in memory."""
    launches = [
        {
            "name": step.name,
            "reads": [[t.tensor, t.read_unique] for t in kept.tensors if t.read_unique],
            "writes": [[t.tensor, t.write_unique] for t in kept.tensors if t.write_unique],
            "moved": step.bytes_unique,
        }
        for step, kept in zip(flow.ledger, flow.activations, strict=True)
    ]
    tensors = [
        {
            "name": one.name,
            "size": one.size,
            "writer": one.writer,
            "readers": list(one.readers),
            "until": one.until,
            "offset": place,
        }
        for one, place in zip(flow.carried, offsets(flow.carried), strict=True)
    ]
    return {"label": label, "launches": launches, "tensors": tensors}


class LifetimesExplorer(anywidget.AnyWidget):
    """Lifetimes as a page that answers; made by `lifetimes_explorer`, which see.

    `chosen` numbers the flows from 0, `launch` the launches of the chosen one from 1. TraitError
    names what it does not take.
    """

    _esm = _text("lifetimes_logic.js") + "\n" + _text("lifetimes.js")
    _css = _text("roofline.css") + "\n" + _text("lifetimes.css")

    flows = traitlets.List(traitlets.Dict(), read_only=True).tag(sync=True)
    chosen = traitlets.Int(0).tag(sync=True)
    launch = traitlets.Int(1).tag(sync=True)

    def __init__(self, flows: Mapping[str, Flow], **choices: int) -> None:
        super().__init__()
        self._told = dict(flows)
        self.set_trait("flows", [told(label, one) for label, one in flows.items()])
        for name in ("chosen", "launch"):  # a launch is one of its layer's
            if name in choices:
                setattr(self, name, choices[name])

    def text(self) -> str:
        """Return all launches of all layers as plain text, to read or to print."""
        lines: list[str] = []
        for label, one in self._told.items():
            lines.append(f"{label}: at most {quantity(one.peak, 'B')} at once")
            for number, step in enumerate(one.ledger, 1):
                names = ", ".join(c.name for c in one.alive(number))
                taken = quantity(one.bytes_alive(number), "B")
                lines.append(f"  {number} {step.name:<24} {taken:>8}  {names}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
        """Return the widget, and beside it the text, which is what shows where no widget does."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is not None:
            bundle[0]["text/plain"] = self.text()
        return bundle

    @traitlets.validate("chosen")
    def _check_chosen(self, proposal: Mapping[str, Any]) -> int:
        return self._inside("chosen", proposal["value"], 0, len(self.flows) - 1)

    @traitlets.validate("launch")
    def _check_launch(self, proposal: Mapping[str, Any]) -> int:
        most = len(self.flows[self.chosen]["launches"]) if self.flows else 1
        return self._inside("launch", proposal["value"], 1, most)

    @staticmethod
    def _inside(name: str, value: int, least: int, most: int) -> int:
        if not least <= value <= most:
            raise traitlets.TraitError(
                f"{name} is {value}; it takes a whole number from {least} to {most}"
            )
        return value

    @traitlets.observe("chosen")
    def _begin(self, _: object) -> None:
        self.launch = 1


def lifetimes_explorer(
    flows: Mapping[str, Flow], *, chosen: int = 0, launch: int = 1
) -> LifetimesExplorer:
    """Return a page with the memory of layers over their launches, and a cursor to move.

    `flows` has a data flow by the name to choose it by, as `kernels.lab.flow` returns it. The
    cursor stands at `launch`, from 1, of the one numbered `chosen`, from 0. It tells what that one
    reads and writes, what memory is taken, and what of it nobody reads any more. ValueError without
    a flow; TraitError names a number that is out of range.
    """
    if not flows:
        raise ValueError("flows is empty; lifetimes_explorer takes at least one")
    return LifetimesExplorer(flows, chosen=chosen, launch=launch)
