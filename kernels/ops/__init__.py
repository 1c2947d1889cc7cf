"""Every operation of the book, one file each. Importing this package registers them all."""

from kernels.ops.attention import attention
from kernels.ops.chains import (
    activation_dropout,
    bias_gelu_dropout_residual,
    dropout_add_layernorm,
    dropout_residual,
    geglu,
    layernorm_gelu,
    layernorm_gelu_dropout_residual,
    swiglu,
)
from kernels.ops.epilogues import (
    geglu_mlp,
    linear_bias_gelu,
    linear_bias_residual,
    linear_swiglu,
    qkv,
    swiglu_mlp,
)
from kernels.ops.layers import encoder_post, encoder_pre
from kernels.ops.losses import linear_cross_entropy
from kernels.ops.norms import add_layernorm, add_rmsnorm, layernorm, rmsnorm
from kernels.ops.products import linear
from kernels.ops.prologues import (
    layernorm_fp8_linear,
    layernorm_linear,
    layernorm_linear_gelu,
    rmsnorm_linear,
)
from kernels.ops.softmax import softmax

__all__ = [
    "activation_dropout",
    "add_layernorm",
    "add_rmsnorm",
    "attention",
    "bias_gelu_dropout_residual",
    "dropout_add_layernorm",
    "dropout_residual",
    "encoder_post",
    "encoder_pre",
    "geglu",
    "geglu_mlp",
    "layernorm",
    "layernorm_fp8_linear",
    "layernorm_gelu",
    "layernorm_gelu_dropout_residual",
    "layernorm_linear",
    "layernorm_linear_gelu",
    "linear",
    "linear_bias_gelu",
    "linear_bias_residual",
    "linear_cross_entropy",
    "linear_swiglu",
    "qkv",
    "rmsnorm",
    "rmsnorm_linear",
    "softmax",
    "swiglu",
    "swiglu_mlp",
]
