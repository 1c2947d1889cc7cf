"""LayerNorm in Helion, PyTorch's own kernel language: the same idea as `fused`, one level higher.

Imported only where Helion is installed (`pip install helion`). Helion compiles the loop over tiles
below into one Triton kernel.
"""

import functools
from typing import Any

import helion
import helion.language as hl
import torch


def _rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        values = x[rows, :].to(torch.float32)
        # Two passes over a row that is in registers: the mean first, then the distances from it.
        centred = values - torch.mean(values, dim=-1, keepdim=True)
        variance = torch.mean(centred * centred, dim=-1, keepdim=True)
        scaled = centred * torch.rsqrt(variance + eps)
        scaled = scaled * weight[:].to(torch.float32)[None, :] + bias[:].to(torch.float32)[None, :]
        out[rows, :] = scaled.to(x.dtype)
    return out


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
def _kernel(warps: int) -> Any:
    # One fixed configuration a width, so that nothing is searched for while a reader waits; left
    # without one, Helion times hundreds of them for every shape, for minutes.
    config = helion.Config(block_sizes=[1], num_warps=warps)
    return helion.kernel(_rows, config=config, static_shapes=True)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Normalise the rows of `x`, (rows, cols); weight and bias are (cols,), both given."""
    result: torch.Tensor = _kernel(num_warps(x.shape[-1], x.element_size()))(x, weight, bias, eps)
    return result
