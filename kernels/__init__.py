"""Kernels, ledgers and exercises of the book Fusing Kernels.

Importing it installs one hook on Triton: a `@triton.jit` function called with CPU tensors is
interpreted, with every memory access checked; with GPU tensors it is compiled, as always.
"""

__version__ = "0.1.0"

from kernels.launch import KernelError, LaunchError, install

install()

__all__ = ["KernelError", "LaunchError", "__version__"]
