"""What is said when a kernel does what it must not."""

from __future__ import annotations

Program = tuple[int, int, int]


class KernelError(Exception):
    """A kernel failed while it was interpreted or emulated; the message is one sentence.

    `kind` is "bounds" (an access outside its tensor), "race" (two programs, or two threads of a
    block, meet at one address), "pointer" (an address that belongs to no argument) or "python" (a
    Triton kernel's own code raised). CUDA C++ adds "uninitialised" (a read of what nobody wrote),
    "misaligned" (an address that is no multiple of the access's size), "barrier" (not all threads
    of a block reach one `__syncthreads()`), "collective" (a shuffle, vote or `__syncwarp()` whose
    mask doesn't fit the lanes that reach it), "shared" (more shared memory than there is, or none
    given), "stack" (too many local variables), "divide" (an integer division by zero) and
    "timeout". `argument`, `index` (in elements from the argument's first) and `line` are None
    where they don't apply.
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
    ) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.kernel = kernel
        self.program = program
        self.argument = argument
        self.index = index
        self.line = line


class LaunchError(ValueError):
    """A launch that cannot be made: its arguments, grid or options; the message is one sentence."""
