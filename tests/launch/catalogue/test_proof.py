"""The proof of a kernel of the catalogue is not blind."""

import pytest
import torch

from kernels.launch.errors import KernelError
from tests.launch.catalogue.proof import cards_of, prove
from tests.launch.catalogue.test_tutorials import add_vectors


def test_bf16_is_compiled_for_cards_that_have_it():
    assert cards_of(torch.bfloat16) == [card for card in cards_of(torch.float16) if card != 75]
    assert 75 in cards_of(torch.float32)


@pytest.mark.parametrize(
    ("scale", "reads", "writes"),
    [(1.01, {"x": 16, "y": 16}, 16), (1, {"x": 16}, 16), (1, {"x": 16, "y": (16, 32)}, 16),
     (1, {"x": 16, "y": 16}, 12)],
)  # fmt: skip
def test_a_wrong_value_or_a_wrong_byte_fails(scale, reads, writes):
    x, y, out = torch.ones(4), torch.ones(4), torch.empty(4)
    with pytest.raises(AssertionError):
        prove(
            lambda: add_vectors[(1,)](x, y, out, 4, BLOCK_SIZE=4),
            torch.float32,
            [(out, scale * (x + y).double())],
            reads,
            {"output": writes},
        )


def test_an_access_outside_fails():
    x = torch.ones(4)
    with pytest.raises(KernelError):
        prove(lambda: add_vectors[(1,)](x, x, x, 5, BLOCK_SIZE=8), torch.float32, [], {}, {})
