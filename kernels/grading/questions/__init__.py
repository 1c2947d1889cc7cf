"""The questions, a module for each exercise set; importing this registers them all."""

from kernels.grading.questions import ch02, ch03

__all__ = ["ch02", "ch03"]
