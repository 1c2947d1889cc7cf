"""The encoder layer that normalises before its blocks, as an operation (chapter 14).

    h = x + dropout(attention(LayerNorm(x))),    y = h + dropout(MLP(LayerNorm(h)))

`encoder_layer` is the layer; shapes, costs and variants stand in `encoder_common`. Source: Xiong et
al., "On layer normalization in the transformer architecture" (arXiv:2002.04745).
"""

from __future__ import annotations

from kernels.ops.layers import encoder_common as common
from kernels.registry import register

NAME = "encoder_pre"
OP = register(common.op_of(NAME, norm_first=True))
