"""Kernels, ledgers and exercises of the book Fusing Kernels.

Importing it installs one hook on Triton: a `@triton.jit` function called with CPU tensors is
interpreted, with every memory access checked; with GPU tensors it is compiled, as always.
"""

from kernels import _environment

_environment.ignore_triton_interpret()
_environment.warn_of_other_package()

from kernels.launch import KernelError, LaunchError, install  # noqa: E402

install()

__version__ = "0.1.0"
__all__ = ["KernelError", "LaunchError", "__version__"]
