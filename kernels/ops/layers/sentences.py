"""A sentence's meaning as a vector: BERT's embeddings, a `FusedEncoder`, a mean (chapter 14).

    x = LayerNorm(word + position + type)      of each token
    y = encoder(x)                             post-LN, GELU with the error function
    v = Σ y / n over the tokens that are there,   e = v / ‖v‖

The cosine of two sentences is the product of their e. The weights are those of
`sentence-transformers/all-MiniLM-L6-v2`: 6 layers, 384 wide, 12 heads, 1,536 inside of the MLP.

Sources: Reimers, Gurevych, "Sentence-BERT" (arXiv:1908.10084); Wang et al., "MiniLM"
(arXiv:2002.10957).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.norms.layernorm import layer_norm

Tensor = torch.Tensor

EPS = 1e-12  # BERT's
# The encoder layer's names, and BERT's for the same parameters.
_NAMES = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


class SentenceEncoder(nn.Module):
    """BERT's encoder with a mean over its tokens: (B, S) numbers of words to (B, E) vectors."""

    def __init__(
        self, n_words: int, n_positions: int, width: int, n_heads: int, inner: int, n_layers: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, width)
        self.positions = nn.Embedding(n_positions, width)
        self.types = nn.Embedding(2, width)  # of a first and a second sentence; here all are first
        self.norm = nn.LayerNorm(width, EPS)
        layer = FusedEncoderLayer(
            width, n_heads, inner, activation="gelu", layer_norm_eps=EPS, batch_first=True
        )
        self.encoder = FusedEncoder(layer, n_layers)

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """Vectors of length 1, (B, E), of tokens int64 (B, S); padding bool (B, S), True for none.

        ValueError for sequences that are longer than there are positions.
        """
        length = tokens.shape[1]
        if length > self.positions.num_embeddings:
            raise ValueError(
                f"tokens has the shape {tuple(tokens.shape)}; this model has "
                f"{self.positions.num_embeddings} positions"
            )
        places = self.positions.weight[:length] + self.types.weight[0]
        x = layer_norm(self.words(tokens) + places, self.norm.weight, self.norm.bias, EPS)
        y = self.encoder(x, src_key_padding_mask=padding).float()
        if padding is None:
            mean = y.mean(1)
        else:
            there = (~padding)[..., None].to(y.dtype)
            mean = (y * there).sum(1) / there.sum(1)
        return nn.functional.normalize(mean, dim=-1)

    @classmethod
    def from_bert(cls, state: Mapping[str, Tensor], n_heads: int) -> SentenceEncoder:
        """A model in eval() with the weights of a BERT's `state_dict`, as the hub has them.

        KeyError names a weight that is missing.
        """
        words, positions = (
            state[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position")
        )
        n_layers = sum(one.endswith(".intermediate.dense.weight") for one in state)
        inner = len(state["encoder.layer.0.intermediate.dense.weight"])
        model = cls(*(len(words), len(positions), words.shape[1]), n_heads, inner, n_layers)
        found = {
            "words.weight": words,
            "positions.weight": positions,
            "types.weight": state["embeddings.token_type_embeddings.weight"],
            "norm.weight": state["embeddings.LayerNorm.weight"],
            "norm.bias": state["embeddings.LayerNorm.bias"],
        }
        for number in range(n_layers):
            theirs, ours = f"encoder.layer.{number}.", f"encoder.layers.{number}."
            for kind in ("weight", "bias"):
                of_each = [state[f"{theirs}attention.self.{n}.{kind}"] for n in _PROJECTIONS]
                found[f"{ours}self_attn.in_proj_{kind}"] = torch.cat(of_each)  # one product of all
                for name, their_name in _NAMES.items():
                    found[f"{ours}{name}.{kind}"] = state[f"{theirs}{their_name}.{kind}"]
        model.load_state_dict(found)
        return model.eval()


_PROJECTIONS = ("query", "key", "value")
