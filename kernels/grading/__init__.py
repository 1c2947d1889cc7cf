"""Grading of the exercises: `check("02.2", my_layer_norm)` says what holds and what does not."""

from kernels.grading.checker import check
from kernels.grading.progress import progress
from kernels.grading.result import Result

__all__ = ["Result", "check", "progress"]
