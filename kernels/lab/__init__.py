"""The instruments, and the face that notebooks import them from.

    from kernels.lab import count_op, measured, plots, recordings, traffic

A name is loaded when it is first asked for, so that counting does not wait for drawing.
"""

from importlib import import_module
from typing import Any

# The module that each name of the face stands for, or "module:name in it".
_PLACES = {
    # counting without a GPU
    "aten": "counting.aten",
    "alive": "counting.alive",
    "traffic": "counting.traffic",
    "flow": "counting.flow:flow",
    "launches_by_torch": "counting.by_torch:launches_by_torch",
    "count_op": "counting.op_ledger:count_op",
    "kept": "counting.kept",
    "names_of": "counting.kept_names:names_of",
    "instructions": "counting.instructions:instructions",
    "tile_order": "counting.tile_order",
    # times, measured here or recorded
    "ceilings_here": "measuring.shown:ceilings_here",
    "measured": "measuring.shown:measured",
    "recorded": "measuring.shown:recorded",
    "recordings": "records.data:recordings",
    "host_costs": "measuring.host_cost:host_costs",
    "step_memories": "measuring.step_memory:step_memories",
    "lab_report": "records.lab_report",
    # what a compiler wrote
    "generated": "profiling.generated",
    "generated_kernels": "profiling.generated_kernels",
    # figures and explorers
    "plots": "drawing.plots",
    "lifetimes": "drawing.lifetimes:lifetimes",
    "arcs": "drawing.lifetimes:arcs",
    "memory": "drawing.memory",
    "tiles": "drawing.tiles",
    "warps": "drawing.warps",
    "rounds": "drawing.rounds:rounds",
    "waiting": "drawing.waiting",
    "peak_shares": "drawing.peaks:peak_shares",
    "CYCLE": "drawing.style:CYCLE",
    "WRITE_HATCH": "drawing.style:WRITE_HATCH",
    "ink_on": "drawing.style:ink_on",
    "new_figure": "drawing.style:new_figure",
    "page": "drawing.style:page",
    "themed": "drawing.style:themed",
    "lifetimes_explorer": "drawing.explorers:lifetimes_explorer",
    "RooflineExplorer": "drawing.explorers:RooflineExplorer",
    "SectorExplorer": "drawing.explorers:SectorExplorer",
    "TilerExplorer": "drawing.explorers:TilerExplorer",
    "Step": "drawing.explorers.fusion.chain:Step",
    "fusion": "drawing.explorers.fusion.call:fusion",
    "attention_stepper": "drawing.explorers:attention_stepper",
    "replay": "drawing.explorers.replay.widget:replay",
    # cards
    "CARDS": "cards.makers:CARDS",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place, _, inside = _PLACES[name].partition(":")
    module = import_module(f"{__name__}.{place}")
    return getattr(module, inside) if inside else module


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
