"""What is said when a kernel does what it must not."""

from __future__ import annotations

Program = tuple[int, int, int]


class KernelError(Exception):
    """A kernel failed while it was interpreted; the message is one sentence.

    `kind` is "bounds" (an access outside its tensor), "race" (two programs meet at one address),
    "pointer" (an address that belongs to no argument) or "python" (the kernel's own code raised).
    `argument`, `index` (in elements from the argument's first) and `line` are None where they
    don't apply.
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
