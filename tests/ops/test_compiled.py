"""A variant through torch.compile is compiled for every shape, and never runs eagerly unsaid."""

from functools import partial

import pytest
import torch

from kernels.lab.measuring.cell_bench import without_fallback
from kernels.ops.attention import peers
from kernels.ops.shared.compiled import compiled_each

SHAPES = torch._dynamo.config.recompile_limit + 2


@pytest.fixture
def quick(monkeypatch):
    """Torch.compile without code generation: what is traced, and how often, stays as it is."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield
    torch._dynamo.reset()


def test_what_dynamo_would_leave_to_python_raises(quick):
    one_for_all = torch.compile(lambda x: x + 1, dynamic=False)

    def for_every_shape():
        for size in range(1, SHAPES + 1):
            one_for_all(torch.zeros(size))

    with without_fallback(), pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        for_every_shape()


def test_each_shape_has_a_graph_of_its_own(quick):
    call = compiled_each(lambda x: x + 1)
    with without_fallback():
        for size in range(1, SHAPES + 1):
            assert torch.equal(call(torch.zeros(size)), torch.ones(size))


def test_flex_attention_is_compiled_for_every_shape(quick):
    with without_fallback():
        for length in range(16, 16 * SHAPES + 1, 16):
            q = torch.randn(1, 1, length, 16)
            for causal in (False, True):
                wanted = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal)
                torch.testing.assert_close(peers.flex(q, q, q, causal), wanted)
