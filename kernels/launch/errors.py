"""What is said when a kernel does what it must not."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, NamedTuple

Program = tuple[int, int, int]


class Place(NamedTuple):
    """A line of a kernel, and its file if it is another than the kernel's own."""

    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        """As a message tells it: ", line 3 of helpers.py", or nothing where no line is known."""
        if self.line is None:
            return ""
        return f", line {self.line}" + (f" of {PurePath(self.file).name}" if self.file else "")


class KernelError(Exception):
    """A kernel failed while it was interpreted or emulated; the message is one sentence.

    `kind` is "bounds" (an access outside its tensor), "race" (two programs, or two threads of a
    block, meet at one address), "pointer" (an address that belongs to no argument), "python" (a
    Triton kernel's own code raised), "assert" (a device assertion failed) or "timeout" (a loop
    that never ends). CUDA C++ adds "uninitialised" (a read of what nobody wrote), "misaligned" (an
    address that is no multiple of the access's size), "barrier" (not all threads of a block reach
    one `__syncthreads()`), "collective" (a shuffle, vote or `__syncwarp()` whose mask doesn't fit
    the lanes that reach it), "shared" (more shared memory than there is, or none given), "stack"
    (too many local variables), "divide" (an integer division by zero) and "conversion" (a number
    that fits no integer, or a shift by more bits than there are). `argument`, `index` (in
    elements from the argument's first) and `line` are None where they don't apply; `file` is None
    where the line is in the kernel's own file.
    """

    def __init__(
        self,
        sentence: str,
        *,
        kind: str,
        kernel: str,
        program: Program,
        argument: str | None = None,
        index: int | None = None,
        line: int | None = None,
        file: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.kernel = kernel
        self.program = program
        self.argument = argument
        self.index = index
        self.line = line
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled by its positional arguments alone, and this one has others too.
        return _rebuilt, (type(self), str(self), dict(vars(self)))


def _rebuilt(kind: type[KernelError], sentence: str, state: dict[str, Any]) -> KernelError:
    error = kind.__new__(kind, sentence)
    vars(error).update(state)
    return error


class LaunchError(ValueError):
    """A launch that cannot be made: its arguments, grid or options; the message is one sentence."""
