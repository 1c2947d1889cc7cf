"""CUDA C++ from a string: compiled for the GPU where there is one, emulated and counted elsewhere.

    module = cuda(source)
    module.add[blocks, threads](x, y, n)

The same text runs either way. With CUDA tensors NVRTC compiles it; with CPU tensors g++ does, every
access is checked, and the call returns exact `Counts`. Within `initcheck()`, a read of a tensor's
element that nobody has written is an error too.
"""

from kernels.cuda.emulator.initcheck import initcheck
from kernels.cuda.errors import CudaError
from kernels.cuda.module import Kernel, Module, cuda

__all__ = ["CudaError", "Kernel", "Module", "cuda", "initcheck"]
