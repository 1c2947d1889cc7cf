"""The C++ names of the dtypes that kernels take."""

from __future__ import annotations

import torch

CUDA_TYPES = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}
