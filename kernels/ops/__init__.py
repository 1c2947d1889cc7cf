"""Every operation of the book, one file each. Importing this package registers them all."""

from kernels.ops import bias_gelu_dropout_residual, layernorm

__all__ = ["bias_gelu_dropout_residual", "layernorm"]
