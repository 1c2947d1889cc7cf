"""Every operation of the book, one file each. Importing this package registers them all."""

from kernels.ops import layernorm

__all__ = ["layernorm"]
