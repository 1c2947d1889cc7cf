"""What a GPU runs for the functions of set 09, recorded anew: needs a GPU and its compiler.

    python -m tests.grading.compiled_09

compiles each function without a cache and writes `compiled_09.json`: the names of the kernels that
ran, and what TorchInductor wrote for the two kernels that the page shows. Which kernels run is the
compiler's choice for the card at hand: compiled ahead of time, without one, nothing is launched.
"""

import ast
import inspect
import json
import linecache
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kernels.lab.cards import devices
from kernels.lab.profiling.generated import Function, kernels_of, of_function, plain
from kernels.lab.profiling.launched import profiled
from kernels.lab.records import provenance
from kernels.lab.selection import NO_GPU
from kernels.paths import ROOT

FILE = ROOT / "tests" / "grading" / "compiled_09.json"
PAGE = ROOT / "solutions" / "09_what_compilers_fuse.ipynb"
# Each function's arguments, in bf16: R rows, N columns, E experts.
SIZES: dict[str, tuple[str, ...]] = {
    "glu": ("RN", "RN"),
    "masked_softmax": ("RN", "RN"),
    "product": ("RN", "NN"),
    "columns": ("RN",),
    "logged": ("RN",),
    "dropped": ("RN",),
    "added": ("RN", "RN", "RN"),
    "gated": ("RN", "RN", "N"),
    "routed": ("RE",),
}
# Those of 09.2, 09.3 and 09.9, which the page tells in words and formulas.
OTHERS = """
import torch
import torch.nn.functional as F


def added(a, b, c):
    return a + b + c


def gated(a, b, c):
    h = F.silu(a) * b
    return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6) * c


def routed(x):
    probs = torch.softmax(x.float(), -1)
    load = probs.mean(0)
    return probs.to(x.dtype), load
"""
SHOWN = ("added", "gated")


def functions() -> dict[str, Callable[..., Any]]:
    """The functions of the page and the others, by their names, with sources to be read."""
    cells = json.loads(PAGE.read_text())["cells"]
    of_page = next("".join(c["source"]) for c in cells if c["id"] == "q1-functions")
    names: dict[str, Any] = {}
    for file, source in (("<functions of 09>", OTHERS), ("<functions of 09.1>", of_page)):
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), names)
    return {name: names[name] for name in SIZES}


def source_of(fn: Callable[..., Any]) -> str:
    """A function's source in the one form that `ast` writes."""
    return ast.unparse(ast.parse(inspect.getsource(fn)))


def recorded(
    device: torch.device, names: Iterable[str] = SIZES, see: Callable[..., Any] = profiled
) -> dict[str, Any]:
    """What the file holds of each function's kernels, and of the two that the page shows."""
    kernels, texts = {}, {}
    for name in names:
        fn = functions()[name]
        told = of_function(Function(fn, SIZES[name]), device, see)
        kernels[name] = {"names": told["compiled_kernels"], "source": source_of(fn)}
        if name in SHOWN:
            code = [text for one in told["code"] for text in kernels_of(one).values()]
            texts[name] = plain(code[0]) if code else ""
    return {"kernels": kernels, "texts": texts}


def main() -> int:
    if not torch.cuda.is_available():
        print(NO_GPU)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    versions = provenance.versions()
    record = {
        "card": devices.describe(device.index)["name"],
        "date": provenance.utc_now()[:10],
        "torch": versions["torch"],
        "triton": versions["triton"],
        "command": "python -m tests.grading.compiled_09",
        **recorded(device),
    }
    FILE.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
