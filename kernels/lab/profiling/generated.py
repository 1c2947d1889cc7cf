"""What TorchInductor writes for the functions of chapter 09, recorded on a GPU as data.

    python -m kernels.lab generated

compiles each function anew, without any cache, and writes `<gpu>/generated.json`: the code that
came out, the kernels that the device ran in eager mode and compiled, the graphs that the function
fell into and why, and the seconds of a first call, of one with another number of rows, and of one
with a third. The code is the compiler's, made from the functions here; its licence is PyTorch's.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from kernels.lab.cards import devices
from kernels.lab.profiling.launched import Launched, profiled
from kernels.lab.records import provenance
from kernels.lab.records.data import write_provenance
from kernels.lab.selection import NO_GPU, RefusalError
from kernels.paths import DATA_DIR

Tensor = torch.Tensor
FILE = "generated.json"
ROWS = (4096, 2048, 1024)  # of a first call, of a second with another shape, and of a third
COLS, INNER, EXPERTS = 4096, 1024, 128
# Where the compiler put a kernel on the machine that recorded it.
_PLACE = re.compile(r"^ *# kernel path: .*\n", re.MULTILINE)
# A kernel in a module that TorchInductor wrote: its name and its text.
_KERNEL = re.compile(r"async_compile\.triton\(\s*'(\w+)',\s*'''(.*?)'''", re.DOTALL)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A reduction of each row, then each element."""
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def chain(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """Chapter 08's chain with a norm: a reduction, random numbers, and each element."""
    h = F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias), approximate="tanh")
    return residual + F.dropout(h, 0.1)


def softmax(x: Tensor) -> Tensor:
    """Two reductions of each row."""
    return torch.softmax(x, -1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Each element of two tensors."""
    return F.silu(gate) * up


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A matrix product, and each element of its result."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def two_sums(x: Tensor) -> Tensor:
    """Sums along rows and along columns: reductions of different shapes."""
    y: Tensor = x - x.mean(-1, keepdim=True) - x.mean(0)
    return y


def printed(x: Tensor) -> Tensor:
    """A step that the compiler can't see into, between two that it could fuse."""
    y = torch.relu(x)
    torch._dynamo.graph_break()
    return y * 2


def branch(x: Tensor) -> Tensor:
    """A branch that goes by a value: its graph ends where the value is needed."""
    y = torch.relu(x)
    return y * 2 if y.sum() > 0 else y


def selected(x: Tensor) -> Tensor:
    """The same choice without a branch."""
    y = torch.relu(x)
    return torch.where(y.sum() > 0, y * 2, y)


@dataclass(frozen=True)
class Function:
    """A function to compile, and its arguments by letters: R rows, N columns, K, E experts."""

    fn: Callable[..., Tensor]
    sizes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.fn.__name__

    def inputs(self, rows: int, device: torch.device | str) -> list[Tensor]:
        """Fresh random arguments in bf16, for a number of rows."""
        letters = {"R": rows, "N": COLS, "K": INNER, "E": EXPERTS}
        generator = torch.Generator(device=device).manual_seed(0)
        return [
            torch.randn([letters[one] for one in size], generator=generator, device=device).to(
                torch.bfloat16
            )
            for size in self.sizes
        ]


FUNCTIONS = {
    function.name: function
    for function in (
        Function(layernorm, ("RN", "N", "N")),
        Function(chain, ("RN", "N", "N", "RN")),
        Function(softmax, ("RN",)),
        Function(swiglu, ("RN", "RN")),
        Function(linear_gelu, ("RK", "NK", "N")),
        Function(two_sums, ("RN",)),
        Function(printed, ("RN",)),
        Function(branch, ("RN",)),
        Function(selected, ("RN",)),
    )
}


def _kernel_names(seen: Sequence[Launched]) -> list[str]:
    return [kernel for one in seen for kernel in one.kernels]


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return round(time.perf_counter() - start, 3)


@torch.no_grad()
def of_function(
    function: Function, device: torch.device, see: Callable[..., Any] = profiled
) -> dict[str, Any]:
    """Compile a function anew and tell what came of it, as `generated.json` holds it.

    `see(call)` returns what a call gave and the operators that the device worked for.
    """
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    given = {rows: function.inputs(rows, device) for rows in ROWS}
    first = given[ROWS[0]]
    _, eager = see(lambda: function.fn(*first))
    told = torch._dynamo.explain(function.fn)(*first)
    torch._dynamo.reset()
    compiled = torch.compile(function.fn)
    code: list[str] = []

    def call() -> None:
        code.extend(_PLACE.sub("", text) for text in run_and_get_code(compiled, *first)[1])

    with torch._inductor.config.patch(force_disable_caches=True):
        seconds = [_seconds(call, device)]
        # Seen before other shapes come: their code may take the first shape too.
        _, after = see(lambda: compiled(*first))
        for rows in ROWS[1:]:
            seconds.append(_seconds(functools.partial(compiled, *given[rows]), device))
    return {
        "source": inspect.getsource(function.fn),
        "sizes": list(function.sizes),
        "graphs": told.graph_count,
        "breaks": [str(one.reason) for one in told.break_reasons],
        "eager_kernels": _kernel_names(eager),
        "compiled_kernels": _kernel_names(after),
        "call_seconds": dict(zip(map(str, ROWS), seconds, strict=True)),
        "code": code,
    }


def kernels_of(code: str) -> dict[str, str]:
    """The kernels in Triton of a module that TorchInductor wrote: their texts by their names."""
    return dict(_KERNEL.findall(code))


def plain(kernel: str) -> str:
    """A kernel's text from `@triton.jit` on, without the heuristics that choose its launch.

    ValueError if there is none.
    """
    _, found, function = kernel.partition("@triton.jit\n")
    if not found:
        raise ValueError("this text holds no kernel: it has no line @triton.jit")
    return found + function


@dataclass(frozen=True)
class Record:
    """A `generated.json`: of a card, each function's entry as `of_function` tells it."""

    gpu: str
    provenance: dict[str, Any]
    functions: dict[str, dict[str, Any]]

    def kernels(self, name: str) -> dict[str, str]:
        """The texts of a function's kernels in Triton, by their names, in their order."""
        return {
            one: text
            for code in self.functions[name]["code"]
            for one, text in kernels_of(code).items()
        }


def generated(data_dir: Path = DATA_DIR) -> list[Record]:
    """What was recorded, a card each, by the cards' names."""
    found = []
    for path in sorted(data_dir.glob(f"*/{FILE}")):
        told = json.loads(path.read_text(encoding="utf-8"))
        functions = told.pop("functions")
        found.append(Record(path.parent.name, told, functions))
    return found


def run(out: Path | None, say: Callable[[str], None]) -> int:
    """Compile all functions on this GPU and write the file; return 0. RefusalError without one."""
    if not torch.cuda.is_available():
        raise RefusalError(NO_GPU)
    device = torch.device("cuda", torch.cuda.current_device())
    card = devices.describe(device.index)
    functions = {}
    for name, function in FUNCTIONS.items():
        functions[name] = told = of_function(function, device)
        say(
            f"{name:<12} {len(told['eager_kernels'])} kernels eager, "
            f"{len(told['compiled_kernels'])} compiled, {told['graphs']} graphs, "
            f"{told['call_seconds']}"
        )
    path = (out or DATA_DIR) / card["slug"] / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "card": card,
        "versions": provenance.versions(),
        **provenance.source(),
        "command": provenance.command(),
        "date": provenance.utc_now(),
        "functions": functions,
    }
    write_provenance(path, record)
    say(str(path))
    return 0
