"""What our kernels in Helion share: a configuration for rows of a width.

Imported only where Helion is installed (`pip install helion`).
"""

import functools
from collections.abc import Callable
from typing import Any

import helion
import torch


def num_warps(cols: int, itemsize: int) -> int:
    """Return the warps of a program for rows of `cols` elements of `itemsize` bytes.

    From one sweep of 1 to 32 on an H100, medians of 15 calls from a cold L2, launched from Python:
    coarse, and neighbours lie within its noise. Beside each row is the cell that it was chosen by.
    """
    if cols <= 1024:
        return 4  # 65536×1024 bf16: 93 µs (2 warps: 103)
    if cols <= 4096:
        return 8  # 4096×4096 bf16: 28.8 µs (4 warps: 29.3)
    if cols <= 8192 or itemsize == 4:
        return 16  # 16384×8192 bf16: 181.5 µs (4 warps: 182.4)
    return 8  # 8192×16384 bf16: 183 µs (4 warps: 209)


@functools.cache
def _kernel(rows: Callable[..., torch.Tensor], warps: int) -> Any:
    # One fixed configuration a width, so that nothing is searched for while a reader waits; left
    # without one, Helion times hundreds of them for every shape, for minutes.
    config = helion.Config(block_sizes=[1], num_warps=warps)
    return helion.kernel(rows, config=config, static_shapes=True)


def run(rows: Callable[..., torch.Tensor], x: torch.Tensor, *args: Any) -> torch.Tensor:
    """Run a kernel of rows on x, (rows, cols), in the configuration of its width."""
    kernel = _kernel(rows, num_warps(x.shape[-1], x.element_size()))
    result: torch.Tensor = kernel(x, *args)
    return result
