"""Running one `@triton.jit` function three ways: compiled, interpreted, or recorded."""

from typing import TYPE_CHECKING, Any

from kernels.launch.again import ready
from kernels.launch.arena import Access
from kernels.launch.assembly import means
from kernels.launch.errors import KernelError, LaunchError
from kernels.launch.hook import install
from kernels.launch.launches import Launch, Launches, interpreting, recording
from kernels.launch.tape import lasting
from kernels.launch.target import assume_capability, capability, for_card, multiprocessors

if TYPE_CHECKING:
    from kernels.launch.triton_compile import compile_launch

__all__ = [
    "Access",
    "KernelError",
    "Launch",
    "LaunchError",
    "Launches",
    "assume_capability",
    "capability",
    "compile_launch",
    "for_card",
    "install",
    "interpreting",
    "lasting",
    "means",
    "multiprocessors",
    "ready",
    "recording",
]


def __getattr__(name: str) -> Any:
    if name != "compile_launch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kernels.launch.triton_compile import compile_launch  # slow to import, with its compiler

    return compile_launch
