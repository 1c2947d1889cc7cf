"""The sentence encoder against Hugging Face's BERT, small and with random weights."""

import pytest
import torch
from torch.nn import functional as F

from kernels.ops.layers.sentences import SentenceEncoder

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for one in model.parameters():  # else biases are 0, and norms do nothing
            one.add_(torch.randn_like(one) * 0.2)
    return model


def test_vectors_are_those_of_hugging_faces_bert(bert):
    ours = SentenceEncoder.from_bert(bert.state_dict(), n_heads=2)
    tokens = torch.randint(50, (3, 7), generator=torch.Generator().manual_seed(1))
    padding = torch.arange(7) >= torch.tensor([[7], [4], [1]])
    with torch.no_grad():
        hidden = bert(tokens, attention_mask=(~padding).long()).last_hidden_state
        there = (~padding)[..., None]
        wanted = F.normalize((hidden * there).sum(1) / there.sum(1), dim=-1)
        got = ours(tokens, padding)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        alone = ours(tokens[1:2, :4])
        half = ours.half()(tokens, padding)
    torch.testing.assert_close(alone, wanted[1:2], rtol=1e-5, atol=1e-5)
    assert float((half * wanted).sum(-1).min()) >= 0.999


def test_what_is_missing_or_too_long_is_told(bert):
    state = bert.state_dict()
    ours = SentenceEncoder.from_bert(state, n_heads=2)
    with pytest.raises(ValueError, match=r"tokens has the shape \(1, 13\); this model has 12 pos"):
        ours(torch.zeros(1, 13, dtype=torch.int64))
    del state["encoder.layer.1.output.dense.bias"]
    with pytest.raises(KeyError, match=r"encoder\.layer\.1\.output\.dense\.bias"):
        SentenceEncoder.from_bert(state, n_heads=2)
