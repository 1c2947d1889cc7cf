"""Importing it loads NVRTC, where it is installed: a process that forks has it in all its forks."""

import contextlib

from kernels.cuda.cuda_compile import no_compiler

with contextlib.suppress(Exception):  # what is wrong with it is told where it is used
    no_compiler()
