"""LayerNorm, RMSNorm and softmax in Helion, PyTorch's kernel language, one level above Triton.

Imported only where Helion is installed (`pip install helion`). Helion compiles the loop over tiles
of rows in each function below into one Triton kernel, which reads a row once.
"""

import functools
from collections.abc import Callable
from typing import Any

import helion
import helion.language as hl
import torch


def _layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
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


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        values = x[rows, :].to(torch.float32)
        inv_rms = torch.rsqrt(torch.mean(values * values, dim=-1, keepdim=True) + eps)
        scaled = values * inv_rms * weight[:].to(torch.float32)[None, :]
        out[rows, :] = scaled.to(x.dtype)
    return out


def _softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        values = x[rows, :].to(torch.float32)
        powers = torch.exp(values - torch.amax(values, dim=-1, keepdim=True))
        out[rows, :] = (powers / torch.sum(powers, dim=-1, keepdim=True)).to(x.dtype)
    return out


@functools.cache
def _kernel(rows: Callable[..., torch.Tensor], warps: int) -> Any:
    # One fixed configuration a width, so that nothing is searched for while a reader waits; left
    # without one, Helion times hundreds of them for every shape, for minutes.
    config = helion.Config(block_sizes=[1], num_warps=warps)
    return helion.kernel(rows, config=config, static_shapes=True)


def _run(rows: Callable[..., torch.Tensor], x: torch.Tensor, *args: Any) -> torch.Tensor:
    kernel = _kernel(rows, num_warps(x.shape[-1], x.element_size()))
    result: torch.Tensor = kernel(x, *args)
    return result


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Normalise the rows of `x`, (rows, cols); weight and bias are (cols,), both given."""
    return _run(_layer_norm, x, weight, bias, eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """RMSNorm of the rows of `x`, (rows, cols); weight is (cols,)."""
    return _run(_rms_norm, x, weight, eps)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of the rows of `x`, (rows, cols)."""
    return _run(_softmax, x)
