"""LayerNorm and RMSNorm in Helion, PyTorch's kernel language, one level above Triton.

Imported only where Helion is installed (`pip install helion`). Helion compiles the loop over tiles
of rows in each function below into one Triton kernel, which reads a row once.
"""

import helion.language as hl
import torch

from kernels.ops.shared.helion_rows import run


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


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        values = x[rows, :].to(torch.float32)
        inv_rms = torch.rsqrt(torch.mean(values * values, dim=-1, keepdim=True) + eps)
        scaled = values * inv_rms * weight[:].to(torch.float32)[None, :]
        out[rows, :] = scaled.to(x.dtype)
    return out


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Normalise the rows of `x`, (rows, cols); weight and bias are (cols,), both given."""
    return run(_layer_norm, x, weight, bias, eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """RMSNorm of the rows of `x`, (rows, cols); weight is (cols,)."""
    return run(_rms_norm, x, weight, eps)
