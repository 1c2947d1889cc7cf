"""Softmax in Helion, PyTorch's kernel language, one level above Triton.

Imported only where Helion is installed (`pip install helion`). Helion compiles the loop over tiles
of rows in each function below into one Triton kernel, which reads a row once.
"""

import helion.language as hl
import torch

from kernels.ops.shared.helion_rows import run


def _softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        values = x[rows, :].to(torch.float32)
        powers = torch.exp(values - torch.amax(values, dim=-1, keepdim=True))
        out[rows, :] = (powers / torch.sum(powers, dim=-1, keepdim=True)).to(x.dtype)
    return out


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of the rows of `x`, (rows, cols)."""
    return run(_softmax, x)
