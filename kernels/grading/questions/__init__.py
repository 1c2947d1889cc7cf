"""The questions, a module for each exercise set; importing this registers them all."""

from kernels.grading.questions import ch02

__all__ = ["ch02"]
