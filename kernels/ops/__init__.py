"""Every operation of the book, one file each. Importing this package registers them all."""

from kernels.ops.chains import bias_gelu_dropout_residual, geglu, swiglu
from kernels.ops.norms import add_layernorm, add_rmsnorm, layernorm, rmsnorm
from kernels.ops.softmax import softmax

__all__ = [
    "add_layernorm",
    "add_rmsnorm",
    "bias_gelu_dropout_residual",
    "geglu",
    "layernorm",
    "rmsnorm",
    "softmax",
    "swiglu",
]
