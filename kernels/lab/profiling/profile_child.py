"""What Nsight Compute runs: one profiled call of each cell, a marker kernel before it.

    ncu … --profile-from-start off python -m kernels.lab.profiling.profile_child SPEC.json

Inputs, compilation, a backward's forward and a first call come before the profiled part. The file
named in the spec tells which cells were done, one for each marker, and what failed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from kernels import registry
from kernels.lab.measuring.cell_bench import (
    bind,
    first_line,
    make_sets,
    this_device,
    without_fallback,
)
from kernels.lab.measuring.timing import FLUSH_BYTES
from kernels.lab.selection import Cell, load_ops

NAMED = ("op", "shape", "dtype", "options", "pass", "variant")  # what a spec says of a cell


@triton.jit
def cell_marker(out_ptr):  # type: ignore[no-untyped-def]
    """Store one number: a kernel that stands between two cells in a profile."""
    tl.store(out_ptr, 1.0)


def profiled(call: Any, marker: torch.Tensor, flush: torch.Tensor | None) -> None:
    """Run `call`, warm already, once inside the profiler's window, after a marker."""
    if flush is not None:
        # Reading empties the L2 of what it held, and leaves no lines to be written back.
        flush.view(torch.int64).sum()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    try:
        cell_marker[(1,)](marker)
        call()
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()


@torch.no_grad()
def main(spec_path: str) -> int:
    """Run the cells of a spec until its seconds are used up."""
    with without_fallback():
        return _run(json.loads(Path(spec_path).read_text(encoding="utf-8")))


def _run(spec: dict[str, Any]) -> int:
    load_ops()
    device = this_device()
    marker = torch.zeros(1, device=device)
    size = max(FLUSH_BYTES, 4 * int(torch.cuda.get_device_properties(device).L2_cache_size))
    flush = torch.ones(size, dtype=torch.uint8, device=device) if spec["flush"] else None
    cell_marker[(1,)](marker)
    torch.cuda.synchronize()
    done: list[dict[str, Any]] = []
    started = time.perf_counter()
    for told in spec["cells"]:
        if time.perf_counter() - started > spec["seconds"]:
            break
        entry = told | {"name": " ".join(str(told[key]) for key in NAMED), "error": ""}
        window = False
        call = None  # a backward lets go of what its forward saved, before the next one's runs
        try:
            op = registry.get(told["op"])
            variant = op.variant(told["variant"])
            case = registry.Case(
                registry.parse_shape(told["shape"]),
                registry.parse_dtype(told["dtype"]),
                registry.parse_options(told["options"]),
            )
            cell = Cell(op, case, told["pass"], (variant,))
            entry["name"] = f"{cell.name} {variant.name}"
            call = bind(cell, variant, make_sets(cell, variant, device, 1, 1)[0])
            call()
            call()
            torch.cuda.synchronize()
            window = True
            profiled(call, marker, flush)
        except Exception as error:
            entry["error"] = first_line(error)
        if window:  # else no marker was launched
            done.append(entry)
        else:
            print(f"{entry['name']}: {entry['error']}", file=sys.stderr)
        Path(spec["done"]).write_text(json.dumps(done), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
