"""The widget of the replay, and `replay`, which makes one of names or of a call.

Python records and hands over data: `replay_logic.js` plays, `replay.js` shows. So a replay answers
in a built page, in Jupyter and in Colab alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from kernels.cuda import CudaError
from kernels.lab.drawing.explorers.replay.catalogue import CATALOGUE
from kernels.lab.drawing.explorers.replay.trace import Recorded, recorded

_HERE = Path(__file__).parent


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


class Replay(anywidget.AnyWidget):
    """Recorded calls as a page that answers: `Replay(recordings)`, dicts as of `recorded`.

    `kernel` is the key of the one that is shown, the first at the start; `step` counts its requests
    from 1. TraitError names what it does not take.
    """

    _esm = _text(_HERE / "replay_logic.js") + "\n" + _text(_HERE / "replay.js")
    _css = _text(_HERE.parent / "roofline.css") + "\n" + _text(_HERE / "replay.css")

    recordings = traitlets.List(traitlets.Dict(), read_only=True).tag(sync=True)
    kernel = traitlets.Unicode().tag(sync=True)
    step = traitlets.Int(1).tag(sync=True)

    def __init__(self, recordings: Sequence[Recorded], kernel: str = "", step: int = 1) -> None:
        if not recordings:
            raise traitlets.TraitError("recordings is empty; a replay shows at least one")
        super().__init__()
        self.set_trait("recordings", list(recordings))
        self.kernel = kernel or recordings[0]["key"]
        self.step = step

    @traitlets.validate("kernel")
    def _check_kernel(self, proposal: Mapping[str, Any]) -> str:
        known = [one["key"] for one in self.recordings]
        if proposal["value"] not in known:
            raise traitlets.TraitError(
                f"kernel is {proposal['value']!r}; it takes: {', '.join(known)}"
            )
        return str(proposal["value"])

    @traitlets.validate("step")
    def _check_step(self, proposal: Mapping[str, Any]) -> int:
        (own,) = (one for one in self.recordings if one["key"] == self.kernel)
        last = len(own["requests"])
        if not 1 <= proposal["value"] <= last:
            raise traitlets.TraitError(
                f"step is {proposal['value']}; it takes a whole number from 1 to {last}"
            )
        return int(proposal["value"])

    @traitlets.observe("kernel")
    def _begin(self, _: object) -> None:
        self.step = 1


def replay(*what: str | Callable[[], object], kernel: str = "", step: int = 1) -> Replay:
    """Return a page that replays `what`, request by request: names of `CATALOGUE`, or your calls.

    A call takes no argument and launches kernels in Triton or CUDA C++ with small tensors: a replay
    shows at most 4,000 requests and 16,384 elements. Without `what`, all of the catalogue is there
    to choose from; `kernel` is the name that is shown first, and `step` its request, from 1.
    Kernels in CUDA C++ are emulated; where that can't be done (see CudaError), a replay of all
    leaves them out. ValueError names what isn't known or too large.
    """
    found: list[Recorded] = []
    for one in what or CATALOGUE:
        if callable(one):
            found.append(recorded(one, key=f"call {len(found) + 1}"))
            continue
        if one not in CATALOGUE:
            raise ValueError(f"no replay is called {one!r}; there are: {', '.join(CATALOGUE)}")
        try:
            found.append(CATALOGUE[one].record())
        except CudaError:
            if what:
                raise
    return Replay(found, kernel, step)
