"""A stack of encoder layers, in place of `torch.nn.TransformerEncoder` (chapter 14)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from kernels.ops.layers.encoder_layer import FusedEncoderLayer, draw
from kernels.ops.layers.masks import seen_by
from kernels.ops.layers.states import check_state
from kernels.ops.norms.layernorm import layer_norm
from kernels.philox import threshold

Tensor = torch.Tensor


class FusedEncoder(nn.Module):
    """`num_layers` deep copies of a `FusedEncoderLayer`, one behind the other, and a last norm.

    Names of parameters are those of `torch.nn.TransformerEncoder`, so a `state_dict` goes either
    way. `norm` is an `nn.LayerNorm`, any other module, or None. As there, all layers begin with the
    same values: the copies'. TypeError or ValueError for what is none of these.
    """

    def __init__(
        self, encoder_layer: FusedEncoderLayer, num_layers: int, norm: nn.Module | None = None
    ) -> None:
        if not isinstance(encoder_layer, FusedEncoderLayer):
            raise TypeError(
                f"encoder_layer is a {type(encoder_layer).__name__}; it takes a FusedEncoderLayer"
            )
        if not isinstance(num_layers, int) or num_layers < 1:
            raise ValueError(f"num_layers is {num_layers!r}; it takes a whole number, 1 or more")
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As `torch.nn.Module`'s; RuntimeError tells in one sentence what doesn't fit."""
        check_state(self, state_dict, strict)
        return super().load_state_dict(state_dict, strict, assign)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """The layers of src in turn; arguments as of the layer's forward.

        The masks are made ready once for all layers, so is the layout, and the seeds of all
        dropouts are drawn in one launch. PyTorch compares `mask`
        with a causal one where `is_causal` is None, which waits for the GPU: here None is False.
        """
        first = self.layers[0]
        assert isinstance(first, FusedEncoderLayer)
        x, padding = first.batched(src, src_key_padding_mask)
        seen = seen_by(mask, padding, bool(is_causal), x, first.self_attn.num_heads)
        layers = [one for one in self.layers if isinstance(one, FusedEncoderLayer)]
        drops = any(threshold(p) for one in layers for p in one.probabilities())
        seeds = draw(x.device, len(layers)).unbind() if drops else [None] * len(layers)
        for layer, drawn in zip(layers, seeds, strict=True):
            x = layer.through(x, seen, drawn)
        if type(self.norm) is nn.LayerNorm and len(self.norm.normalized_shape) == 1:
            x = layer_norm(x, self.norm.weight, self.norm.bias, self.norm.eps)
        elif self.norm is not None:
            x = self.norm(x)
        return first.unbatched(x, src)
