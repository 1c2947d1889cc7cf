"""Running one `@triton.jit` function three ways: compiled, interpreted, or recorded."""

from kernels.launch.arena import Access
from kernels.launch.errors import KernelError, LaunchError
from kernels.launch.hook import install
from kernels.launch.launches import Launch, Launches, interpreting, recording
from kernels.launch.target import assume_capability, capability, for_card, multiprocessors

__all__ = [
    "Access",
    "KernelError",
    "Launch",
    "LaunchError",
    "Launches",
    "assume_capability",
    "capability",
    "for_card",
    "install",
    "interpreting",
    "multiprocessors",
    "recording",
]
