"""What is said when CUDA C++ source can't be compiled or run."""

from __future__ import annotations


class CudaError(ValueError):
    """Source, arguments or a machine that can't do what was asked; the message is one sentence.

    `line` is the line of the source, counted from 1, where one is to blame.
    """

    def __init__(self, sentence: str, *, line: int | None = None) -> None:
        super().__init__(sentence)
        self.line = line
