"""What the tensors of an encoder layer's training step are called in chapter 15.

    qkv = LN(x) · Wᵀ + b,    o = attention(qkv), L its log-sum-exp,    h = x + dropout(o · Woᵀ + bo)
    u = LN(h) · W1ᵀ + b1,    a = dropout(gelu(u)),                     y = h + dropout(a · W2ᵀ + b2)

Post-LN the norms stand behind the sums: h = LN(s1), y = LN(s2).
"""

from __future__ import annotations

from torch import nn

from kernels.ops.layers.encoder_layer import FusedEncoderLayer

_ATTENTIONS = ("cudnn", "flash", "efficient")
_STATISTICS = ("mean", "1/std")


def names_of(layer: nn.TransformerEncoderLayer) -> dict[str, str]:
    """Names for `training_step` of a layer with dropout, PyTorch's or ours."""
    return _ours(layer) if isinstance(layer, FusedEncoderLayer) else _pytorchs(layer)


def _numbered(operator: str, *names: str) -> dict[str, str]:
    return {f"{operator} {n}": name for n, name in enumerate(names, 1)}


def _of_norm(rows: str) -> tuple[str, ...]:
    return tuple(f"{one} of {rows}" for one in _STATISTICS)


def _ours(layer: FusedEncoderLayer) -> dict[str, str]:
    products = ["o·Wo", "u", "a·W2"]
    added = ["LN(h)", "h", *_of_norm("h")]
    if not layer.norm_first:
        products.insert(0, "qkv")
        added = ["h", "s1", *_of_norm("s1"), "y", "s2", *_of_norm("s2")]
    found = {
        **_numbered("randint", "seeds"),
        **_numbered("norm_linear_with_grad", "qkv"),
        **_numbered("linear_with_grad", *products),
        **_numbered("attention_with_grad", "o", "L"),
        **_numbered("dropout_add_layernorm_train", *added),
        **_numbered("attention", "o again"),
    }
    dropped = ["a", "y"]
    if layer.gelu_checkpoint:
        dropped = ["y"]
        found |= _numbered("dropped", "a", "a again") | _numbered("linear", "a·W2")
    if layer.norm_checkpoint:
        found |= _numbered("layer_norm", f"{added[0]} again")
    return found | _numbered("dropped_with_grad", *dropped)


def _pytorchs(layer: nn.TransformerEncoderLayer) -> dict[str, str]:
    norms = ["LN(x)", *_of_norm("x"), "LN(h)", *_of_norm("h")]
    sums, read = ["qkv", "h", "y"], "LN(x)"
    if not layer.norm_first:
        norms = ["h", *_of_norm("s1"), "y", *_of_norm("s2")]
        sums, read = ["qkv", "s1", "s2"], "x"
    attention = ("o", "L", "attention's seed", "attention's offset")
    dropped = ("dropout(o·Wo)", "mask behind attention", "a", "mask in the MLP")
    found = {
        **_numbered("native_layer_norm", *norms),
        **_numbered("clone", f"{read} laid out anew", "qkv laid out anew"),
        **_numbered("mm", "LN(x)·W" if layer.norm_first else "x·W"),
        **_numbered("add", *sums),
        **_numbered("addmm", "o·Wo", "u", "a·W2"),
        **_numbered("gelu", "gelu(u)"),
        **_numbered("native_dropout", *dropped, "dropout(a·W2)", "mask behind the MLP"),
    }
    for one in _ATTENTIONS:
        found |= _numbered(f"scaled_dot_product_{one}_attention", *attention)
    return found
