"""Running one `@triton.jit` function three ways: compiled, interpreted, or recorded."""

from kernels.launch.arena import Access
from kernels.launch.errors import KernelError, LaunchError
from kernels.launch.hook import Launch, Launches, install, interpreting, recording

__all__ = [
    "Access",
    "KernelError",
    "Launch",
    "LaunchError",
    "Launches",
    "install",
    "interpreting",
    "recording",
]
