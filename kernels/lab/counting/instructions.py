"""The machine instructions that a launch is compiled to, counted with no GPU."""

from __future__ import annotations

import functools
import re
from collections import Counter

from kernels.launch.binary import disassembly
from kernels.launch.launches import Launch
from kernels.launch.triton_compile import compile_launch

# A line such as `/*0070*/  @!P0 IMAD.WIDE.U32 R2, R3, R4, RZ ;`, its predicate passed over.
_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
# The exit that every thread takes that comes there, in such a line: none behind it falls through.
_EXIT = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+EXIT\s*;", re.MULTILINE)
# A kernel that ends in a loop leaves by an exit with a condition, and else jumps back.
_JUMP = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+@!?U?P\w+\s+EXIT\s*;.*?\bBRA\b[^\n]*", re.M | re.S)


def instructions(launch: Launch, capability: int, routines: bool = True) -> Counter[str]:
    """Return how often each machine instruction stands in a recorded launch's kernel.

    Names are the assembler's, such as `IMAD.WIDE.U32`. Every instruction counts once, those in
    both branches of an `if` too, and a loop's once however often it runs: for a kernel without
    loops the sum is the most that a thread executes. What only fills the binary up is left out.
    Without `routines`, what stands behind the kernel's last exit is left out too: the compiler puts
    there what it calls in rare cases, as a division of the smallest numbers or a remainder of more
    than 32 bits. Kernels that were compiled together are disassembled together, once. LookupError
    if the binary has no kernel of that name.
    """
    name = launch.name.split("<")[0].strip()
    # C++ writes a name with its length before it; a template's goes on with I.
    wanted = re.compile(rf"{re.escape(name)}|_Z{len(name)}{re.escape(name)}.*")
    parts = _functions(compile_launch(launch, capability).cubin)
    found = [part for part in parts if wanted.fullmatch(part.splitlines()[0].strip())]
    if not found:
        raise LookupError(f"the binary of {launch.name!r} has no kernel of that name")
    if len(found) > 1:
        raise LookupError(
            f"the binary of {launch.name!r} has {len(found)} instances of it; compile one alone"
        )
    if not routines:
        *_, last = [*_JUMP.finditer(found[0]), *_EXIT.finditer(found[0])]
        return Counter(_LINE.findall(found[0][: last.end()]))
    counts = Counter(_LINE.findall(found[0]))
    # At the end stand a branch to itself and no-ops, up to a round address.
    counts["BRA"] -= 1
    del counts["NOP"]
    return +counts


@functools.lru_cache(maxsize=8)
def _functions(cubin: bytes) -> list[str]:
    """The text of each function of a binary. The disassembler takes long to start."""
    return disassembly(cubin).split("Function : ")[1:]
