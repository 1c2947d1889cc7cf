"""A kernel that TorchInductor wrote, taken from a record and made to run again.

Its text holds its sizes as numbers: a grid of fewer programs does the first rows, and nothing else
changes. What the text leaves open are the blocks, which the compiler's heuristics choose on a GPU.
"""

from __future__ import annotations

import importlib
import linecache
import re
from typing import Any

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from kernels.lab.profiling.generated import Record, plain

# A launch in the function `call` of a module that TorchInductor wrote.
_LAUNCH = re.compile(r"^\s*((?:triton_\w+\.run|extern_kernels\.\w+|aten\.[\w.]+)\(.*\))$", re.M)


def launch_lines(code: str) -> list[str]:
    """What a module that TorchInductor wrote launches, kernels and operators, in order.

    A line each, the module's own, such as `triton_poi_fused_add_0.run(arg0_1, buf0, 16, …)`.
    """
    return _LAUNCH.findall(code)


def kernel(record: Record, function: str, number: int = 0) -> JITFunction[Any]:
    """The `number`-th kernel of a recorded function, as a `@triton.jit` function to launch.

    The text is the record's from `@triton.jit` on. The names that it takes from PyTorch
    (`triton_helpers`, `libdevice`, `tl_math`) are those of the PyTorch at hand. KeyError if the
    function wasn't recorded, IndexError if it has fewer kernels.
    """
    name, text = list(record.kernels(function).items())[number]
    return made(name, plain(text))


def made(name: str, text: str) -> JITFunction[Any]:
    """A `@triton.jit` function of this name from its text."""
    triton_helpers = importlib.import_module("torch._inductor.runtime.triton_helpers")
    file = f"<{name}, generated>"
    # Triton reads a function's source as a debugger does, by its file: here is its text.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {
        "__name__": "generated",
        "triton": triton,
        "tl": tl,
        "triton_helpers": triton_helpers,
        "libdevice": triton_helpers.libdevice,
        "tl_math": triton_helpers.math,
    }
    exec(compile(text, file, "exec"), names)
    found: JITFunction[Any] = names[name]
    return found
