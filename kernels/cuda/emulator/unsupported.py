"""What of CUDA the emulator doesn't take: a sentence that says so, and what to use instead.

A kernel that can't be taken leaves the others of its source alone: its body is left out of the
program that they are built into.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from kernels.cuda.emulator.build import build
from kernels.cuda.errors import CudaError
from kernels.cuda.signature import Declaration, Signature, without_comments

_HEADERS = re.compile(
    r"#\s*include\s*[<\"](?:cooperative_groups|mma\.h|curand|cub/|thrust/|cuda/|cuda_pipeline|"
    r"cuda_profiler|helper_cuda)[^\n]*|"
    r"\b(?:using\s+namespace|namespace\s+\w+\s*=)\s+(?:cooperative_groups|nvcuda|cub|thrust)\b[^;\n]*;"
)
_ALIAS = re.compile(r"\bnamespace\s+(\w+)\s*=\s*cooperative_groups\b")
_LAUNCHED = "launch from Python with module.kernel[grid, block](...)"
_PARTS = (
    (
        r"\bcooperative_groups\s*::|\bthis_(?:thread_block|grid|multi_grid)\s*\(|"
        r"\btiled_partition\s*<|\bcoalesced_threads\s*\(|\b(?:thread_block|grid_group)\s+\w+",
        "cooperative groups are not supported without a GPU",
        "use __syncthreads(), __syncwarp() and the __shfl_..._sync functions",
    ),
    (
        r"\b(?:nvcuda|wmma)\s*::|\bfragment\s*<",
        "tensor cores (wmma) are not supported without a GPU",
        "multiply with plain additions and products, or use tl.dot in Triton",
    ),
    (
        r"\b(?:__)?asm(?:__)?\b\s*(?:volatile|__volatile__)?\s*\(\s*(?!\"\"\s*[:)])",
        "inline PTX (asm) is not supported without a GPU",
        "write it in C++ or with an intrinsic such as __shfl_down_sync",
    ),
    (
        r"\bcurand\w*",
        "cuRAND is not supported without a GPU",
        'write #include "philox.cuh", whose philox(key, counter) gives random numbers',
    ),
    (
        r"\b(?:cub|thrust)\s*::",
        "CUB and Thrust are not supported without a GPU",
        "reduce with __shfl_xor_sync and shared memory",
    ),
    (
        r"\b__pipeline_\w+|\bcuda\s*::\s*\w+",
        "the classes of cuda:: and asynchronous copies are not supported without a GPU",
        "copy with a load and a store, then __syncthreads()",
    ),
    (
        r"\b(?:tex[123]D\w*|surf[123]D\w*)\s*[<(]|\btexture\s*<|\bcudaTextureObject_t\b",
        "textures and surfaces are not supported without a GPU",
        "read through a pointer",
    ),
    (
        r"\b__activemask\s*\(",
        "__activemask() is not supported without a GPU",
        "name the lanes that take part, 0xffffffff for all",
    ),
    (r"<<<", "a launch with <<<...>>> is not part of a kernel", _LAUNCHED),
    (r"\bmain\s*\(", "a function main() is not part of a kernel", f"leave it out and {_LAUNCHED}"),
    (
        r"\bcuda(?:Malloc|Free|Memcpy|Memset|Device|GetLast|GetDevice|Get|Event|Stream|Launch|Func)"
        r"\w*\s*\(",
        "calls of the CUDA runtime are not part of a kernel",
        f"give tensors and {_LAUNCHED}",
    ),
)
_known: dict[tuple[str, tuple[Signature, ...]], CudaError] = {}


def built(
    source: str,
    declared: Mapping[str, Declaration],
    entries: tuple[Signature, ...],
    wanted: Signature,
) -> Path:
    """A program that can launch each of `entries`, the others' faults left out.

    CudaError where `wanted`, or what is outside every kernel, can't be taken or compiled.
    """
    own = wanted.expression.partition("<")[0]
    others = [one for one in declared.values() if one.name != own]
    text = _supported(source, others)
    while True:
        try:
            return _built_once(text, entries)
        except CudaError as error:
            faulty = [one for one in others if error.line is not None and _has(one, text, error)]
            if not faulty:
                raise
            others = [one for one in others if one not in faulty]
            for one in faulty:
                text = _without(text, *one.body)


def _built_once(text: str, entries: tuple[Signature, ...]) -> Path:
    known = _known.get((text, entries))
    if known is not None:
        raise CudaError(str(known), line=known.line)
    try:
        return build(text, entries)
    except CudaError as error:
        if error.line is not None:  # the source is to blame, so it will be the next time
            _known[text, entries] = error
        raise


def _has(kernel: Declaration, text: str, error: CudaError) -> bool:
    first, last = (1 + text.count("\n", 0, place) for place in kernel.body)
    return error.line is not None and first <= error.line <= last


def _without(text: str, start: int, end: int) -> str:
    """`text` with a part blanked out, every line where it was."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def _supported(source: str, others: list[Declaration]) -> str:
    """The source without headers that aren't there, and without other kernels that need them."""
    text = without_comments(source)
    for match in _HEADERS.finditer(text):
        source = _without(source, *match.span())
    plain = without_comments(source)
    alias = _ALIAS.search(text)
    parts = [(rf"\b{alias[1]}\s*::", *_PARTS[0][1:])] if alias else []
    for pattern, what, instead in (*parts, *_PARTS):
        for match in re.finditer(pattern, plain):
            place = match.start()
            holder = [one for one in others if one.body[0] <= place < one.body[1]]
            if not holder:
                line = 1 + plain.count("\n", 0, place)
                raise CudaError(f"line {line}: {what}; {instead}", line=line)
            source = _without(source, *holder[0].body)
    return source
