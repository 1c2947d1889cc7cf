"""How much memory inference of an encoder takes beside its input and parameters, by a formula.

A tensor lives from the launch that writes it to the last one that reads it. In numbers a token, of
width E with I inside of the MLP, pre-LN:

    LN + QKV            LayerNorm(x) E, qkv 3E
    attention           qkv 3E, o E
    product + residual  o E, h E
    LN                  h E, LayerNorm(h) E
    product + GELU      h E, LayerNorm(h) E, a I
    product + residual  h E, a I, y E

so at most max(4E, 2E + I) at once: with I = 4E it is 6·B·S·E numbers. Where the norms are folded
into their products no LayerNorm(x) lives, and neither LayerNorm(h). The most stays the same: it
lives in attention or in the last product, which read neither. Post-LN the last norm reads
what the last product left: max(4E, 3E + I). In a stack x of the layer is one more, E, which the
layer before has written. DeepSpeed's layer sets aside 4·B·S·E for inference, to which what is I
wide comes on top.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer

GRAIN = 512  # bytes: PyTorch's allocator on a GPU gives multiples of it


class Alive(NamedTuple):
    """A step of the layer, and the tensors that live while it runs: numbers a token, by name."""

    step: str
    tensors: dict[str, int]


def lifetimes(
    layer: FusedEncoderLayer, stacked: bool = False, folded: bool = False
) -> tuple[Alive, ...]:
    """What lives in inference, step by step; `stacked` where a layer before it has written x.

    `folded` where a norm and the product behind it are one launch, pre-LN on Hopper.
    """
    e, i = layer.self_attn.embed_dim, layer.linear1.out_features
    x = {"x": e} if stacked else {}
    found = [
        Alive("QKV", {**x, "qkv": 3 * e}),
        Alive("attention", {**x, "qkv": 3 * e, "o": e}),
    ]
    if layer.norm_first:
        of_x, of_h = ({}, {}) if folded else ({"LayerNorm(x)": e}, {"LayerNorm(h)": e})
        before = "LN + " if folded else ""
        found[0] = Alive("LN + QKV", {**x, **of_x, "qkv": 3 * e})
        found.append(Alive("product + residual", {**x, "o": e, "h": e}))
        if not folded:
            found.append(Alive("LN", {**x, "h": e, **of_h}))
        found += [
            Alive(f"{before}product + GELU", {**x, "h": e, **of_h, "a": i}),
            Alive("product + residual", {**x, "h": e, "a": i, "y": e}),
        ]
    else:
        found += [
            Alive("product + residual", {**x, "o": e, "sum": e}),
            Alive("LN", {**x, "o": e, "sum": e, "h": e}),
            Alive("product + GELU", {**x, "h": e, "a": i}),
            Alive("product + residual", {**x, "h": e, "a": i, "sum": e}),
            Alive("LN", {**x, "h": e, "a": i, "sum": e, "y": e}),
        ]
    return tuple(found)


def workspace_bytes(
    encoder: FusedEncoder | FusedEncoderLayer,
    batch: int,
    length: int,
    itemsize: int,
    grain: int = GRAIN,
) -> int:
    """The most bytes alive at once in inference of (batch, length) tokens of `itemsize` bytes.

    The output is among them; the input, parameters, folded weights and masks are not. Each tensor
    takes a multiple of `grain` bytes. Src is batch first, or its copy comes on top.
    """
    layers = list(encoder.layers) if isinstance(encoder, FusedEncoder) else [encoder]
    tokens = batch * length * itemsize

    def taken(width: int) -> int:
        return -(-width * tokens // grain) * grain

    steps: list[list[int]] = []
    for place, layer in enumerate(layers):
        assert isinstance(layer, FusedEncoderLayer)
        told = lifetimes(layer, stacked=place > 0)
        steps += [[taken(width) for width in one.tensors.values()] for one in told]
    if isinstance(encoder, FusedEncoder) and isinstance(encoder.norm, nn.LayerNorm):
        width = encoder.norm.normalized_shape[-1]
        steps.append([taken(width), taken(width)])
    return max(map(sum, steps))
