"""Every operation of the book, one file each. Importing this package registers them all."""

from kernels.ops import (
    add_layernorm,
    add_rmsnorm,
    bias_gelu_dropout_residual,
    layernorm,
    rmsnorm,
    softmax,
)

__all__ = [
    "add_layernorm",
    "add_rmsnorm",
    "bias_gelu_dropout_residual",
    "layernorm",
    "rmsnorm",
    "softmax",
]
