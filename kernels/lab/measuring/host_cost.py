"""What a call from Python costs the host, whole and in its parts, on this GPU.

    python -m kernels.lab host

writes `book/data/<gpu>/host.json`: medians in µs of calls of 512 rows of 1024 in bf16, back to
back, and where the time of a launch goes. The parts of a launch that is ready are differences: its
function is cut off behind its tests, and behind its allocations. Those of `kernel[grid](...)` are
calls of Triton's own steps, where this version of Triton has them. The rest is what the parts leave
of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from triton.runtime import jit

from kernels import passes, registry
from kernels.lab.cards import devices
from kernels.lab.measuring import timing
from kernels.lab.measuring.cell_bench import say, this_device
from kernels.lab.records import provenance
from kernels.lab.selection import NO_GPU, RefusalError, load_ops
from kernels.launch import recording
from kernels.ops.norms import layernorm
from kernels.paths import DATA_DIR
from kernels.registry import Case

FILE = "host.json"
CASE = Case((512, 1024), torch.bfloat16)
OPERATIONS = ("layernorm", "rmsnorm", "softmax", "add_layernorm", "add_rmsnorm")
VARIANTS = ("torch", "fused")


def medians(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return each call's median time in µs, the calls interleaved window by window."""
    taken = timing.time_host(calls, torch.cuda.synchronize, seconds=seconds)
    return {name: round(timing.quantile(times, 0.5), 3) for name, times in taken.items()}


def calls_of_operations(seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    """Return {operation: {pass: {variant: µs}}}, forward and as a step of training."""
    load_ops()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in OPERATIONS:
        op = registry.get(name)
        inputs = op.make(CASE, this_device(), 0)
        for pass_ in ("fwd", "train"):
            calls = {v: passes.bind(op, op.variant(v), inputs, pass_) for v in VARIANTS}
            found.setdefault(name, {})[pass_] = medians(calls, seconds)
    return found


def _parts_of_ready(inputs: dict[str, Any], seconds: float) -> dict[str, float]:
    args = (inputs["x"], inputs["weight"], inputs["bias"], 1e-5)
    for _ in range(2):
        layernorm.layer_norm(*args)
    ready: Any = layernorm.CALL.ready  # type: ignore[attr-defined]
    call = ready.recent[0]
    lines = ready.plans[-1].source(args, no_gradient=True).splitlines()
    first = next(n for n, line in enumerate(lines) if " = empty(" in line)
    last = next(n for n, line in enumerate(lines) if "launch0(" in line)

    def cut(at: int) -> Callable[..., object]:
        names = dict(call.__globals__)
        exec("\n".join([*lines[:at], "    return None"]), names)
        made: Callable[..., object] = names["call"]
        return made

    tests, allocations = cut(first), cut(last)
    times = medians(
        {
            "whole": lambda: layernorm.layer_norm(*args),
            "call": lambda: call(*args),
            "tests": lambda: tests(*args),
            "allocations": lambda: allocations(*args),
            "nothing": lambda: None,
        },
        seconds,
    )
    return {
        "look up": times["tests"] - times["nothing"],
        "allocate": times["allocations"] - times["tests"],
        "launch": times["call"] - times["allocations"],
        "whole": times["whole"] - times["nothing"],
    }


def _parts_of_triton(inputs: dict[str, Any], seconds: float) -> dict[str, float]:
    """The parts of `kernel[grid](...)` for the same launch; the output is there already."""
    args = (inputs["x"], inputs["weight"], inputs["bias"], 1e-5)
    with recording() as seen:
        layernorm.layer_norm(*args)
    launch: Any = next(iter(seen))
    kernel, values, options = launch.kernel, tuple(launch.arguments.values()), launch.options
    y = torch.empty_like(inputs["x"])
    values = tuple(y if v is launch.arguments["y_ptr"] else v for v in values)
    compiled = kernel[launch.grid](*values, **options)
    calls: dict[str, Callable[[], object]] = {
        "whole": lambda: kernel[launch.grid](*values, **options),
        "nothing": lambda: None,
    }
    device = torch.cuda.current_device()
    caches = kernel.device_caches[device]
    if len(caches) == 5 and hasattr(jit, "compute_cache_key"):
        _, keys, _, _, binder = caches
        more = {**options, "debug": False, "instrumentation_mode": ""}
        _, specialization, bound = binder(*values, **more)
        stream = torch.cuda.current_stream().cuda_stream
        fixed = (compiled.function, compiled.packed_metadata, None, None, None)
        calls |= {
            "specialise": lambda: binder(*values, **more),
            "look up": lambda: jit.compute_cache_key(keys, specialization, bound),
            "launch": lambda: compiled.run(*launch.grid, stream, *fixed, *values),
        }
    times = medians(calls, seconds)
    nothing = times.pop("nothing")
    order = [name for name in ("specialise", "look up", "launch", "whole") if name in times]
    return {name: times[name] - nothing for name in order}


def parts(seconds: float) -> dict[str, dict[str, float]]:
    """Return {way: {part: µs}}: a launch through Triton, one that is ready, PyTorch's own."""
    inputs = registry.get("layernorm").make(CASE, this_device(), 0)
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]

    def own() -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    found = {
        "kernel[grid](...)": _parts_of_triton(inputs, seconds),
        "layer_norm": _parts_of_ready(inputs, seconds),
        "F.layer_norm": medians({"whole": own}, seconds),
    }
    return {
        way: {part: round(max(time_us, 0.0), 3) for part, time_us in times.items()}
        for way, times in found.items()
    }


@torch.no_grad()
def run(out: Path | None, seconds: float) -> int:
    """Measure, write the file, print it; return 0. RefusalError without a GPU."""
    if not torch.cuda.is_available():
        raise RefusalError(NO_GPU)
    load_ops()
    card = devices.describe(this_device().index)
    record = {
        "card": card,
        "versions": provenance.versions(),
        **provenance.source(),
        "command": provenance.command(),
        "date": provenance.utc_now(),
        "shape": registry.shape_name(CASE.shape),
        "dtype": registry.dtype_name(CASE.dtype),
        "calls_us": calls_of_operations(seconds),
        "parts_us": parts(seconds),
    }
    path = (out or DATA_DIR) / card["slug"] / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, sort_keys=False) + "\n", encoding="utf-8")
    for name, told in record["calls_us"].items():
        for pass_, times in told.items():
            ratio = times["fused"] / times["torch"]
            say(f"{name:<14} {pass_:<6} torch {times['torch']:7.1f}  fused {times['fused']:7.1f}"
                f"  {ratio:.2f}")  # fmt: skip
    for way, times in record["parts_us"].items():
        say(f"{way:<18} " + ", ".join(f"{part} {time_us:.1f}" for part, time_us in times.items()))
    say(str(path))
    return 0


def host_costs(data_dir: Path = DATA_DIR) -> Sequence[dict[str, Any]]:
    """Return what was recorded, a dictionary a card as `run` writes it, by the cards' names."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(data_dir.glob(f"*/{FILE}"))]
