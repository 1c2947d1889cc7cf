"""The encoder layer that normalises behind its blocks, as an operation (chapter 14).

    h = LayerNorm(x + dropout(attention(x))),    y = LayerNorm(h + dropout(MLP(h)))

`encoder_layer` is the layer; shapes, costs and variants stand in `encoder_common`. Source: Vaswani
et al., "Attention is all you need" (arXiv:1706.03762).
"""

from __future__ import annotations

from kernels.ops.layers import encoder_common as common
from kernels.registry import register

NAME = "encoder_post"
OP = register(common.op_of(NAME, norm_first=False))
