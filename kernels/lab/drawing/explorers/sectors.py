"""The sector explorer: choose width, stride and place of a warp's load; see the sectors it takes.

Python hands over the choices and no logic: `sectors_logic.js` reckons, `sectors.js` shows. So the
explorer answers in a built page, in Jupyter and in Colab alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

WIDTHS = (1, 2, 4, 8, 16)  # bytes that one lane loads by one instruction
LARGEST_STRIDE = 64
LARGEST_OFFSET = 31


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class SectorExplorer(anywidget.AnyWidget):
    """One load of a warp as a page that answers: `SectorExplorer(width=2, stride=1)`.

    Lane i of 32 loads `width` bytes (1, 2, 4, 8 or 16), `stride` · i loads (0 to 64) behind the
    first lane's, which is `offset` loads (0 to 31) behind the start of a cache line. TraitError
    names what it does not take.
    """

    _esm = _text("sectors_logic.js") + "\n" + _text("sectors.js")
    _css = _text("roofline.css") + "\n" + _text("sectors.css")

    width = traitlets.Enum(list(WIDTHS), 4).tag(sync=True)
    stride = traitlets.Int(1).tag(sync=True)
    offset = traitlets.Int(0).tag(sync=True)
    widths = traitlets.List(traitlets.Int(), list(WIDTHS), read_only=True).tag(sync=True)
    largest_stride = traitlets.Int(LARGEST_STRIDE, read_only=True).tag(sync=True)
    largest_offset = traitlets.Int(LARGEST_OFFSET, read_only=True).tag(sync=True)

    @traitlets.validate("stride", "offset")
    def _check(self, proposal: Mapping[str, Any]) -> int:
        name, value = proposal["trait"].name, proposal["value"]
        most = LARGEST_STRIDE if name == "stride" else LARGEST_OFFSET
        if not 0 <= value <= most:
            raise traitlets.TraitError(
                f"{name} is {value}; it takes a whole number from 0 to {most}"
            )
        return int(value)
